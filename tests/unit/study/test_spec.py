"""A study file that is wrong is refused in one line that names the key and the fix."""

import pytest

from lightning_vfl.configs import packaged
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.study import grid, read_study
from lightning_vfl.study.spec import Target, find_study

GOOD = "recipes: {A: [data/digits, protocol/mean]}\nseeds: [0, 1]\n"


def read(text, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return read_study(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeds: [0]", "recipes is missing"),
        ("recipes: {A: [x]}", "seeds is missing"),
        ("[a]", "is no mapping"),
        ("a: [", "correct the YAML"),
        (GOOD + "override: {}", "'override' is not a key of a study; did you mean overrides?"),
        (GOOD + "figure: {metrc: x}", "'metrc' is not a key of figure; did you mean metric?"),
        (GOOD + "figure: {width: wide}", "figure.width"),
        (GOOD + "figure: {range: [3, 1]}", "figure.range"),
        (GOOD + "figure: {metric: [x]}", "figure.metric"),
        (GOOD + "figure: {against: [round]}", "did you mean rounds?"),
        (GOOD + "figure: {only: [nobody]}", "figure.only"),
        (GOOD + "targets: [val/accuracy]", "targets: ['val/accuracy'] is no mapping"),
        (GOOD + "targets: {val/accuracy: high}", "targets.val/accuracy: 'high' is no target; write a number such as"),
        (GOOD + "targets: {val/accuracy: true}", "targets.val/accuracy: True is no target"),
        (GOOD + "targets: {val/accuracy: .nan}", "targets.val/accuracy: nan is no target"),
        (GOOD + "targets: {m: {under: 0.3}}", "targets.m: {'under': 0.3} is no target"),
        (GOOD + "targets: {m: {below: 0.3, above: 0.1}}", "is no target; write a number such as 0.9, or {below: 0.3}"),
        (
            GOOD + "targets: {train/loss: 0.3}",
            "targets.train/loss: a metric of that name falls; write {below: 0.3}",
        ),
        (GOOD + "baseline: B", "baseline: 'B' is not known; use A"),
        (GOOD + "outliers: tukey", "outliers: 'tukey' is not known; use iqr"),
        (GOOD + "test: sometimes", "test: 'sometimes' is not known"),
        (GOOD + "settings: {trainer: {max_epochs: 3}}", "write trainer.max_epochs: VALUE"),
        (GOOD + "settings: {seed_everything: 3}", "seed_everything is set by seeds"),
        (GOOD + "settings: [a]", "settings: ['a'] is no mapping"),
        (GOOD + "overrides: {a/b: {}}", "'a/b' cannot name a folder"),
        (GOOD + "name: ..", "name: '..' cannot name a folder"),
        (GOOD + "common: protocol/mean", "common: 'protocol/mean' is no list of names"),
        ("recipes: {A: {recipe: [x]}}\nseeds: [0]", "did you mean recipes?"),
        ("recipes: {A: [x]}\nseeds: 3", "seeds: 3 is no list"),
        ("recipes: {A: [x]}\nseeds: [1, 1]", "names one twice"),
        ("recipes: {A: [x]}\nseeds: [true]", "no list of whole numbers"),
    ],
)
def test_one_line_names_the_fix(text, message, tmp_path):
    with pytest.raises(ConfigurationError) as error:
        read(text, tmp_path)
    assert message in str(error.value)
    assert "mine.yaml: " in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_no_file():
    with pytest.raises(ConfigurationError, match=r"^studies/gone: no such file"):
        find_study("studies/gone")


def test_an_unknown_recipe_is_refused_before_anything_runs(tmp_path):
    study = read("recipes: {A: [data/digit]}\nseeds: [0]", tmp_path)
    with pytest.raises(ConfigurationError, match=r"^recipes.A: data/digit: .*did you mean data/digits"):
        list(grid(study, tmp_path))


def test_the_grid(tmp_path):
    text = """
    recipes:
      A: [data/digits, protocol/mean]
      B: {recipes: [data/digits, protocol/max], settings: {model.width: 8}}
    common: [trainer/cpu]
    overrides: {small: {data.batch_size: 16}, "as it is": {}}
    settings: {trainer.max_epochs: 2, model.width: 4, trainer.callbacks+: LearningCurve, model.bottom_of: {1: Linear}}
    seeds: [3, 1]
    """
    runs = list(grid(read(text, tmp_path), tmp_path))
    assert [run.label for run in runs][:3] == ["A, small, seed 3", "A, small, seed 1", "A, as it is, seed 3"]
    assert len({run.fingerprint for run in runs}) == len({run.folder for run in runs}) == len(runs) == 8
    arguments = runs[4].arguments
    assert arguments[0] == "fit"
    assert [str(packaged()[name]) for name in ("data/digits", "protocol/max", "trainer/cpu")] == [
        argument.removeprefix("--config=") for argument in arguments[1:4]
    ]
    assert (
        arguments.index("--model.width=4")
        < arguments.index("--model.width=8")
        < arguments.index("--data.batch_size=16")
    )
    for option in ("data.batch_size=16", "trainer.callbacks+=LearningCurve", "seed_everything=3"):
        assert f"--{option}" in arguments
    assert '--model.bottom_of={"1": "Linear"}' in arguments
    assert "--trainer.logger=false" in arguments


def test_targets_change_no_result(tmp_path):
    text = GOOD + "targets: {val/accuracy: 1, val/mse: {below: 0.3}, no_loss: {above: 2}}"
    with_targets = read(text, tmp_path)
    assert with_targets.targets == {
        "val/accuracy": Target(1.0),
        "val/mse": Target(0.3, falls=True),
        "no_loss": Target(2.0),
    }
    assert list(grid(with_targets, tmp_path)) == list(grid(read(GOOD, tmp_path), tmp_path))


def test_a_changed_recipe_changes_the_fingerprint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "own.yaml"
    study = read("recipes: {A: [own.yaml]}\nseeds: [0]", tmp_path)
    found = []
    for text in ("trainer: {max_epochs: 1}", "trainer: {max_epochs: 2}", "trainer: {max_epochs: 1}"):
        recipe.write_text(text)
        found.append(next(grid(study, tmp_path)).fingerprint)
    assert found[0] == found[2] != found[1]
