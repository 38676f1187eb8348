"""The table of one party in a CSV or Parquet file: reading it, its ids, and its columns as numbers."""

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from lightning_utilities.core.rank_zero import rank_zero_warn

from lightning_vfl.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

PARQUET = (".parquet", ".pq")
"""The endings of Parquet files; all others are CSV."""
MISSING = ["", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A"]
"""The texts that pandas takes for a missing cell in every column of a CSV file, unless it is told others."""
MISSING += ["NA", "NULL", "NaN", "None", "n/a", "nan", "null"]
TRUTHS = {"true": 1.0, "yes": 1.0, "t": 1.0, "y": 1.0, "1": 1.0, "1.0": 1.0}
"""What true and false may be written as, in lower case."""
TRUTHS |= {"false": 0.0, "no": 0.0, "f": 0.0, "n": 0.0, "0": 0.0, "0.0": 0.0}


CODE = r"\s*[-+]?0[0-9]"
"""How the text of a code begins: 007 is no number."""


class PartyTable(Protocol):
    """The columns of a party's table by name, and its ids: a pandas table, or one whose columns are read when asked."""

    @property
    def index(self) -> "pd.Index[Any]":
        """The ids of the rows."""
        ...

    @property
    def columns(self) -> Any:
        """The names of the columns."""
        ...

    def __len__(self) -> int:
        """The number of rows."""
        ...

    def __iter__(self) -> Iterator[Any]:
        """The names of the columns."""
        ...

    def __contains__(self, name: Any) -> bool:
        """Whether there is a column of this name."""
        ...

    def __getitem__(self, name: Any) -> Any:
        """The column of this name, a Series with the ids as index; or of a list of names a table with these columns."""
        ...


class CSVForm(NamedTuple):
    """How the fields of a CSV file are written.

    Args:
        separator: the character between two fields.
        encoding: of the text, as Python names it.
    """

    separator: str = ","
    encoding: str = "utf-8"


CSV = CSVForm()


def csv_forms(
    parties: Collection[str], separator: str | Mapping[str, str], encoding: str | Mapping[str, str]
) -> dict[str, CSVForm]:
    """Party -> how its file is written.

    Raises:
        ConfigurationError: for a party without a table, a separator of several characters, and an encoding that
            Python does not have.
    """
    separators = by_party("separator", separator, parties, ",")
    tabs = {party: "\t" for party, mark in separators.items() if mark == r"\t"}  # as YAML and shells leave it
    for mark in (separators := {**separators, **tabs}).values():
        if len(mark) != 1:
            raise ConfigurationError(rf"separator must be one character, such as ';' or '\t' for a tab; got {mark!r}")
    encodings = by_party("encoding", encoding, parties, "utf-8")
    for name in encodings.values():
        try:
            "".encode(name)
        except LookupError:
            raise ConfigurationError(f"encoding '{name}' is unknown; use utf-8, cp1252, latin-1 or utf-16") from None
    return {party: CSVForm(separators[party], encodings[party]) for party in parties}


def check_id_column(names: "Collection[str] | pd.DataFrame", path: Path, party: str, id_column: str) -> None:
    """Accept columns with the column of the ids among them.

    Raises:
        ConfigurationError: if it is missing.
    """
    if id_column not in names:
        mark = other_separator(names)
        fix = "correct id_column or separator" if mark is None else f"give separator {mark!r}"
        raise ConfigurationError(
            f"{path} of party '{party}' has no id column '{id_column}', only {listed(names)}; {fix}"
        )


def other_separator(names: Iterable[object]) -> str | None:
    """What separates the fields of a header that was read as one field; None: nothing that files usually have."""
    header = [str(name) for name in names]
    return next((mark for mark in ";\t|," if mark in header[0]), None) if len(header) == 1 else None


def refuse_equal_names(names: Sequence[str], path: Path, party: str) -> None:
    """Accept columns that each have a name of their own; pandas would call the second of two ``name.1``.

    Raises:
        ConfigurationError: for a name that two columns have.
    """
    counts = Counter(names)
    if twice := next((name for name in names if counts[name] > 1), None):
        raise ConfigurationError(
            f"{path} of party '{party}' has {counts[twice]} columns called '{twice}', of which one may be a copy "
            "of the other; give each column its own name"
        )


def check_ids(ids: "pd.Series[Any]", path: Path, party: str) -> "pd.Series[Any]":
    """Accept ids that are texts or whole numbers, none missing and each once.

    Raises:
        ConfigurationError: for other ids.
    """
    if ids.empty:
        raise ConfigurationError(f"{path} of party '{party}' holds no record; correct tables")
    if missing := int(ids.isna().sum()):
        raise ConfigurationError(f"{missing} records of party '{party}' have no id; add ids or remove the records")
    if kind_of(ids) not in ("whole numbers", "text") or (ids.dtype == np.uint64 and int(ids.max()) >= 2**63):
        raise ConfigurationError(
            f"ids of party '{party}' are {ids.dtype} (first {ids.iloc[0]}); write them as text or as whole numbers "
            "of 63 bits"
        )
    twice = ids.duplicated()
    if twice.any():
        raise ConfigurationError(
            f"{int(twice.sum())} ids of party '{party}' are duplicates, first {ids[twice].iloc[0]}; "
            "keep one record of each id"
        )
    return ids


def csv_options(form: CSVForm, spaces: bool = True) -> dict[str, Any]:
    """How every CSV file is read; ``spaces``: whether blanks in front of a field are to be left out."""
    return {"sep": form.separator, "encoding": form.encoding, "index_col": False, "skipinitialspace": spaces}


def missing_cells(names: Iterable[str], ids: Collection[str]) -> dict[str, Any]:
    """The options of a CSV file's reader that say which texts are missing cells: of ids, empty ones alone.

    Args:
        names: of all columns.
        ids: the columns of the ids, in which NA, null and None are texts like others.
    """
    of_columns = {name: [""] if name in ids else MISSING for name in names}
    return {"na_values": of_columns, "keep_default_na": False}


@contextmanager
def csv_warnings() -> Iterator[None]:
    """Make errors of the warnings with which pandas reads a CSV file wrongly."""
    import pandas as pd

    with warnings.catch_warnings():
        # pandas only warns of rows longer than the header, and drops their surplus
        warnings.simplefilter("error", pd.errors.ParserWarning)
        warnings.simplefilter("error", pd.errors.DtypeWarning)
        yield


def canonical_ids(ids: "pd.Series[Any]") -> "pd.Series[Any]":
    """Texts of ids as numbers if each of them is a number as it is usually written, else unchanged.

    So 007 stays 007 in predictions. Texts that are fractions become numbers too, which are refused as ids.

    Examples:
        >>> import pandas as pd
        >>> canonical_ids(pd.Series(["7", "12"])).tolist(), canonical_ids(pd.Series(["007", "12"])).tolist()
        ([7, 12], ['007', '12'])
    """
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc

    if kind_of(ids) != "text" or ids.isna().any() or ids.empty:
        return ids
    texts = ids.astype(str).str.strip()
    try:  # a number is written as usual if it is written like this again
        cells = pa.array(texts, from_pandas=True)
        whole = pc.cast(cells, pa.int64())
        ends = pc.min_max(whole).as_py()
        usual = pc.all(pc.equal(pc.cast(whole, cells.type), cells)).as_py()
        if usual and ends["min"] > -(10**18) and ends["max"] < 10**18:
            return pd.Series(whole.to_numpy(), ids.index, name=ids.name)
    except pa.ArrowInvalid:
        pass
    numbers = pd.to_numeric(texts, errors="coerce")
    fractions = numbers.notna().all() and texts.str.contains(".", regex=False).any()
    return numbers.astype(np.float64) if fractions else texts


def common_ids(tables: "Mapping[str, PartyTable]", needed: Iterable[tuple[str, ...]]) -> "NDArray[np.generic]":
    """The sorted ids that at least one table of each of the needed groups holds.

    Raises:
        ConfigurationError: if there are none.
    """
    held = [[plain_ids(tables[party].index) for party in group] for group in needed]
    # the ids of a table are unique; numpy takes several times as long if it has to find that out
    unique = [own[0] if len(own) == 1 else np.unique(np.concatenate(own)) for own in held]
    ids = reduce(partial(np.intersect1d, assume_unique=True), unique)
    if not len(ids):
        samples = ", ".join(f"{party} {table.index[0]}" for party, table in tables.items())
        raise ConfigurationError(
            f"the tables have no id in common (first ids: {samples}); correct id_column or the ids"
        )
    return np.sort(ids)


def read_labels(
    column: "pd.Series[Any]", party: str, classification: bool, trained: Sequence[int | str] = ()
) -> "tuple[NDArray[np.generic], tuple[int | str, ...]]":
    """(N,) labels: class numbers and the classes as the file has them, or real numbers and no classes.

    Args:
        column: the labels; their index is the ids.
        party: the name of the party, for errors.
        classification: whether labels are classes.
        trained: the classes of a trained model, in its order; empty: the classes of the column, sorted.

    Raises:
        ConfigurationError: for missing and empty labels, labels of different kinds, classes that are fractions, and
            classes that the trained model does not have.
    """
    refuse_missing(column, party)
    refuse_several(column, party, "name another label_column, or write each number into a column of its own")
    if not classification:
        return _real_labels(column, party), ()
    values = _as_classes(column, party, trained)
    if not trained:
        classes, labels = np.unique(values, return_inverse=True)
        if not str(classes[0]).strip():  # sorted first; an empty cell of a CSV file is a missing one
            empty = labels == 0
            raise ConfigurationError(
                f"{int(empty.sum())} labels '{column.name}' of party '{party}' are empty texts, first of record "
                f"{column.index[empty][0]}; fill them in or remove the records"
            )
        if len(classes) < 2:
            raise ConfigurationError(
                f"all {len(values)} labels '{column.name}' of party '{party}' are '{classes[0]}', and a classification "
                "needs two classes; correct label_column or add records of other classes"
            )
        return labels.astype(np.int64), tuple(classes.tolist())
    number = {name: c for c, name in enumerate(trained)}
    found = values.tolist()
    if unknown := [name for name in found if name not in number]:
        raise ConfigurationError(
            f"{len(unknown)} labels '{column.name}' of party '{party}' are no class of the model, first {unknown[0]}; "
            f"its classes are {listed(trained)}"
        )
    return np.array([number[name] for name in found], dtype=np.int64), tuple(trained)


def _real_labels(column: "pd.Series[Any]", party: str) -> "NDArray[np.float64]":
    """The labels of all records, finite in float32: a wrong one is found before training and not by a test."""
    numbers = numbers_of(column, party, "use task: classification")
    with np.errstate(over="ignore"):
        infinite = ~np.isfinite(numbers.astype(np.float32))  # as a loss takes them
    if infinite.any():
        raise ConfigurationError(
            f"{int(infinite.sum())} of the labels '{column.name}' of party '{party}' are infinite or beyond 3.4e38, "
            f"first of record {column.index[infinite][0]}; correct them or remove the records"
        )
    return numbers


def _as_classes(column: "pd.Series[Any]", party: str, trained: Sequence[int | str]) -> "NDArray[np.generic]":
    """(N,) the labels as they are written: whole numbers, or texts such as ``01`` and ``True``.

    ``1`` and ``1.0`` are the same number, which is told by a warning.
    """
    from pandas.api.types import is_bool_dtype, is_numeric_dtype

    texts = None if is_numeric_dtype(column) and not is_bool_dtype(column) else column.astype(str)
    if trained and all(isinstance(name, int) for name in trained):
        column = column if texts is None else texts
    elif texts is not None and (
        as_numbers(texts).isna().all()
        or by_text(texts, lambda cells: cells.str.match(CODE).to_numpy(dtype=np.bool_)).any()
    ):
        return texts.to_numpy(dtype=np.str_)
    elif any(isinstance(name, str) for name in trained):
        return column.astype(str).to_numpy(dtype=np.str_)
    elif texts is not None and (unlike := _forms(texts)):
        rank_zero_warn(f"label '{column.name}' of party '{party}' has {unlike}, which are the same class; write one")
    numbers = numbers_of(column, party, "write all labels in the same form")
    if not (np.isfinite(numbers) & (numbers == np.round(numbers))).all():
        raise ConfigurationError(
            f"labels '{column.name}' of party '{party}' are fractions, not classes; use task: regression"
        )
    return numbers.astype(np.int64)


def _forms(texts: "pd.Series[str]") -> str:
    """Two ways in which the texts write the same number; empty: there are none."""
    seen: dict[float, str] = {}
    forms = texts.drop_duplicates()
    for text, number in zip(forms, as_numbers(forms), strict=True):
        if seen.setdefault(number, text) != text:
            return f"'{seen[number]}' and '{text}'"
    return ""


def read_targets(columns: "pd.DataFrame", party: str, classification: bool) -> "NDArray[np.generic]":
    """(N, L) labels of several columns: int64 0 and 1, or float32 numbers.

    Raises:
        ConfigurationError: for missing values, and values that are neither.
    """
    found: list[NDArray[np.float64]] = []
    for name in columns:
        refuse_missing(columns[name], party)
        refuse_several(columns[name], party, "write each number into a column of its own")
        texts = columns[name].astype(str).str.strip().str.lower()
        if not classification:
            found.append(_real_labels(columns[name], party))
        elif texts.isin(TRUTHS).all():
            found.append(np.asarray(texts.map(TRUTHS), dtype=np.float64))
        else:
            raise ConfigurationError(
                f"label '{name}' of party '{party}' is neither true nor false in {int((~texts.isin(TRUTHS)).sum())} "
                "records; write 0 and 1, or give one label_column"
            )
    return np.column_stack(found).astype(np.int64 if classification else np.float32)


def read_weights(column: "pd.Series[Any]", party: str, train: "NDArray[np.int64]") -> "NDArray[np.float32]":
    """(n,) the sample weights of the training records, divided by their mean.

    Args:
        column: the weights of all records.
        party: the name of the party, for errors.
        train: positions of the training records.

    Raises:
        ConfigurationError: for weights that are missing, no numbers, negative or infinite, and if all are 0.
    """
    refuse_missing(column, party)
    weights = numbers_of(column, party, "name another sample_weight")
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        raise ConfigurationError(
            f"{int(bad.sum())} sample weights '{column.name}' of party '{party}' are negative or infinite, first of "
            f"record {column.index[bad][0]}; give numbers from 0"
        )
    own = weights[train]
    if not own.any():
        raise ConfigurationError(
            f"the sample weights '{column.name}' of all {len(own)} training records are 0; correct sample_weight"
        )
    scaled: NDArray[np.float32] = (own / own.mean()).astype(np.float32)
    return scaled


def kind_of(ids: "pd.Series[Any] | pd.Index[Any]") -> str:
    """``whole numbers``, ``text``, or the name of another dtype."""
    from pandas.api.types import is_integer_dtype, is_string_dtype

    if is_integer_dtype(ids):
        return "whole numbers"
    return "text" if is_string_dtype(ids) else str(ids.dtype)


def plain_ids(ids: "pd.Index[Any]") -> "NDArray[np.generic]":
    """The ids as int64, or as text."""
    plain: NDArray[np.generic] = ids.to_numpy(dtype=np.int64 if kind_of(ids) == "whole numbers" else np.str_)
    return plain


def listed(names: Iterable[object]) -> str:
    """The first twelve names, for errors."""
    some = [str(name) for name in names]
    return ", ".join(some[:12]) + (", ..." if len(some) > 12 else "")


def refuse_missing(column: "pd.Series[Any]", party: str) -> None:
    """Accept a column without missing values.

    Raises:
        ConfigurationError: if values are missing.
    """
    missing = column.isna()
    if missing.any():
        raise ConfigurationError(
            f"{int(missing.sum())} values of column '{column.name}' of party '{party}' are missing, first of record "
            f"{column.index[missing][0]}; fill them in or remove the records"
        )


def refuse_several(column: "pd.Series[Any]", party: str, fix: str) -> None:
    """Accept a column whose cells are single values; Parquet files and frames may have lists in them.

    Args:
        column: the cells; the index is the ids.
        party: the name of the party.
        fix: what to do about lists.

    Raises:
        ConfigurationError: for a cell that is a list, an array or a mapping.
    """
    if column.dtype != object:
        return
    several = column.map(lambda cell: isinstance(cell, list | tuple | set | dict | np.ndarray)).to_numpy(dtype=bool)
    if several.any():
        cell = column[several].iloc[0]
        shown = cell.tolist() if isinstance(cell, np.ndarray) else cell
        raise ConfigurationError(
            f"{int(several.sum())} cells of column '{column.name}' of party '{party}' are lists, first {shown} of "
            f"record {column.index[several][0]}; {fix}"
        )


def by_text(column: "pd.Series[Any]", read: "Callable[[pd.Series[Any]], NDArray[Any]]") -> "NDArray[Any]":
    """(N, ...) what ``read`` makes of the cells; of a column of texts, it reads each different text once."""
    import pandas as pd

    if column.dtype == object or not pd.api.types.is_string_dtype(column):  # as objects, 1 and True are equal
        return read(column)
    places, texts = pd.factorize(column, use_na_sentinel=False)
    found = read(pd.Series(texts, dtype=column.dtype, name=column.name))
    return found.T.take(places, axis=-1).T  # the numbers of a column side by side, as its readers want them


def as_numbers(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """The column's numbers, NaN for text, dates and other values."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        return column
    numbers = by_text(column.astype(str), lambda texts: pd.to_numeric(texts, errors="coerce").to_numpy())
    return pd.Series(numbers, column.index, name=column.name)


def numbers_of(column: "pd.Series[Any]", party: str, fix: str) -> "NDArray[np.float64]":
    """The column's numbers.

    Raises:
        ConfigurationError: if it holds text; ``fix`` says what else can be done about it.
    """
    numbers = as_numbers(column)
    text = numbers.isna()
    if text.any():
        first = f"first '{column[text].iloc[0]}' of record {column.index[text][0]}"
        count = int(text.sum())
        what = "is text" if text.all() else f"mixes {len(text) - count} numbers and {count} texts"
        raise ConfigurationError(f"column '{column.name}' of party '{party}' {what} ({first}); correct it or {fix}")
    return numbers.to_numpy(dtype=np.float64)


def by_party(setting: str, given: str | Mapping[str, str], parties: Iterable[str], usual: str) -> dict[str, str]:
    """Party -> its value of a setting that is given for all parties, or party -> value.

    Args:
        setting: its name, for errors.
        given: the value of all parties, or those of some.
        parties: all parties.
        usual: the value of a party that a mapping does not name.

    Raises:
        ConfigurationError: for a party that has no table, and for values that are no texts.

    Examples:
        >>> by_party("id_column", {"telco": "customer"}, ["bank", "telco"], "id")
        {'bank': 'id', 'telco': 'customer'}
    """
    names = list(parties)
    if isinstance(given, str):
        return dict.fromkeys(names, given)
    refuse_unknown_parties(setting, given, names)
    if wrong := [value for value in given.values() if not isinstance(value, str) or not value]:
        raise ConfigurationError(f"{setting} must be a text, or a text for each party; got {wrong[0]!r}")
    return {name: given.get(name, usual) for name in names}


def refuse_unknown_parties(setting: str, named: Iterable[str], parties: Collection[str]) -> None:
    """Accept names of parties that have a table.

    Args:
        setting: which names them.
        named: the names.
        parties: all parties.

    Raises:
        ConfigurationError: for the first other name.
    """
    for party in named:
        if party not in parties:
            raise ConfigurationError(
                f"{setting} names party '{party}', which has no table; {nearest(str(party), parties)}"
            )
