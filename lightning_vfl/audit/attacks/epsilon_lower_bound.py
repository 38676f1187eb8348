"""A lower bound on ε of an aggregator's mechanism, from many trials."""

from dataclasses import dataclass

import torch

from lightning_vfl.audit.attack import Attack, Guesses, Known, NothingSeen, Seen, Target
from lightning_vfl.audit.transcript import AGGREGATES
from lightning_vfl.checks import positive
from lightning_vfl.errors import ConfigurationError


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

    def reads(self, kind: str, way: str, sender: int | None, epoch: int) -> bool:
        return False

    def run(self, seen: Seen, known: Known) -> Guesses:
        if "second" not in seen.inputs:
            raise NothingSeen("aggregates are the server's")
        first = seen.inputs["first"]
        along = seen.inputs["second"] - first
        values = torch.zeros(self.trials, dtype=torch.float64)
        for entry in seen.transcript.find(AGGREGATES):
            values[entry.ids] += (entry.value.double() - first) @ along
        if not seen.transcript.entries:
            raise NothingSeen("no aggregate is computed")
        saw = f"aggregates of {self.trials:,} trials with {self.uploads} upload{'s' if self.uploads > 1 else ''}"
        return Guesses(torch.arange(self.trials), values, saw)
