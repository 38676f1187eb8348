import re
from itertools import product

import pandas as pd
import pytest

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.study.figures import _bands, _panels, draw, out_of_sight
from lightning_vfl.study.grid import line_name
from lightning_vfl.study.report import report
from lightning_vfl.study.spec import Look, Target
from lightning_vfl.study.table import chosen, unmeasured
from tests.further import further

from .test_summary import study, table


def test_png_and_svg_of_every_axis(tmp_path):
    data = table({"A": [0.5, 0.6], "B": [0.7, 0.9]}).assign(metric="val/accuracy", passes=0.0)
    paths = draw(data, study("A", "B"), tmp_path)
    names = [f"val_accuracy-{axis}.{end}" for axis in ("rounds", "virtual_seconds", "bytes") for end in ("png", "svg")]
    assert [path.name for path in paths] == names  # nothing to draw against passes that were not counted
    assert all(path.stat().st_size < 500_000 for path in paths)


def test_the_same_table_gives_the_same_file(tmp_path):
    data = table({"A": [0.5, 0.6]})
    one_axis = study("A", figure=Look(against=("rounds",)))
    first = [path.read_bytes() for path in draw(data, one_axis, tmp_path / "a")]
    assert first == [path.read_bytes() for path in draw(data, one_axis, tmp_path / "b")]
    assert not re.search(rb"<dc:date>", first[1])


@pytest.mark.parametrize("recipes", [8, 12])
def test_no_colour_is_repeated_up_to_twelve_lines(recipes):
    names = [f"r{i}" for i in range(recipes)]
    data = pd.concat([table({name: [1.0]}) for name in names])
    (lines,) = _panels(study(*names)).values()
    assert len({style["color"] for _, (_, style) in _bands(data, lines, "step")}) == recipes


def test_a_study_without_figure_is_drawn_even_if_each_seed_ends_at_another_moment(tmp_path):
    """One test value for each seed, at different virtual times, and nothing that is called val."""
    one = table({"A": [0.5, 0.6]}).assign(metric="test/accuracy")
    one = one.assign(virtual_seconds=one["seed"] + 1.0)
    paths = report(one, study("A", figure=Look(against=("virtual_seconds",))), tmp_path)
    assert "test_accuracy-virtual_seconds.png" in {path.name for path in paths}


def test_a_metric_that_nobody_measured_withholds_nothing(tmp_path):
    data = table({"A": [0.5, 0.6]})
    named = study(
        "A", metrics=("m", "val/lost"), figure=Look("val/acc", against=("rounds",)), targets={"f": Target(0.5)}
    )
    paths = report(chosen(data, named), named, tmp_path)
    assert [path.name for path in paths] == ["summary.md", "m-rounds.png", "m-rounds.svg"]
    assert "| m | A | 2 |" in paths[0].read_text()
    assert unmeasured(data, named) == [
        "metrics: no run has measured val/lost; there are m",
        "targets: no run has measured f; there are m",
        "figure.metric: no run has measured val/acc; there are m",
    ]


def test_a_range_in_which_nothing_would_be_seen_is_named_and_not_used(tmp_path):
    """Accuracies are shown in percent, so [0.4, 1] would show an empty figure."""
    data = table({"A": [0.5, 0.6]}).assign(metric="val/accuracy")
    free, narrow, right = (
        study("A", figure=Look("val/accuracy", against=("rounds",), range=ends))
        for ends in (None, (0.4, 1.0), (40.0, 100.0))
    )
    said = "figure.range: no value of val/accuracy lies in [0.4, 1]; they go from 0 to 60, in percent"
    assert [out_of_sight(data, one) for one in (free, narrow, right)] == [[], [said], []]
    drawn = {one.figure.range: draw(data, one, tmp_path / str(i))[0] for i, one in enumerate((free, narrow, right))}
    assert drawn[0.4, 1.0].read_bytes() == drawn[None].read_bytes() != drawn[40.0, 100.0].read_bytes()


def test_a_metric_that_nobody_measured(tmp_path):
    with pytest.raises(ConfigurationError, match=r"figure\.metric: no run has measured 'val/acc'; there are m"):
        draw(table({"A": [1.0]}), study("A", figure=Look("val/acc")), tmp_path)


@pytest.mark.parametrize(
    ("recipes", "overrides", "panels"), [(9, 1, 1), (1, 1, 1), (1, 9, 1), (2, 3, 3), further(2, 6, 6)]
)
def test_every_line_of_a_panel_has_a_style_of_its_own(recipes, overrides, panels, tmp_path):
    names = [f"r{i}" for i in range(recipes)]
    crossed = {f"o{i}": {} for i in range(overrides)}
    chosen = study(*names, overrides=crossed, figure=Look(against=("rounds",)))
    data = pd.concat([table({"x": [1.0]}).assign(run=line_name(r, o)) for r, o in product(names, crossed)])
    made = _panels(chosen)
    assert len(made) == panels
    assert {run for lines in made.values() for run in lines.values()} == set(data["run"])
    for lines in made.values():
        styles = {name: style for name, (_, style) in _bands(data, lines, "step")}
        assert len({(s["color"], str(s["linestyle"])) for s in styles.values()}) == len(lines)
    if panels > 1:
        assert all(path.stat().st_size < 500_000 for path in draw(data, chosen, tmp_path))
