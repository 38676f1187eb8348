"""Aggregators in the clear: concatenation, sum, mean and element-wise maximum.

The server reads every party's embedding. Protected aggregators are compared with these.
"""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.types import Parties, Roll, Roster, Tensors, Widths, only_held


def _stacked(h: Tensors, counted: Parties, present: Tensor | None) -> Tensor:
    """(n, B, D): the counted parties' embeddings, in order of their numbers; one zero if no party counts."""
    if not counted:
        return torch.zeros_like(h[0]).unsqueeze(0)
    held = h if present is None else only_held(h, present)
    return torch.stack([held[m] for m in counted])


def _there(present: Tensor, counted: Parties) -> Tensor:
    """(B, n) bool: which of the counted parties hold which row."""
    return present[:, list(counted)]


class Concat(Aggregator):
    """The embeddings side by side; the most expressive aggregate and the least private.

    Shapes: h_m (B, D_m); value (B, Σ D_m). ``columns`` is False on the segment of a party that is not counted; there
    and in rows that a party does not hold, the value is zero.
    Units: uploads and gradients in float32.
    Guarantee: none; the server reads every embedding.
    Not guaranteed: any privacy.

    Args:
        widths: D_m of every party; None: the protocol's ``width`` for all.

    Raises:
        ConfigurationError: before training, for widths of another number of parties.

    Examples:
        >>> Concat().out_width(64, Roster.singles(4)), Concat([3, 5]).out_width(64, Roster.singles(2))
        (256, 8)
    """

    def __init__(self, widths: Sequence[int] | None = None) -> None:
        if widths is not None and (not widths or min(widths) < 1):
            raise ConfigurationError(f"give every party a width of at least 1; got widths {list(widths)}")
        self._widths = None if widths is None else tuple(widths)

    def among(self, roster: Roster) -> Self:
        if self._widths is not None and len(self._widths) != roster.parties:
            raise ConfigurationError(
                f"widths are given for {len(self._widths)} parties, but there are {roster.parties}"
            )
        return self

    def widths(self, width: int, roster: Roster) -> Widths:
        return super().widths(width, roster) if self._widths is None else self._widths

    def out_width(self, width: int, roster: Roster) -> int:
        return sum(self.widths(width, roster))

    def plain(self, h: Tensors, roll: Roll, present: Tensor | None = None) -> Tensor:
        counted = roll.counted
        held = enumerate(h if present is None else only_held(h, present))
        return torch.cat([x if m in counted else torch.zeros_like(x) for m, x in held], 1)

    def columns(self, widths: Widths, roll: Roll) -> Tensor:
        return (roll.included | roll.filled).repeat_interleave(torch.tensor(widths))


class Sum(Aggregator):
    """The sum of the embeddings.

    Shapes: h_m (B, D); value (B, D).
    Units: uploads and gradients in float32.
    Guarantee: none; the server reads every embedding.
    Not guaranteed: any privacy; bit-equality under another order of the parties (float addition).

    Examples:
        >>> h = (torch.ones(2, 3), torch.full((2, 3), 2.0))
        >>> Sum().plain(h, Roll.everyone(2))[0].tolist()
        [3.0, 3.0, 3.0]
    """

    def out_width(self, width: int, roster: Roster) -> int:
        return width

    def plain(self, h: Tensors, roll: Roll, present: Tensor | None = None) -> Tensor:
        return _stacked(h, roll.counted, present).sum(0)


class Mean(Aggregator):
    """The mean of the embeddings of the parties that count: FedVS section 3 divides by |S|, not by M.

    Shapes: h_m (B, D); value (B, D). With ``present``, a row is divided by the number of counted parties that hold it;
    a row nobody holds is zero.
    Units: uploads and gradients in float32.
    Guarantee: none; the server reads every embedding.
    Not guaranteed: any privacy; bit-equality under another order of the parties (float addition).

    Examples:
        >>> h = (torch.zeros(2, 3), torch.full((2, 3), 2.0))
        >>> Mean().plain(h, Roll.everyone(2))[0].tolist()
        [1.0, 1.0, 1.0]

    References:
        Li, Yao, Liu, "FedVS: Straggler-Resilient and Privacy-Preserving Vertical Federated Learning for Split Models",
        ICML 2023, section 3 (embedding averaging).
    """

    def out_width(self, width: int, roster: Roster) -> int:
        return width

    def plain(self, h: Tensors, roll: Roll, present: Tensor | None = None) -> Tensor:
        counted = roll.counted
        total = _stacked(h, counted, present).sum(0)
        if present is None:
            return total / max(len(counted), 1)
        return total / _there(present, counted).sum(1, keepdim=True).clamp(min=1)


class Max(Aggregator):
    """The element-wise maximum of the embeddings; the gradient goes to the winner, of equals to the first party.

    Shapes: h_m (B, D); value (B, D). A row nobody holds is zero.
    Units: uploads and gradients in float32.
    Guarantee: none; the server reads every embedding.
    Not guaranteed: any privacy.

    Examples:
        >>> h = (torch.tensor([[1.0, 5.0]]), torch.tensor([[2.0, 4.0]]))
        >>> Max().plain(h, Roll.everyone(2)).tolist()
        [[2.0, 5.0]]
    """

    def out_width(self, width: int, roster: Roster) -> int:
        return width

    def plain(self, h: Tensors, roll: Roll, present: Tensor | None = None) -> Tensor:
        counted = roll.counted
        if present is None or not counted:
            return _stacked(h, counted, present).max(0).values
        lowest = torch.finfo(h[0].dtype).min
        held = _there(present, counted)
        rivals = torch.stack([h[m].masked_fill(~present[:, m, None], lowest) for m in counted])
        return torch.where(held.any(1, keepdim=True), rivals.max(0).values, h[0].new_zeros(()))
