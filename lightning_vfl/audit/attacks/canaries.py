"""A lower bound on ε from canaries in one training."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.audit.attack import Attack, Guesses, Known, Seen, Target, asked_for
from lightning_vfl.audit.attacks.feature_reconstruction import aggregates_by_record
from lightning_vfl.audit.attacks.regression import guesses_from_known
from lightning_vfl.audit.transcript import AGGREGATES
from lightning_vfl.checks import within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import stream
from lightning_vfl.types import VerticalBatch


@dataclass
class CanariesInTraining(Attack):
    """Tell which of two values a party's features have, for many canary records in one training.

    A coin for each canary replaces all its features at the party by ``+value`` or ``-value``, in every batch. The
    attacker knows the canaries, and the coins of every second one. It fits a ridge regression from the aggregates of
    all epochs to these coins, and guesses the others. The audit changes the training.

    Args:
        party: the attacked party.
        canaries: m; every second coin is guessed.
        value: the features of a canary, in the units of the bottoms' input.
        delta: δ.

    Raises:
        ConfigurationError: for more canaries than records; for aggregators that share the records before training.

    References:
        Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023, algorithm 1.
    """

    target = Target.CANARIES
    party: int = 0
    canaries: int = 1000
    value: float = 3.0
    delta: float = 1e-5
    _signs: Tensor | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        within("canaries", self.canaries, 20, whole=True)

    def check(self, seen: Seen) -> None:
        within("canaries", self.canaries, 20, seen.records, whole=True, advice="use at most the training records")
        if seen.aggregator.setup is not None:
            raise ConfigurationError(
                f"{type(seen.aggregator).__name__} shares the records before training, so batches cannot have "
                "canaries; use EpsilonLowerBound"
            )

    def chosen(self, records: int, seed: int) -> Tensor:
        """(m,) the canary records."""
        order = np.random.Generator(stream(seed, "audit", "canaries")).permutation(records)
        return torch.from_numpy(order[: self.canaries].copy())

    def coins(self, records: int, seed: int) -> Tensor:
        """(N,) bool, the coins of the canaries; False for all other records."""
        flips = np.random.Generator(stream(seed, "audit", "coins")).random(self.canaries) < 0.5
        coins = torch.zeros(records, dtype=torch.bool)
        coins[self.chosen(records, seed)] = torch.from_numpy(flips)
        return coins

    def plant(self, batch: VerticalBatch, records: int, seed: int) -> None:
        """Put the canaries of a batch into its features, in place."""
        if self._signs is None:
            self._signs = torch.zeros(records)
            ids = self.chosen(records, seed)
            self._signs[ids] = torch.where(self.coins(records, seed)[ids], self.value, -self.value)
        ids = batch.record_ids if batch.record_ids.dim() == 1 else batch.record_ids[:, self.party]
        signs = self._signs[ids.cpu()]
        rows = signs.nonzero().flatten()
        features = batch.features[self.party]
        values = signs[rows].to(features).view(-1, *(1,) * (features.dim() - 1))
        features[rows.to(features.device)] = values.expand(-1, *features.shape[1:])

    def reads(self, kind: str, way: str, sender: int | None, epoch: int) -> bool:
        return kind == AGGREGATES

    def run(self, seen: Seen, known: Known) -> Guesses:
        ids, inputs, epochs = aggregates_by_record(seen)
        signs = asked_for(known.labels).double()[:, None] * 2 - 1
        guesses = guesses_from_known(
            seen, Known(known.ids, features=signs), ids, inputs, f"aggregates of {epochs} epochs", "known coins"
        )
        guessed = torch.isin(ids, self.chosen(seen.records, seen.seed)) & ~torch.isin(ids, known.ids)
        return replace(guesses, ids=ids[guessed], values=guesses.values[guessed, 0])
