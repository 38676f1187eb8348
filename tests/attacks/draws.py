"""Attacks on the noise that a privacy figure rests on: subtract it by its seed, or read it from its last bits.

Every attack tells two neighbouring records apart, A and B, whose embeddings differ by no more than the clip allows. An
attacker that says "A" with probability p of A and q of B proves that no ε with p > e^ε q + δ can hold, and
``epsilon_shown`` is the largest ε that is refuted in this way with 95 % confidence. "Before" are ``draws: seeded``, the
only draws that there were; "now" are ``draws: system``.
"""

from dataclasses import dataclass, replace
from math import log

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from lightning_vfl.aggregators import Aggregator, LocalGaussian, PoissonBinomial
from lightning_vfl.privacy import Budget, composed_epsilon
from lightning_vfl.privacy.draws import Draws
from lightning_vfl.privacy.events import PrivacyEvent
from lightning_vfl.rounds.exchange import Exchange, open_round
from lightning_vfl.types import Roll, Roster, RoundNames, Rows, Stage
from lightning_vfl.wire import Embeddings, PartyView, ServerView
from tests.attacks.row import Row

DELTA = 1e-5
SEED = 7  # of the recipe that the attacker has read
NAMES = RoundNames(SEED, Stage.FIT, 0)
ROWS = 20_000  # records of each kind


@dataclass(frozen=True)
class Told:
    """How often the attacker said "A" of records of either kind, and how often it was right.

    Args:
        of_a, of_b: records of that kind of which it said "A".
        rows: records of each kind.
        right: share of all records that it named rightly.
    """

    of_a: int
    of_b: int
    rows: int
    right: float

    @property
    def epsilon_shown(self) -> float:
        """The largest ε that is refuted with 95 % confidence (Clopper and Pearson, 2.5 % for each share)."""
        least = stats.beta.ppf(0.025, self.of_a, self.rows - self.of_a + 1) if self.of_a else 0.0
        most = stats.beta.ppf(0.975, self.of_b + 1, self.rows - self.of_b) if self.of_b < self.rows else 1.0
        return max(0.0, log((least - DELTA) / most)) if least > DELTA else 0.0

    @classmethod
    def of(cls, said_a: Tensor, said_b: Tensor) -> "Told":
        """From what was said, True for "A", of records of A and of B."""
        right = (said_a.double().mean() + 1 - said_b.double().mean()) / 2
        return cls(int(said_a.sum()), int(said_b.sum()), len(said_a), float(right))


def reported(event: PrivacyEvent | None) -> float:
    """The ε of one upload that the accountant reports."""
    if event is None:
        raise ValueError("the aggregator accounts for nothing")
    return composed_epsilon({event: 1}, DELTA)


# ---- one round, as the parties and the server run it


def views(aggregator: Aggregator, parties: int, rows: int, width: int) -> tuple[PartyView, ServerView]:
    """The views of one round."""
    roster = Roster.singles(parties)
    here = Rows(torch.arange(rows), 0, rows)
    called = torch.ones(parties, dtype=torch.bool)
    view = PartyView(NAMES, roster, tuple(range(parties)), called, here)
    if aggregator.opening is not None:
        view = replace(view, memory=open_round(aggregator.opening, aggregator.opening.empty_memory(view), view))
    return view, ServerView(NAMES, roster, here, Roll.everyone(parties), (width,) * parties)


def local_upload(aggregator: LocalGaussian, h: Tensor) -> Tensor:
    """What one party sends for these embeddings."""
    view, _ = views(aggregator, 1, *h.shape)
    return next(aggregator.wire.party_side().upload(Embeddings((h,)), view)).pieces[0].double()


def masked_sum(aggregator: PoissonBinomial, h: list[Tensor]) -> Tensor:
    """What the server decodes of these parties' masked draws."""
    bound = aggregator.among(Roster.singles(len(h)))
    view, server = views(bound, len(h), *h[0].shape)
    return Exchange(bound, Embeddings(tuple(h)), view, server).run().double()


# ---- LocalGaussian: subtract the noise of the seed


def gaussian(draws: Draws) -> LocalGaussian:
    """ε = 1 of one upload."""
    return LocalGaussian(Budget(epsilon=1.0, delta=DELTA), draws=draws)


def subtract(draws: Draws, rows: int = ROWS, width: int = 16) -> Tensor:
    """Embeddings (rows, width) and what is left of their uploads without the noise that the seed names: (2, ...)."""
    h = torch.randn(rows, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    h = h / h.norm(dim=1, keepdim=True)
    noise = local_upload(gaussian("seeded"), torch.zeros_like(h))
    return torch.stack((h, local_upload(gaussian(draws), h) - noise))


def subtract_and_tell(draws: Draws, rows: int = ROWS) -> Told:
    """A has an embedding of (1, 0, ...), B of (-1, 0, ...); the attacker subtracts the seed's noise and looks."""
    ends = torch.zeros(2 * rows, 4, dtype=torch.float64)
    ends[:rows, 0], ends[rows:, 0] = 1.0, -1.0
    noise = local_upload(gaussian("seeded"), torch.zeros_like(ends))
    told = (local_upload(gaussian(draws), ends) - noise)[:, 0] > 0
    return Told.of(told[:rows], told[rows:])


def best_test(draws: Draws, rows: int = ROWS, at: float = 0.0) -> Told:
    """The best attack without the seed: the sign of the upload beyond ``at`` σ, which is the likelihood ratio's."""
    ends = torch.zeros(2 * rows, 4, dtype=torch.float64)
    ends[:rows, 0], ends[rows:, 0] = 1.0, -1.0
    aggregator = gaussian(draws)
    told = local_upload(aggregator, ends)[:, 0] > at * aggregator.sigma(4, 1)
    return Told.of(told[:rows], told[rows:])


# ---- LocalGaussian: the last bits of floating-point noise


def last_bits(draws: Draws, rows: int = ROWS, width: int = 64) -> Told:
    """A has the embedding 0, B one of 1/√D in every value, in float64; the attacker does not know the seed.

    A sum of B's value and noise is a multiple of the last bit of B's value, whatever the noise: where |sum| is smaller
    than the value, cancellation has left zeros behind. Noise alone, A's upload, has smaller last bits there. So an
    upload with smaller bits cannot be B's.
    """
    value = width**-0.5
    unit = 2.0 ** (np.frexp(value * (1 - 2.0**-30))[1] - 53)  # clipping makes the value smaller by 2^-40 of it
    both = torch.zeros(2 * rows, width, dtype=torch.float64)
    both[rows:] = value
    sent = local_upload(gaussian(draws), both)
    finer = ((sent / unit) != (sent / unit).round()).any(1)
    return Told.of(finer[:rows], finer[rows:])


# ---- PoissonBinomial: draw again with the seed

PARTIES, WIDTH = 5, 16


def binomials(draws: Draws) -> PoissonBinomial:
    """The most private setting of the table in docs/privacy.md: ε = 2.2 of one upload."""
    return PoissonBinomial(levels=2, beta=0.05, draws=draws)


def draw_again(draws: Draws, with_seed: bool = True, rows: int = ROWS) -> Told:
    """Party 0 has 1 (A) or -1 (B) in every value; the server knows what the others have, and the sum of the draws.

    It computes the sums of both kinds with the seed of the recipe, and names the kind whose sum it is. Where both or
    neither are, or without the seed, it takes the more likely kind, that of the sign of the sum.
    """
    others = [torch.zeros(rows, WIDTH)] * (PARTIES - 1)
    kinds = [[torch.full((rows, WIDTH), value), *others] for value in (1.0, -1.0)]
    guessed = [masked_sum(binomials("seeded"), h) for h in kinds]
    told = []
    for h in kinds:
        seen = masked_sum(binomials(draws), h)
        likely = seen.sum(1) > 0
        of_a, of_b = ((seen == guess).all(1) for guess in guessed)
        told.append(torch.where(of_a != of_b, of_a, likely) if with_seed else likely)
    return Told.of(*told)


def binomial_event() -> PrivacyEvent | None:
    """What a round of ``draw_again`` is charged."""
    return binomials("system").accounting.event(tuple(range(PARTIES)), (WIDTH,) * PARTIES, Roster.singles(PARTIES))


def gaussian_event() -> PrivacyEvent | None:
    """What an upload of the attacks on ``LocalGaussian`` is charged."""
    return gaussian("system").accounting.event((0,), (4,), Roster.singles(1))


# ---- the table


def rows() -> list[Row]:
    """All attacks of this module, with 20,000 records of each kind."""

    def error(draws: Draws) -> str:
        h, left = subtract(draws)
        return f"{float((left - h).norm(dim=1).median()):.2g}"

    def words(told: Told, epsilon: float) -> str:
        return f"{told.right:.1%} right, ε ≥ {told.epsilon_shown:.2f} (reported {epsilon:.2f})"

    one, two = reported(gaussian_event()), reported(binomial_event())
    noisy, honest = gaussian("system").sigma(16, 1) * 16**0.5, best_test("system")
    before, now = last_bits("seeded"), last_bits("system")
    return [
        Row(
            "`LocalGaussian`: subtract the noise of the seed, to get embeddings of norm 1",
            "uploads; the recipe with its seed",
            f"median error {error('seeded')}",
            f"median error {error('system')}",
            f"{noisy:.2g} (the noise itself)",
        ),
        Row(
            "`LocalGaussian`: the same, to tell two records apart",
            "uploads; the recipe with its seed",
            words(subtract_and_tell("seeded"), one),
            words(subtract_and_tell("system"), one),
            f"{honest.right:.1%}, the best test of the mechanism",
        ),
        Row(
            "`LocalGaussian`: last bits of floating-point noise rule out one of two records",
            "uploads in float64",
            f"{before.of_a / before.rows:.1%} of uploads, ε ≥ {before.epsilon_shown:.2f} (reported {one:.2f})",
            f"{now.of_a / now.rows:.1%} of uploads, ε ≥ {now.epsilon_shown:.2f} (reported {one:.2f})",
            "0.0%",
        ),
        Row(
            "`PoissonBinomial`: draw again with the seed, to tell two records apart",
            "sums; the other parties' embeddings; the recipe with its seed",
            words(draw_again("seeded"), two),
            words(draw_again("system"), two),
            f"{draw_again('system', with_seed=False).right:.1%}, the best test of the mechanism",
        ),
    ]
