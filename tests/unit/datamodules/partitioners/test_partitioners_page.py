"""The recipe and the code printed in docs/partitioners.md, run as printed; the table there names every partitioner."""

import re
from pathlib import Path

import pytest

from lightning_vfl import datamodules
from lightning_vfl.cli import run
from lightning_vfl.datamodules import (
    BreastCancer,
    ColumnsByCorrelation,
    ColumnsByImportance,
    DirichletColumns,
    Layout,
    MissingAtTest,
    OverlappingColumns,
    Partitioner,
)
from lightning_vfl.datamodules.partitioners.over import PartitionerOver

PAGE = (Path(__file__).parents[4] / "docs/partitioners.md").read_text()
BLOCKS = dict(re.findall(r"<!-- run: (\w+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL))
QUIET = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false", "--trainer.logger", "false"]


def printed(block):
    space = {"__name__": f"printed_{block}"}
    exec(compile(BLOCKS[block], f"partitioners.md:{block}", "exec"), space)
    return space


def fitted(tmp_path, *arguments):
    folder = [f"--trainer.default_root_dir={tmp_path}", "--trainer.max_epochs", "1"]
    return run(["fit", *arguments, "--config", "protocol/mean", *QUIET, *folder])


def test_every_block_of_the_page_is_run():
    assert len(re.findall("```(?:python|yaml)", PAGE)) == len(BLOCKS) == 4


def test_the_tables_name_every_partitioner_and_its_settings():
    told = dict(re.findall(r"^\| `(\w+)\((.*?)\)` \|", PAGE, re.MULTILINE))
    public = {name: getattr(datamodules, name) for name in datamodules.__all__}
    own = {
        name
        for name, c in public.items()
        if isinstance(c, type) and issubclass(c, Partitioner) and not c.__abstractmethods__ and c is not PartitionerOver
    }
    assert told.keys() == own
    for name, settings in told.items():
        code = public[name].__init__.__code__
        assert settings.split(", ") == list(code.co_varnames[1 : code.co_argcount])


def test_a_recipe_of_one_over_the_other(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(BLOCKS["recipe"])
    done = fitted(tmp_path, "--config", str(recipe))
    over = done.datamodule.partitioner
    inner = "ColumnsByImportance(parties=3, alpha=(1.0, 2.0, 2.0), importance='mutual_information', seed=1)"
    assert repr(over) == (
        f"MissingAtTest(partitioner=OverlappingColumns(partitioner={inner}, shared=('mean radius', 'mean texture'), "
        "holders=None, seed=0), parties=(2,), splits=('test',))"
    )
    assert isinstance(over, MissingAtTest)
    assert isinstance(over.partitioner, OverlappingColumns)
    assert all({0, 1} <= set(part.positions) for part in done.datamodule.parts)
    (told,) = done.trainer.test(done.model, datamodule=done.datamodule, verbose=False)
    assert told["test/accuracy"] > 0.3
    assert not done.datamodule.records("test").present[:, 2].any()
    assert done.datamodule.records("val").present is None


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(["DirichletColumns", "alpha=0.5", "seed=3"], DirichletColumns(3, 0.5, 3), marks=pytest.mark.slow),
        (["DirichletColumns", "alpha=[1,2,3]"], DirichletColumns(3, [1, 2, 3])),
        pytest.param(["ColumnsByCorrelation", "beta=1"], ColumnsByCorrelation(3, 1), marks=pytest.mark.slow),
        pytest.param(["ColumnsByImportance", "alpha=0.3"], ColumnsByImportance(3, 0.3), marks=pytest.mark.slow),
        pytest.param(
            ["ColumnsByImportance", f"importance={[float(i) for i in range(30)]}"],
            ColumnsByImportance(3, importance=range(30)),
            marks=pytest.mark.slow,
        ),
        (
            ["ColumnsByImportance", f"importance={{{', '.join(f'{n}: 1.5' for n in BreastCancer().layout.columns)}}}"],
            ColumnsByImportance(3, importance=dict.fromkeys(BreastCancer().layout.columns, 1.5)),
        ),
    ],
)
def test_settings_on_the_command_line(tmp_path, arguments, expected):
    name, *settings = arguments
    words = ["--data.partitioner", name, *(f"--data.partitioner.{setting}" for setting in settings)]
    done = fitted(tmp_path, "--config", "data/breast_cancer", *words)
    assert repr(done.datamodule.partitioner) == repr(expected)
    same = BreastCancer(expected).parts
    assert [p.positions.tolist() for p in done.datamodule.parts] == [p.positions.tolist() for p in same]


@pytest.mark.slow
def test_what_the_page_measures():
    scores = printed("measured")["scores"]
    assert scores[0.0] < -0.25 < scores[0.5] < -0.1 < scores[1.0]


def test_the_partitioners_of_the_page():
    dealt = printed("layout")["EveryOther"](3).split(Layout((7,)))
    assert [part.positions.tolist() for part in dealt] == [[0, 3, 6], [1, 4], [2, 5]]
    data = BreastCancer(printed("informed")["ByVariance"](3))
    spread = data.load(("train",))["train"].features.double().var(0).argsort(descending=True)
    assert [set(part.positions) for part in data.parts] == [set(run.tolist()) for run in spread.split(10)]
