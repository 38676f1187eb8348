"""Encode and scale joined tables column by column."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_vfl.trained.fitted import FittedParty

from .checks import refuse_infinite
from .column_encoder import ColumnEncoder
from .feature_stores import FeatureStore, NumberColumns
from .joined_tables import Joined
from .layout import Layout
from .modal_columns import ModalColumn
from .normalise import Normaliser
from .scaling import without_records
from .table_form import TableForm, numbers_of_party

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Scaling(ABC):
    """The source of shift and scale."""

    @abstractmethod
    def of_party(self, party: int, numbers: NumberColumns, held: "NDArray[np.bool_] | None") -> tuple[Tensor, Tensor]:
        """Shift and scale, each (F,), of a party's columns.

        Args:
            party: its number.
            numbers: its columns (N,).
            held: (N,) which records it has; None: all.
        """


class KnownScaling(Scaling):
    """What the parties of a trained model have fitted."""

    def __init__(self, parties: Sequence[FittedParty]) -> None:
        self._parties = parties

    def of_party(self, party: int, numbers: NumberColumns, held: "NDArray[np.bool_] | None") -> tuple[Tensor, Tensor]:
        fitted = self._parties[party]
        return fitted.shift, fitted.scale


class FittedScaling(Scaling):
    """Fitted by each party to the training records that it has.

    Args:
        normaliser: how each party scales its own columns.
        layout: the names of the columns, with a view for each party.
        train: positions of the training records.
    """

    def __init__(self, normaliser: Normaliser, layout: Layout, train: "NDArray[np.int64]") -> None:
        self._normaliser = normaliser
        self._layout = layout
        self._train = train

    def of_party(self, party: int, numbers: NumberColumns, held: "NDArray[np.bool_] | None") -> tuple[Tensor, Tensor]:
        rows = self._train if held is None else self._train[held[self._train]]
        if not len(rows):
            raise without_records(party, len(self._train))
        columns = self._layout.columns
        start = sum(self._layout.views[:party])
        return numbers.fit(
            self._normaliser.of_columns(columns[start : start + self._layout.views[party]], columns), rows
        )


def scale_tables(joined: Joined, form: TableForm, store: FeatureStore, scaling: Scaling) -> tuple[Tensor, Tensor]:
    """Store the scaled columns of all parties; returns shift and scale, each (Σ F_m,).

    Guarantee: a feature is (x - shift) / scale in float64, rounded to float32; 0 for records that a party
        does not have.

    Raises:
        ConfigurationError: for values that are not finite, or of another kind than those of the training rows.
    """
    used = []
    for m, party in enumerate(form.encoders):
        numbers, held = store.numbers(), joined.held[party]
        for name, column in zip(form.columns_of(m), numbers_of_party(joined, party, form), strict=True):
            refuse_infinite(column, m, name, joined.ids)
            numbers.put(column)
        fixed = _fixed(form.encoders[party])
        used.append(scaling.of_party(m, numbers, held) if fixed is None else fixed)
        for column, shift, scale in zip(numbers.take(), *used[-1], strict=True):
            scaled = torch.from_numpy(column).sub_(shift).div_(scale)
            if held is not None:
                scaled[torch.from_numpy(~held)] = 0.0
            store.put(scaled.float())
    shifts, scales = zip(*used, strict=True)
    return torch.cat(shifts), torch.cat(scales)


def _fixed(encoders: Sequence[ColumnEncoder]) -> tuple[Tensor, Tensor] | None:
    """Shift and scale, each (F,), of a party with a column of pictures or text; None: it has other columns."""
    first = encoders[0]
    if not isinstance(first, ModalColumn):
        return None
    shift, scale = first.scaling
    width = len(first.names)
    return torch.full((width,), shift, dtype=torch.float64), torch.full((width,), scale, dtype=torch.float64)
