import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lightning_vfl.study import Study, summarise
from lightning_vfl.study.report import in_words
from lightning_vfl.study.spec import Entry
from lightning_vfl.study.summary import inside_fences, paired_difference
from lightning_vfl.study.table import COLUMNS


def table(values, override=""):
    """Final values by recipe, seed after seed, each after a first value of 0."""
    lines = []
    for recipe, finals in values.items():
        for seed, final in enumerate(finals):
            for step, value in ((1, 0.0), (2, final)):
                run = f"{recipe}, {override}" if override else recipe
                lines.append(
                    (run, recipe, override, seed, step, step / 2, 1.0 * step, 30.0 * step, 0, 0, 0, "m", value)
                )
    return pd.DataFrame(lines, columns=list(COLUMNS))


def study(*recipes, **more):
    return Study({name: Entry(("x",)) for name in recipes}, (0, 1, 2, 3, 4), **more)


def test_paired_differences_are_those_of_the_paired_t_test():
    draws = np.random.default_rng(0)
    a, b = draws.normal(size=7), draws.normal(size=7) + 0.4
    expected = stats.ttest_rel(a, b).confidence_interval(0.95)
    found = paired_difference(a, b)
    assert (found.low, found.high) == pytest.approx(tuple(expected), rel=1e-12)
    assert found.mean == pytest.approx(a.mean() - b.mean())


def test_the_interval_of_three_pairs_by_hand():
    # differences 1, 2, 3: mean 2, sd 1; t(0.975, 2) = 4.302653 in printed tables
    found = paired_difference([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.high - 2.0 == pytest.approx(4.302653 / 3**0.5, rel=1e-6)


def test_one_pair_has_no_interval():
    found = paired_difference([2.0], [1.0])
    assert found.mean == 1.0
    assert np.isnan(found.low)


@pytest.mark.parametrize(
    ("values", "out"),
    [([1, 2, 3, 4, 50], [50]), ([5, 5, 5, 5, 6], [6]), ([1, 2, 3], []), ([7], []), ([-40, 1, 2, 3, 4, 5], [-40])],
)
def test_fences(values, out):
    assert [v for v, inside in zip(values, inside_fences(values), strict=True) if not inside] == out


def test_the_last_values_count_and_their_costs():
    (line,) = summarise(table({"A": [1.0, 2.0, 3.0]}), study("A")).to_dict("records")
    assert (line["mean"], line["sd"], line["low"], line["high"], line["seeds"]) == (2.0, 1.0, 0.0, 4.0, 3)
    assert (line["step"], line["passes"], line["virtual_seconds"], line["bytes"]) == (2, 1.0, 2.0, 60.0)


def test_a_seed_that_has_diverged_makes_the_mean_no_number():
    line = summarise(table({"A": [1.0, np.nan, 3.0]}), study("A")).iloc[0]
    assert line["seeds"] == 3
    assert np.isnan([line["mean"], line["sd"]]).all()


def test_outliers_are_left_out_of_means_and_pairs():
    data = table({"A": [1.0, 2.0, 3.0, 4.0, 50.0], "B": [1.0, 1.0, 1.0, 1.0, 1.0]})
    first, second = summarise(data, study("A", "B", outliers="iqr", baseline="A")).to_dict("records")
    assert (first["mean"], first["outliers"], first["pairs"]) == (2.5, 1, 0)
    assert (second["difference"], second["pairs"]) == (-1.5, 4)


def test_pairs_are_those_of_the_same_seed():
    data = table({"A": [1.0, 2.0, 3.0], "B": [11.0, 22.0]})
    second = summarise(data, study("A", "B", baseline="A")).to_dict("records")[1]
    assert (second["difference"], second["pairs"]) == (15.0, 2)


def test_an_override_can_be_the_baseline():
    data = pd.concat([table({"A": [1.0, 2.0]}, "x"), table({"A": [4.0, 5.0]}, "y")])
    lines = summarise(data, study("A", overrides={"x": {}, "y": {}}, baseline="x")).to_dict("records")
    assert [line["difference"] for line in lines][1] == 3.0


def test_in_words():
    chosen = study("A", "B", outliers="iqr", baseline="A")
    words = in_words(summarise(table({"A": [1.0, 2.0], "B": [2.0, 3.0]}), chosen), chosen)
    assert "| m | B | 2 | 0 | 2.5000 ± 1.4142 | 2 | 1.00 | 2 | 6e-05 | +1.0000 (+1.0000 to +1.0000) |" in words
