"""A model that was trained on tables read in blocks, applied to other files."""

import pandas as pd
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_vfl.aggregators import Mean
from lightning_vfl.datamodules import ParquetTables
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.split_model import party_names, party_part
from tests.subjects import split, trainer
from tests.unit.datamodules.miniature import LONG_TABLES, write_parquet

N, GROUP = 90, 40


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    write_parquet(folder, N, GROUP)
    return data(folder, "fit")


def data(folder, stage, fitted=None, **settings):
    made = ParquetTables(**LONG_TABLES | {"data_dir": folder, "id_column": "id", "batch_size": 10} | settings)
    made.use(fitted)
    made.setup(stage)
    return made


def features(made):
    records = made.records("predict")
    return records.rows(torch.arange(len(records)))


def test_columns_and_parties_in_another_order_are_the_same_records(trained, tmp_path):
    write_parquet(tmp_path, N, GROUP)
    expected = features(data(tmp_path, "predict", trained.fitted))
    for party in ("bank", "telco"):
        path = tmp_path / f"{party}.parquet"
        table = pd.read_parquet(path)
        table[table.columns[::-1]].to_parquet(path, row_group_size=GROUP, index=False)
    turned = dict(reversed(LONG_TABLES["tables"].items()))
    made = data(tmp_path, "predict", trained.fitted, tables=turned)
    assert made.party_names == ("bank", "telco")
    for own, other in zip(features(made), expected, strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.rename(columns={"telco1": "x"}), "'telco' lacks telco1 and has x in addition; give the columns"),
        (lambda t: t.drop(columns="telco0"), "the file of party 'telco' lacks telco0; give the columns"),
        (lambda t: t.assign(x=1.0), "the file of party 'telco' has x in addition; give the columns"),
    ],
    ids=["renamed", "lacking", "further"],
)
def test_other_columns_are_refused_by_name(change, message, trained, tmp_path):
    write_parquet(tmp_path, N, GROUP, telco=change)
    with pytest.raises(ConfigurationError, match=message) as refused:
        data(tmp_path, "predict", trained.fitted)
    assert "\n" not in str(refused.value)


def test_other_parties_are_refused(trained, tmp_path):
    write_parquet(tmp_path, N, GROUP)
    with pytest.raises(ConfigurationError, match="parties bank, telco, these tables are of bank, shop; give the same"):
        data(tmp_path, "predict", trained.fitted, tables={"bank": "bank.parquet", "shop": "telco.parquet"})


def test_records_are_read_after_an_evaluation(trained, tmp_path):
    """A test in inference mode must not keep other code from reading further blocks."""
    write_parquet(tmp_path, N, GROUP)
    records = data(tmp_path, "predict", trained.fitted).records("predict")
    with torch.inference_mode():
        records.rows(torch.arange(GROUP))
    assert torch.equal(records.rows(torch.arange(N))[0], features(data(tmp_path, "predict", trained.fitted))[0])


def test_exported_halves_have_the_names_of_the_tables(trained):
    module = split(Mean())
    module.build_for(trained)
    module.fitted = trained.fitted
    assert party_names(module) == ("bank", "telco")
    assert party_part(module, 1).half.names == ("telco0", "telco1")


def swap_values(folder):
    table = pd.read_parquet(folder / "telco.parquet")
    column = next(name for name in table.columns if name != "id")
    table.loc[[0, N - 1], column] = table.loc[[N - 1, 0], column].to_numpy()
    table.to_parquet(folder / "telco.parquet", row_group_size=GROUP, index=False)


def swap_rows(folder):
    for party in ("bank", "telco"):  # within a row group: the ranges of the columns stay
        table = pd.read_parquet(folder / f"{party}.parquet")
        order = [1, 0, *range(2, N)]
        table.iloc[order].to_parquet(folder / f"{party}.parquet", row_group_size=GROUP, index=False)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.parametrize(
    ("change", "message"),
    [(lambda folder: None, None), (swap_rows, "the files have other ids since"), (swap_values, "have changed: telco")],
    ids=["same", "other order", "other values"],
)
def test_a_fit_is_resumed_with_the_same_files(change, message, tmp_path):
    """At the end of an epoch, where the position in the blocks says nothing."""
    write_parquet(tmp_path, N, GROUP)
    saver = ModelCheckpoint(tmp_path / "kept", save_last=True)
    first = trainer(tmp_path / "a", max_epochs=1, callbacks=[saver], enable_checkpointing=True)
    first.fit(split(Mean()), datamodule=data(tmp_path, "fit"))
    change(tmp_path)
    again = trainer(tmp_path / "b", max_epochs=2)
    made = ParquetTables(**LONG_TABLES | {"data_dir": tmp_path, "id_column": "id", "batch_size": 10})
    if message is None:
        again.fit(split(Mean()), datamodule=made, ckpt_path=saver.last_model_path)
        assert again.current_epoch == 2
        return
    with pytest.raises(ConfigurationError, match=message):
        again.fit(split(Mean()), datamodule=made, ckpt_path=saver.last_model_path)
    again.test(split(Mean()), datamodule=made, ckpt_path=saver.last_model_path, verbose=False)
