"""Lower bounds on ε: of an aggregator's mechanism from many trials, and of one training from canaries."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.audit.attack import Attack, Guesses, Known, NothingSeen, Seen, Target, asked_for
from lightning_vfl.audit.attacks.features import aggregates_by_record, guesses_from_known
from lightning_vfl.audit.transcript import AGGREGATES
from lightning_vfl.checks import positive, within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy import composed_epsilon, rounded_up
from lightning_vfl.rounds.exchange import Exchange, Sides, open_round
from lightning_vfl.streams import stream
from lightning_vfl.types import Roll, Roster, RoundNames, Rows, Stage, Tensors, VerticalBatch, over_rows
from lightning_vfl.wire import Embeddings, PartyView, ServerView

ROWS = 2**16  # trials of one round


@dataclass
class EpsilonLowerBound(Attack):
    """Tell which of two embeddings a party has uploaded, from the aggregates of real rounds of messages.

    The two embeddings are the extremes that the aggregator's clip allows. In every trial a coin chooses one of them, it
    is uploaded ``uploads`` times, and the attacker knows the embeddings of all other parties. The guess is the sum of
    the aggregates along the difference of the two noiseless aggregates: the likelihood ratio for Gaussian noise, and a
    monotone function of it for a coordinate of a Poisson binomial sum.

    Args:
        trials: the number of coins.
        uploads: uploads of the record, whose privacy costs add up.
        width: coordinates of an embedding.
        delta: δ.
        party: the attacked party.

    Raises:
        ConfigurationError: for numbers that are not positive; for an aggregator that does not account for privacy.
    """

    target = Target.COINS
    listens = ()
    trials: int = 100_000
    uploads: int = 1
    width: int = 1
    delta: float = 1e-5
    party: int = 0

    def __post_init__(self) -> None:
        positive("trials", self.trials, whole=True)
        positive("uploads", self.uploads, whole=True)
        positive("width", self.width, whole=True)

    def check(self, seen: Seen) -> None:
        if seen.aggregator.accounting is None:
            raise ConfigurationError(
                "EpsilonLowerBound needs an aggregator that accounts for privacy; "
                f"{type(seen.aggregator).__name__} does not; use PoissonBinomial or LocalGaussian"
            )

    def run(self, seen: Seen, known: Known) -> Guesses:
        """A server attacks rounds of its own, see ``run_trials``; nobody else has aggregates."""
        raise NothingSeen("aggregates are the server's")


class Trials(NamedTuple):
    """The attacker's guesses of the coins, and the truth.

    Args:
        values: (n,) float64, larger where the second embedding is likelier.
        second: (n,) bool, whether the second embedding was uploaded.
        claimed: the accountant's ε.
    """

    values: Tensor
    second: Tensor
    claimed: float


def run_trials(aggregator: Aggregator, roster: Roster, attack: EpsilonLowerBound, seed: int) -> Trials:
    """Run the rounds.

    All other parties upload the first embedding as well, which leaves the sum of a Poisson binomial mechanism the least
    noise.

    Raises:
        ConfigurationError: for an aggregator that does not account for privacy, or without single embeddings.
    """
    name = type(aggregator).__name__
    accounting = aggregator.accounting
    wire = aggregator.wire
    clip = getattr(aggregator, "clip", None)
    if accounting is None or not isinstance(clip, float | int):
        raise ConfigurationError(
            f"{name} has no clip or accounts for no privacy, so there are no two embeddings to tell apart; use "
            "PoissonBinomial or LocalGaussian"
        )
    widths = aggregator.widths(attack.width, roster)
    parties = tuple(range(roster.parties))
    event = accounting.event(parties, widths, roster)
    if event is None:
        raise ConfigurationError(f"{name} accounts for nothing with these parties")
    if wire is None:
        raise ConfigurationError(f"{name} sends no messages of its own")
    extremes = [torch.full((width,), float(clip)) for width in widths]
    if getattr(aggregator, "bounds", "value") == "record":  # the norm is clipped, not each value
        for extreme in extremes:
            extreme[1:] = 0.0
    roll = Roll.everyone(roster.parties)

    def uploads(signs: Tensor) -> Tensors:
        """The embeddings of all parties: the attacked one has the extreme of each sign (B, 1)."""
        first = -torch.ones_like(signs)
        return tuple((signs if party == attack.party else first) * extremes[party] for party in parties)

    noiseless = aggregator.plain(uploads(torch.tensor([[-1.0], [1.0]])), roll).double()
    first = noiseless[0]
    along = noiseless[1] - first
    second = torch.rand(attack.trials, generator=torch.Generator().manual_seed(seed)) < 0.5
    values = torch.zeros(attack.trials, dtype=torch.float64)
    sides = Sides.of(wire)
    memory = None
    number = 0
    for ids in torch.split(torch.arange(attack.trials), ROWS):
        h = uploads(torch.where(second[ids], 1.0, -1.0)[:, None])
        rows = Rows(ids, 0, len(ids))
        for _ in range(attack.uploads):
            names = RoundNames(seed, Stage.FIT, number)
            view = PartyView(names, roster, parties, roll.called, rows)
            if aggregator.opening is not None:
                memory = aggregator.opening.empty_memory(view) if memory is None else memory
                memory = open_round(aggregator.opening, memory, view)
                view = replace(view, memory=memory)
            server = ServerView(names, roster, rows, roll, widths)
            with torch.no_grad():
                aggregate = Exchange(aggregator, Embeddings(h), view, server, sides=sides).run()
            values[ids] += (aggregate.double() - first) @ along
            number += 1
    return Trials(values, second, rounded_up(composed_epsilon({event: attack.uploads}, attack.delta)))


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
    listens = ((AGGREGATES, "own"),)
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
        values = over_rows(signs[rows].to(features), features)
        features[rows.to(features.device)] = values.expand(-1, *features.shape[1:])

    def run(self, seen: Seen, known: Known) -> Guesses:
        ids, inputs, epochs = aggregates_by_record(seen)
        signs = asked_for(known.labels).double()[:, None] * 2 - 1
        guesses = guesses_from_known(
            seen, Known(known.ids, features=signs), ids, inputs, f"aggregates of {epochs} epochs", "known coins"
        )
        guessed = torch.isin(ids, self.chosen(seen.records, seen.seed)) & ~torch.isin(ids, known.ids)
        return replace(guesses, ids=ids[guessed], values=guesses.values[guessed, 0])
