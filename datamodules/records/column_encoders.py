"""Encode the columns of a party's table as numbers, with what was fitted to its training rows."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.errors import ConfigurationError

from .column_encoder import ColumnEncoder as ColumnEncoder
from .column_encoder import Unseen as Unseen
from .column_encoder import tell_unseen
from .modal_columns import ModalColumn, modal_column
from .one_hot import as_known, categories_of, one_hot
from .party_tables import listed, numbers_of, refuse_missing
from .step_chain import Chain, LeftOut, chain_of

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from .party_tables import PartyTable

_OR_AUTO = ", or use preprocess: auto"


@dataclass(frozen=True)
class Numbers(ColumnEncoder):
    """A column of numbers, unchanged.

    Args:
        column: the name of the column.
        fix: what else can be done about text in the column, for errors.
    """

    column: str
    fix: str = f"list the column under categorical{_OR_AUTO}"

    @property
    def names(self) -> tuple[str, ...]:
        return (self.column,)

    def encode(self, values: "pd.Series[Any]", party: str) -> "NDArray[np.float64]":
        refuse_missing(values, party, _OR_AUTO)
        return numbers_of(values, party, self.fix)[:, None]

    def state(self) -> dict[str, Any]:
        return {"kind": "numbers", "column": self.column}


@dataclass(frozen=True)
class OneHot(ColumnEncoder):
    """A column of categories, one column of 0 and 1 for each category of the training rows.

    Args:
        column: the name of the column.
        categories: the categories of the training rows as text, sorted.
        unseen: what to do with another category. ``own``: a further column is 1 for it, which is 0 in all training
            rows, so the network has learned nothing from it.
    """

    column: str
    categories: tuple[str, ...]
    unseen: Unseen = Unseen.IGNORE

    @property
    def names(self) -> tuple[str, ...]:
        own = (f"{self.column}=(unseen)",) if self.unseen is Unseen.OWN else ()
        return (*(f"{self.column}={category}" for category in self.categories), *own)

    def encode(self, values: "pd.Series[Any]", party: str) -> "NDArray[np.float64]":
        refuse_missing(values, party, _OR_AUTO)
        text = as_known(values.astype(str).to_numpy(dtype=np.str_), self.categories)
        columns = one_hot(text, self.categories)
        other = columns.sum(1) == 0
        tell_unseen(text[other], self.column, party, self.unseen, "unseen" if self.unseen is Unseen.OWN else "zeros")
        return np.column_stack([columns, other]) if self.unseen is Unseen.OWN else columns

    def state(self) -> dict[str, Any]:
        categories = list(self.categories)
        return {"kind": "one_hot", "column": self.column, "categories": categories, "unseen": str(self.unseen)}


def encoder_of(state: Mapping[str, Any]) -> ColumnEncoder:
    """The encoder of a state."""
    values = {name: value for name, value in state.items() if name != "kind"}
    if state["kind"] == "numbers":
        return Numbers(**values)
    if state["kind"] == "chain":
        return chain_of(state)
    if state["kind"] == "left_out":
        return LeftOut(**values)
    if state["kind"] == "one_hot":
        return OneHot(values["column"], tuple(values["categories"]), Unseen(values["unseen"]))
    return modal_column(state)


def of_texts(encoder: ColumnEncoder) -> bool:
    """Whether the encoder reads texts, so that its column is read as text from a CSV file."""
    return isinstance(encoder, OneHot | ModalColumn) or (isinstance(encoder, Chain) and encoder.of_texts)


def fit_encoders(
    tables: "Mapping[str, PartyTable]",
    trained: "Mapping[str, NDArray[np.bool_]]",
    categorical: Collection[str],
    unseen: Unseen = Unseen.IGNORE,
) -> tuple[ColumnEncoder, ...]:
    """The encoder of each column, fitted to the training rows of all tables of a group.

    Args:
        tables: party -> its table, its ids as the index; all have the same columns in the same order.
        trained: party -> (N,) bool, which rows of its table are training records.
        categorical: columns to encode one-hot.
        unseen: what to do with categories that no training row has.

    Raises:
        ConfigurationError: for missing values and for text among numbers.
    """
    encoders: list[ColumnEncoder] = []
    for name in next(iter(tables.values())):
        if str(name) not in categorical:
            encoders.append(Numbers(str(name)))
            continue
        seen = []
        for party, table in tables.items():
            refuse_missing(table[name], party, _OR_AUTO)
            seen.append(table[name][trained[party]].astype(str).to_numpy(dtype=np.str_))
        encoders.append(OneHot(str(name), tuple(categories_of(np.concatenate(seen))), unseen))
    return tuple(encoders)


def encode_table(
    table: "PartyTable", encoders: Sequence[ColumnEncoder], party: str, outside: "Counter[str] | None" = None
) -> "NDArray[np.float64]":
    """(N, F) the columns of the table as numbers, in the order of the encoders.

    Args:
        table: the columns.
        encoders: of the columns.
        party: its name, for errors.
        outside: counts, by column, the records with a number outside those of the training records.

    Raises:
        ConfigurationError: for missing and unknown columns, and values of another kind than those of the training rows.
    """
    check_columns(table, encoders, party)
    blocks = [encoder.encode(table[encoder.column], party) for encoder in encoders if encoder.names]
    if outside is not None:
        chosen = (encoder for encoder in encoders if encoder.names)
        for encoder, block in zip(chosen, blocks, strict=True):
            if isinstance(encoder, Chain):
                outside[encoder.column] += encoder.outside(block)
    return np.hstack(blocks) if blocks else np.empty((len(table), 0))


def check_columns(table: "PartyTable", encoders: Sequence[ColumnEncoder], party: str) -> None:
    """Accept a table with the columns that the encoders use, and no others.

    Raises:
        ConfigurationError: for missing and unknown columns.
    """
    wanted, given = [encoder.column for encoder in encoders], [str(name) for name in table.columns]
    missing = [e.column for e in encoders if e.names and e.column not in given]
    extra = [name for name in given if name not in wanted]
    if missing or extra:
        told = [f"without {listed(missing)}"] * bool(missing) + [f"with the further {listed(extra)}"] * bool(extra)
        raise ConfigurationError(
            f"the table of party '{party}' is {' and '.join(told)}, unlike the table that the model was trained on, "
            f"which has {listed(wanted)}; give it the same columns"
        )
