r"""Privacy loss distributions of the Poisson binomial mechanism: ε at one δ, a few per cent below that of Rényi curves.

A pair (P, Q) dominates a release if, for every γ ≥ 0 and all neighbouring data, the release's hockey-stick divergence
E_γ is at most E_γ(P || Q). Dominating pairs compose: the product of the pairs dominates all releases together, also
if a release depends on earlier ones. So δ(ε) of the product is an upper bound for the run. Every convex, falling
function of γ that is 1 at γ = 0 and at least max(0, 1 - γ) is the E_γ of some pair.

**One party's numbers** (unit ``party-record``). Let k be the number of the other parties' b(M - 1) trials that succeed
with probability h = 1/2 + β, the others with l = 1/2 - β; the changing party is at -1 in P_k and at +1 in Q_k. For one
number, all neighbouring data have an E_γ of at most that of some k:

1. Both sums are linear in the success probability of every single trial of the other parties, and E_γ is jointly
   convex. So a maximum is at a corner, where every trial is at l or at h.
2. Sums of independent trials grow with the party's value in the likelihood-ratio order. If the party is at x in P and
   at y > x in Q, a best set of outcomes is therefore {sum ≤ t}. Its probability falls with the value in both sums, so
   x = -1 and y = 1 are the worst values. If y < x, the mirror image of the sum exchanges l and h, and k with
   b(M - 1) - k.

The largest E_γ over all k is convex in γ, as a maximum of convex functions, so it is the E_γ of a pair. This pair
dominates one number whatever the others are, so its product dominates several numbers, also if k of a number depends on
the numbers before. No k is left out and no k is assumed to be the worst.

**All parties' numbers** (unit ``record``). All trials of the sum change from l to h. The sum is a function of the
trials, so the product of bM pairs (Bernoulli(h), Bernoulli(l)) dominates it; the sum of all parties at -1 and of all at
+1 attains it.

Rounding: the largest E_γ is rounded up and joined by lines from above between the losses of a grid (connect the dots).
``dp_accounting`` does this and composes the pairs. Its sums have rounding errors of their own, for which a probability
of 1e-10 is taken off δ.

References:
    Zhu, Dong, Wang, "Optimal Accounting of Differential Privacy via Characteristic Function", AISTATS 2022,
    https://arxiv.org/abs/2106.08567, Proposition 8 (which functions are profiles) and Theorem 10 (composition).
    Doroshenko, Ghazi, Kamath, Kumar, Manurangsi, "Connect the Dots: Tighter Discrete Approximations of Privacy Loss
    Distributions", PoPETs 2022, https://arxiv.org/abs/2207.04380, Algorithm 1 (in dp-accounting).
"""

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from math import ceil, floor, inf, log2, sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lightning_vfl.privacy.digits import rounded_up, shown
from lightning_vfl.privacy.events import PoissonBinomialEvent, PrivacyEvent, unit_of_one_release
from lightning_vfl.privacy.poisson_binomial import MOST_TRIALS, poisson_binomial_profiles, poisson_binomial_rdp
from lightning_vfl.privacy.rdp import ORDERS

if TYPE_CHECKING:
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

Kinds = tuple[tuple[int, float, int], ...]
"""b, β and M of every kind of release that is possible."""

_MOST_COMPOSED = 2**20  # numbers; beyond this the two accounts differ by little
_MOST_LOSSES = 2**17  # points of the grid of one number
_PER_DEVIATION = 64  # points of the grid in a standard deviation of the loss
_ROUNDING = 1e-10  # of a probability


class Account(Enum):
    """How an ε was computed; the value is the text in the summary."""

    RENYI = "Rényi"
    LOSS = "PLD"
    GAUSSIAN = "Gaussian"


class Figure(NamedTuple):
    """An ε, and the account that gave it."""

    epsilon: float
    account: Account

    def __str__(self) -> str:
        return f"{shown(self.epsilon)} ({self.account.value})" if self.epsilon else "0"


def smaller(renyi: float, loss: float) -> Figure:
    """The smaller of the figures of two accounts, both upper bounds; the name is PLD if that is smaller as shown.

    Examples:
        >>> print(smaller(2.23, 2.05), "/", smaller(2.23, inf))
        2.05 (PLD) / 2.23 (Rényi)
    """
    if rounded_up(loss) < rounded_up(renyi):
        return Figure(loss, Account.LOSS)
    return Figure(min(loss, renyi), Account.RENYI)


def loss_epsilon(uses: Sequence[tuple[Sequence[PrivacyEvent], int]], delta: float, unit: str = "party-record") -> float:
    """ε of several releases together by their privacy loss distributions; infinite if this account does not apply.

    It applies to ``PoissonBinomialEvent`` in the units ``party-record``, ``party``, ``party (paper)`` (one party's
    numbers; ``uses`` counts as ``composed_epsilon``) and ``record``, with b M of at most 1024 (for a party's numbers),
    equal β (for a record) and at most 1,048,576 numbers (for a record: trials).

    Units: ε in nats.
    Guarantee: never below the true ε, for any values of all parties in [-1, 1].
    Not guaranteed: an ε below that of Rényi curves. It is infinite for a δ of at most 1e-10,
        the allowance for rounding.

    Args:
        uses: pairs of the possible events of a release, and the count of such releases. With several events, a release
            costs the most expensive one at every γ.
        delta: 0 ≤ δ ≤ 1, for all releases together.
        unit: the difference between neighbouring data, one of ``UNITS``.

    Examples:
        >>> event = PoissonBinomialEvent(levels=2, beta=0.05, parties=5, coordinates=16)
        >>> f"{loss_epsilon([([event], 1)], delta=1e-5):.3f}"
        '2.075'
    """
    unit = unit_of_one_release(unit)
    if unit == "record (paper)" or not 0 < delta < 1:
        return inf
    disclosing: list[tuple[list[PoissonBinomialEvent], int]] = []
    for events, count in uses:
        binomial = [event for event in events if isinstance(event, PoissonBinomialEvent)]
        if count and len(binomial) < len(events):
            return inf
        binomial = [event for event in binomial if event.beta]  # β = 0 discloses nothing
        if count and binomial:
            disclosing.append((binomial, count))
    if not disclosing:
        return 0.0
    parts = _trials(disclosing) if unit == "record" else _numbers(disclosing)
    if not parts or max(count for _, count in parts) > _MOST_COMPOSED or delta <= _ROUNDING:
        return inf
    with np.errstate(over="ignore"):  # it divides by masses near 1e-300 and takes the logarithm: infinity is right
        return float(_composed(tuple(parts)).get_epsilon_for_delta(delta - _ROUNDING))


Parts = list[tuple["PrivacyLossDistribution", int]]


def _numbers(uses: "list[tuple[list[PoissonBinomialEvent], int]]") -> Parts:
    """Loss distributions of one party's number on one grid, with the count of each; empty: no certified pair."""
    every = {event for events, _ in uses for event in events}
    if any(event.levels * event.parties > MOST_TRIALS for event in every):
        return []
    spacing = max(map(_spacing, every))
    largest = max(poisson_binomial_rdp(event.levels, event.beta, 1, inf, "record") for event in every)
    half = ceil(largest * (1 + 1e-12) / spacing)  # above the largest loss
    if 2 * half > _MOST_LOSSES or any(len({event.coordinates for event in events}) > 1 for events, _ in uses):
        return []
    parts = []
    for events, count in uses:
        kinds = {(event.levels, event.beta, event.parties) for event in events}
        parts.append((_number(tuple(sorted(kinds)), spacing, half), count * events[0].coordinates))
    return parts


def _trials(uses: "list[tuple[list[PoissonBinomialEvent], int]]") -> Parts:
    """The loss distribution of one trial of a record, and the count of trials; empty: not of one kind."""
    from dp_accounting.pld.pld_pmf import DensePLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    betas = {event.beta for events, _ in uses for event in events}
    if len(betas) > 1:
        return []
    (beta,) = betas
    loss = poisson_binomial_rdp(1, beta, 1, inf, "record")
    probabilities = np.array([0.5 - beta, 0.0, 0.5 + beta])  # of the losses -1, 0 and 1 times ``loss``
    trial = PrivacyLossDistribution(DensePLDPmf(loss, -1, probabilities, 0.0, pessimistic_estimate=True))
    trials = sum(max(e.levels * e.parties * e.coordinates for e in events) * count for events, count in uses)
    return [(trial, trials)]


def _spacing(event: PoissonBinomialEvent) -> float:
    """The grid of an event's losses, a power of 2, so that a coarser grid is a part of a finer one.

    ε(2) of one number is about its mean loss, and the square of the loss's deviation.
    """
    cost = PoissonBinomialEvent(event.levels, event.beta, event.parties, 1).curve()[ORDERS.index(2.0)]
    return 2.0 ** floor(log2(sqrt(cost) / _PER_DEVIATION))


@lru_cache(maxsize=32)
def _number(kinds: Kinds, spacing: float, half: int) -> "PrivacyLossDistribution":
    """The loss distribution of one number, whichever of the kinds and whatever other parties' values."""
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    grid = np.arange(-half, half + 1)
    losses = np.asarray(grid * spacing, np.float64)
    largest = np.max([poisson_binomial_profiles(*kind, losses).max(axis=0) for kind in kinds], axis=0)
    falling = np.maximum.accumulate(largest[::-1])[::-1]  # rounding can make it rise
    return PrivacyLossDistribution(create_pmf_pessimistic_connect_dots(spacing, grid, falling))


@lru_cache(maxsize=8)
def _composed(parts: "tuple[tuple[PrivacyLossDistribution, int], ...]") -> "PrivacyLossDistribution":
    """The distribution of the parts' losses added up; one serves every δ of a table."""
    several = [one.self_compose(count) for one, count in parts]
    joint = several[0]
    for other in several[1:]:
        joint = joint.compose(other, _ROUNDING / 100)
    return joint
