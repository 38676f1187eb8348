"""Columns of file names of pictures, and columns of text: the features of a party whose table has one of them."""

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from lightning_utilities.core.rank_zero import rank_zero_info

from lightning_vfl.errors import ConfigurationError

from .column_encoder import ColumnEncoder
from .party_tables import listed, refuse_missing, refuse_unknown_parties

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from .party_tables import PartyTable

_THREADS = 4
_WORD = re.compile(r"\w+(?:['’]\w+)*")
_PADDING, _UNKNOWN = 0, 1
_FIRST = 2  # the number of the first word


class ModalColumn(ColumnEncoder):
    """A column that is all features of its party, of a shape of their own, with a scaling that nothing is fitted to."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Of the features of one record."""

    @property
    @abstractmethod
    def scaling(self) -> tuple[float, float]:
        """Shift and scale of each number: a feature is (number - shift) / scale."""

    @property
    def of_texts(self) -> bool:
        return True

    @cached_property
    def names(self) -> tuple[str, ...]:  # thousands of names are made once
        return tuple(f"{self.column}.{place}" for place in range(prod(self.shape)))


@dataclass(frozen=True)
class PictureColumn(ModalColumn):
    """Names of picture files, PNG or JPEG: the middle of a picture, its shorter side resized.

    Args:
        column: the name of the column.
        size: S, the side in pixels.
        colour: red, green and blue; False: grey.
        folder: in which relative names are looked up.

    Shapes: (C, S, S), C 3 or 1, from -1 to 1.
    """

    column: str
    size: int = 64
    colour: bool = True
    folder: Path = Path()

    @property
    def shape(self) -> tuple[int, ...]:
        return (3 if self.colour else 1, self.size, self.size)

    @property
    def scaling(self) -> tuple[float, float]:
        return 0.5, 0.5

    def encode(self, values: "pd.Series[Any]", party: str) -> "NDArray[Any]":
        from .decoding import decoded, reason_of, what_is_wrong  # Pillow, where it is used

        refuse_missing(values, party)
        paths = [self.folder / str(name) for name in values]
        pixels = np.empty((len(paths), *self.shape), np.float32)

        def fill(row: int) -> str:
            """Why the picture cannot be used; "": it is decoded."""
            if wrong := what_is_wrong(paths[row], self.size, self.shape[0]):
                return wrong
            try:
                pixels[row] = decoded(paths[row], self.size, self.shape[0])
            except Exception as error:  # Pillow's errors for damaged pictures have no common class
                return reason_of(error)
            return ""

        with ThreadPoolExecutor(_THREADS) as pool:
            wrong = {row: why for row, why in enumerate(pool.map(fill, range(len(paths)))) if why}
        if wrong:
            row, why = next(iter(wrong.items()))
            raise ConfigurationError(
                f"{len(wrong)} of {len(paths)} pictures of column '{self.column}' of party '{party}' cannot be used, "
                f"first {paths[row]} of record {values.index[row]} ({why}); replace the files, or leave out the records"
            )
        return pixels.reshape(len(paths), -1) / np.float32(255)

    def state(self) -> dict[str, Any]:
        return {"kind": "pictures", "column": self.column, "size": self.size, "colour": self.colour}


@dataclass(frozen=True)
class TextColumn(ModalColumn):
    """Text as the numbers of its words, in lower case: 0 pads a text, 1 is a word that has no number.

    Args:
        column: the name of the column.
        words: the words with a number, from 2 on.
        length: L, the number of words of a text; what follows is cut off.
        fitted: whether the words are those of training records.

    Shapes: (L,) whole numbers. The length of a text is how many of them are above 0.
    """

    column: str
    words: tuple[str, ...]
    length: int = 64
    fitted: bool = True

    def taken(self) -> tuple[str, ...]:
        return ("the words of texts",) if self.fitted else ()

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.length,)

    @property
    def scaling(self) -> tuple[float, float]:
        return 0.0, 1.0

    def encode(self, values: "pd.Series[Any]", party: str) -> "NDArray[Any]":
        number = {word: place for place, word in enumerate(self.words, _FIRST)}
        numbers = np.full((len(values), self.length), _PADDING, np.float32)
        cut = unknown = every = 0
        for row, text in enumerate(_texts(values)):
            words = words_of(text)
            cut += len(words) > self.length
            some = [number.get(word, _UNKNOWN) for word in words[: self.length]]
            numbers[row, : len(some)] = some
            unknown += some.count(_UNKNOWN)
            every += len(some)
        if not every:
            raise ConfigurationError(
                f"column '{self.column}' of party '{party}' has no word in {len(values)} records; correct texts"
            )
        rank_zero_info(
            f"text '{self.column}' of party '{party}': {unknown / every:.1%} of the words have no number, {cut} of "
            f"{len(values)} texts are cut to {self.length} words"
        )
        return numbers

    def state(self) -> dict[str, Any]:
        return {
            "kind": "text",
            "column": self.column,
            "words": list(self.words),
            "length": self.length,
            "fitted": self.fitted,
        }


@dataclass(frozen=True)
class TextSetting:
    """How the text of a party becomes numbers.

    Args:
        column: the name of the column.
        words: how many words have a number: the most frequent of the training records.
        length: the number of words of a text.
        vocabulary: a file with a word on each line; then nothing is taken from the training records. None: ``words``.
    """

    column: str
    words: int = 10_000
    length: int = 64
    vocabulary: str | None = None

    def fit(self, values: "pd.Series[Any]", party: str) -> TextColumn:
        """The column, with the words of the training records or of the file.

        Raises:
            ConfigurationError: for a file that cannot be read, and no words.
        """
        if self.vocabulary is None:
            counts = Counter(word for text in _texts(values) for word in words_of(text))
            ranked = sorted(counts, key=lambda word: (-counts[word], word))
            words = ranked[: self.words]
        else:
            try:
                lines = Path(self.vocabulary).read_text(encoding="utf-8").split("\n")
            except (OSError, UnicodeDecodeError) as error:
                raise ConfigurationError(f"vocabulary of texts of party '{party}' cannot be read: {error}") from error
            words = list(dict.fromkeys(word.strip().lower() for word in lines if word.strip()))
        if not words:
            raise ConfigurationError(f"column '{self.column}' of party '{party}' has no word; correct texts")
        return TextColumn(self.column, tuple(words), self.length, self.vocabulary is None)


ModalSetting = PictureColumn | TextSetting


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case.

    Examples:
        >>> words_of("Don't buy it: 2 of 3 broke!")
        ["don't", 'buy', 'it', '2', 'of', '3', 'broke']
    """
    return _WORD.findall(text.lower())


def _texts(values: "pd.Series[Any]") -> Sequence[str]:
    """The texts; a missing one is empty."""
    texts: list[str] = values.astype(object).where(values.notna(), "").astype(str).tolist()
    return texts


def modal_settings(
    pictures: Mapping[str, Any] | None, texts: Mapping[str, Any] | None, parties: Collection[str]
) -> dict[str, ModalSetting]:
    """Party -> its column of pictures or of text.

    Args:
        pictures: party -> the column, or a mapping of ``column``, ``size`` and ``colour``.
        texts: party -> the column, or a mapping of ``column``, ``words``, ``length`` and ``vocabulary``.
        parties: all parties.

    Raises:
        ConfigurationError: for other settings.
    """
    settings: dict[str, ModalSetting] = {}
    for name, kind, by_party in (("pictures", PictureColumn, pictures), ("texts", TextSetting, texts)):
        if by_party is not None and not isinstance(by_party, Mapping):
            raise ConfigurationError(f"{name} must give a party its column, such as {{shop: review}}; got {by_party!r}")
        refuse_unknown_parties(name, by_party or (), parties)
        for party, value in (by_party or {}).items():
            if party in settings:
                raise ConfigurationError(f"party '{party}' is named by pictures and by texts; leave it out of one")
            settings[party] = _setting(f"{name} of party '{party}'", kind, value)
    return settings


def _setting(where: str, kind: type[ModalSetting], value: Any) -> ModalSetting:
    values = {"column": value} if isinstance(value, str) else value
    known = [name for name in kind.__dataclass_fields__ if name != "folder"]
    if not isinstance(values, Mapping) or "column" not in values or not {*values} <= {*known}:
        raise ConfigurationError(f"{where} must be a column, or a mapping of {', '.join(known)}; got {value!r}")
    for name, least in (("size", 1), ("words", 1), ("length", 1)):
        number = values.get(name, least)
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ConfigurationError(f"{where}: {name} must be a whole number of at least {least}; got {number!r}")
    return kind(**values)


def modal_column(state: Mapping[str, Any]) -> ModalColumn:
    """The column of a state."""
    values = {name: value for name, value in state.items() if name != "kind"}
    if state["kind"] == "pictures":
        return PictureColumn(**values)
    return TextColumn(**values | {"words": tuple(values["words"])})


def located(encoders: Sequence[ColumnEncoder], folder: Path) -> tuple[ColumnEncoder, ...]:
    """The encoders, with the folder in which names of pictures are looked up."""
    return tuple(replace(e, folder=folder) if isinstance(e, PictureColumn) else e for e in encoders)


def fit_modal(setting: ModalSetting, table: "PartyTable", trained: "NDArray[np.bool_]", party: str) -> ModalColumn:
    """The party's column, which must be the only one besides ids and labels.

    Args:
        setting: which column it is.
        table: the columns.
        trained: (N,) which rows are training records.
        party: the name of the party, for errors.

    Raises:
        ConfigurationError: without the column, and for other columns.
    """
    if setting.column not in table:
        raise ConfigurationError(
            f"party '{party}' has no column '{setting.column}', only {listed(table)}; correct pictures or texts"
        )
    if others := [str(name) for name in table if name != setting.column]:
        raise ConfigurationError(
            f"'{setting.column}' is all features of party '{party}', whose table also has {listed(others)}; leave "
            "these columns out, or give them to a party of their own"
        )
    if isinstance(setting, PictureColumn):
        return setting
    return setting.fit(table[setting.column][trained], party)
