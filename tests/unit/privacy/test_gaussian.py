"""Against mpmath with 60 digits, the definition as an integral, and figures of other systems."""

from math import e, inf, log, nextafter, sqrt

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy import analytic_sigma, gaussian_epsilon
from tests.further import further

deltas = st.floats(-40, -0.05).map(lambda power: 10.0**power)
ratios = st.floats(-4, 3).map(lambda power: 10.0**power)


def exact(epsilon, sensitivity, sigma):
    """Balle and Wang, Theorem 8, with 60 digits more than the smallest float that is looked at."""
    with mpmath.workdps(400):
        epsilon, mu = mpmath.mpf(epsilon), mpmath.mpf(sensitivity) / mpmath.mpf(sigma)

        def phi(t):
            return mpmath.erfc(-t / mpmath.sqrt(2)) / 2

        return phi(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * phi(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(
    ("epsilon", "sensitivity", "sigma"), [further(0.0, 1.0, 1.0), further(5.0, 2.0, 1.78), (40.0, 3.0, 2.0)]
)
def test_the_formula_of_these_tests_is_the_hockey_stick_divergence(epsilon, sensitivity, sigma):
    """∫ max(p - e^ε q, 0) by quadrature, p and q the two normal densities; where it starts is found, not computed."""
    with mpmath.workdps(50):

        def excess(y):
            return mpmath.npdf(y, sensitivity, sigma) - mpmath.exp(epsilon) * mpmath.npdf(y, 0, sigma)

        low, high = mpmath.mpf(-1000), mpmath.mpf(1000)  # p / q grows with y
        while high - low > mpmath.mpf(10) ** -40:
            middle = (low + high) / 2
            ahead = (middle - sensitivity) ** 2 - middle**2 < -2 * epsilon * mpmath.mpf(sigma) ** 2
            low, high = (low, middle) if ahead else (middle, high)
        pieces = [high, *(high + mpmath.mpf(sigma) * mpmath.mpf(1.5) ** k for k in range(-14, 9))]
        true = mpmath.quad(excess, pieces)
        assert abs(exact(epsilon, sensitivity, sigma) / true - 1) < 1e-9


@given(st.one_of(st.just(0.0), st.floats(1e-4, 1e3), st.floats(0.1, 50)), deltas, ratios)
def test_noise_is_enough_and_not_more_and_epsilon_is_its_inverse(epsilon, delta, sensitivity):
    if exact(epsilon, 1.0, 999.9) > delta:
        with pytest.raises(ConfigurationError, match="needs noise of more than 1,000 times the sensitivity"):
            analytic_sigma(epsilon, delta, sensitivity)
        return
    assume(exact(epsilon, 1.0, 999.0) <= delta)
    sigma = analytic_sigma(epsilon, delta, sensitivity)
    assert exact(epsilon, sensitivity, sigma) <= delta
    assert exact(epsilon, sensitivity, sigma * (1 - 1e-7)) > delta
    assert gaussian_epsilon(sigma, sensitivity, delta) <= epsilon
    if 0.1 <= epsilon <= 50:
        assert gaussian_epsilon(sigma, sensitivity, delta) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize(
    ("epsilon", "delta", "sensitivity", "variance"),
    [
        (log(3), 1e-10, 1.0, 28.76478576660),
        (2 * log(3), 1e-10, 2.0, 30.637955),
        (2 * log(3), 1e-10, sqrt(2), 15.318977),
        (2 * log(3), 1e-10, 1.0, 7.65948867798),
    ],
)
def test_noise_is_that_of_another_library(epsilon, delta, sensitivity, variance):
    """Variances of google/differential-privacy, go/noise/gaussian_noise_test.go; its σ is accurate to 1e-3, upwards."""
    ours = analytic_sigma(epsilon, delta, sensitivity)
    assert ours <= sqrt(variance) * (1 + 1e-9)
    assert ours == pytest.approx(sqrt(variance), rel=1e-3)


def test_noise_is_less_than_the_classical_formula_asks_for():
    """Dwork and Roth: σ = Δ √(2 ln(1.25 / δ)) / ε for ε < 1; Balle and Wang: at least a third too much in variance."""
    for epsilon in (0.1, 0.5, 0.9):
        classical = sqrt(2 * log(1.25 / 1e-5)) / epsilon
        assert analytic_sigma(epsilon, 1e-5, 1.0) ** 2 < classical**2 * 2 / 3


@pytest.mark.parametrize("scale", [1e-100, 1e-3, 7.0, 1e100])
def test_noise_scales_with_the_sensitivity(scale):
    assert analytic_sigma(5.0, 1e-5, scale) == pytest.approx(scale * analytic_sigma(5.0, 1e-5, 1.0), rel=1e-10)


@given(st.floats(-4, 4).map(lambda power: 10.0**power), deltas, st.integers(1, 10**6))
def test_epsilon_is_enough_and_not_more(ratio, delta, uploads):
    """One mechanism of √k times the sensitivity, with 60 digits."""
    epsilon = gaussian_epsilon(1.0, ratio, delta, uploads)
    if ratio * sqrt(uploads) > 9999:
        assert epsilon == inf or ratio * sqrt(uploads) < 10001
        return
    with mpmath.workdps(400):
        composed = mpmath.sqrt(uploads) * mpmath.mpf(ratio)
    assert exact(epsilon, composed, 1.0) <= delta
    if epsilon > 1e-6 and composed > 1e-3:
        assert exact(epsilon * (1 - 1e-9), composed, 1.0) > delta * (1 - mpmath.mpf(1e-6))


@pytest.mark.parametrize(("mu", "uploads"), [(0.3, 2), (1.0, 2), (0.5, 5), (1.2, 7)])
def test_several_uploads_are_the_convolution_of_their_privacy_losses(mu, uploads):
    """Σ max(0, 1 - e^(ε - loss)) over sums of losses log p(y) / q(y), y drawn from p: nothing of μ-GDP is used."""
    step = 1e-3
    y = np.arange(mu - 9, mu + 9, step)
    chance = np.exp(-((y - mu) ** 2) / 2) / sqrt(2 * np.pi) * step
    loss = y**2 / 2 - (y - mu) ** 2 / 2
    spacing = loss[1] - loss[0]
    size = uploads * (len(y) - 1) + 1
    sums = np.fft.irfft(np.fft.rfft(chance, 2 * size) ** uploads, 2 * size)[:size]
    losses = uploads * loss[0] + spacing * np.arange(size)
    for delta in (1e-1, 1e-3, 1e-5):
        epsilon = gaussian_epsilon(1.0, mu, delta, uploads)
        found = (sums * np.clip(1 - np.exp(epsilon - losses), 0, None)).sum()
        assert found == pytest.approx(delta, rel=1e-4)


@given(ratios, deltas, deltas, st.integers(0, 10**4), st.integers(0, 10**4))
def test_epsilon_grows_with_uploads_and_falls_with_delta(ratio, one, other, few, many):
    few, many = sorted((few, many))
    hair = 1 + 1e-9
    assert gaussian_epsilon(1.0, ratio, one, few) <= gaussian_epsilon(1.0, ratio, one, many) * hair
    small, large = sorted((one, other))
    assert gaussian_epsilon(1.0, ratio, large, few) <= gaussian_epsilon(1.0, ratio, small, few) * hair


@given(st.floats(3, 300).map(lambda power: 10.0**power), deltas)
def test_more_noise_than_is_tested_costs_as_the_most_that_is(sigma, delta):
    assert gaussian_epsilon(sigma, 1.0, delta) == pytest.approx(gaussian_epsilon(1000.0, 1.0, delta), rel=1e-9)


def test_epsilon_at_the_ends():
    assert gaussian_epsilon(1.0, 1.0, 1e-5, uploads=0) == 0.0
    assert gaussian_epsilon(1.0, 0.0, 0.0) == 0.0
    assert gaussian_epsilon(1.0, 1.0, 1.0) == 0.0
    assert gaussian_epsilon(1.0, 1.0, 0.4) == 0.0  # δ(0) = 0.38
    assert gaussian_epsilon(0.0, 1.0, 1e-5) == inf
    assert gaussian_epsilon(1.0, inf, 1e-5) == inf
    assert gaussian_epsilon(1.0, 1.0, 0.0) == inf
    assert gaussian_epsilon(1.0, 1.0, 5e-324) == inf  # floating point cannot tell
    assert gaussian_epsilon(1e-200, 1.0, 1e-5) == inf  # ε is about 5e399


@pytest.mark.parametrize(
    ("function", "arguments", "said"),
    [
        (analytic_sigma, (1.0, 0.0, 1.0), "delta must be .*; got 0.0"),
        (analytic_sigma, (1.0, 1.0, 1.0), "delta must be .*; got 1.0"),
        (analytic_sigma, (1.0, 1e-5, 0.0), "sensitivity must be a finite number above 0; got 0.0"),
        (analytic_sigma, (1.0, 1e-5, inf), "sensitivity must be a finite number above 0; got inf"),
        (analytic_sigma, (inf, 1e-5, 1.0), "epsilon must be a finite number .*; got inf"),
        (analytic_sigma, (-1.0, 1e-5, 1.0), "epsilon must be .*; got -1.0"),
        (analytic_sigma, (0.0, 1e-5, 1.0), "larger epsilon or delta"),
        (analytic_sigma, (0.0, nextafter(0.0, 1.0), 1.0), "delta must be .*; got 5e-324"),
        (gaussian_epsilon, (1.0, 1.0, 1.5), "from 0 to 1"),
        (gaussian_epsilon, (1.0, 1.0, -0.5), "delta must be .*; got -0.5"),
        (gaussian_epsilon, (1.0, 1.0, 0.5, -1), "uploads must be .*; got -1"),
        (gaussian_epsilon, (1.0, 1.0, 0.5, 1.5), "uploads must be .*; got 1.5"),
        (gaussian_epsilon, (1.0, 1.0, 0.5, inf), "uploads must be .*; got inf"),
    ],
)
def test_what_has_no_meaning_is_refused(function, arguments, said):
    with pytest.raises(ConfigurationError, match=said):
        function(*arguments)


def test_pure_privacy_is_approached_but_not_given():
    """Gaussian noise gives no ε for δ = 0, however much of it there is."""
    assert gaussian_epsilon(1e6, 1.0, 0.0) == inf
    assert gaussian_epsilon(1e6, 1.0, e**-60) < 0.02
