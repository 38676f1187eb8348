"""The records of a training: what the harness scores by."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from lightning_vfl.aggregators import LagrangeCoded
from lightning_vfl.audit.attack import standardised
from lightning_vfl.audit.attacks.model_completion import embeddings_of
from lightning_vfl.audit.transcript import AGGREGATES, Transcript
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import FixedPoint
from lightning_vfl.protocols import VFLModule
from lightning_vfl.types import RoundNames, Stage, VerticalBatch
from lightning_vfl.wire import Message, Tap

AT_ONCE = 8192  # records


class Truth:
    """Features and labels of the training records.

    Features of a party with one axis are standardised by their own mean and deviation, so that every column counts
    alike; those of images keep their scale.

    Args:
        data: the data, set up for a fit.

    Attributes:
        records: N.
        parties: M.
        names: of the parties, in the order of their numbers.
        classes: C; 1 for targets that are numbers.
    """

    def __init__(self, data: Any) -> None:
        self.data = data
        self._records = data.records("train")
        self.records: int = len(self._records)
        self.parties: int = len(data.party_shapes)
        self.names: tuple[str, ...] = tuple(data.party_names)
        self.classes: int = data.num_classes or 1
        self.features = cache(self._features)

    def shape(self, party: int) -> tuple[int, ...]:
        """The shape of a record at a party."""
        return tuple(self.data.party_shapes[party])

    def _features(self, party: int) -> Tensor:
        """(N, W) float64."""
        raw = self.raw(party).flatten(1).double()
        if len(self.shape(party)) > 1:
            return raw
        return standardised(raw)

    def raw(self, party: int) -> Tensor:
        """(N, *S), as the party's bottom is given them."""
        ids = torch.arange(self.records)
        return torch.cat([self._records.features_of(party, some) for some in torch.split(ids, AT_ONCE)])

    def everything(self, but: Sequence[int] = ()) -> Tensor:
        """(N, Σ W) float64, all columns of all parties ``but`` these, as their bottoms are given them."""
        parties = [party for party in range(self.parties) if party not in but]
        return torch.cat([self.raw(party).flatten(1).double() for party in parties], 1)

    def group_features(self, party: int) -> Tensor:
        """(N, W) float64, of each record at the party of the group that holds it."""
        present = self._records.present
        if present is None:
            return self.raw(party).flatten(1).double()
        group = next((group for group in self.data.party_groups or () if party in group), (party,))
        held = [torch.where(present[:, m, None].cpu(), self.raw(m).flatten(1).double(), 0.0) for m in group]
        return torch.stack(held).sum(0)

    def labels(self) -> Tensor:
        """(N,) int64."""
        labels: Tensor | None = self._records.labels
        if self.classes < 2:
            raise ConfigurationError("the labels are numbers and not classes; attack features instead")
        if labels is None or labels.dim() > 1:
            raise ConfigurationError("an attack on labels needs one class for each training record")
        return labels.cpu().long()

    def batch(self, ids: Tensor) -> VerticalBatch:
        """Labels and sample weights of these records, without features."""
        records = self._records
        labels, weights = (None if of_all is None else of_all[ids] for of_all in (records.labels, records.weights))
        return VerticalBatch((), labels, ids, weights=weights)

    def counts(self, transcript: Transcript, rounds: Tensor) -> Tensor:
        """(rounds, C) float64, the records of each class in the batches of these rounds."""
        ids = {entry.round: entry.ids for entry in reversed(transcript.entries) if len(entry.ids)}
        counts = torch.zeros(len(rounds), self.classes, dtype=torch.float64)
        for row, number in zip(counts, rounds.tolist(), strict=True):
            row += torch.bincount(self.labels()[ids[number]], minlength=self.classes)
        return counts

    def shared_numbers(self, module: VFLModule, party: int, ids: Tensor) -> Tensor:
        """(n, W) float64, the integers that a party shares under ``LagrangeCoded``."""
        aggregator = module.aggregator
        network: Any = module.bottoms.parties[party]
        if not isinstance(aggregator, LagrangeCoded):
            raise TypeError("only LagrangeCoded shares records")
        with torch.no_grad():
            basis = network.expand(self.raw(party)[ids].to(network.weight.dtype))
        return FixedPoint(aggregator.field, aggregator.l_x, 0).quantise_data(basis).double()

    def embeddings(self, module: VFLModule, party: int) -> Tensor:
        """(N, D) float64, a party's embeddings by its trained bottom."""
        return embeddings_of(module.bottoms.parties[party], self.raw(party))


class JoinedTruth(Tap):
    """The joined embeddings of a training when they were joined, whoever did: no attacker has them from here.

    Bottoms change in a training, so that the embeddings of a round cannot be computed after it.

    Args:
        wanted: whether those of the current epoch are kept.

    Attributes:
        rounds: (B, D) the joined embeddings, by round.
    """

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self.wanted = wanted
        self.rounds: dict[int, Tensor] = {}

    def sent(self, message: Message, ids: Tensor, at: int | None = None) -> None:
        """Messages are not the truth."""

    def joined(
        self, value: Tensor, names: RoundNames, ids: Tensor, at: int | None = None, kind: str = AGGREGATES
    ) -> None:
        if names.stage == Stage.FIT and kind == AGGREGATES and self.wanted():
            self.rounds[names.round] = value.detach().to("cpu", copy=True)
