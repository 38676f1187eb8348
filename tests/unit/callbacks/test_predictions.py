"""The file of predictions: which records are in it, who took part, and what is told before and when it is written."""

import os
import resource
from contextlib import contextmanager

import pandas as pd
import pytest

from lightning_vfl.aggregators import Mean
from lightning_vfl.callbacks import PredictionWriter
from lightning_vfl.datamodules import CSVTables
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.score import score
from lightning_vfl.export.write import export_model
from lightning_vfl.trained.predictions import write_table
from tests.exported import one_registry
from tests.further import further
from tests.subjects import split, trainer

HELD = {"bank": {*range(60)}, "shop": {*range(5, 60)} - {7, 9}, "telco": {*range(50)} | {70, 71}}
"""The ids of each party's records; the shop has the labels."""


def tables(folder, **settings):
    for party, ids in HELD.items():
        columns = pd.DataFrame({"id": sorted(ids)}).assign(**{party: lambda t: t["id"] * 7 % 11})
        if party == "shop":
            columns["y"] = [("no", "yes")[i % 2] for i in columns["id"]]
        columns.to_csv(folder / f"{party}.csv", index=False)
    files = {party: folder / f"{party}.csv" for party in HELD}
    return CSVTables(files, "shop", "y", batch_size=10, **settings)


def trained(folder, **settings):
    module = split(Mean(), evaluate="plain")
    data = tables(folder, **settings)
    data.setup("fit")
    module.build_for(data)
    module.fitted = data.fitted
    return module.eval()


@pytest.mark.filterwarnings("ignore:all .* predictions .*decide for class")  # an untrained model
@pytest.mark.parametrize(
    ("command", "overlap"), [("predict", "inner"), ("predict", "keep"), further("score", "inner"), ("score", "keep")]
)
def test_every_record_is_in_one_of_two_files_and_its_parties_are_named(command, overlap, tmp_path, capsys):
    """The oracle is the arithmetic of Python's sets."""
    settings = {"overlap": overlap, "work_dir": tmp_path if overlap == "inner" else None}
    module, path = trained(tmp_path, overlap=overlap), tmp_path / "p.csv"
    if command == "predict":
        data = tables(tmp_path, **settings, new_records=True)
        trainer(tmp_path, callbacks=[PredictionWriter(str(path))]).predict(module, datamodule=data)
        predicted = pd.read_csv(path, keep_default_na=False)
    else:
        with one_registry():
            folders = export_model(module, tmp_path / "halves", overlap=overlap)
        files = {party: tmp_path / f"{party}.csv" for party in HELD}
        of = "shop" if overlap == "keep" else None
        predicted = score(folders, files, leave_out=["y"], records_of=of, out=path)
    expected = sorted(HELD["shop"] if overlap == "keep" else HELD["bank"] & HELD["shop"] & HELD["telco"])
    others = sorted((HELD["bank"] | HELD["shop"] | HELD["telco"]) - {*expected})
    left_out = pd.read_csv(tmp_path / "p.left_out.csv")
    assert predicted["record"].tolist() == expected
    assert left_out["record"].tolist() == others

    def parties(ids):
        return [" ".join(party for party, own in HELD.items() if i in own) for i in ids]

    assert left_out["parties"].tolist() == parties(others)
    assert ("parties" in predicted) == (overlap == "keep")
    if overlap == "keep":
        assert predicted["parties"].tolist() == parties(expected)
    assert f"{len(others)} records are left out, which some party lacks (" in capsys.readouterr().out


def test_a_file_of_an_earlier_prediction_is_not_left_beside_a_new_one(tmp_path):
    module = trained(tmp_path)
    (tmp_path / "p.left_out.csv").write_text("record,parties\n7,bank\n")
    files = {party: tmp_path / f"{party}.csv" for party in HELD}
    for path in files.values():
        table = pd.read_csv(path)
        table[table["id"].between(10, 49)].to_csv(path, index=False)
    data = CSVTables(files, "shop", "y", new_records=True)
    trainer(tmp_path, callbacks=[PredictionWriter(str(tmp_path / "p.csv"))]).predict(module, datamodule=data)
    assert len(pd.read_csv(tmp_path / "p.csv")) == 40
    assert not (tmp_path / "p.left_out.csv").exists()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("file/p.csv", "cannot be written (Not a directory); make room or get permission there"),
        ("p.csv", "is a folder"),
    ],
)
def test_a_path_that_cannot_be_written_is_told_before_the_first_prediction(path, message, tmp_path, monkeypatch):
    """Root may write into every folder, so that the tests cannot take the permission away."""
    module = trained(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "p.csv").mkdir()

    def uncalled(*_):
        pytest.fail("records were predicted before the path was tried")

    monkeypatch.setattr(module, "predict_step", uncalled)
    writer = PredictionWriter(str(tmp_path / path))
    with pytest.raises(ConfigurationError) as error:
        trainer(tmp_path, callbacks=[writer]).predict(module, datamodule=tables(tmp_path, new_records=True))
    assert message in str(error.value)
    assert str(tmp_path / path) in str(error.value)


@contextmanager
def files_of_at_most(size):
    """The system lets this process write no larger file, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_full_disk_names_the_file_and_leaves_nothing_hidden(ending, tmp_path):
    path = tmp_path / f"p.{ending}"
    path.write_text("as before")
    table = pd.DataFrame({"record": range(20_000)})
    with files_of_at_most(4096), pytest.raises(ConfigurationError) as error:
        write_table(table, path)
    assert str(path) in str(error.value)
    assert "File too large" in str(error.value)
    assert os.listdir(tmp_path) == [path.name]
    assert path.read_text() == "as before"
