"""What ``make bench-check`` calls worse."""

import json

import pytest

from benchmarks import check
from benchmarks.check import COMMITTED, Ratio, better, is_ratio, ratios, slower


def figures(step=2.0, speed=5.0, seconds=1.0, share=0.01):
    goals = [
        {"what": "step over the plain step", "measured": step, "better": "lower"},
        {"what": "draws over torch's", "measured": speed, "better": "higher"},
        {"what": "seconds of an epoch", "measured": seconds, "better": "lower"},
        {"what": "share of planning", "measured": share, "better": "lower"},
    ]
    rows = [{"parties": 4, "kind": "masked", "ms": 3.5, "/ sum": step, "spread": f"1.0..{step}"}]
    return {"goals": goals, "rows": rows}


def test_ratios_of_goals_and_rows_are_compared_and_seconds_are_not():
    assert set(ratios(figures())) == {"step over the plain step", "draws over torch's", "4, masked: / sum"}


@pytest.mark.parametrize(
    ("fresh", "names"),
    [
        ({}, []),
        ({"seconds": 9.0, "share": 0.04}, []),
        ({"step": 2.19, "speed": 4.6}, []),
        ({"step": 1.0, "speed": 50.0}, []),
        (
            {"step": 2.22},
            ["step over the plain step: 2.220, was 2.000 (+11%)", "4, masked: / sum: 2.220, was 2.000 (+11%)"],
        ),
        ({"speed": 4.0}, ["draws over torch's: 4.000, was 5.000 (+25%)"]),
    ],
)
def test_what_is_worse_by_more_than_a_tenth_is_named(fresh, names):
    assert slower(ratios(figures()), ratios(figures(**fresh)), 0.1) == names


def test_the_worst_comes_first_and_what_is_gone_before_it():
    before = {name: Ratio(name, 1.0) for name in ("a", "b", "c")}
    after = {"a": Ratio("a", 1.2), "b": Ratio("b", 1.5)}
    assert [line.split(":")[0] for line in slower(before, after, 0.1)] == ["c", "b", "a"]


def test_of_two_runs_the_better_figure_counts():
    one = {"low": Ratio("low", 2.0), "high": Ratio("high", 2.0, True)}
    two = {"low": Ratio("low", 3.0), "high": Ratio("high", 3.0, True), "new": Ratio("new", 1.0)}
    assert {name: ratio.value for name, ratio in better(one, two).items()} == {"low": 2.0, "high": 3.0, "new": 1.0}


@pytest.mark.parametrize("column", ["ratio", "/ sum", "x torch.binomial", "trainer/hand"])
def test_columns_that_are_ratios(column):
    assert is_ratio(column)


@pytest.mark.parametrize("column", ["ms", "ms/step", "trainer s/epoch", "records/s, fastest", "spread", "share"])
def test_columns_that_are_none(column):
    assert not is_ratio(column)


def test_the_committed_figures_have_ratios():
    found = {file.stem: len(ratios(json.loads(file.read_text()))) for file in COMMITTED.glob("*.json")}
    assert found["split_step"] > 10
    assert sum(found.values()) > 100


def test_a_worse_ratio_is_measured_once_more(monkeypatch, capsys, tmp_path):
    (tmp_path / "a_step.json").write_text(json.dumps(figures()))
    monkeypatch.setattr(check, "COMMITTED", tmp_path)
    runs = iter([figures(step=3.0), figures(step=2.1), figures(step=3.0), figures(step=2.5)])
    monkeypatch.setattr(check, "measured", lambda name: ratios(next(runs)))
    assert check.main([]) == 0
    assert check.main(["a_step"]) == 1
    assert "4, masked: / sum: 2.500, was 2.000 (+25%)" in capsys.readouterr().out


def test_an_unknown_name_is_refused_in_one_line(capsys):
    with pytest.raises(SystemExit):
        check.main(["split_stpe"])
    assert "split_stpe has no figures in docs/results; choose from" in capsys.readouterr().err
