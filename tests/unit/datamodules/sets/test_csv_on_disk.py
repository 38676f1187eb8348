"""Law: records of tables that are prepared on the disk are, to the bit, those of tables in memory."""

import pickle

import pandas as pd
import pytest
import torch

from lightning_vfl.datamodules import ContiguousColumns, CSVTables, Given, Standardise, StandardiseParty
from lightning_vfl.datamodules.records.number_files import MappedFile
from lightning_vfl.datamodules.records.records import Request
from lightning_vfl.errors import ConfigurationError
from tests.further import few
from tests.own_tables import files, write, write_titanic

SPLITS = ("train", "val", "test", "predict")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("titanic")
    write_titanic(folder, 160)
    bank = pd.read_csv(folder / "bank.csv", dtype=str)
    write(
        folder, {"part": bank.head(130), "one": bank[["id", "Ticket"]].head(70), "two": bank[["Ticket", "id"]][70:130]}
    )
    return folder


def tables(folder, *names, **settings):
    usual = {"label_party": "ferry", "label_column": "Survived", "preprocess": "auto", "batch_size": 32}
    return CSVTables(files(folder, "ferry", *names), **usual | settings)


def ready(data, fitted=None):
    if fitted is not None:
        data.use(fitted)
    for stage in ("fit", "test", "predict"):
        data.setup(stage)
    return data


def assert_same(stored, memory):
    """The same scaling and the same batches, to the bit."""
    for own, other in zip(stored.fitted.parties, memory.fitted.parties, strict=True):
        assert torch.equal(own.shift, other.shift)
        assert torch.equal(own.scale, other.scale)
    for name in SPLITS:
        one, other = stored.records(name), memory.records(name)
        assert isinstance(one.table, MappedFile)
        positions = torch.randperm(len(other), generator=torch.Generator().manual_seed(0))
        batch, expected = (records[Request(positions, None, None)] for records in (one, other))
        for own, features in zip(batch.features, expected.features, strict=True):
            assert torch.equal(own, features)
        for own, value in zip(batch[1:], expected[1:], strict=True):
            assert own is None or torch.equal(own, value)
        assert one.ids.tolist() == other.ids.tolist()
        assert torch.equal(one.features_of(1, positions[:3]), batch.features[1][:3])
        kept = positions[:4].sort().values.numpy()
        assert torch.equal(one.only(kept).rows(torch.arange(4))[0], other.only(kept).rows(torch.arange(4))[0])


CASES = {
    "auto": (["bank"], {}),
    "records that a party lacks": (["part"], {"overlap": "keep"}),
    "a group": (["one", "two"], {"groups": [["one", "two"]]}),
    "one normaliser for a party": (["bank"], {"normaliser": StandardiseParty()}),
    "each column, of few records": (["one"], {"normaliser": Standardise()}),
    "given": (["bank"], {"normaliser": Given({"Age": 0, "Fare": 0}, {"Age": 90, "Fare": 900})}),
}


@pytest.mark.parametrize("case", few(CASES, "records that a party lacks", "a group", "given"))
def test_records_are_those_in_memory(folder, tmp_path, case):
    names, settings = CASES[case]
    memory = ready(tables(folder, *names, **settings))
    assert_same(ready(tables(folder, *names, work_dir=tmp_path, **settings)), memory)
    assert_same(ready(tables(folder, *names, work_dir=tmp_path, **settings), memory.fitted), memory)


def test_large_files_are_prepared_on_the_disk_without_a_setting(folder, monkeypatch):
    monkeypatch.setattr("lightning_vfl.datamodules.records.work_folders._LARGE", 1000)
    assert isinstance(ready(tables(folder, "bank")).records("train").table, MappedFile)


def test_the_folder_is_removed_with_the_last_records(folder, tmp_path):
    data = ready(tables(folder, "bank", work_dir=tmp_path))
    records = data.records("train")
    copy = pickle.loads(pickle.dumps(records))
    assert torch.equal(copy.rows(torch.arange(5))[0], records.rows(torch.arange(5))[0])
    data.forget()
    assert len(list(tmp_path.iterdir())) == 1
    del records, data, copy
    assert not list(tmp_path.iterdir())


def test_a_partitioner_needs_tables_in_memory(folder, tmp_path):
    data = tables(folder, "bank", work_dir=tmp_path, partitioner=ContiguousColumns(2))
    with pytest.raises(ConfigurationError, match="ContiguousColumns divides the joined columns in memory"):
        data.setup("fit")
