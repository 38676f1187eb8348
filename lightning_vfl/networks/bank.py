"""The bottom models of all parties; bottoms of the same architecture run in one batched call."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import call
from typing import Any

import torch
from torch import Tensor, nn

from lightning_vfl.networks.batched import batched, has_rule
from lightning_vfl.streams import Name, seed_torch
from lightning_vfl.types import Parties, Tensors

# From this number of equal bottoms on, the batched call is faster than the loop (benchmarks.split_step measures it).
BATCH_FROM = 8


class PartyBank(nn.Module):
    """One bottom for each party, each with its own parameters.

    Bottoms of the same architecture run in one batched call, with their parameters stacked in the forward pass. Every
    party keeps its own ``nn.Parameter`` objects: optimisers, checkpoints and ``deepcopy`` see M separate models, and
    the optimiser does not change a party without gradients.

    Shapes: input M tensors (B, *S_m); output M tensors (B, D_m).
    Guarantee: batched and looped results are equal within float32 rounding; bottoms with random layers or state are
        looped. What a looped bottom draws depends on ``stream`` and its party, not on what other bottoms draw.

    Args:
        bottoms: the M bottoms, in order of party numbers.
        batch_from: the smallest number of equal bottoms that run in one call.
        shared: groups of party numbers that have the same bottom; each party has its own copy. The optimiser has the
            copy of the first party of a group, and ``follow`` makes the other copies equal to it.

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
    ) -> None:
        super().__init__()
        self.parties = nn.ModuleList(bottoms)
        self.shared = tuple(tuple(group) for group in shared)
        alike: dict[Any, list[int]] = {}
        for party, bottom in enumerate(bottoms):
            if has_rule(bottom):
                alike.setdefault(_architecture(bottom), []).append(party)
        self.groups = tuple(tuple(group) for group in alike.values() if len(group) >= batch_from)
        self.stream: tuple[int, tuple[Name, ...]] | None = None
        """Seed and names of what bottoms draw at random in this round; None: torch's generators as they are."""
        self.keys: Mapping[int | None, bytes] = {}
        """By party, the secret key that replaces the seed."""
        self._drawing = frozenset(m for m, bottom in enumerate(bottoms) if not has_rule(bottom))

    def __len__(self) -> int:
        return len(self.parties)

    def forward(self, features: Tensors) -> Tensors:
        """The M embeddings."""
        if not (self.groups or self._drawing):
            return tuple(map(call, self.parties, features))
        everybody = range(len(features))
        h = self.some(features, everybody)
        return tuple([h[m] for m in everybody])

    def some(self, features: Tensors, parties: Collection[int]) -> dict[int, Tensor]:
        """The embeddings of ``parties``; the other bottoms do not run."""
        h: dict[int, Tensor] = {}
        bottoms = list(self.parties)  # an index into a ModuleList takes 1 µs
        for group in self.groups:
            run = [m for m in group if m in parties]
            if len({features[m].shape for m in run}) == 1:
                alike = [bottoms[m] for m in run]
                together = batched(alike[0], alike, torch.stack([features[m] for m in run]))
                h.update(zip(run, together.unbind(0), strict=True))
        for m in parties:
            if m not in h:
                if m in self._drawing:
                    self._seed(m, features[m].device)
                h[m] = bottoms[m](features[m])
        return h

    def one(self, party: int, x: Tensor) -> Tensor:
        """The embedding (B, D_m) of one party, alone."""
        if party in self._drawing:
            self._seed(party, x.device)
        h: Tensor = self.parties[party](x)
        return h

    def _seed(self, party: int, device: torch.device) -> None:
        """Make what a bottom draws next depend on ``stream`` and its party alone."""
        if self.stream is not None:
            seed, names = self.stream
            seed_torch(device, self.keys.get(party, seed), *names, "party", party)

    def together(self, parties: Parties, x: Tensor) -> Tensor:
        """Apply the bottom of parties[i] to x[i]: for one of ``groups`` in one call, for other parties one by one.

        Shapes: x (n, B, *S); output (n, B, D).
        """
        if parties not in self.groups:
            return torch.stack([self.parties[m](rows) for m, rows in zip(parties, x, strict=True)])
        every_bottom = list(self.parties)  # an index into a ModuleList takes 1 µs
        bottoms = [every_bottom[m] for m in parties]
        return batched(bottoms[0], bottoms, x)

    def leading(self) -> list[nn.Parameter]:
        """The parameters for the optimiser: of several copies, the first."""
        followers = {m for group in self.shared for m in group[1:]}
        return [p for m, bottom in enumerate(self.parties) if m not in followers for p in bottom.parameters()]

    @torch.no_grad()
    def follow(self) -> None:
        """Make all copies of a shared bottom equal to the first copy, as the server sends it to the group."""
        for first, *others in self.shared:
            for m in others:
                for copied, leading in zip(self.parties[m].parameters(), self.parties[first].parameters(), strict=True):
                    copied.copy_(leading)

    def withhold(self, parties: Iterable[int]) -> None:
        """Delete the gradients of ``parties``: the optimiser then changes neither their parameters nor their state."""
        for party in parties:
            for parameter in self.parties[party].parameters():
                parameter.grad = None


def _architecture(bottom: nn.Module) -> tuple[Any, ...]:
    """The key that bottoms of one batched call share: types, printed settings, parameter shapes and dtypes."""
    parameters = tuple((n, tuple(p.shape), p.dtype) for n, p in bottom.named_parameters())
    layers = tuple((name, type(layer), layer.extra_repr()) for name, layer in bottom.named_modules())
    return layers, parameters
