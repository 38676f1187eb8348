"""Ranges are read or refused in one line; a search is a function of its seed and of the results, and can go on."""

from dataclasses import replace

import pandas as pd
import pytest

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.study import search as searches
from lightning_vfl.study.read import read_search
from lightning_vfl.study.spec import Entry, Range, Search, Study
from lightning_vfl.study.table import COLUMNS, is_finished, write_result

pytest.importorskip("optuna")
RANGES = {"x": Range(-4.0, 4.0), "n": Range(1, 9), "kind": Range(choices=("a", ["b"]))}


def wanted(**settings):
    return Search(**{"metric": "val/loss", "ranges": RANGES, "trials": 12} | settings)


def study(search, recipes=("A",)):
    entry = Entry(("data/digits", "protocol/mean"))
    return Study(dict.fromkeys(recipes, entry), (0, 1), search=search)


def carried_out(counts, fails=lambda run: False):
    """Runs whose loss is a function of their settings: smallest at x = 1, n = 3, and the kind [b]."""

    def carry_out(runs):
        for run in runs:
            if is_finished(run) or fails(run):
                continue
            counts.append(run.label)
            given = dict(text.removeprefix("--").split("=", 1) for text in run.arguments if "=" in text)
            loss = (float(given["x"]) - 1) ** 2 + abs(int(given["n"]) - 3) + (given["kind"] == "a") + run.seed
            row = dict.fromkeys(COLUMNS, 0.0) | {"step": 1, "metric": "val/loss", "value": loss}
            run.folder.mkdir(parents=True, exist_ok=True)
            write_result([row], run)

    return carry_out


def test_a_search_finds_good_settings_and_is_the_same_again_without_new_runs(tmp_path):
    ran, search = [], wanted(trials=8)
    one = study(search)
    runs, found = searches.search(one, search, tmp_path, carried_out(ran))
    assert len(ran) == len(runs) == 16
    best = searches.best(found, one, search)["A"]
    assert best["val/loss"] < found["val/loss"].median()
    settings = best["settings"]
    expected = (settings["x"] - 1) ** 2 + abs(settings["n"] - 3) + (settings["kind"] == "a") + 0.5
    assert best["val/loss"] == pytest.approx(expected)
    again, same = searches.search(one, search, tmp_path, carried_out(ran))
    assert len(ran) == 16  # nothing runs twice
    pd.testing.assert_frame_equal(found, same)
    assert [run.label for run in again] == [run.label for run in runs]
    other = searches.search(one, replace(search, seed=1), tmp_path / "other", carried_out([]))[1]
    assert not found["x"].equals(other["x"])


def test_an_interrupted_search_goes_on_as_if_nothing_had_happened(tmp_path):
    search = wanted(trials=6, at_once=2)
    one = study(search, ("A", "B"))
    whole = searches.search(one, search, tmp_path / "whole", carried_out([]))[1]

    def killed(runs):
        if any("trial 002" in run.label for run in runs):
            raise KeyboardInterrupt
        carried_out([])(runs)

    with pytest.raises(KeyboardInterrupt):
        searches.search(one, search, tmp_path / "parts", killed)
    ran = []
    resumed = searches.search(one, search, tmp_path / "parts", carried_out(ran))[1]
    pd.testing.assert_frame_equal(whole, resumed)
    assert len(ran) == 2 * 2 * 4


def test_a_trial_without_all_seeds_has_no_value_and_is_never_the_best(tmp_path):
    search = wanted(trials=4)
    one = study(search)
    fails = lambda run: run.seed == 1 and run.override in ("trial 000", "trial 001")  # noqa: E731
    found = searches.search(one, search, tmp_path, carried_out([], fails))[1]
    assert found["val/loss"].isna().tolist() == [True, True, False, False]
    assert searches.best(found, one, search)["A"]["trial"] in (2, 3)
    paths = searches.write(found, one, search, tmp_path)
    assert [path.name for path in paths] == ["search.csv", "best.yaml"]
    (name,) = searches.of_best(one, tmp_path).overrides
    assert name == searches.trial_name(searches.best(found, one, search)["A"]["trial"])


def test_a_metric_that_nobody_measures_is_refused(tmp_path):
    search = wanted(metric="val/acc", trials=1)
    with pytest.raises(ConfigurationError, match=r"search.optuna.metric: no run has measured val/acc; there are val/l"):
        searches.search(study(search), search, tmp_path, carried_out([]))


def test_names_say_what_is_better():
    assert wanted().minimises
    assert not wanted(metric="val/accuracy").minimises
    assert wanted(metric="val/accuracy", falls=True).minimises


def test_ranges_are_read():
    said = {
        "metric": "m",
        "ranges": {"a": {"low": "1e-4", "high": 1, "log": True}, "b": [1, "x"], "c": {"low": 1, "high": 9}},
    }
    read = read_search({"optuna": said})
    assert read.ranges == {"a": Range(1e-4, 1, log=True), "b": Range(choices=(1, "x")), "c": Range(1, 9)}
    assert [one.whole for one in read.ranges.values()] == [False, False, True]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("x", "search: 'x' is not allowed; write optuna: "),
        ({"optuna": {"ranges": {"a": [1]}}}, "search.optuna.metric: None is not allowed; write the name of a metric"),
        ({"optuna": {"metric": "m"}}, "search.optuna.ranges is missing"),
        ({"optuna": {"metrics": "m"}}, "'metrics' is not a key of search.optuna; did you mean metric or trials?"),
        ({"optuna": {"metric": "m", "ranges": {"a": [1]}, "trials": 0}}, "search.optuna.trials: 0 is not allowed"),
        (
            {"optuna": {"metric": "m", "ranges": {"a": {"high": 1}}}},
            "ranges.a: {'high': 1} is not a range",
        ),
        ({"optuna": {"metric": "m", "ranges": {"a": {"low": 1, "high": float("inf")}}}}, "low must be below"),
        (
            {"optuna": {"metric": "m", "ranges": {"a": {"low": 1, "high": 2, "log": 1}}}},
            "a.log: 1 is not allowed",
        ),
        ({"optuna": {"metric": "m", "ranges": {"a": [1]}, "seed": None}}, "search.optuna.seed: None is not allowed"),
        ({"optuna": {"metric": "m", "ranges": {"a": {"low": 1, "high": 2, "step": float("nan")}}}}, "step: nan is not"),
        ({"optuna": {"metric": "m", "ranges": {"a": [1]}, "falls": "up"}}, "search.optuna.falls: 'up' is not allowed"),
        ({"optuna": {"metric": "m", "ranges": {"a": 3}}}, "search.optuna.ranges.a: 3 is not a range"),
        ({"optuna": {"metric": "m", "ranges": {"a": {"low": 3, "high": 1}}}}, "low must be below high"),
        ({"optuna": {"metric": "m", "ranges": {"a": {"low": 0, "high": 1, "log": True}}}}, "above 0 without step"),
        ({"optuna": {"metric": "m", "ranges": {"a": {"low": "b", "high": 1}}}}, "ranges.a.low: 'b' is not allowed"),
    ],
)
def test_what_is_no_search_is_refused_in_one_line(said, message):
    with pytest.raises(ConfigurationError) as error:
        read_search(said)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
