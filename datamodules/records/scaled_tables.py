"""Encode and scale joined tables column by column."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.trained.fitted import FittedParty

from .checks import refuse_infinite
from .column_encoder import ColumnEncoder
from .feature_stores import ColumnsInMemory
from .joined_tables import Joined
from .modal_columns import ModalColumn
from .normalise import Normaliser
from .number_files import NumberFile
from .scaling import without_records
from .table_form import TableForm, numbers_of_party

if TYPE_CHECKING:
    from numpy.typing import NDArray

    _Scaled = tuple[NDArray[np.float64], Tensor, Tensor]


def scale_tables(
    joined: Joined,
    form: TableForm,
    store: ColumnsInMemory | NumberFile,
    normaliser: Normaliser,
    train: "NDArray[np.int64]",
    known: Sequence[FittedParty] | None,
) -> tuple[Tensor, Tensor]:
    """Store the scaled columns of all parties; returns shift and scale, each (Σ F_m,) float64.

    Args:
        joined: the tables.
        form: which party has which columns.
        store: where the columns are stored.
        normaliser: how each party scales its own columns.
        train: positions of the training records, which the normaliser is fitted to.
        known: what the parties of a trained model have fitted; None: it is fitted here.

    Units: memory, one column; the columns of one party for a normaliser that needs all of them together.
    Guarantee: a feature is (x - shift) / scale in float64, rounded to float32; 0 for records that a party
        does not have.

    Raises:
        ConfigurationError: for values that are not finite, or of another kind than those of the training rows, and for
            a party without training records.
    """
    used: list[tuple[Tensor, Tensor]] = []
    for m, party in enumerate(form.encoders):
        held = joined.held[party]
        names = form.columns_of(m)
        rows = train if held is None else train[held[train]]
        fixed = _fixed(form.encoders[party])
        columns = _usable(joined, m, party, form)
        if known is not None:
            scaled = _with(columns, known[m].shift, known[m].scale)
        elif fixed is not None:
            scaled = _with(columns, *torch.tensor(fixed, dtype=torch.float64)[:, None].expand(2, len(names)))
        elif len(rows):
            scaled = _fitted(columns, normaliser.of_columns(names, form.layout.columns), rows, len(names))
        else:
            raise without_records(m, len(train))
        for column, shift, scale in scaled:
            used.append((shift, scale))
            column -= shift.item()
            column /= scale.item()
            if held is not None:
                column[~held] = 0.0
            store.put(column)
    shifts, scales = zip(*used, strict=True)
    return torch.cat(shifts), torch.cat(scales)


def _fitted(
    columns: "Iterator[NDArray[np.float64]]", normaliser: Normaliser, rows: "NDArray[np.int64]", width: int
) -> "Iterator[_Scaled]":
    """The columns (N,) with shift and scale, each (1,), that are fitted to these rows."""
    if not normaliser.fitted:
        yield from _with(columns, *normaliser.fit(torch.empty(0, width, dtype=torch.float64)))
    elif normaliser.by_column:
        for column in columns:
            yield column, *normaliser.fit(torch.from_numpy(column[rows, None]))
    else:
        every = list(columns)
        yield from _with(every, *normaliser.fit(torch.from_numpy(np.stack([own[rows] for own in every], axis=1))))


def _with(columns: "Iterable[NDArray[np.float64]]", shift: Tensor, scale: Tensor) -> "Iterator[_Scaled]":
    """The columns (N,), each with its part of shift and scale, each (F,)."""
    return zip(columns, torch.split(shift, 1), torch.split(scale, 1), strict=True)


def _usable(joined: Joined, m: int, party: str, form: TableForm) -> "Iterator[NDArray[np.float64]]":
    """The columns (N,) of a party, which is the m-th, without values that cannot be used."""
    for name, column in zip(form.columns_of(m), numbers_of_party(joined, party, form), strict=True):
        refuse_infinite(column, m, name, joined.ids)
        yield column


def _fixed(encoders: Sequence[ColumnEncoder]) -> tuple[float, float] | None:
    """Shift and scale of a party with a column of pictures or text; None: it has other columns."""
    first = encoders[0]
    return first.scaling if isinstance(first, ModalColumn) else None
