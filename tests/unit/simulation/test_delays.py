"""The laws of ``Delay`` for every distribution there is, and quantiles against scipy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.simulation import ComputeBound, Constant, Delay, Exponential, LogNormal, Uniform

LARGEST = 1 - 2.0**-53
U = np.concatenate([np.linspace(0.001, 0.999, 999), [LARGEST]])
FACTORIES = {
    "Exponential": lambda step: Exponential(0.1, step),
    "Constant": lambda step: Constant(0.3, step),
    "Uniform": lambda step: Uniform(0.2, 0.7, step),
    "LogNormal": lambda step: LogNormal(0.2, 1.5, step),
    "ComputeBound": lambda step: ComputeBound(3.0, step),
}
every_delay = pytest.mark.parametrize("name", FACTORIES)


def seconds(delay, u, rank=0):
    u = np.asarray(u, dtype=np.float64)
    return delay.seconds(u, np.full(len(u), rank))


def test_every_concrete_delay_is_here():
    assert {kind.__name__ for kind in Delay.__subclasses__()} == FACTORIES.keys()
    assert not any(kind.__subclasses__() for kind in Delay.__subclasses__())


@every_delay
@given(
    st.lists(st.floats(0, LARGEST), min_size=1, max_size=9).map(sorted),
    st.lists(st.integers(0, 10**4), min_size=2, max_size=2).map(sorted),
    st.floats(0, 10),
)
def test_the_laws_of_delays(name, u, ranks, step):
    delay = FACTORIES[name](step)
    low, high = (seconds(delay, u, rank) for rank in ranks)
    assert low.dtype == high.dtype == np.float64
    assert np.isfinite(high).all()
    assert (low >= 0).all()
    assert (low <= high).all()
    assert (np.diff(low) >= -1e-12 * low[1:]).all()  # log1p may be off by a unit in the last place
    slow = delay.slowdown(np.array(ranks))
    assert slow.shape == (2,)
    assert 1.0 <= slow[0] <= slow[1]


@every_delay
@pytest.mark.parametrize("u", [0.0, 2.0**-53, LARGEST])
def test_extreme_draws_are_finite(name, u):
    assert np.isfinite(seconds(FACTORIES[name](0.1), [u], rank=1000)).all()


@pytest.mark.parametrize(
    ("delay", "rank", "law"),
    [
        (Exponential(0.1), 0, stats.expon(scale=0.1)),
        (Exponential(0.1, step=0.1), 7, stats.expon(scale=0.8)),
        (Uniform(0.5, 2.0), 0, stats.uniform(0.5, 1.5)),
        (Uniform(0.5, 2.0, step=0.25), 2, stats.uniform(1.0, 1.5)),
        (LogNormal(0.2, 0.7), 0, stats.lognorm(0.7, scale=0.2)),
        (LogNormal(0.2, 0.7, step=0.1), 3, stats.lognorm(0.7, scale=0.5)),
    ],
)
def test_quantiles(delay, rank, law):
    np.testing.assert_allclose(seconds(delay, U, rank), law.ppf(U), rtol=1e-10)


def test_what_is_not_random():
    assert seconds(Constant(0.5, step=0.25), [0.0, 0.9], rank=2).tolist() == [1.0, 1.0]
    assert seconds(ComputeBound(2.0), [0.0, 0.9]).tolist() == [0.0, 0.0]
    assert ComputeBound(2.0, step=0.5).slowdown(np.array([0, 3])).tolist() == [2.0, 3.5]
    assert seconds(LogNormal(0.2, sigma=0.0), [0.0, 0.9]) == pytest.approx([0.2, 0.2])
    assert seconds(Exponential(0.0), [0.0, LARGEST]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Exponential(-0.1), "mean of a delay must be .*; got -0.1"),
        (lambda: Exponential(float("nan")), "mean of a delay must be .*; got nan"),
        (lambda: Exponential(0.1, step=-1.0), "step of a delay must be .*; got -1.0"),
        (lambda: Constant(float("inf")), "seconds of a delay must be .*; got inf"),
        (lambda: Uniform(2.0, 1.0), "high of a delay must be .* at least 2; got 1.0"),
        (lambda: LogNormal(-1.0, 1.0), "median of a delay must be .*; got -1.0"),
        (lambda: LogNormal(1.0, -1.0), "sigma of LogNormal must be .*; got -1.0"),
        (lambda: LogNormal(1.0, 51.0), "from 0 to 50; got 51.0"),
        (lambda: ComputeBound(0.5), "slowdown of a delay must be .* at least 1; got 0.5"),
    ],
)
def test_bad_settings_are_refused(make, words):
    with pytest.raises(ConfigurationError, match=words):
        make()


def test_they_print_as_they_are_made():
    assert repr(Exponential(0.1)) == "Exponential(mean=0.1, step=0.0)"
    assert repr(Constant(1, step=2)) == "Constant(seconds=1.0, step=2.0)"
