"""When a target was reached, what that had taken, and that nothing is told of the lucky seeds alone."""

from pathlib import Path

import pandas as pd
import pytest

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.study import Study
from lightning_vfl.study import table as tables
from lightning_vfl.study.report import report
from lightning_vfl.study.spec import Entry, Target
from lightning_vfl.study.table import COLUMNS
from lightning_vfl.study.targets import in_words, reached


def table(curves, metric="val/accuracy"):
    """Values by (recipe, override, seed), measured every 10 rounds; the costs of a step are multiples of it."""
    lines = []
    for (recipe, override, seed), values in curves.items():
        for number, value in enumerate(values, 1):
            step, run = 10 * number, f"{recipe}, {override}" if override else recipe
            costs = (step, step / 8, step / 4, step * 1e6, 0, 0, 0)
            lines.append((run, recipe, override, seed, *costs, metric, value))
    return pd.DataFrame(lines, columns=list(COLUMNS))


def study(*recipes, seeds=(0, 1), **more):
    more.setdefault("targets", {"val/accuracy": Target(0.9)})
    return Study({name: Entry(("x",)) for name in recipes}, seeds, **more)


TWO = {("A", "", 0): [0.5, 0.9, 0.8, 0.95], ("A", "", 1): [0.5, 0.6, 0.7, 0.91]}


def steps(data, **targets):
    return reached(data, study("A", targets=targets))["step"].fillna(0).tolist()


def test_the_first_measured_point_counts_with_its_costs():
    data = table(TWO)[::-1]  # in whatever order the lines stand
    first, second = reached(data, study("A")).sort_values("seed").to_dict("records")
    identity = {"recipe": "A", "override": "", "metric": "val/accuracy", "target": 0.9}
    assert first == identity | {"seed": 0, "step": 20, "passes": 2.5, "virtual_seconds": 5.0, "bytes": 2e7}
    assert second == identity | {"seed": 1, "step": 40, "passes": 5.0, "virtual_seconds": 10.0, "bytes": 4e7}


def test_what_falls_is_reached_from_above():
    data = table({("A", "", 0): [3.0, 0.5, 0.2, 0.4], ("A", "", 1): [0.51, 0.9, float("nan"), 0.6]}, "m")
    assert steps(data, m=Target(0.5, falls=True)) == [20, 0]
    assert steps(data, m=Target(0.5)) == [10, 10]


def test_a_share_that_float32_cannot_hold_is_reached():
    share = 0.949999988079071  # 342 of 360 right, as torchmetrics gives it
    data = table({("A", "", 0): [share], ("A", "", 1): [0.9499999]}, "m")
    assert steps(data, m=Target(0.95)) == [10, 0]
    data = table({("A", "", 0): [0.3]}, "m")  # in float64, and float32 rounds it up
    assert steps(data, m=Target(0.3)) == steps(data, m=Target(0.3, falls=True)) == [10]


def test_means_are_told_of_all_seeds_or_not_at_all():
    curves = TWO | {("B", "", 0): [0.99], ("B", "", 1): [0.1, 0.89], ("C", "", 0): [0.99]}
    chosen = study("A", "B", "C", "D")
    words = in_words(reached(table(curves), chosen), chosen)
    assert "**val/accuracy ≥ 0.9**" in words
    lines = [line for line in words.splitlines() if line.startswith("| ")][2:]
    assert lines == [
        "| A | 2 of 2 | 30 (20 to 40) | 3.75 (2.50 to 5.00) | 7.5 (5 to 10) | 30 (20 to 40) |",
        "| B | 1 of 2 | - | - | - | - |",
        "| C | 1 of 2, 1 without a result | - | - | - | - |",
        "| D | 0 of 2, 2 without a result | - | - | - | - |",
    ]


def test_recipes_and_overrides_are_told_apart():
    curves = {("A", "x|y", 0): [1.0], ("A", "z", 0): [0.0, 1.0]}
    chosen = study("A", seeds=(0,), overrides={"x|y": {}, "z": {}})
    words = in_words(reached(table(curves), chosen), chosen)
    assert "| A, x\\|y | 1 of 1 | 10 | 1.25 | 2.5 | 10 |" in words
    assert "| A, z | 1 of 1 | 20 | 2.50 | 5 | 20 |" in words


@pytest.fixture
def no_figures(monkeypatch):
    monkeypatch.setattr("lightning_vfl.study.report.draw", lambda *parts: [])


@pytest.mark.usefixtures("no_figures")
def test_the_file_has_a_line_a_run_and_is_empty_where_nothing_was_reached(tmp_path):
    targets = {"val/accuracy": Target(0.92), "train/loss": Target(0.3, falls=True)}
    data = pd.concat([table(TWO), table({("A", "", 0): [0.4, 0.2]}, "train/loss")])
    report(data, study("A", targets=targets), tmp_path)
    assert Path(tmp_path, "targets.csv").read_text().splitlines() == [
        "recipe,override,seed,metric,target,step,passes,virtual_seconds,bytes",
        "A,,0,val/accuracy,0.92,40,5.0,10.0,40000000.0",
        "A,,1,val/accuracy,0.92,,,,",
        "A,,0,train/loss,0.3,20,2.5,5.0,20000000.0",
        "A,,1,train/loss,0.3,,,,",
    ]
    assert pd.read_parquet(tmp_path / "targets.parquet")["step"].isna().tolist() == [False, True, False, True]
    assert "**train/loss ≤ 0.3**" in (tmp_path / "summary.md").read_text()


@pytest.mark.usefixtures("no_figures")
def test_a_study_without_targets_tells_nothing_of_them(tmp_path):
    report(table(TWO), study("A", targets={}), tmp_path)
    assert not list(tmp_path.glob("targets.*"))
    assert "reached" not in (tmp_path / "summary.md").read_text()


def test_the_table_keeps_what_targets_are_about():
    data = pd.concat([table(TWO, name) for name in ("a", "b", "c")])
    told = {
        metrics: sorted(tables.chosen(data, study("A", metrics=metrics, targets={"b": Target(1)}))["metric"].unique())
        for metrics in ((), ("a",))
    }
    assert told == {(): ["a", "b", "c"], ("a",): ["a", "b"]}


def test_a_metric_that_nobody_measured():
    wrong = study("A", targets={"val/acc": Target(0.9)})
    assert tables.unmeasured(table(TWO), wrong) == ["targets: no run has measured val/acc; there are val/accuracy"]
    with pytest.raises(
        ConfigurationError, match=r"^targets: the table has no val/acc; it has val/accuracy. Run lightning-vfl s"
    ):
        reached(table(TWO), wrong)
