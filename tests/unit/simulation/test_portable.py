"""The portable functions against mpmath and scipy."""

import mpmath
import numpy as np
from scipy.special import ndtri

from lightning_vfl.simulation import portable


def test_logarithms_exponentials_and_quantiles_are_right_to_the_last_digits():
    rng = np.random.default_rng(0)
    p = np.concatenate([rng.random(500), 10.0 ** -rng.uniform(0, 300, 500), [2.0**-54, 1 - 2.0**-53]])
    x = rng.uniform(-700, 700, 500)
    with mpmath.workprec(120):
        logs = [float(mpmath.log(mpmath.mpf(value))) for value in p.tolist()]
        powers = [float(mpmath.exp(mpmath.mpf(value))) for value in x.tolist()]
    np.testing.assert_allclose(portable.log(p), logs, rtol=1e-15)
    np.testing.assert_allclose(portable.exp(x), powers, rtol=1e-15)
    np.testing.assert_allclose(portable.normal_quantile(p), ndtri(p), rtol=1e-14)
    assert portable.log(np.ones(1)).tolist() == [0.0]
