"""The records of a stage in a process that has one seat of a federation: own features and own labels alone."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.types import Seat

from .records import Records, VerticalRecords

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ids = NDArray[np.generic] | Sequence[str]

NO_CLASS = -(2**63)
"""The class of a record whose label is in another process: torch's losses and ``bincount`` refuse it."""


class SeatedRecords(Records):
    """Records of which this process has the features of one party, or of none; all other features are NaN.

    Args:
        own: records of which the party's features are taken; None: this process is the server.
        place: the number of the party in ``own``.
        seat: whose process this is.
        shapes: per-record shape of each party.
        labels: (N,) or None; poisoned if they are in another process, see ``poisoned``.
        ids: (N,) the user's own record ids.
        present: (N, M) bool, whether party m holds record n, as far as this process knows: a party of tables knows its
            own column, and has True in the others. None: every party holds every record.
        weights: (N,) float32, the weights in the training loss; None: all weigh the same, or the labels are in another
            process.

    Guarantee: the party's features are a contiguous tensor of their own. Foreign features take no memory: all their
        values are one NaN, so they cannot be written to.
    """

    def __init__(
        self,
        own: Records | None,
        place: int,
        seat: Seat,
        shapes: Sequence[tuple[int, ...]],
        labels: Tensor | None,
        ids: "NDArray[np.generic]",
        present: Tensor | None,
        weights: Tensor | None,
    ) -> None:
        super().__init__(shapes, labels, ids, present, weights=weights)
        self.own = own
        self.place = place
        self.seat = seat
        self._elsewhere: dict[tuple[int, tuple[int, ...]], Tensor] = {}

    @classmethod
    def of(cls, records: Records, seat: Seat, has_labels: bool) -> "SeatedRecords":
        """The part of the records of all parties that a seat has; the features of other parties are not kept.

        Raises:
            ConfigurationError: for a party that there is not.
        """
        if seat.party is not None and seat.party >= len(records.shapes):
            raise ConfigurationError(
                f"there is no party {seat.party}, the data have {len(records.shapes)} parties; use 0 to "
                f"{len(records.shapes) - 1}"
            )
        labels = records.labels if has_labels or records.labels is None else poisoned(records.labels)
        own, place = (None, 0) if seat.party is None else (records, seat.party)
        if isinstance(own, VerticalRecords):  # a copy, so that the memory of the others is free again
            alone = own.features_of(place, torch.arange(len(own))).flatten(1)
            own = VerticalRecords(alone, (records.shapes[place],), None, records.ids)
            place = 0
        weights = records.weights if has_labels else None
        return cls(own, place, seat, records.shapes, labels, records.ids, records.present, weights)

    @property
    def known(self) -> "NDArray[np.generic]":
        if self.present is None or self.seat.party is None:
            return self.ids
        known: NDArray[np.generic] = self.ids[self.present[:, self.seat.party].numpy()]
        return known

    def rows(self, ids: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.features_of(party, ids) for party in range(len(self.shapes)))

    def features_of(self, party: int, ids: Tensor) -> Tensor:
        if self.own is not None and party == self.seat.party:
            return self.own.features_of(self.place, ids).contiguous()
        form = len(ids), self.shapes[party]
        if form not in self._elsewhere:  # a view of one number: made once, as every batch has M - 1 of them
            self._elsewhere[form] = torch.full((), torch.nan).expand(form[0], *form[1])
        return self._elsewhere[form]

    def only(self, positions: "NDArray[np.int64]") -> "SeatedRecords":
        own = None if self.own is None else self.own.only(positions)
        labels, ids, present, _, weights = self._about(positions)
        return SeatedRecords(own, self.place, self.seat, self.shapes, labels, ids, present, weights)


def poisoned(labels: Tensor) -> Tensor:
    """Labels of the same form that cannot be used: NaN, or for classes ``NO_CLASS``."""
    return torch.full_like(labels, torch.nan if labels.is_floating_point() else NO_CLASS)


def no_labels(records: int, targets: int, classes: bool) -> Tensor:
    """(N,), or (N, targets), labels that cannot be used; for classes int64, else float32."""
    shape = (records, targets) if targets else (records,)
    return poisoned(torch.empty(shape, dtype=torch.int64 if classes else torch.float32))
