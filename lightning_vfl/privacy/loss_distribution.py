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

Several numbers are released in turn, and k of a number may depend on all numbers before. The largest E_γ of m numbers,
over all such choices, is

.. math:: V_0(γ) = \max(0, 1 - γ), \qquad V_m(γ) = \max_k \sum_j P_k(j) \, V_{m-1}(γ Q_k(j) / P_k(j)) .

As a maximum of convex functions it is convex, so it is the E_γ of a pair, which dominates a block of m numbers.
``Blocks`` computes it. Blocks are then composed as pairs. No k is left out and no k is assumed to be the worst:
the maximum over all k is the certificate, computed for the parameters at hand.

**All parties' numbers** (unit ``record``). All trials of the sum change from l to h. The sum is a function of the
trials, so the product of bM pairs (Bernoulli(h), Bernoulli(l)) dominates it; the sum of all parties at -1 and of all at
+1 attains it.

Rounding: deltas of the pairs are rounded up, a grid of losses joins them by lines from above (connect the dots), and a
bound on the errors of the fast Fourier transform is subtracted from δ before the conversion.

References:
    Zhu, Dong, Wang, "Optimal Accounting of Differential Privacy via Characteristic Function", AISTATS 2022,
    https://arxiv.org/abs/2106.08567, Proposition 8 (which functions are profiles) and Theorem 10 (composition).
    Doroshenko, Ghazi, Kamath, Kumar, Manurangsi, "Connect the Dots: Tighter Discrete Approximations of Privacy Loss
    Distributions", PoPETs 2022, https://arxiv.org/abs/2207.04380, Algorithm 1 (in dp-accounting).
    Higham, "Accuracy and Stability of Numerical Algorithms", 2002, Theorem 24.2 (the error of the transform).
"""

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from math import ceil, floor, inf, log, log1p, log2, nextafter, sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lightning_vfl.privacy.digits import rounded_up, shown
from lightning_vfl.privacy.events import PoissonBinomialEvent, PrivacyEvent, unit_of_one_release
from lightning_vfl.privacy.loss_blocks import Kinds, blocks
from lightning_vfl.privacy.poisson_binomial import MOST_TRIALS, poisson_binomial_rdp
from lightning_vfl.privacy.rdp import ORDERS

if TYPE_CHECKING:
    from dp_accounting.pld.pld_pmf import DensePLDPmf
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_MOST_TRIALS = 2**32  # of a record
_MOST_COMPOSED = 2**20  # blocks; beyond this the two accounts differ by little and the transform is long
_MOST_LOSSES = 2**17  # points of the grid of one number
# points of the grid in a standard deviation of the loss: the grid costs 4e-5 of ε, of a few numbers up to 2e-3
_PER_DEVIATION = 64
_BLOCK = 32.0  # ε(2) of a block; the values of other parties that cost most at losses around 0 matter little in it
_LONGEST = 256  # numbers of a block
_CUT = 1e-7  # of δ, the largest mass that is cut off and counted as infinite loss
_SMALL = 1e-7  # for every δ from here on the same mass is cut off
_ULP = 2.0**-53


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
    equal β (for a record) and at most 1,048,576 composed blocks of numbers.

    Units: ε in nats.
    Guarantee: never below the true ε, for any values of all parties in [-1, 1].
    Not guaranteed: an ε below that of Rényi curves. The allowance for rounding, some 1e-9 for every block of numbers,
        can exceed a small δ; the result is then infinite.

    Args:
        uses: pairs of the possible events of a release, and the count of such releases. With several events, a release
            costs the most expensive one at every γ.
        delta: 0 ≤ δ ≤ 1, for all releases together.
        unit: the difference between neighbouring data, one of ``UNITS``.

    Examples:
        >>> event = PoissonBinomialEvent(levels=2, beta=0.05, parties=5, coordinates=16)
        >>> f"{loss_epsilon([([event], 1)], delta=1e-5):.3f}"
        '2.054'
    """
    unit = unit_of_one_release(unit)
    used = [(list(events), count) for events, count in uses if count]
    known: list[tuple[list[PoissonBinomialEvent], int]] = []
    for events, count in used:
        some = [event for event in events if isinstance(event, PoissonBinomialEvent)]
        if len(some) < len(events):
            return inf
        some = [event for event in some if event.beta]  # β = 0 discloses nothing
        if some:
            known.append((some, count))
    if unit == "record (paper)" or not 0 < delta < 1:
        return inf
    if not known:
        return 0.0
    if unit == "record":
        return _of_trials(known, delta)
    parts = _of_numbers(known)
    if parts is None or max(count for _, count in parts) > _MOST_COMPOSED:
        return inf
    return _composed(parts, delta)


def _of_numbers(uses: "list[tuple[list[PoissonBinomialEvent], int]]") -> "list[tuple[DensePLDPmf, int]] | None":
    """Loss distributions of one party's numbers on one grid, with the count of each; None: no certified pair."""
    every = {event for events, _ in uses for event in events}
    if any(event.levels * event.parties > MOST_TRIALS for event in every):
        return None
    spacing = max(map(_spacing, every))
    half = max(ceil(_largest_loss(event) / spacing) for event in every)
    if 2 * half > _MOST_LOSSES or any(len({event.coordinates for event in events}) > 1 for events, _ in uses):
        return None
    parts = []
    for events, count in uses:
        kinds = tuple(sorted({(event.levels, event.beta, event.parties) for event in events}))
        longest = min(max(ceil(_BLOCK / max(map(_cost, events))), 1), _LONGEST)
        times, rest = divmod(count * events[0].coordinates, longest)
        parts += [(_block(kinds, spacing, longest, longest), times)] if times else []
        parts += [(_block(kinds, spacing, longest, rest), 1)] if rest else []
    return parts


def _of_trials(uses: "list[tuple[list[PoissonBinomialEvent], int]]", delta: float) -> float:
    r"""ε of a record: the sum of N trials is Binomial(N, h) or Binomial(N, l), with the loss (2j - N) log(h / l).

    Outcomes below the mean by 40 standard deviations are left out, as their loss is below ε; those above it by as many
    count as infinite loss.
    """
    from dp_accounting.pld.pld_pmf import DensePLDPmf
    from scipy.special import bdtrc, gammaln

    betas = {event.beta for events, _ in uses for event in events}
    trials = sum(max(e.levels * e.parties * e.coordinates for e in events) * count for events, count in uses)
    if len(betas) > 1 or trials > _MOST_TRIALS:
        return inf
    (beta,) = betas
    high = nextafter(0.5 + beta, 1.0)
    middle, width = trials * high, 40 * sqrt(trials)
    first, last = max(0, floor(middle - width)), min(trials, ceil(middle + width))
    j = np.arange(first, last + 1, dtype=np.float64)
    logs = (
        gammaln(trials + 1.0) - gammaln(j + 1) - gammaln(trials - j + 1) + j * log(high) + (trials - j) * log1p(-high)
    )
    error = 64 * _ULP * (trials + 1) * log(trials + 2)  # a few rounding errors of terms of at most N log N
    spread = np.zeros(2 * j.size - 1)
    spread[::2] = np.exp(logs + error)
    beyond = 2 * float(bdtrc(last, trials, high)) if last < trials else 0.0
    loss = poisson_binomial_rdp(1, beta, 1, inf, "record")
    return _converted(DensePLDPmf(loss, 2 * first - trials, spread, beyond, pessimistic_estimate=True), delta)


def _spacing(event: PoissonBinomialEvent) -> float:
    """The grid of an event's losses, a power of 2, so that a coarser grid is a part of a finer one."""
    return 2.0 ** floor(log2(sqrt(_cost(event)) / _PER_DEVIATION))


def _cost(event: PoissonBinomialEvent) -> float:
    """ε(2) of one number: about its mean loss, and the square of the loss's deviation."""
    return PoissonBinomialEvent(event.levels, event.beta, event.parties, 1).curve()[ORDERS.index(2.0)]


def _largest_loss(event: PoissonBinomialEvent) -> float:
    """The loss of one number in pure differential privacy: b log(h / l)."""
    return poisson_binomial_rdp(event.levels, event.beta, 1, inf, "record")


@lru_cache(maxsize=32)
def _block(kinds: Kinds, spacing: float, longest: int, numbers: int) -> "DensePLDPmf":
    """The loss distribution of a block of numbers, each released by the most expensive of several kinds."""
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots

    some = blocks(kinds, spacing, longest)
    return create_pmf_pessimistic_connect_dots(spacing, some.losses, some.deltas(numbers)).to_dense_pmf()


def _composed(parts: "list[tuple[DensePLDPmf, int]]", delta: float) -> float:
    """ε of the parts' product, after the allowance for the rounding of every transform."""
    joint, allowed = _product(tuple(parts), _CUT * min(delta, _SMALL))
    return _converted(joint, delta - allowed) if allowed < delta else inf


@lru_cache(maxsize=8)
def _product(parts: "tuple[tuple[DensePLDPmf, int], ...]", cut: float) -> "tuple[DensePLDPmf, float]":
    """The distribution of the parts' losses added up, and a bound on its errors; one serves every δ of a table."""
    cut /= len(parts)
    several = [one.self_compose(count, cut) if count > 1 else one for one, count in parts]
    allowed = sum(_rounding(one, all_, count) for (one, count), all_ in zip(parts, several, strict=True))
    joint = several[0]
    for other in several[1:]:
        both = joint.compose(other, cut)
        allowed += _transform(both.size) * _norm(joint._probs) * _norm(other._probs)
        joint = both
    _forget_transforms()
    return joint, allowed


def _forget_transforms() -> None:
    """Let scipy forget the tables of its last transforms: it keeps those of 16 lengths, of some 20 MB each here."""
    from scipy.fft import fft, rfft

    for length in range(1, 17):
        rfft(np.zeros(length))
        fft(np.zeros(length, np.complex128))


def _rounding(one: "DensePLDPmf", several: "DensePLDPmf", count: int) -> float:
    """A bound on the errors in the probabilities of ``count`` times one, added up.

    The transform C of one has errors of at most e = 48 u log2(N) |p| sqrt(N), the power n |C|^(n-1) e and a relative
    error of 32 n u, the inverse transform 48 u log2(N) of the norm. The sum of N errors is at most sqrt(N) times their
    norm.
    """
    from scipy.fft import next_fast_len, rfft

    p: Floats = one._probs
    own = 8 * _ULP * count * p.size  # of the probabilities of one, each a few operations on numbers below 1
    if count == 1:
        return own
    size = next_fast_len(max(several.size, p.size))
    half = np.abs(rfft(p, size))
    spectrum = np.concatenate([half, half[1 : (size + 1) // 2]])  # the other half has the same magnitudes
    error = _transform(size) * _norm(p)
    before = sqrt(float(np.mean(np.minimum(spectrum + error, 1 + error) ** (2 * (count - 1)))))
    return own + sqrt(2 * size) * (count * error * before + 32 * _ULP * count * before) + _transform(size) * before


def _transform(size: int) -> float:
    """A bound on the error of a transform of ``size`` numbers, each, relative to the norm of the input."""
    return 48 * _ULP * log2(2 * size) * sqrt(2 * size)


def _norm(probabilities: "Floats") -> float:
    return float(np.linalg.norm(probabilities))


def _converted(joint: "DensePLDPmf", delta: float) -> float:
    """ε of a composed distribution. Losses are shifted so that exp(-loss) stays in the range of floats."""
    from dp_accounting.pld.pld_pmf import DensePLDPmf

    above = np.cumsum(joint._probs[::-1])[::-1] + joint._infinity_mass
    first = int(np.searchsorted(-above, -delta, side="right")) - 1  # the last loss with more than δ at or above it
    largest = joint._lower_loss + max(first, 0)
    shift = max(0, largest - ceil(300 / joint._discretization))
    moved = DensePLDPmf(
        joint._discretization, joint._lower_loss - shift, joint._probs, joint._infinity_mass, pessimistic_estimate=True
    )
    epsilon = float(moved.get_epsilon_for_delta(delta)) + shift * joint._discretization
    return epsilon * (1 + 1e-12) if epsilon else 0.0
