"""The laws of data sets, for every data set there is, on small files of the same form; the laws are in the package."""

from functools import partial

import pytest

import lightning_vfl.datamodules as d
from lightning_vfl.testing import check_datamodule

from . import miniature as files
from .miniature import write_csv

TABLES = {"tables": {"bank": "bank.csv", "shop": "shop.csv"}, "label_party": "bank", "label_column": "y"}
QUICK = ("CSVTables", "CreditDefault", "MNIST", "MultiView", "ParquetTables")


def tables(folder):
    for name in TABLES["tables"]:
        label = {"y": [i % 2 for i in range(80)]} if name == "bank" else {}
        write_csv(folder / f"{name}.csv", {"id": list(range(80)), "x": [i * 7 % 11 for i in range(80)]} | label)
    named = {name: str(folder / file) for name, file in TABLES["tables"].items()}
    return d.CSVTables, TABLES | {"tables": named}


def folder_of(kind, write, **settings):
    def written(folder):
        write(folder)
        return kind, {"data_dir": folder} | settings

    return written


def in_memory(kind):
    return lambda folder: (kind, {})


def multi_view(folder):
    path = files.write_npz(folder)
    return d.MultiView, {"data_dir": folder, "file": path.name, "views": ("voice", "face"), "labels": "labels"}


def long_tables(folder):
    files.write_parquet(folder, records=80, group=33)
    return d.ParquetTables, {"data_dir": folder, "id_column": "id", **files.LONG_TABLES}


def arrays(folder):
    rows = [[i * 7 % 11, i % 3, i % 5] for i in range(80)]
    return d.Arrays, {"arrays": {"a": rows, "b": [[row[0] / 2] for row in rows]}, "labels": [i % 2 for i in range(80)]}


SETS = {
    **{name: folder_of(getattr(d, name), write, **settings) for name, (write, settings) in files.PUBLISHED.items()},
    "Arrays": arrays,
    "BreastCancer": in_memory(d.BreastCancer),
    "CSVTables": tables,
    "Digits": in_memory(d.Digits),
    "ModelNet10Views": folder_of(d.ModelNet10Views, partial(files.write_views, train=10, test=1), val_share=0.2),
    "MultiView": multi_view,
    "ParquetTables": long_tables,
}


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SETS]
)
def test_every_data_set_keeps_the_laws(name, tmp_path):
    kind, settings = SETS[name](tmp_path)
    check_datamodule(partial(_of, kind, settings))


def _of(kind, settings):
    return kind(**settings, batch_size=9)


def test_every_data_set_is_here():
    named = [name for name in d.__all__ if isinstance(getattr(d, name), type)]
    sets = {name for name in named if issubclass(getattr(d, name), d.VerticalDataModule)}
    assert sets - {"VerticalDataModule"} == SETS.keys()
