"""A mistake in a user's own module is told with its file and line, or its true cause."""

import re
import sys

import pytest

from lightning_vfl.cli import run
from lightning_vfl.commands.own_code import watched_imports
from lightning_vfl.commands.usage import UsageError
from lightning_vfl.commands.vfl_cli import VFLCLI
from lightning_vfl.errors import ConfigurationError

FIT = ["fit", "--config", "data/digits", "--config", "protocol/mean", "--trainer.accelerator=cpu"]
MEAN = "from lightning_vfl.aggregators import Aggregator, Mean\n"
AT_IMPORT = {
    "syntax": ("def own(:", "own_syntax cannot be imported: invalid syntax (SyntaxError in own_syntax.py, line 1)"),
    "zero": (
        MEAN + "1 / 0",
        "own_zero cannot be imported: division by zero (ZeroDivisionError in own_zero.py, line 2)",
    ),
    "package": (
        "import no_such",
        "own_package cannot be imported: it needs no_such, which is not installed (own_package.py",
    ),
    "inner": (
        "import own_zero",
        "own_inner cannot be imported: division by zero (ZeroDivisionError in own_zero.py, line 2)",
    ),
    "name": (MEAN + "class Own(Maen): ...", "name 'Maen' is not defined (NameError in own_name.py, line 2)"),
    "empty": (
        "raise ValueError",
        "own_empty cannot be imported: no reason is given (ValueError in own_empty.py, line 1)",
    ),
}
OPTIONS = ("--model.aggregator", "--model.bottom", "--trainer.callbacks", "--model", "--optimizer")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    for name, (text, _) in AT_IMPORT.items():
        (tmp_path / f"own_{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def refuse(*words, kind=UsageError):
    with pytest.raises(kind) as told:
        VFLCLI([*FIT, *words]) if kind is UsageError else run([*FIT, *words])
    return str(told.value)


@pytest.mark.parametrize("name", AT_IMPORT)
def test_a_module_that_cannot_be_imported(name, request):
    place = list(AT_IMPORT).index(name)
    assert AT_IMPORT[name][1] in refuse(OPTIONS[place % len(OPTIONS)], f"own_{name}.Own")


def test_a_module_of_a_recipe_and_of_the_only_model(folder):
    (folder / "own.yaml").write_text("model: {init_args: {aggregator: {class_path: own_zero.Own}}}")
    assert AT_IMPORT["zero"][1] in refuse("--config", "own.yaml")
    with pytest.raises(UsageError, match=re.escape(AT_IMPORT["zero"][1])):
        VFLCLI(["fit", "--config=data/digits", "--model=own_zero.Own"])


def test_other_files_are_not_run(folder):
    (folder / "table.py").write_text("raise SystemExit('is run')")
    assert "the setting is a mapping" in refuse("--data=CSVTables", "--data.tables=table.csv")


@pytest.mark.parametrize("recipe", [True, False])
def test_a_missing_method_is_named(folder, recipe):
    (folder / "own_part.py").write_text(MEAN + "class Own(Aggregator):\n    def plain(self, *args): ...")
    (folder / "own.yaml").write_text("model: {init_args: {aggregator: {class_path: own_part.Own}}}")
    words = ("--config", "own.yaml") if recipe else ("--model.aggregator", "own_part.Own")
    assert refuse(*words).startswith("model.aggregator: own_part.Own has no out_width; write what is missing")


def test_the_base_of_a_setting_is_no_class_for_it():
    assert refuse("--model.aggregator", "Aggregator").startswith(
        "model.aggregator: Aggregator is abstract; name a class"
    )


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (
            "raise RuntimeError('k is\\nbad')",
            "k is bad (RuntimeError in own_init.py, line 4; LIGHTNING_VFL_TRACEBACK=1",
        ),
        (
            "super().__init__(k, k)",
            "object.__init__() takes exactly one argument (the instance to initialize) (TypeError in own_init.py, line",
        ),
    ],
)
def test_an_init_that_raises(folder, body, line):
    (folder / "own_init.py").write_text(MEAN + f"class Own(Mean):\n    def __init__(self, k: int = 1):\n        {body}")
    assert refuse("--model.aggregator", "own_init.Own", kind=ConfigurationError).startswith(line)


@pytest.mark.parametrize("option", ["--model.aggregator", "--trainer.callbacks"])
def test_a_required_argument_without_annotation_is_given_or_refused(folder, option):
    base = "from lightning.pytorch import Callback\n" if "callbacks" in option else MEAN
    head = f"class Own({'Callback' if 'callbacks' in option else 'Mean'}):\n"
    (folder / "own_plain.py").write_text(base + head + "    def __init__(self, k, m: int = 2): ...")
    line = "own_plain.Own needs a value for k, whose type the command line does not know; give it, or annotate it"
    assert refuse(option, "own_plain.Own").startswith(line)
    VFLCLI([*FIT, option, "own_plain.Own", f"{option}.k", "3"])


def test_a_class_for_an_argument_without_annotation_is_refused(folder):
    (folder / "own_untyped.py").write_text(
        "from lightning_vfl import SplitVFL\nfrom lightning_vfl.aggregators import Aggregator\n"
        "class Own(SplitVFL):\n    def __init__(self, aggregator, **settings):\n"
        "        super().__init__(aggregator, **settings)\n"
        "class Typed(SplitVFL):\n    def __init__(self, aggregator: Aggregator, **settings):\n"
        "        super().__init__(aggregator, **settings)"
    )
    line = (
        "own_untyped.Own would get the text 'Mean' for aggregator, because __init__ has no annotation for it; annotate"
    )
    for name in ("Mean", "lightning_vfl.aggregators.Mean"):
        told = refuse("--model", "own_untyped.Own", "--model.aggregator", name)
        assert told.startswith(line.replace("'Mean'", f"'{name}'"))
    VFLCLI([*FIT, "--model", "own_untyped.Typed", "--model.aggregator", "Mean"])


def test_a_factory_whose_first_arguments_the_package_gives(folder):
    text = "import torch\nclass Own(torch.nn.Module):\n    def __init__(self, shape, width, depth): ..."
    (folder / "own_bottom.py").write_text(text)
    assert "own_bottom.Own needs a value for depth" in refuse("--model.bottom", "own_bottom.Own")
    VFLCLI([*FIT, "--model.bottom", "own_bottom.Own", "--model.bottom.depth", "3"])


TOP = """import torch
class Own(torch.nn.Module):
    def __init__(self, width: int, outputs: int, slope: float):
        super().__init__()
        self.layer, self.slope = torch.nn.Linear(width, outputs), slope
    def forward(self, x):
        return self.slope * self.layer(x)
"""


def test_a_top_that_requires_the_number_of_outputs_gets_that_of_the_task(folder):
    (folder / "own_top.py").write_text(TOP)
    line = "model.top: Own needs a value for slope; set it in a recipe or as an option (--model.top.slope VALUE)"
    assert refuse("--model.top", "own_top.Own") == line
    (folder / "top.yaml").write_text("model: {init_args: {top: {class_path: own_top.Own, init_args: {slope: 2}}}}")
    once = ["--trainer.fast_dev_run=1", "--trainer.enable_progress_bar=false"]
    for words in (["--model.top.class_path", "own_top.Own", "--model.top.slope=2"], ["--config=top.yaml"]):
        built = run([*FIT, *words, *once]).model
        assert (built.top.layer.out_features, built.top.slope) == (10, 2.0)
        assert built.hparams["top"]["init_args"]["outputs"] == 0  # built again, it asks the task again
    wrong = refuse("--config=top.yaml", "--model.top.outputs=7", *once, kind=ConfigurationError)
    assert wrong == "the top Own outputs (7,) numbers for each record, but 10 are needed; set its output width to 10"


def test_the_watch_ends_with_the_parsing():
    before = list(sys.meta_path)
    with pytest.raises(KeyError), watched_imports():
        raise KeyError
    assert sys.meta_path == before


def test_code_of_the_current_folder_that_a_recipe_runs_is_named_once(folder, capsys):
    (folder / "own_fine.py").write_text(f"{MEAN}class Own(Mean):\n    pass\n")
    (folder / "recipe.yaml").write_text("model:\n  aggregator: own_fine.Own\n")
    VFLCLI([*FIT, "--config", "recipe.yaml"])
    line = "the settings have imported code of this folder, which has run: own_fine.py\n"
    assert capsys.readouterr().err.count(line) == 1
    VFLCLI(FIT)
    assert "imported code" not in capsys.readouterr().err
