r"""The Gaussian mechanism: the privacy cost of noise with a standard deviation, and the noise for a budget.

The cost depends only on μ = Δ / σ, the sensitivity in units of the noise. With the normal distribution Φ, its density φ
and the Mills ratio m(t) = Φ(-t) / φ(t), the smallest δ for an ε is

.. math::
    \delta(\varepsilon) = \Phi(\mu/2 - \varepsilon/\mu) - e^\varepsilon \Phi(-\mu/2 - \varepsilon/\mu)
    = \varphi(x) \, (m(x) - m(x + \mu)), \qquad x = \varepsilon/\mu - \mu/2.

The second form has no :math:`e^\varepsilon` that overflows and no cancellation of two tiny numbers. For small μ, the
difference is the integral of -m'(t) = 1 - t m(t) over [x, x + μ].

Privacy figures are rounded up: a reported δ or ε is never below the true value, and noise is never below the needed
noise. If floating point cannot give a figure, it is infinite.
"""

from collections.abc import Callable
from functools import cache
from math import erfc, exp, inf, isfinite, isinf, isnan, nextafter, pi, sqrt
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Rounding errors: a few units of 2⁻⁵³ in μ and x. In the value of δ the error is largest if t m(t) is close to 1, at
# t = 39: 1 - t m(t) is then 1/1500 of t m(t), and the rounding error is 1e-12 of the difference.
_INPUT = 2.0**-50
_ROUNDED_UP = 2e-12  # of σ: more than what accountants round ε up by
_VALUE = 1 + 1e-11
_LEAST = 2e-323  # 4 of the smallest steps above zero: a δ that is too small for a float must not become zero
_FARTHEST = 39.0  # φ(39) is less than the smallest float


def gaussian_delta(epsilon: float, sensitivity: float, sigma: float) -> float:
    """δ(ε) of the Gaussian mechanism: the smallest δ for which noise N(0, σ²) gives (ε, δ)-differential privacy.

    Shapes: plain numbers; the noise is added to each coordinate of a vector of any length.
    Units: ``sensitivity`` and ``sigma`` in the units of the released vector, the sensitivity in the L2 norm.
    Guarantee: never below the true δ; above it by a relative error of at most 1e-10 if δ is above 1e-300 and ε below
        1e5.
    Not guaranteed: noise that is computed in floating point, which has observable gaps (Mironov 2012); see
        ``lightning_vfl.privacy.exact_normal`` for noise without gaps.

    Args:
        epsilon: ε ≥ 0.
        sensitivity: Δ ≥ 0, the largest distance of two neighbouring inputs.
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
    Units: the result and ``sensitivity`` in the units of the released vector, the sensitivity in the L2 norm.
    Guarantee: enough noise: ``gaussian_delta(epsilon, sensitivity, result) <= delta``, and an accountant, which rounds
        up, finds no more than ``epsilon``. The result is above the smallest σ by a relative error of at most 1e-10.
    Not guaranteed: privacy of more than one release; ``gaussian_epsilon`` gives the cost of several releases.

    Args:
        epsilon: ε ≥ 0, finite.
        delta: 0 < δ < 1.
        sensitivity: Δ > 0, the largest distance of two neighbouring inputs.

    Raises:
        ConfigurationError: for a budget that no noise can meet, or that needs no noise.

    Examples:
        >>> f"{analytic_sigma(epsilon=1.0, delta=1e-5, sensitivity=1.0):.6f}"
        '3.730632'

    References:
        Balle, Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018,
        https://arxiv.org/abs/1805.06530, Algorithm 1 (the paper's bisection is over v and u; here it is over μ = Δ / σ,
        with which δ also grows: the root is the same).
    """
    _refuse(epsilon=epsilon, sensitivity=sensitivity, delta=delta)
    if not 0 < delta < 1:
        raise ConfigurationError(f"delta must be above 0 and below 1; got {delta}")
    if isinf(epsilon) or not 0 < sensitivity < inf:
        raise ConfigurationError(
            f"epsilon must be finite, and sensitivity finite and above 0; got {epsilon} and {sensitivity}"
        )
    high = 1.0
    while _delta(epsilon, high) <= delta:
        high *= 2
    low, _ = _bisect(lambda mu: _delta(epsilon, mu) > delta, 0.0, high)
    more = _ROUNDED_UP
    sigma = sensitivity / low * (1 + more) if low else inf
    while isfinite(sigma) and (
        gaussian_delta(epsilon, sensitivity, sigma) > delta or gaussian_epsilon(sigma, sensitivity, delta) > epsilon
    ):
        sigma, more = nextafter(sigma * (1 + more), inf), 2 * more  # so that it ends for any numbers
    if isinf(sigma):
        raise ConfigurationError(f"no finite noise gives delta {delta} at epsilon {epsilon}; use a larger delta")
    return sigma


def gaussian_epsilon(sigma: float, sensitivity: float, delta: float, uploads: int = 1) -> float:
    r"""The smallest ε of Gaussian noise for a δ after k releases, which may depend on earlier releases.

    k releases of sensitivity Δ with noise σ cost exactly as much as one release of sensitivity :math:`\sqrt{k} \Delta`.

    Shapes: plain numbers.
    Units: ``sigma`` and ``sensitivity`` in the units of the released vector, the sensitivity in the L2 norm; ε in nats.
    Guarantee: never below the true ε. If δ is at least 1e-300, it is above the true ε by a relative error of at most
        1e-10, or by a difference that changes δ by at most 1e-10 of δ. Infinite without noise, for δ = 0, and if
        floating point cannot give a figure.
    Not guaranteed: the cost of a number of releases that depends on earlier releases; use the largest possible number.

    Args:
        sigma: σ ≥ 0, standard deviation of the noise in each release.
        sensitivity: Δ ≥ 0, the largest distance of two neighbouring inputs in one release.
        delta: 0 ≤ δ ≤ 1, for all releases together.
        uploads: k ≥ 0.

    Raises:
        ConfigurationError: for numbers that are negative or NaN, for δ above 1, and for a fractional count of releases.

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
        raise ConfigurationError(f"delta must be at most 1; got {delta}")
    if not 0 <= uploads < inf or uploads != int(uploads):
        raise ConfigurationError(f"uploads must be 0, 1, 2, ...; got {uploads}")
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
    """Refuse numbers that are negative or NaN."""
    for name, number in numbers.items():
        if isnan(number) or number < 0:
            raise ConfigurationError(f"{name} must be 0 or more; got {number}")


def _signal(sensitivity: float, sigma: float) -> float:
    """The number μ = Δ / σ, rounded up; infinite without noise."""
    if sensitivity == 0 or (isinf(sigma) and not isinf(sensitivity)):
        return 0.0
    return inf if sigma == 0 or isinf(sensitivity) else nextafter(sensitivity / sigma, inf)


def _delta(epsilon: float, mu: float) -> float:
    """δ(ε), rounded up. δ falls with ε and x and grows with μ, so ε and x are rounded down before, and μ up."""
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
    if x <= 0:  # m(x) may overflow
        return erfc(x / sqrt(2)) / 2 - beyond
    return density * float(_mills(x)) - beyond


def _mills(t: "float | NDArray[np.float64]") -> "NDArray[np.float64]":
    """The Mills ratio m(t) = Φ(-t) / φ(t)."""
    from scipy.special import erfcx  # imported here, because the import takes 0.25 s

    ratio: NDArray[np.float64] = sqrt(pi / 2) * erfcx(np.asarray(t) / sqrt(2))
    return ratio


@cache
def _quadrature() -> "tuple[NDArray[np.float64], NDArray[np.float64]]":
    """Gauss-Legendre nodes and weights on [0, 1]; with 12 nodes, the relative error of the integral is below 1e-15."""
    nodes, weights = np.polynomial.legendre.leggauss(12)
    return (nodes + 1) / 2, weights / 2


def _bisect(above: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """The neighbouring floats between which ``above`` changes from false to true; it is true at ``high``."""
    while low < (middle := low + (high - low) / 2) < high:
        low, high = (low, middle) if above(middle) else (middle, high)
    return low, high
