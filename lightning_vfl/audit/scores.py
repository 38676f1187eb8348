"""The success of guesses, with a 95 % interval."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, log, nan, sqrt

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]

CONFIDENCE = 0.95
REVERSED = "AUC (reversed)"
RESAMPLES = 200  # of the bootstrap
DRAWS_SEED = 0


@dataclass(frozen=True)
class Score:
    """A success and its 95 % interval.

    Args:
        measure: what is measured, with its unit.
        success: the estimate.
        low: end of the interval.
        high: end of the interval.
        chance: the expected success of guesses that do not depend on the truth.
        p: of a number, the two-sided p-value of the hypothesis that the true success is at most this number; None:
            the success is a bound.
    """

    measure: str
    success: float
    low: float
    high: float
    chance: float
    p: Callable[[float], float] | None = field(default=None, repr=False, compare=False)


def auc(values: Numbers, positive: Flags) -> Score:
    """The probability that a positive record has a larger value than a negative one, ties counted half.

    If its interval is below one half, the values are in the reverse order: the success is then that of the values with
    the other sign, and the measure says so.

    References:
        Hanley, McNeil, "The Meaning and Use of the Area under a Receiver Operating Characteristic (ROC) Curve",
        Radiology 143, 1982 (the interval).
    """
    from scipy.special import comb
    from scipy.stats import rankdata

    n = int(positive.sum())
    m = int((~positive).sum())
    if not n or not m:
        return Score("AUC", nan, 0.0, 1.0, 0.5)
    # Mann and Whitney's U over its largest value: the ranks of the positive records less their least possible sum
    ranks = float(rankdata(values)[positive].sum())
    area = (ranks - n * (n + 1) / 2) / (n * m)
    half = 1.959964 * _deviation_of_area(area, n, m)
    if area in (0.0, 1.0):  # the formula has no width here: the rule of three for the smaller class
        half = 3 / min(n, m) if min(n, m) > 3 else 1.0
    low, high = max(0.0, area - half), min(1.0, area + half)

    def p(most: float) -> float:
        """Of at least this distance from one half; never less than that of the two extreme orders of all."""
        if most >= 1.0:  # nothing can be larger, and such an AUC has no deviation
            return 1.0
        distance = abs(area - 0.5) + 0.5 - most
        return max(_two_sided(distance / _deviation_of_area(most, n, m)), 2 / float(comb(n + m, n)))

    if high < 0.5:  # the order is the other way round: an attacker turns it, and knows as much
        return Score(REVERSED, 1 - area, 1 - high, 1 - low, 0.5, p)
    return Score("AUC", area, low, high, 0.5, p)


def _deviation_of_area(area: float, n: int, m: int) -> float:
    """The standard deviation of an AUC from n positive and m negative records, after Hanley and McNeil."""
    two_positive = area / (2 - area) - area**2  # Q1 - A²: two positive records, one negative
    two_negative = 2 * area**2 / (1 + area) - area**2  # Q2 - A²
    variance = (area * (1 - area) + (n - 1) * two_positive + (m - 1) * two_negative) / (n * m)
    return sqrt(max(variance, 0.0))


def _two_sided(deviations: float, freedom: float = inf) -> float:
    """The p-value of a value that lies so many deviations above its mean; these are estimated with ``freedom``."""
    from scipy.stats import t

    return min(1.0, 2 * float(t.sf(deviations, freedom)))


def share(right: int, of: int, chance: float, measure: str = "accuracy") -> Score:
    """A share of trials.

    References:
        Clopper, Pearson, "The Use of Confidence or Fiducial Limits", Biometrika 26, 1934.
    """
    from scipy.stats import binom

    low, high = clopper_pearson(right, of, 1 - CONFIDENCE)
    success = right / of if of else nan
    return Score(measure, success, low, high, chance, lambda most: min(1.0, 2 * float(binom.sf(right - 1, of, most))))


def clopper_pearson(right: int, of: int, risk: float) -> tuple[float, float]:
    """The interval of a probability, wrong with probability ``risk`` at most, half of it at each end.

    Examples:
        >>> [round(end, 4) for end in clopper_pearson(0, 10, 0.05)]
        [0.0, 0.3085]
    """
    from scipy.stats import beta

    low = float(beta.ppf(risk / 2, right, of - right + 1)) if right else 0.0
    high = float(beta.ppf(1 - risk / 2, right + 1, of - right)) if right < of else 1.0
    return low, high


def r_squared(guesses: Numbers, truth: Numbers) -> Score:
    """1 - Σ (guess - truth)² / Σ (truth - mean)², over all columns that vary; a bootstrap over the rows."""
    varying = truth.var(0) > 1e-9 if len(truth) else np.zeros(1, bool)
    if not varying.any():
        return Score("R²", nan, nan, nan, 0.0)
    wrong = ((guesses - truth) ** 2)[:, varying].sum(1)
    spread = ((truth - truth.mean(0)) ** 2)[:, varying].sum(1)
    generator = np.random.default_rng(DRAWS_SEED)
    again = np.empty(RESAMPLES)
    for i in range(RESAMPLES):  # one after the other: all at once take gigabytes for a million rows
        times = np.bincount(generator.integers(0, len(truth), len(truth)), minlength=len(truth))
        again[i] = 1 - times @ wrong / max(times @ spread, 1e-300)
    low, high = np.quantile(again, [0.025, 0.975])
    success = float(1 - wrong.sum() / spread.sum())
    deviation = max(float(again.std()), 1e-12)
    freedom = max(len(truth) - 1, 1)

    def p(most: float) -> float:
        return _two_sided((success - most) / deviation, freedom)

    return Score("R²", success, float(low), float(high), 0.0, p)


def epsilon_of_trials(values: Numbers, second: Flags, delta: float) -> Score:
    """A lower bound on ε from one number of each trial, right with probability 0.95; ``second`` are the coins.

    (ε, δ)-privacy means P(above | second) ≤ e^ε P(above | first) + δ, and the same with the roles exchanged. A
    quarter of the trials chooses a threshold for each of the two directions, the others measure both rates. Each of
    four rates is wrong with a quarter of the risk.

    References:
        Clopper, Pearson, 1934 (the rates); Nasr et al., "Adversary Instantiation: Lower Bounds for Differentially
        Private Machine Learning", IEEE Symposium on Security and Privacy 2021, section IV.
    """
    bounds = [0.0]
    estimates = [0.0]
    a = values[~second]
    b = values[second]
    for rare, often in ((a, b), (-b, -a)):
        choose_rare, rare_left = np.split(rare, [len(rare) // 4])
        choose_often, often_left = np.split(often, [len(often) // 4])
        places = np.unique(np.concatenate([choose_rare, choose_often]))
        if len(places) > 200:
            places = np.unique(np.quantile(places, np.linspace(0, 1, 201)))
        thresholds = (places[1:] + places[:-1]) / 2
        if not len(thresholds):
            continue
        best = max(thresholds, key=lambda threshold: _bound_at(threshold, choose_rare, choose_often, delta))
        bounds.append(_bound_at(best, rare_left, often_left, delta))
        hits = (often_left > best).mean()
        false = (rare_left > best).mean()
        if hits > delta and false > 0:
            estimates.append(log((hits - delta) / false))
    bound = max(bounds)
    return Score("ε (lower bound)", bound, bound, max(*estimates, bound), 0.0)


def _bound_at(threshold: float, rare: Numbers, often: Numbers, delta: float) -> float:
    risk = (1 - CONFIDENCE) / 2
    p, _ = clopper_pearson(int((often > threshold).sum()), len(often), risk)
    _, q = clopper_pearson(int((rare > threshold).sum()), len(rare), risk)
    return max(0.0, log((p - delta) / q)) if p > delta else 0.0


def epsilon_of_one_run(values: Numbers, second: Flags, delta: float) -> Score:
    """A lower bound on ε from one run with m canaries, right with probability 0.95; ``second`` (m,) are the coins.

    The guesses are the signs of ``values``, for the canaries with the largest values; the others are abstentions. Among
    the numbers of guesses m/10, m/5, ..., m each bound has a tenth of the risk.

    References:
        Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023, theorem 5.2.
    """
    m = len(values)
    right = ((values > 0) == second)[np.argsort(-np.abs(values))]
    sizes = {max(1, round(m * tenth / 10)) for tenth in range(1, 11)}
    risk = (1 - CONFIDENCE) / len(sizes)
    bound = max(_one_run_bound(m, size, int(right[:size].sum()), delta, risk) for size in sizes)

    def p(most: float) -> float:
        return min(1.0, len(sizes) * min(one_run_p_value(m, n, int(right[:n].sum()), most, delta) for n in sizes))

    return Score("ε (lower bound)", bound, bound, float("inf"), 0.0, p)


def _one_run_bound(m: int, guesses: int, right: int, delta: float, risk: float) -> float:
    """The largest ε that is refuted, by bisection."""
    low, high = 0.0, 20.0
    if one_run_p_value(m, guesses, right, low, delta) > risk:
        return low
    while high - low > 1e-4:
        middle = (low + high) / 2
        refuted = one_run_p_value(m, guesses, right, middle, delta) <= risk
        low, high = (middle, high) if refuted else (low, middle)
    return low


def one_run_p_value(m: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """The largest probability of so many right guesses, if the training is (ε, δ)-private.

    References:
        Steinke, Nasr, Jagielski, 2023, theorem 5.2: β + 2 m δ α with β = P(W ≥ v) and α = max_i P(v > W ≥ v - i) / i,
        W binomial of r trials with e^ε / (e^ε + 1).
    """
    from scipy.stats import binom

    q = 1 / (1 + np.exp(-epsilon))
    tail = float(binom.sf(right - 1, guesses, q))
    if not delta or not right:
        return min(1.0, tail)
    steps = np.arange(1, right + 1)
    between = np.cumsum(binom.pmf(right - steps, guesses, q))
    return min(1.0, tail + 2 * m * delta * float((between / steps).max()))
