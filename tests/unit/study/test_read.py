"""A study file that is wrong is refused in one line that names the key and the fix."""

import pytest

from lightning_vfl.configs import packaged
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.study import grid, read_study
from lightning_vfl.study.read import find_study
from lightning_vfl.study.spec import Target

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
        ("[a]", "is not a mapping"),
        ("a: [", "correct the YAML"),
        (GOOD + "seeds: [1]", "the key 'seeds' is given twice"),
        (GOOD + "override: {}", "'override' is not a key of a study; did you mean overrides?"),
        (GOOD + "figure: {metrc: x}", "'metrc' is not a key of figure; did you mean metric?"),
        (GOOD + "figure: {width: wide}", "figure.width: 'wide' is not allowed; write a number of inches from 1 to 30"),
        (GOOD + "figure: {width: 40}", "figure.width: 40.0 is not allowed"),
        (GOOD + "figure: {range: [3, 1]}", "figure.range: [3.0, 1.0] is not allowed; write [lowest, highest], such as"),
        (GOOD + "figure: {range: [1, 2, 3]}", "figure.range: [1, 2, 3] is not allowed"),
        (GOOD + "figure: {metric: [x]}", "figure.metric: ['x'] is not allowed; write the name of a metric"),
        (
            GOOD + "figure: {against: [round]}",
            "figure.against: ['round'] is not allowed; write a list",
        ),
        (GOOD + "figure: {only: [nobody]}", "figure.only: 'nobody' is not in this study; use one of A"),
        (GOOD + "targets: [val/accuracy]", "targets: ['val/accuracy'] is not a mapping"),
        (
            GOOD + "targets: {val/accuracy: high}",
            "targets.val/accuracy: 'high' is not a target; write a number",
        ),
        (GOOD + "targets: {val/accuracy: true}", "targets.val/accuracy: True is not a target"),
        (GOOD + "targets: {val/accuracy: .nan}", "targets.val/accuracy: nan is not a target"),
        (GOOD + "targets: {m: {under: 0.3}}", "targets.m: {'under': 0.3} is not a target"),
        (
            GOOD + "targets: {m: {below: 0.3, above: 0.1}}",
            "write a number such as 0.9, or {below: 0.3}",
        ),
        (
            GOOD + "targets: {train/loss: 0.3}",
            "targets.train/loss: a metric of that name falls; write {below: 0.3}",
        ),
        (GOOD + "baseline: B", "baseline: 'B' is not in this study; use one of A"),
        (GOOD + "outliers: tukey", "outliers: 'tukey' is not allowed; write iqr, or leave it out"),
        (GOOD + "test: sometimes", "test: 'sometimes' is not allowed; write true or false"),
        (GOOD + "settings: {trainer: {max_epochs: 3}}", "write trainer.max_epochs: VALUE"),
        (GOOD + "settings: {seed_everything: 3}", "seed_everything is set by seeds"),
        (GOOD + "settings: [a]", "settings: ['a'] is not a mapping"),
        (GOOD + "overrides: {a/b: {}}", "'a/b' cannot name a folder"),
        (GOOD + "name: ..", "name: '..' cannot name a folder"),
        (
            GOOD + "common: protocol/mean",
            "common: 'protocol/mean' is not allowed; write a list of recipes",
        ),
        ("recipes: {A: {recipe: [x]}}\nseeds: [0]", "did you mean recipes?"),
        ("recipes: {A: {settings: {a.b: 1}}}\nseeds: [0]", "recipes.A.recipes: None is not allowed; write a list"),
        ("recipes: {A: x}\nseeds: [0]", "recipes.A.recipes: 'x' is not allowed; write a list of recipes, such as"),
        ("recipes: {A: [x]}\nseeds: 3", "seeds: 3 is not allowed; write a list of different whole numbers"),
        ("recipes: {A: [x]}\nseeds: [1, 1]", "seeds: [1, 1] is not allowed; write a list of different"),
        ("recipes: {A: [x]}\nseeds: [true]", "seeds: [True] is not allowed; write a list of different whole numbers"),
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


def test_settings_reach_the_command_line_as_they_are_written(tmp_path):
    """A string that looks like a number stays a string: results of a study are found by their settings."""
    text = GOOD + "settings: {a.b: 1e-3, c.d: '3', e.f: 'true', g.h: 3, i.j: null, k.l: {class_path: MLP}}"
    arguments = next(grid(read(text, tmp_path), tmp_path)).arguments
    said = ["--a.b=1e-3", "--c.d=3", "--e.f=true", "--g.h=3", "--i.j=null", '--k.l={"class_path": "MLP"}']
    assert [argument for argument in arguments if argument[2:5] in ("a.b", "c.d", "e.f", "g.h", "i.j", "k.l")] == said


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
