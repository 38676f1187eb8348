"""Bands against plain Python that walks every curve point by point."""

from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.study.bands import MOST_POINTS, band
from tests.examples import examples


def last_value(curve, at):
    value = None
    for x, y in curve:
        if x <= at:
            value = y
    return value


def oracle(curves):
    start = max(curve[0][0] for curve in curves)
    end = max(curve[-1][0] for curve in curves)
    grid = sorted({x for curve in curves for x, _ in curve if start <= x <= end})
    values = [[last_value(curve, x) for curve in curves] for x in grid]
    return grid, [fmean(v) for v in values], [stdev(v) if len(v) > 1 else 0.0 for v in values]


curve = st.dictionaries(st.integers(0, 20), st.integers(-5, 5), min_size=1, max_size=8).map(lambda d: sorted(d.items()))


@examples(100)
@given(st.lists(curve, min_size=1, max_size=4))
def test_every_point_is_mean_and_deviation_of_the_values_held_there(curves):
    x, mean, sd = oracle(curves)
    found = band([tuple(zip(*c, strict=True)) for c in curves])
    assert found.x.tolist() == x
    assert found.mean.tolist() == pytest.approx(mean)
    assert found.sd.tolist() == pytest.approx(sd)
    assert found.seeds == len(curves)


def test_seeds_measured_at_the_same_points_are_told_from_others():
    assert band([([1, 2, 3], [1, 1, 1]), ([1, 2], [3, 3])]).together
    assert not band([([1, 2, 3], [1, 1, 1]), ([1, 2.5, 3], [3, 3, 3])]).together


def test_it_ends_with_the_last_seed_and_a_seed_that_has_ended_keeps_its_last_value():
    found = band([([1, 2, 3], [1, 1, 5]), ([1, 2], [3, 3])])
    assert found.x.tolist() == [1, 2, 3]
    assert found.mean.tolist() == [2, 2, 4]


def test_seeds_that_never_run_at_the_same_time_have_a_band_from_the_start_of_the_last():
    found = band([([1, 2], [1, 1]), ([5, 6], [3, 3])])
    assert (found.x.tolist(), found.mean.tolist()) == ([5, 6], [2, 2])


def test_long_curves_are_thinned():
    found = band([(range(10_000), range(10_000))])
    assert len(found.x) == MOST_POINTS
    assert found.mean.tolist() == [float(int(x)) for x in found.x]
