"""Laws of tables that are read in blocks, against the same tables read whole with pandas."""

from itertools import chain, islice
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_vfl.aggregators import Mean
from lightning_vfl.cli import run
from lightning_vfl.datamodules import ContiguousColumns, Given, ParquetTables, Standardise
from lightning_vfl.datamodules.records.parquet_file import ParquetFile
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.split_model import party_names, party_part
from tests.subjects import split, trainer
from tests.unit.datamodules.miniature import LONG_TABLES, write_parquet

N, CELL, GROUP = 2600, 200, 311


@pytest.fixture(scope="module", autouse=True)
def small_cells():
    """The rows of a split are drawn cell by cell, and read cell by cell: thirteen cells of these tables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lightning_vfl.datamodules.records.row_split._CELL", CELL)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    write_parquet(folder, N, GROUP)
    return folder


@pytest.fixture(scope="module")
def whole(folder):
    return [pd.read_parquet(folder / f"{party}.parquet") for party in ("bank", "telco")]


def tables(folder, *stages, fitted=None, **settings):
    usual = LONG_TABLES | {"data_dir": folder, "id_column": "id", "batch_size": 100}
    data = ParquetTables(**usual | settings)
    data.use(fitted)
    for stage in stages or ("fit", "test", "predict"):
        data.setup(stage)
    return data


def ids(batches):
    return [batch.record_ids.tolist() for batch in batches]


def test_features_labels_and_ids_are_those_of_the_files(folder, whole):
    data = tables(folder)
    bank, telco = whole
    train = np.asarray(data.records("train").ids) - 1000
    for name in ("train", "val", "test", "predict"):
        records = data.records(name)
        rows = np.asarray(records.ids) - 1000
        positions = torch.randperm(len(records), generator=torch.Generator().manual_seed(0))
        for table, own in zip(
            (bank.drop(columns=["id", "y"]), telco.drop(columns="id")), records.rows(positions), strict=True
        ):
            numbers = table.to_numpy(np.float64)
            expected = (numbers - numbers[train].mean(0)) / numbers[train].std(0)
            np.testing.assert_allclose(own, expected[rows][positions], rtol=2e-6, atol=2e-6)
        assert (records.labels is None) == (name == "predict")
        if name != "predict":
            assert torch.equal(records.labels[positions], torch.tensor(bank["y"].to_numpy()[rows])[positions])
    assert len(data.records("predict")) == N
    assert np.array_equal(data.records("predict").ids[np.array([5, 3])], [1005, 1003])


def test_any_order_and_window_give_the_same_bits(folder, monkeypatch):
    whole = tables(folder, "fit").records("train")
    narrow(monkeypatch)
    small = tables(folder, "fit", window_mb=1).records("train")
    assert (whole.blocks.together, small.blocks.together) == (13, 2)
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(1))
    for a, b in zip(whole.rows(torch.arange(len(whole))), small.rows(order), strict=True):
        assert torch.equal(a[order], b)


def narrow(monkeypatch):
    """Windows of two blocks; a real megabyte has all 13 blocks of these files."""
    monkeypatch.setattr("lightning_vfl.datamodules.records.block_tables._MEGABYTE", 2 * 4 * 5 * 140)


def test_a_row_group_is_read_once_before_training_and_never_in_it(folder, monkeypatch):
    read, reader = [], ParquetFile._batches

    def counted(file, group, columns):
        read.extend((file.party, group, name) for name in columns)
        return reader(file, group, columns)

    monkeypatch.setattr(ParquetFile, "_batches", counted)
    data = tables(folder, "fit", normaliser=Given(-9.0, 9.0))
    features = [one for one in read if one[2] not in ("id", "y")]
    names = {"bank": ("bank0", "bank1", "bank2"), "telco": ("telco0", "telco1")}
    every = [(party, group, name) for party in names for group in range(-(-N // GROUP)) for name in names[party]]
    assert sorted(features) == sorted(every)
    read.clear()
    for _ in range(2):
        assert sorted(chain.from_iterable(ids(data.train_dataloader()))) == list(range(len(data.records("train"))))
        list(data.val_dataloader())
    assert not read


@pytest.mark.parametrize("done", [1, 8, 17])
def test_a_restored_loader_continues_with_the_next_batch(folder, done, monkeypatch):
    narrow(monkeypatch)
    killed = tables(folder, "fit", window_mb=1).train_dataloader()
    killed.set_epoch(2)
    seen = list(islice(killed, done))
    resumed, uninterrupted = (tables(folder, "fit", window_mb=1).train_dataloader() for _ in range(2))
    resumed.load_state_dict(killed.state_dict())
    resumed.set_epoch(2)
    uninterrupted.set_epoch(2)
    for got, expected in zip(chain(seen, resumed), uninterrupted, strict=True):
        assert torch.equal(got.record_ids, expected.record_ids)
        assert all(torch.equal(a, b) for a, b in zip(got.features, expected.features, strict=True))
        assert torch.equal(got.labels, expected.labels)


def test_processes_together_see_the_joint_batch(folder, monkeypatch):
    narrow(monkeypatch)
    data = tables(folder, "fit", window_mb=1)
    joint = list(data.train_dataloader())
    ranks = []
    for rank in range(2):
        own = tables(folder, "fit", window_mb=1, batch_size=50)
        monkeypatch.setattr(own, "_place", lambda rank=rank: (rank, 2))
        ranks.append(list(own.train_dataloader()))
    for whole, *parts in zip(joint, *ranks, strict=True):
        assert torch.equal(torch.cat([part.features[1] for part in parts]), whole.features[1])
        assert torch.equal(torch.cat([part.labels for part in parts]), whole.labels)


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker")
def test_workers_change_no_batch(folder):
    for got, expected in zip(
        tables(folder, "fit", num_workers=2).train_dataloader(), tables(folder, "fit").train_dataloader(), strict=True
    ):
        assert torch.equal(got.record_ids, expected.record_ids)
        assert torch.equal(got.features[0], expected.features[0])


def test_scaling_is_fitted_to_some_training_records(folder, whole):
    data = tables(folder, "fit", fit_records=500)
    shift = data.fitted.parties[0].shift
    numbers = whole[0].drop(columns=["id", "y"]).to_numpy(np.float64)
    error = (shift.numpy() - numbers.mean(0)) / numbers.std(0)
    assert (np.abs(error) < 5 / np.sqrt(500)).all()
    assert (np.abs(error) > 0).all()


def same(one, other):
    """The same records, bit for bit, in the same order of training."""
    for name in ("train", "val", "test", "predict"):
        own, there = one.records(name), other.records(name)
        assert np.array_equal(own.ids, there.ids)
        assert own.blocks == there.blocks
        every = torch.arange(len(there))
        assert all(torch.equal(x, y) for x, y in zip(own.rows(every), there.rows(every), strict=True))
        assert name == "predict" or torch.equal(own.labels, there.labels)
    assert ids(one.train_dataloader()) == ids(other.train_dataloader())
    return True


@pytest.mark.parametrize("groups", [(7, 1000), (N, N), (CELL, 311)])
def test_the_row_groups_change_no_bit(folder, tmp_path, groups, monkeypatch):
    narrow(monkeypatch)
    for party, group in zip(("bank", "telco"), groups, strict=True):
        table = pd.read_parquet(folder / f"{party}.parquet")
        table.to_parquet(tmp_path / f"{party}.parquet", row_group_size=group, index=False)
    assert same(tables(folder, window_mb=1, fit_records=300), tables(tmp_path, window_mb=1, fit_records=300))


@pytest.mark.parametrize("as_text", [False, True])
def test_csv_files_and_frames_are_read_as_parquet_files_are(folder, tmp_path, whole, as_text):
    bank, telco = (table.astype({"id": str}) if as_text else table for table in whole)
    if as_text:
        bank["id"], telco["id"] = "c" + bank["id"], "c" + telco["id"]
    bank.to_csv(tmp_path / "bank.csv", index=False, sep=";")
    for party, table in (("bank", pd.read_csv(tmp_path / "bank.csv", sep=";")), ("telco", telco)):
        table.to_parquet(tmp_path / f"{party}.parquet", index=False)
    given = {"bank": "bank.csv", "telco": telco.set_index("id")}
    made = tables(tmp_path, tables=given, separator={"bank": ";"}, work_dir=tmp_path / "work")
    assert same(made, tables(tmp_path))
    del made
    assert not list((tmp_path / "work").iterdir())


@pytest.mark.parametrize("cells", ["007", "1.234"])
def test_codes_and_thousands_of_a_csv_file_are_refused_and_no_numbers(folder, tmp_path, whole, cells):
    bank, telco = whole
    bank.to_csv(tmp_path / "bank.csv", index=False)
    telco.assign(code=[cells, *["987"] * (N - 1)]).to_csv(tmp_path / "telco.csv", index=False)
    with pytest.raises(ConfigurationError, match="column 'code' of party 'telco' is of type large_string, but tables"):
        tables(tmp_path, tables={"bank": "bank.csv", "telco": "telco.csv"})


def test_scaling_is_fitted_to_the_training_records_of_the_first_blocks_that_have_enough(folder, whole):
    """Of all blocks if all are needed: in the order of the rows, as numpy scales them."""
    data = tables(folder, "fit")
    rows = np.asarray(data.records("train").ids) - 1000
    for party, table, labels in ((0, whole[0], ["id", "y"]), (1, whole[1], ["id"])):
        numbers = torch.from_numpy(table.drop(columns=labels).to_numpy(np.float64)[rows])
        shift, scale = Standardise().fit(numbers)
        assert torch.equal(data.fitted.parties[party].shift, shift)
        assert torch.equal(data.fitted.parties[party].scale, scale)


def test_real_labels_a_table_of_labels_alone_and_equal_names(tmp_path):
    write_parquet(tmp_path, 80, 33, bank=lambda t: t[["id"]].assign(y=t["bank0"]))
    data = tables(tmp_path, num_classes=None, batch_size=9)
    assert data.party_names == ("telco",)
    assert data.records("train").labels.dtype == torch.float32
    write_parquet(
        tmp_path,
        80,
        33,
        bank=lambda t: t.rename(columns={"bank0": "x"}),
        telco=lambda t: t.rename(columns={"telco0": "x"}),
    )
    assert tables(tmp_path, batch_size=9).layout.columns == ("bank.x", "bank1", "bank2", "telco.x", "telco1")


def changed(party, **columns):
    return {party: lambda table: table.assign(**columns)}


def texts(table):
    return table.assign(id=table["id"].astype(str))


def lacking(table):
    return table.assign(id=table["id"].where(table.index != 5))


def renamed(table):
    return table.rename(columns={"id": "customer"})


OWN = {"id_column": {"telco": "customer"}}
WRONG = {
    "missing numbers of ids": (
        {"bank": lacking, "telco": lacking},
        {},
        "1 rows .* 'bank' have no id in column 'id'; add",
    ),
    "missing texts of ids": ({"bank": texts, "telco": lambda t: lacking(texts(t))}, {}, "1 rows .* 'telco' have no id"),
    "ids of two kinds": (
        {"telco": texts},
        {},
        "string in the file of party 'telco' and int64 in that of 'bank'; write ids of one kind",
    ),
    "an id column of nobody": ({}, {"id_column": {"telko": "x"}}, "id_column names party 'telko', which has no table"),
    "no such id column": ({}, OWN, "the file of party 'telco' has no id column 'customer'; correct id_column"),
    "own ids in another order": (
        {"telco": lambda t: renamed(t)[::-1]},
        OWN,
        "row 0 has id 1079 in .* 'telco' and 1000",
    ),
    "own ids twice": (
        {"telco": lambda t: renamed(t).assign(customer=lambda own: own["customer"].replace(1007, 1006))},
        OWN,
        "1006",
    ),
    "fewer rows": ({"telco": lambda t: t[:-1]}, {}, "telco' has 79 rows and that of 'bank' has 80; give files with th"),
    "another order": ({"telco": lambda t: t[::-1]}, {}, "row 0 has id 1079 in the file of party 'telco' and 1000"),
    "text": (changed("telco", telco1="a"), {}, "column 'telco1' of party 'telco' is of type .*string.*; encode"),
    "classes": (changed("bank", y=3), {}, "in rows 0 to 79 of party 'bank' run from 3 to 3, outside 0..1; cor"),
    "half": (changed("bank", y=0.5), {}, "in rows 0 to 79 of party 'bank' are missing, infinite or not whole"),
    "no label": ({"bank": lambda t: t.drop(columns="y")}, {}, "no label column 'y'; correct label_column"),
    "no ids": ({"telco": lambda t: t.drop(columns="id")}, {}, "party 'telco' has no id column 'id'; correct id_column"),
    "no features": ({"telco": lambda t: t[["id"]]}, {}, "party 'telco' has no feature column; leave the party out"),
    "no file": ({}, {"data_dir": "nowhere"}, "bank.parquet of party 'bank' cannot be read as Parquet"),
    "large": (
        changed("telco", telco1=1e39),
        {},
        "56 f.* 0 to 79 are too large .* 'telco', column 'telco1', r",
    ),
    "infinite": (
        changed("telco", telco1=np.inf),
        {},
        "0 to 79 are NaN or infinite, .* 'telco', column 'telco1', r",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_files_are_refused_before_training(name, tmp_path):
    changes, settings, message = WRONG[name]
    write_parquet(tmp_path, 80, 33, **changes)
    with pytest.raises(ConfigurationError, match=message) as refused:
        tables(tmp_path, **settings)
    assert "\n" not in str(refused.value)


def repeated(row, other, as_ids=lambda ids: ids):
    """Changes one of the ids of a table into that of another row."""

    def change(table):
        ids = table["id"].to_numpy().copy()
        ids[row] = ids[other]
        return table.assign(id=as_ids(ids))

    return change


REPEATED = {
    "in a block": (repeated(20, 10), "1010 in row 10 and in row 20"),
    "in two blocks": (repeated(70, 10), "1010 in row 10 and in row 70"),
    "text": (repeated(70, 10, lambda ids: [f"c{i}" for i in ids]), "c1010 in row 10 and in row 70"),
    "real numbers": (repeated(79, 78, lambda ids: ids / 2), "539.0 in row 78 and in row 79"),
}


@pytest.mark.parametrize("at_once", [2**23, 7])
@pytest.mark.parametrize("name", REPEATED)
def test_repeated_ids_are_refused(name, at_once, tmp_path, monkeypatch):
    change, where = REPEATED[name]
    monkeypatch.setattr("lightning_vfl.datamodules.records.repeated_ids._AT_ONCE", at_once)
    write_parquet(tmp_path, 80, 33, bank=change, telco=change)
    with pytest.raises(ConfigurationError, match=f"bank.parquet of party 'bank' has id {where}; remove repeated"):
        tables(tmp_path)


def test_repeated_ids_of_one_file_are_not_taken_for_another_order(tmp_path):
    write_parquet(tmp_path, 80, 33, telco=repeated(20, 10))
    with pytest.raises(ConfigurationError, match=r"telco\.parquet of party 'telco' has id 1010 in row 10 and in row 2"):
        tables(tmp_path)


@pytest.mark.parametrize("at_once", [2**23, 7])
def test_ids_in_any_order_and_with_equal_hashes_are_accepted(at_once, tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_vfl.datamodules.records.repeated_ids._AT_ONCE", at_once)
    monkeypatch.setattr("pandas.util.hash_array", lambda ids, categorize: ids.astype(np.uint64) // 4)

    def mixed(table):
        return table.assign(id=np.random.default_rng(0).permutation(table["id"]))

    write_parquet(tmp_path, 80, 33, bank=mixed, telco=mixed)
    assert sorted(np.asarray(tables(tmp_path, batch_size=9).records("predict").ids)) == list(range(1000, 1080))


def test_ids_may_be_texts_and_each_party_may_have_its_own_column(tmp_path):
    def written(name, id_column="id", **changes):
        (tmp_path / name).mkdir()
        write_parquet(tmp_path / name, 80, 33, **changes)
        return tables(tmp_path / name, id_column=id_column, batch_size=9)

    assert written("texts", bank=texts, telco=texts).records("predict").ids[0] == "1000"
    one = written("one")
    own = written("own", {"telco": "customer"}, telco=renamed)
    assert own.layout.columns == one.layout.columns  # no id is a feature
    np.testing.assert_array_equal(own.records("train").ids, one.records("train").ids)
    rows = torch.arange(20)
    for values, those in zip(own.records("train").rows(rows), one.records("train").rows(rows), strict=True):
        np.testing.assert_array_equal(values, those)
    first = written("first", {"bank": "customer"}, bank=renamed)  # the file of telco has no column of ids
    assert np.asarray(first.records("predict").ids).tolist() == list(range(1000, 1080))


def test_blocks_that_are_larger_than_the_window_are_refused(folder, monkeypatch):
    monkeypatch.setattr("lightning_vfl.datamodules.records.block_tables._MEGABYTE", 4 * 5 * 140 - 1)
    with pytest.raises(ConfigurationError, match="140 records, which are shuffled together, take 1 MB, more than wind"):
        tables(folder, "fit", window_mb=1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"partitioner": ContiguousColumns(2)}, "each table of ParquetTables is a party, so ContiguousColumns cannot"),
        ({"label_party": "shop"}, "label_party 'shop' has no table; tables names bank, telco"),
        ({"num_classes": 1}, "num_classes must be at least 2, or None for real numbers; got 1"),
        ({"window_mb": 0}, "window_mb must be at least 1; got 0"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        ParquetTables(**LONG_TABLES | settings)


def test_a_value_that_is_not_finite_is_refused_before_training_with_its_row(tmp_path):
    write_parquet(
        tmp_path, N, GROUP, telco=lambda t: t.assign(telco1=t["telco1"].where(t["id"] != 1000 + 1321, np.inf))
    )
    with pytest.raises(ConfigurationError, match=r"1,399 are NaN or infinite, .* 'telco', .* row 1,321; "):
        tables(tmp_path, "predict", normaliser=Given(0.0, 1.0))


def test_a_full_disk_is_told_before_it_is_written(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_vfl.datamodules.records.block_tables.disk_usage", lambda _: SimpleNamespace(free=99))
    with pytest.raises(ConfigurationError, match=r"the features take 0 MB in .*, which has 0 MB; give work_dir"):
        tables(folder, "fit", work_dir=tmp_path)


def test_the_files_are_removed_with_the_last_records(folder, tmp_path):
    data = tables(folder, "fit", work_dir=tmp_path)
    records = data.records("train")
    data.forget()
    assert len(list(tmp_path.iterdir())) == 1
    del records, data
    assert not list(tmp_path.iterdir())


PROTOCOLS = {
    "vafl": "the order of records in AsyncVFL goes over all",
    "cvfl": "in CascadeVFL",
    "dvfl": "in DecoupledVFL",
}


@pytest.mark.parametrize(
    "protocol", ["vafl", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cvfl", "dvfl"))]
)
def test_orders_over_all_records_are_refused(protocol, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = ["--trainer.max_epochs", "40", "--data.batch_size", "100"]
    with pytest.raises(
        ConfigurationError, match=f"{PROTOCOLS[protocol]}.*but these data are read in blocks; use SplitVFL"
    ):
        run(["fit", *recipe(folder), "--config", f"protocol/{protocol}", *settings])


def test_a_set_up_with_all_records_is_refused(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="LagrangeCoded is set up with all records at once, but these data ar"):
        run(["fit", *recipe(folder), "--config", "protocol/fedvs", "--model.aggregator.privacy=0"])


def recipe(folder):
    words = ["--config", "data/parquet_tables", "--config", "trainer/cpu", "--data.data_dir", str(folder)]
    words += ["--data.tables={bank: bank.parquet, telco: telco.parquet}", "--data.label_party=bank"]
    words += ["--data.label_column=y", "--data.id_column=id", "--trainer.max_epochs=1", "--trainer.logger=false"]
    return [*words, "--trainer.enable_progress_bar=false"]


def test_fit_and_predict_from_the_command_line(folder, whole, tmp_path, monkeypatch):
    """New records need no labels and may be few; their probabilities are those that they have among others."""
    monkeypatch.chdir(tmp_path)
    fitted = run(["fit", *recipe(folder), "--config", "protocol/mean"])
    assert fitted.trainer.global_step == -(-len(fitted.datamodule.records("train")) // fitted.datamodule.batch_size)
    assert len(fitted.model.fitted.trained.hashes) == 0
    trained = ["--config", "protocol/mean", "--ckpt_path", fitted.trainer.checkpoint_callback.best_model_path]
    run(["predict", *recipe(folder), *trained])
    everybody = pd.read_csv("predictions.csv")
    assert everybody["record"].tolist() == list(range(1000, 1000 + N))
    (tmp_path / "new").mkdir()
    for table, party in zip(whole, ("bank", "telco"), strict=True):
        few = table.iloc[:3].drop(columns=LONG_TABLES["label_column"], errors="ignore")
        few.to_parquet(tmp_path / "new" / f"{party}.parquet", row_group_size=2, index=False)
    run(["predict", *recipe(tmp_path / "new"), *trained, "--predictions.path=new.csv"])
    pd.testing.assert_frame_equal(pd.read_csv("new.csv"), everybody.head(3), rtol=1e-5)


def test_missing_values_are_told_before_training(folder, whole, tmp_path):
    for table, party in zip(whole, ("bank", "telco"), strict=True):
        column = table.columns[-1]
        table = table.astype({column: float})
        table.loc[[5, 2000], column] = np.nan
        table.to_parquet(tmp_path / f"{party}.parquet", row_group_size=GROUP, index=False)
    with pytest.raises(ConfigurationError, match=rf"column '{whole[0].columns[-1]}' of party 'bank' has 2 missing"):
        tables(tmp_path, "fit")


def test_a_test_share_of_zero_is_named(tmp_path):
    write_parquet(tmp_path, 80, 33)
    data = tables(tmp_path, "test", batch_size=9, test_share=0)
    with pytest.raises(ConfigurationError, match=r"has no 'test' records in this stage; .* set test_share above 0"):
        data.test_dataloader()


# ---- a trained model and other files

FEW = 90


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    write_parquet(folder, FEW, 40)
    return tables(folder, "fit", batch_size=10)


def features(made):
    records = made.records("predict")
    return records.rows(torch.arange(len(records)))


def test_columns_and_parties_in_another_order_are_the_same_records(trained, tmp_path):
    write_parquet(tmp_path, FEW, 40)
    expected = features(tables(tmp_path, "predict", fitted=trained.fitted))
    for party in ("bank", "telco"):
        path = tmp_path / f"{party}.parquet"
        table = pd.read_parquet(path)
        table[table.columns[::-1]].to_parquet(path, row_group_size=40, index=False)
    turned = dict(reversed(LONG_TABLES["tables"].items()))
    made = tables(tmp_path, "predict", fitted=trained.fitted, tables=turned)
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
    write_parquet(tmp_path, FEW, 40, telco=change)
    with pytest.raises(ConfigurationError, match=message) as refused:
        tables(tmp_path, "predict", fitted=trained.fitted)
    assert "\n" not in str(refused.value)


def test_other_parties_are_refused(trained, tmp_path):
    write_parquet(tmp_path, FEW, 40)
    with pytest.raises(ConfigurationError, match="parties bank, telco, these tables are of bank, shop; give the same"):
        tables(tmp_path, "predict", fitted=trained.fitted, tables={"bank": "bank.parquet", "shop": "telco.parquet"})


def test_records_are_read_after_an_evaluation(trained, tmp_path):
    """A test in inference mode must not keep other code from reading further blocks."""
    write_parquet(tmp_path, FEW, 40)
    records = tables(tmp_path, "predict", fitted=trained.fitted).records("predict")
    with torch.inference_mode():
        records.rows(torch.arange(40))
    assert torch.equal(
        records.rows(torch.arange(FEW))[0], features(tables(tmp_path, "predict", fitted=trained.fitted))[0]
    )


def test_exported_halves_have_the_names_of_the_tables(trained):
    module = split(Mean())
    module.build_for(trained)
    module.fitted = trained.fitted
    assert party_names(module) == ("bank", "telco")
    assert party_part(module, 1).half.names == ("telco0", "telco1")


def swap_values(folder):
    table = pd.read_parquet(folder / "telco.parquet")
    column = next(name for name in table.columns if name != "id")
    table.loc[[0, FEW - 1], column] = table.loc[[FEW - 1, 0], column].to_numpy()
    table.to_parquet(folder / "telco.parquet", row_group_size=40, index=False)


def swap_rows(folder):
    for party in ("bank", "telco"):  # within a row group: the ranges of the columns stay
        table = pd.read_parquet(folder / f"{party}.parquet")
        order = [1, 0, *range(2, FEW)]
        table.iloc[order].to_parquet(folder / f"{party}.parquet", row_group_size=40, index=False)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_a_fit_is_resumed_with_the_same_files(tmp_path):
    """At the end of an epoch, where the position in the blocks says nothing."""
    write_parquet(tmp_path, FEW, 40)
    saver = ModelCheckpoint(tmp_path / "kept", save_last=True)
    first = trainer(tmp_path / "a", max_epochs=1, callbacks=[saver], enable_checkpointing=True)
    first.fit(split(Mean()), datamodule=tables(tmp_path, "fit", batch_size=10))

    def resume():
        again = trainer(tmp_path / "b", max_epochs=2)
        made = ParquetTables(**LONG_TABLES | {"data_dir": tmp_path, "id_column": "id", "batch_size": 10})
        again.fit(split(Mean()), datamodule=made, ckpt_path=saver.last_model_path)
        return again.current_epoch

    assert resume() == 2
    for change, message in ((swap_rows, "the files have other ids since"), (swap_values, "have changed: telco")):
        change(tmp_path)
        with pytest.raises(ConfigurationError, match=message):
            resume()
        write_parquet(tmp_path, FEW, 40)
