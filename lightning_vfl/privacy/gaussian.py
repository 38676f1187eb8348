r"""The Gaussian mechanism: what noise of a standard deviation costs, and how much noise a budget asks for.

Everything depends on one number, μ = Δ / σ, the sensitivity in units of the noise. With the normal distribution Φ, its
density φ and the Mills ratio m(t) = Φ(-t) / φ(t), the least δ for an ε is

.. math::
    \delta(\varepsilon) = \Phi(\mu/2 - \varepsilon/\mu) - e^\varepsilon \Phi(-\mu/2 - \varepsilon/\mu)
    = \varphi(x) \, (m(x) - m(x + \mu)), \qquad x = \varepsilon/\mu - \mu/2.

The second form has no :math:`e^\varepsilon` that overflows and no two tiny numbers that cancel; where μ is small, the
difference is the integral of -m'(t) = 1 - t m(t) over [x, x + μ].

Privacy figures are rounded up: a δ or ε that is reported is never below the true one, noise never below what is needed.
What cannot be known in floating point is infinite.
"""

from collections.abc import Callable
from functools import cache
from math import erfc, exp, inf, isinf, isnan, nextafter, pi, sqrt
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# What rounding takes away: a few units of 2⁻⁵³ in μ and x. In the value of δ it is most where t m(t) comes close to 1,
# t = 39: 1 - t m(t) is then 1/1500 of it, and the rounding error 1e-12 of the difference.
_INPUT = 2.0**-50
_VALUE = 1 + 1e-11
_LEAST = 2e-323  # 4 of the smallest steps above zero: a δ that is too small to be a float is no zero
_FARTHEST = 39.0  # φ(39) is less than the smallest float


def gaussian_delta(epsilon: float, sensitivity: float, sigma: float) -> float:
    """δ(ε) of the Gaussian mechanism: the smallest δ for which noise N(0, σ²) gives (ε, δ)-differential privacy.

    Shapes: plain numbers; the noise is added to each coordinate of a vector of any length.
    Units: ``sensitivity`` and ``sigma`` in those of the released vector, the sensitivity in its L2 norm.
    Guarantee: never below the true δ; above it by at most 1e-10 of it wherever δ is above 1e-300 and ε below 1e5.
    Not guaranteed: anything about noise that is computed in floating point, whose gaps can be seen (Mironov 2012); see
        ``lightning_vfl.privacy.exact_normal`` for noise without them.

    Args:
        epsilon: ε ≥ 0.
        sensitivity: Δ ≥ 0, how far two neighbouring inputs can lie apart.
        sigma: σ ≥ 0, standard deviation of the noise; without noise δ is 1.

    Raises:
        ConfigurationError: for numbers that are negative or NaN.

    Examples:
        >>> f"{gaussian_delta(epsilon=1.0, sensitivity=1.0, sigma=1.0):.6f}"
        '0.126937'

    References:
        Balle, Wang, "Improving the Gaussian Mechanism for Differential Privacy: Analytical Calibration and Optimal
        Denoising", ICML 2018, https://arxiv.org/abs/1805.06530, Theorem 8.
    """
    _refuse(epsilon=epsilon, sensitivity=sensitivity, sigma=sigma)
    return _delta(epsilon, _signal(sensitivity, sigma))


def analytic_sigma(epsilon: float, delta: float, sensitivity: float) -> float:
    """The smallest standard deviation with which Gaussian noise gives (ε, δ)-differential privacy.

    Shapes: plain numbers; the noise is added to each coordinate of a vector of any length.
    Units: the result and ``sensitivity`` in those of the released vector, the sensitivity in its L2 norm.
    Guarantee: enough noise: ``gaussian_delta(epsilon, sensitivity, result) <= delta``. It is above the smallest σ by at
        most 1e-10 of it.
    Not guaranteed: privacy of more than one release; ``gaussian_epsilon`` says what several cost together.

    Args:
        epsilon: ε ≥ 0, finite.
        delta: 0 < δ < 1.
        sensitivity: Δ > 0, how far two neighbouring inputs can lie apart.

    Raises:
        ConfigurationError: for a budget that no noise meets, or that needs none.

    Examples:
        >>> f"{analytic_sigma(epsilon=1.0, delta=1e-5, sensitivity=1.0):.6f}"
        '3.730632'

    References:
        Balle, Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018,
        https://arxiv.org/abs/1805.06530, Algorithm 1 (there the bisection runs over v and u, here over μ = Δ / σ, in
        which δ grows too: the same root).
    """
    _refuse(epsilon=epsilon, sensitivity=sensitivity, delta=delta)
    if not 0 < delta < 1:
        raise ConfigurationError(f"delta {delta} is met by no noise, or by none at all; use a delta between 0 and 1")
    if isinf(epsilon) or not 0 < sensitivity < inf:
        raise ConfigurationError(
            f"epsilon {epsilon} and sensitivity {sensitivity} state no noise; use a finite epsilon and a finite "
            "sensitivity above 0"
        )
    high = 1.0
    while _delta(epsilon, high) <= delta:
        high *= 2
    low, _ = _bisect(lambda mu: _delta(epsilon, mu) > delta, 0.0, high)
    sigma = sensitivity / low if low else inf
    while gaussian_delta(epsilon, sensitivity, sigma) > delta:  # at most a few roundings away
        sigma = nextafter(sigma * (1 + _INPUT), inf)
    if isinf(sigma):
        raise ConfigurationError(f"no finite noise gives delta {delta} at epsilon {epsilon}; use a larger delta")
    return sigma


def gaussian_epsilon(sigma: float, sensitivity: float, delta: float, uploads: int = 1) -> float:
    r"""The smallest ε that Gaussian noise gives for a δ after so many releases, each chosen after the ones before it.

    k releases of sensitivity Δ under noise σ cost exactly what one of sensitivity :math:`\sqrt{k} \Delta` costs.

    Shapes: plain numbers.
    Units: ``sigma`` and ``sensitivity`` in those of the released vector, the sensitivity in its L2 norm; ε in nats.
    Guarantee: never below the true ε; above it by at most 1e-10 of it, or by as little as changes δ by 1e-10 of it,
        where δ is at least 1e-300. Infinite without noise, for δ = 0, and where floating point cannot tell.
    Not guaranteed: the cost of a number of releases that is itself chosen in the light of the earlier ones; use the
        largest number that can come about.

    Args:
        sigma: σ ≥ 0, standard deviation of the noise in each release.
        sensitivity: Δ ≥ 0, how far two neighbouring inputs can lie apart in one release.
        delta: 0 ≤ δ ≤ 1, for all releases together.
        uploads: k ≥ 0.

    Raises:
        ConfigurationError: for numbers that are negative or NaN, for δ above 1 and for a broken number of releases.

    Examples:
        >>> f"{gaussian_epsilon(sigma=1.0, sensitivity=1.0, delta=1e-5):.4f}"
        '4.3772'
        >>> f"{gaussian_epsilon(sigma=1.0, sensitivity=1.0, delta=1e-5, uploads=100):.4f}"
        '91.8173'

    References:
        Dong, Roth, Su, "Gaussian Differential Privacy", Journal of the Royal Statistical Society B 84, 2022,
        https://arxiv.org/abs/1905.02383 (composition of μ-GDP mechanisms, the square root of the sum of μ²).
    """
    _refuse(sigma=sigma, sensitivity=sensitivity, delta=delta)
    if delta > 1:
        raise ConfigurationError(f"delta {delta} is no probability; use at most 1")
    if not 0 <= uploads < inf or uploads != int(uploads):
        raise ConfigurationError(f"uploads {uploads} is no number of releases; use 0, 1, 2, ...")
    once = _signal(sensitivity, sigma)
    mu = nextafter(once * sqrt(uploads) * (1 + _INPUT), inf) if once and uploads else 0.0
    if _delta(0.0, mu) <= delta:
        return 0.0
    high = 1.0
    while _delta(high, mu) > delta and high < inf:
        high *= 2
    _, epsilon = _bisect(lambda e: _delta(e, mu) <= delta, 0.0, high)
    return epsilon


def _refuse(**numbers: float) -> None:
    """Nothing here may be negative or NaN."""
    for name, number in numbers.items():
        if isnan(number) or number < 0:
            raise ConfigurationError(f"{name} {number} has no meaning; use 0 or more")


def _signal(sensitivity: float, sigma: float) -> float:
    """The number μ = Δ / σ, rounded up; infinite without noise."""
    if sensitivity == 0 or (isinf(sigma) and not isinf(sensitivity)):
        return 0.0
    return inf if sigma == 0 or isinf(sensitivity) else nextafter(sensitivity / sigma, inf)


def _delta(epsilon: float, mu: float) -> float:
    """δ(ε), rounded up; it falls with ε and with x and grows with μ, so these are rounded the other way before."""
    if mu == 0 or isinf(epsilon):
        return 0.0
    if isinf(mu):
        return 1.0
    x = epsilon / mu * (1 - _INPUT) - mu / 2 * (1 + _INPUT)
    return min(1.0, _value(x, mu * (1 + _INPUT)) * _VALUE + _LEAST)


def _value(x: float, mu: float) -> float:
    """φ(x) (m(x) - m(x + μ))."""
    if x > _FARTHEST:
        return 0.0
    density = exp(-x * x / 2) / sqrt(2 * pi)
    if mu <= 1:
        nodes, weights = _quadrature()
        t = x + mu * nodes
        return density * mu * float(weights @ (1 - t * _mills(t)))
    beyond = density * float(_mills(x + mu))
    if x <= 0:  # m(x) itself may overflow
        return erfc(x / sqrt(2)) / 2 - beyond
    return density * float(_mills(x)) - beyond


def _mills(t: "float | NDArray[np.float64]") -> "NDArray[np.float64]":
    """The Mills ratio m(t) = Φ(-t) / φ(t)."""
    from scipy.special import erfcx  # 0.25 s, where it is used

    ratio: NDArray[np.float64] = sqrt(pi / 2) * erfcx(np.asarray(t) / sqrt(2))
    return ratio


@cache
def _quadrature() -> "tuple[NDArray[np.float64], NDArray[np.float64]]":
    """Gauss and Legendre's nodes and weights on [0, 1]; 12 leave less than 1e-15 of the integral of m'."""
    nodes, weights = np.polynomial.legendre.leggauss(12)
    return (nodes + 1) / 2, weights / 2


def _bisect(above: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Neighbouring floats between which ``above`` turns from false to true; it is true at ``high``."""
    while low < (middle := low + (high - low) / 2) < high:
        low, high = (low, middle) if above(middle) else (middle, high)
    return low, high
