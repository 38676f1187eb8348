"""The form of joined tables: which party has which columns of numbers, and who holds which record."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.errors import ConfigurationError

from .column_encoder import ColumnEncoder
from .column_encoders import check_columns
from .joined_tables import Joined
from .layout import Layout
from .modal_columns import ModalColumn
from .new_records import NewRecords
from .step_chain import Chain

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class TableForm:
    """The parties with features.

    Args:
        encoders: party -> the encoders of its columns, also of those that are left out.
        layout: the names of all columns of numbers, party by party.
        groups: the numbers of the parties of each group.
        known: whether the encoders are those of a trained model, and the tables may be new.
        evaluated: name of a split -> the positions of its joined records, which are compared with those of the
            training; empty for a trained model, with whose training records all are compared.
    """

    encoders: Mapping[str, Sequence[ColumnEncoder]]
    layout: Layout
    groups: tuple[tuple[int, ...], ...]
    known: bool = False
    evaluated: "Mapping[str, NDArray[np.int64]]" = field(default_factory=dict)

    def columns_of(self, party: int) -> tuple[str, ...]:
        """The names of the columns of numbers of a party, by its number."""
        start = sum(self.layout.views[:party])
        return self.layout.columns[start : start + self.layout.views[party]]


def form_of(
    joined: Joined,
    encoders: Mapping[str, Sequence[ColumnEncoder]],
    known: bool = False,
    evaluated: "Mapping[str, NDArray[np.int64]] | None" = None,
) -> TableForm:
    """The form of these tables.

    Args:
        joined: the tables.
        encoders: party -> the encoders of its columns.
        known: whether the encoders are those of a trained model.
        evaluated: see ``TableForm``.

    Raises:
        ConfigurationError: for tables that are missing, or have other columns than the encoders, and without features.
    """
    own = {party: chosen for party, chosen in encoders.items() if any(encoder.names for encoder in chosen)}
    if absent := [party for party in own if party not in joined.tables]:
        raise ConfigurationError(
            f"the model was trained with a table of party '{absent[0]}', which is not among tables; give the "
            f"tables of {', '.join(own)}"
        )
    if more := [party for party, table in joined.tables.items() if not encoders.get(party) and len(table.columns)]:
        raise ConfigurationError(
            f"the model was trained without features of party '{more[0]}'; leave its table out, or its columns"
        )
    if not own:
        raise ConfigurationError("no party has a column besides the ids and the labels; add features")
    uses = Counter(encoder.column for chosen in encoders.values() for encoder in chosen)
    names: list[str] = []
    views = {}
    for party, chosen in own.items():
        check_columns(joined.tables[party], chosen, party)
        views[party] = sum(len(encoder.names) for encoder in chosen)
        names += [f"{party}.{name}" if uses[e.column] > 1 else name for e in chosen for name in e.names]
    number = {party: m for m, party in enumerate(views)}
    modal = {party: chosen[0].shape for party, chosen in own.items() if isinstance(chosen[0], ModalColumn)}
    shapes = tuple(modal.get(party, (width,)) for party, width in views.items()) if modal else ()
    return TableForm(
        own,
        Layout((len(names),), tuple(names), tuple(views.values()), tuple(views), shapes),
        tuple(tuple(number[party] for party in group) for group in joined.groups if group[0] in number),
        known,
        evaluated or {},
    )


def numbers_of_party(joined: Joined, party: str, form: TableForm) -> "Iterator[NDArray[np.float64]]":
    """The columns of numbers of a party, (N,) each; 0 for records that it does not have. Its table forgets its columns.

    It prints what is unlike the training records in new tables, or in the records of a split.

    Raises:
        ConfigurationError: for values of another kind than those of the training rows.
    """
    table = joined.tables[party]
    held = joined.held[party]
    new = NewRecords(party)
    splits = []
    for name, rows in form.evaluated.items():
        places = rows if held is None else (np.cumsum(held) - 1)[rows[held[rows]]]
        splits.append((NewRecords(party, name), places))
    for encoder in form.encoders[party]:
        values = table.pop(encoder.column) if encoder.column in table else None
        if values is None or not encoder.names:
            continue
        if splits and isinstance(encoder, Chain):
            encoded, gaps = encoder.with_gaps(values, party)
            for own, places in splits:
                own.count(encoder, encoded[places], gaps[places])
        else:
            encoded = new.encode(encoder, values)
        for column in encoded.T:
            if held is None:
                yield np.array(column)  # the encoder's array may be that of the table
            else:
                whole = np.zeros(len(joined.ids))
                whole[held] = column
                yield whole
    for own in [own for own, _ in splits] + [new] * form.known:
        own.tell()


def encode_tables(joined: Joined, form: TableForm) -> "NDArray[np.float64]":
    """(N, F) the columns of numbers of all parties, side by side."""
    features = np.zeros((len(joined.ids), form.layout.size))
    place = 0
    for party in form.encoders:
        for column in numbers_of_party(joined, party, form):
            features[:, place] = column
            place += 1
    return features
