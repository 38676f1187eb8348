"""Law: every data set takes and checks the settings of ``VerticalDataModule``, in Python and on the command line."""

import inspect

import pytest

import lightning_vfl.datamodules as d
from lightning_vfl.cli import main
from lightning_vfl.datamodules import ContiguousColumns, Unchanged, VerticalDataModule

SETTINGS = [name for name in inspect.signature(VerticalDataModule.__init__).parameters if name != "self"]
SETS = [
    getattr(d, name)
    for name in d.__all__
    if isinstance(getattr(d, name), type) and issubclass(getattr(d, name), VerticalDataModule)
]
TABLES = {"label_party": "a", "label_column": "y"}
NEEDED: dict[str, dict[str, object]] = {
    "Arrays": {"arrays": {"a": [[0.5], [1.5]]}},
    "CSVTables": {"tables": {"a": "a.csv"}, **TABLES},
    "ParquetTables": {"tables": {"a": "a.parquet"}, **TABLES},
}
MODEL = ["--config", "protocol/mean", "--trainer.accelerator", "cpu"]
CONCRETE = [kind for kind in SETS if kind is not VerticalDataModule]
FEW = (d.CSVTables, d.ImageFolderVFL)  # tables and images, with settings of their own
concrete = pytest.mark.parametrize("kind", CONCRETE)
few = pytest.mark.parametrize(
    "kind", [kind if kind in FEW else pytest.param(kind, marks=pytest.mark.slow) for kind in CONCRETE]
)


def given(kind) -> list[str]:
    """The settings that a data set needs, on the command line."""
    own = NEEDED.get(kind.__name__, {})
    return [f"--data.{name}={value}" for name, value in own.items()]


def parse(kind, *arguments, capsys):
    """The status and the output of the command line."""
    with pytest.raises(SystemExit) as stopped:
        main(["fit", "--data", kind.__name__, *given(kind), *arguments, *MODEL, "--print_config"])
    said = capsys.readouterr()
    return stopped.value.code, said.out + said.err


@concrete
def test_settings_arrive(kind):
    usual = {"normaliser": Unchanged(), "batch_size": 7, "seed": 3, "drop_last": True, "pin_memory": True}
    cut = {} if kind.__name__ in NEEDED else {"partitioner": ContiguousColumns(2)}
    data = kind(**cut, **usual, num_workers=2, **NEEDED.get(kind.__name__, {}))
    assert {name: getattr(data, name) for name in usual} == usual
    assert data.num_workers == 2
    assert not cut or data.partitioner is cut["partitioner"]


@concrete
def test_the_partitioner_comes_first(kind):
    if kind.__name__ not in NEEDED:
        assert next(iter(inspect.signature(kind).parameters)) == "partitioner"


@concrete
def test_an_unknown_setting_is_refused_in_python(kind):
    with pytest.raises(TypeError, match="unexpected keyword argument 'batch_sise'"):
        kind(batch_sise=7, **NEEDED.get(kind.__name__, {}))


@few
def test_settings_arrive_on_the_command_line(kind, capsys):
    code, said = parse(
        kind, "--data.batch_size", "16", "--data.partitioner", "Grid", "--data.normaliser=Unchanged", capsys=capsys
    )
    assert code == 0
    config = said.split("\ndata:\n")[1]
    assert "    batch_size: 16\n" in config
    assert "class_path: lightning_vfl.datamodules.Grid" in config
    assert "class_path: lightning_vfl.datamodules.Unchanged" in config
    # what is not given is in the printed recipe with its usual value
    for line in ("seed: 0", "drop_last: false", "num_workers: 0", "pin_memory: false"):
        assert f"    {line}\n" in config


@few
def test_wrong_settings_are_refused_in_one_line(kind, capsys):
    code, said = parse(kind, "--data.batch_size", "many", capsys=capsys)
    assert (code, said.count("\n")) == (2, 1)
    assert "batch_size: 'many' is not a whole number" in said
    code, said = parse(kind, "--data.batch_sise", "16", capsys=capsys)
    assert (code, said.count("\n")) == (2, 1)
    assert f"'batch_sise' is not a setting of {kind.__name__}; did you mean batch_size" in said


@few
def test_help_lists_every_setting_with_its_meaning(kind, capsys):
    with pytest.raises(SystemExit):
        main(["fit", f"--data.help={kind.__name__}"])
    said = " ".join(capsys.readouterr().out.split())
    for name in SETTINGS:
        assert f"--data.{name} " in said
    assert "rows of a batch in each process" in said
    assert "default: 64" in said
