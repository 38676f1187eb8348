"""Masked sums of integers: the common base of aggregators on the Secure Layer."""

from abc import abstractmethod
from copy import copy
from typing import Self

import torch
from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.secure.codec import Codec
from lightning_vfl.aggregators.secure.layer import SecureLayer
from lightning_vfl.aggregators.secure.masked_wire import MaskedWire
from lightning_vfl.aggregators.secure.opening import LayerOpening
from lightning_vfl.types import Roll, Roster, Tensors, Widths


class IntegerSum(Aggregator):
    """A masked sum of the integers that a codec makes of embeddings; a subclass says which codec.

    Args:
        layer: which sums there are, and how they are hidden.
        equivalent: rounds sum the same integers without masks.
    """

    def __init__(self, layer: SecureLayer, equivalent: bool = False) -> None:
        self._layer = layer
        self._equivalent = equivalent
        self._roster: Roster | None = None

    @abstractmethod
    def codec(self, roster: Roster) -> Codec:
        """How embeddings become integers among these parties.

        Raises:
            ConfigurationError: if the sum does not fit the ring, with what fits.
        """

    def among(self, roster: Roster) -> Self:
        self._layer.check(roster)
        self.codec(roster)
        bound = copy(self)
        bound._roster = roster
        return bound

    def widths(self, width: int, roster: Roster) -> Widths:
        return tuple(width * len(own) for own in self._layer.segments(roster).of)

    def out_width(self, width: int, roster: Roster) -> int:
        return width * len(self._layer.segments(roster).members)

    def plain(self, h: Tensors, roll: Roll, present: Tensor | None = None) -> Tensor:
        """The sum of the embeddings, neither clipped nor rounded."""
        sums = self._layer.segments(self._known(len(h)))
        joined = []
        for segment, counted in enumerate(sums.counted(roll)):
            first = sums.members[segment][0]
            total = torch.zeros_like(sums.part(h[first], first, segment))
            for m in counted:
                part = sums.part(h[m], m, segment)
                total = total + (part if present is None else torch.where(present[:, m, None], part, 0.0))
            joined.append(total)
        return torch.cat(joined, 1)

    def columns(self, widths: Widths, roll: Roll) -> Tensor:
        sums = self._layer.segments(self._known(len(widths)))
        return sums.columns(widths[0] // len(sums.of[0]), roll)

    @property
    def wire(self) -> MaskedWire:
        codec = None if self._roster is None else self.codec(self._roster)
        return MaskedWire(self._layer, codec, self._roster, self._equivalent)

    @property
    def opening(self) -> LayerOpening:
        return LayerOpening(self._layer, self._equivalent)

    def _known(self, parties: int) -> Roster:
        """The parties that the aggregator was made for; else as many groups of one."""
        return self._roster or Roster.singles(parties)
