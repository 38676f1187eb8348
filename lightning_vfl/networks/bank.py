"""The bottom models of all parties, equal ones run in one batched call."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lightning_vfl.networks.batched import batched, has_rule
from lightning_vfl.networks.tied import Tied, own_memory

# From how many equal bottoms on the batched call is faster than the loop (benchmarks.split_step prints the crossing).
BATCH_FROM = 8


class PartyBank(nn.Module):
    """One bottom a party, each with parameters of its own.

    Bottoms of the same architecture are run in one batched call by stacking their parameters in the forward. Every
    party keeps its own ``nn.Parameter`` objects: optimisers, checkpoints and ``deepcopy`` see M separate models, and a
    party whose gradients are withheld is not touched by the optimiser.

    Shapes: input M tensors (B, *S_m); output M tensors (B, D_m).
    Guarantee: batched equals looped within float32 rounding; bottoms with anything random or stateful are looped.

    Args:
        bottoms: the M bottoms, in order of party numbers.
        batch_from: the fewest equal bottoms that are run in one call.
        shared: groups of party numbers that have the same bottom, each party a copy of its own. The first of a group
            leads: the optimiser moves its copy, and ``follow`` makes the others equal to it.
        tied: lay the parameters of equal bottoms side by side in memory, for training that always runs all of them.

    Examples:
        >>> bank = PartyBank([nn.Linear(3, 2) for _ in range(10)])
        >>> [len(group) for group in bank.groups]
        [10]
    """

    def __init__(
        self,
        bottoms: Sequence[nn.Module],
        batch_from: int = BATCH_FROM,
        shared: Iterable[Sequence[int]] = (),
        tied: bool = False,
    ) -> None:
        super().__init__()
        self.parties = nn.ModuleList(bottoms)
        self.shared = tuple(tuple(group) for group in shared)
        alike: dict[Any, list[int]] = {}
        for party, bottom in enumerate(bottoms):
            if has_rule(bottom):
                alike.setdefault(_architecture(bottom), []).append(party)
        self.groups = tuple(tuple(group) for group in alike.values() if len(group) >= batch_from)
        self._tied = {group: Tied([bottoms[m] for m in group]) for group in self.groups} if tied else {}
        for party in (m for group in self._tied for m in group):
            bottoms[party].register_state_dict_post_hook(own_memory)  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return len(self.parties)

    def forward(self, features: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The M embeddings."""
        h = self.some(features, range(len(self.parties)))
        return tuple(h[m] for m in range(len(self.parties)))

    def some(self, features: tuple[Tensor, ...], parties: Collection[int]) -> dict[int, Tensor]:
        """The embeddings of these parties alone; no time is spent on the others."""
        h: dict[int, Tensor] = {}
        for group in self.groups:
            run = [m for m in group if m in parties]
            if len({features[m].shape for m in run}) == 1:
                bottoms = [self.parties[m] for m in run]
                together = batched(bottoms[0], bottoms, torch.stack([features[m] for m in run]))
                h.update(zip(run, together.unbind(0), strict=True))
        for m in parties:
            if m not in h:
                h[m] = self.parties[m](features[m])
        return h

    def together(self, parties: tuple[int, ...], x: Tensor) -> Tensor:
        """Bottom i of these parties applied to x[i]: one of ``groups`` in one call, any others one by one.

        Shapes: x (n, B, *S); output (n, B, D).
        """
        if parties not in self.groups:
            return torch.stack([self.parties[m](own) for m, own in zip(parties, x, strict=True)])
        bottoms = [self.parties[m] for m in parties]
        if parties not in self._tied:
            return batched(bottoms[0], bottoms, x)
        with self._tied[parties].stacked():
            return batched(bottoms[0], bottoms, x)

    def leading(self) -> list[nn.Parameter]:
        """The parameters that an optimiser is given: of several copies, the first."""
        followers = {m for group in self.shared for m in group[1:]}
        return [p for m, bottom in enumerate(self.parties) if m not in followers for p in bottom.parameters()]

    @torch.no_grad()
    def follow(self) -> None:
        """Make all copies of a shared bottom equal to the first one's: what the server sends its group."""
        for first, *others in self.shared:
            for m in others:
                for own, leading in zip(self.parties[m].parameters(), self.parties[first].parameters(), strict=True):
                    own.copy_(leading)

    def withhold(self, parties: Iterable[int]) -> None:
        """Take these parties' gradients away: the optimiser then moves neither their parameters nor their state."""
        for party in parties:
            for parameter in self.parties[party].parameters():
                parameter.grad = None


def _architecture(bottom: nn.Module) -> tuple[Any, ...]:
    """What two bottoms must share to be run as one: types, printed settings, parameter shapes and dtypes."""
    parameters = tuple((n, tuple(p.shape), p.dtype) for n, p in bottom.named_parameters())
    layers = tuple((name, type(layer), layer.extra_repr()) for name, layer in bottom.named_modules())
    return layers, parameters
