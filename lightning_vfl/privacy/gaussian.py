r"""The Gaussian mechanism: the privacy cost of noise with a standard deviation, and the noise for a budget.

The cost depends only on the sensitivity in units of the noise, Δ / σ. Figures are those of ``dp_accounting``, rounded
up: an ε is never below the true one, and noise is never below the needed noise. In the range where this is tested (σ
from 1e-4 to 1000 Δ and δ of 1e-300 or more), the error of its δ is a share of at most 1e-11 max(σ / Δ, 1). With more
noise, the figure is that of 1000 Δ, which is not below the true one; with less, it is infinite.
"""

from math import inf, isinf, nextafter, sqrt

from lightning_vfl.checks import positive, within
from lightning_vfl.errors import ConfigurationError

_MOST = 1e3  # σ / Δ
_LEAST = 1e-4
_LEAST_DELTA = 1e-300
_ACCOUNTS = 2e-12  # of σ: more than what accountants round it down by
_ERROR = 1e-10  # of δ, ten times the largest error found, for σ up to Δ; in proportion to σ above


def analytic_sigma(epsilon: float, delta: float, sensitivity: float) -> float:
    """The smallest standard deviation with which Gaussian noise gives (ε, δ)-differential privacy.

    Shapes: plain numbers; the noise is added to each coordinate of a vector of any length.
    Units: the result and ``sensitivity`` in the units of the released vector, the sensitivity in the L2 norm.
    Guarantee: enough noise, also for an accountant, which rounds up: ``gaussian_epsilon(result, sensitivity, delta) <=
        epsilon``. The result is above the smallest σ, or above 1e-4 Δ, by a relative error of at most 1e-7.
    Not guaranteed: privacy of more than one release; ``gaussian_epsilon`` gives the cost of several releases.

    Args:
        epsilon: ε ≥ 0, finite.
        delta: 1e-300 ≤ δ < 1.
        sensitivity: Δ > 0, the largest distance of two neighbouring inputs.

    Raises:
        ConfigurationError: for a budget that no σ up to 1000 Δ meets, and for one that needs no noise.

    Examples:
        >>> f"{analytic_sigma(epsilon=1.0, delta=1e-5, sensitivity=1.0):.6f}"
        '3.730632'

    References:
        Balle, Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018,
        https://arxiv.org/abs/1805.06530, Algorithm 1.
    """
    within("epsilon", epsilon, 0)
    within("delta", delta, _LEAST_DELTA, below=1)
    positive("sensitivity", sensitivity)
    from dp_accounting import get_sigma_gaussian  # imported here, because the import takes a second

    if gaussian_epsilon(_MOST, 1.0, delta) > epsilon:
        raise ConfigurationError(
            f"epsilon {epsilon} at delta {delta} needs noise of more than {_MOST:,.0f} times the sensitivity; use a "
            "larger epsilon or delta"
        )
    sigma = max(_LEAST, float(get_sigma_gaussian(epsilon, delta))) * sensitivity
    more = 1e-12
    while gaussian_epsilon(sigma * (1 - _ACCOUNTS), sensitivity, delta) > epsilon:
        sigma = nextafter(sigma * (1 + more), inf)
        more *= 2
    return sigma


def gaussian_epsilon(sigma: float, sensitivity: float, delta: float, uploads: int = 1) -> float:
    r"""The smallest ε of Gaussian noise for a δ after k releases, which may depend on earlier releases.

    k releases of sensitivity Δ with noise σ cost exactly as much as one release of sensitivity :math:`\sqrt{k} \Delta`.

    Shapes: plain numbers.
    Units: ``sigma`` and ``sensitivity`` in the units of the released vector, the sensitivity in the L2 norm; ε in nats.
    Guarantee: never below the true ε. If σ is from 1e-4 to 1000 times :math:`\sqrt{k} \Delta`, it is the true ε of a δ
        that is smaller by at most 2e-10, or by 2e-10 σ / Δ if σ is above Δ. Infinite without noise, for δ below 1e-300,
        and for σ below 1e-4 times :math:`\sqrt{k} \Delta`.
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
        Balle, Wang, "Improving the Gaussian Mechanism for Differential Privacy: Analytical Calibration and Optimal
        Denoising", ICML 2018, https://arxiv.org/abs/1805.06530, Theorem 8.
        Dong, Roth, Su, "Gaussian Differential Privacy", Journal of the Royal Statistical Society B 84, 2022,
        https://arxiv.org/abs/1905.02383 (composition of μ-GDP mechanisms, the square root of the sum of μ²).
    """
    within("sigma", sigma, 0, most=inf)
    within("sensitivity", sensitivity, 0, most=inf)
    within("delta", delta, 0, 1)
    within("uploads", uploads, 0, whole=True)
    nothing_to_hide = sensitivity == 0 or uploads == 0 or (isinf(sigma) and not isinf(sensitivity))
    if nothing_to_hide or delta == 1:
        return 0.0
    joint = sensitivity * sqrt(uploads) * (1 + 2.0**-50)
    ratio = sigma / joint * (1 - 2.0**-50)
    if delta < _LEAST_DELTA or not ratio >= _LEAST:
        return inf
    from dp_accounting import get_epsilon_gaussian

    ratio = min(ratio, _MOST)
    return float(get_epsilon_gaussian(ratio, delta * (1 - _ERROR * max(ratio, 1.0))))
