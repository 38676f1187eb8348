"""Law: splits are disjoint and together all records; each rule keeps what it promises."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.cli import run
from lightning_vfl.datamodules import CSVTables, Folds, GivenSplit, GroupedSplit, StratifiedLabels, TimeSplit
from lightning_vfl.datamodules.record_splits import ToDivide
from lightning_vfl.errors import ConfigurationError
from tests.examples import examples
from tests.own_tables import files, write, write_titanic

NAMES = ("train", "val", "test")


def divided(split, column, classes=None, seed=0, val=0.1, test=0.2):
    return split.rows(ToDivide(len(column), pd.Series(column, name="c"), "bank", classes, seed, val, test))


@given(st.integers(40, 300), st.integers(0, 5), st.integers(0, 2**31))
@examples(12)
def test_splits_are_disjoint_and_together_all_records(records, seed, draw):
    rng = np.random.default_rng(draw)
    column, classes = rng.integers(0, 15, records), np.arange(records) % 2
    word = np.array(["train", "val", "test"])[column % 3]
    cases = [(GivenSplit("c"), word), (GroupedSplit("c"), column), (TimeSplit("c"), column)]
    cases += [(Folds(fold, 3, by), column) for fold in range(3) for by in (None, "c")]
    for split, values in cases:
        rows = divided(split, values, classes, seed)
        assert sorted(np.concatenate([rows[name] for name in NAMES])) == list(range(records))
        assert all((np.diff(rows[name]) > 0).all() for name in NAMES)
        again = divided(split, values, classes, seed)
        assert all(np.array_equal(rows[name], again[name]) for name in NAMES)
        if isinstance(split, GroupedSplit) or (isinstance(split, Folds) and split.column):
            held = [set(values[rows[name]]) for name in NAMES]
            assert sum(map(len, held)) == len(held[0] | held[1] | held[2])
        if isinstance(split, TimeSplit):
            assert values[rows["train"]].max() <= values[rows["val"]].min()
            assert values[rows["val"]].max() <= values[rows["test"]].min()


def test_together_the_folds_test_every_record_once_stratified_by_class():
    classes = np.arange(200) % 4 == 0
    parts = [divided(Folds(fold), np.zeros(200), classes * 1) for fold in range(5)]
    assert sorted(np.concatenate([rows["test"] for rows in parts])) == list(range(200))
    assert [classes[rows["test"]].sum() for rows in parts] == [10] * 5
    assert [len(rows["val"]) for rows in parts] == [20] * 5


@pytest.mark.parametrize(
    "dates",
    [
        ["2024-01-31", "2023-12-31"],
        ["31.01.2024", "31.12.2023"],
        ["2024-01-01 10:00:01", "2024-01-01 10:00:00"],
        [2, 1],
    ],
)
def test_dates_and_numbers_are_in_their_order(dates):
    rows = divided(TimeSplit("c"), [dates[i % 2] for i in range(10)], val=0, test=0.5)
    assert rows["test"].tolist() == [0, 2, 4, 6, 8]


REFUSED = {
    "another word": (GivenSplit("c"), ["train", "tset"] * 5, "the split column 'c' has the value 'tset'; write train"),
    "no training": (GivenSplit("c"), ["test"] * 5, "no record has 'train' in the split column 'c'; correct train"),
    "no value": (GroupedSplit("c"), ["a", None] * 5, "5 values of column 'c' of party 'bank' are missing"),
    "no date": (TimeSplit("c"), ["soon"] * 9, "the dates in column 'c' of party 'bank' are in no known form"),
    "few records": (TimeSplit("c"), [1, 2], "2 records leave none for training with these shares; lower them"),
    "few for folds": (Folds(), [1, 2], "2 records give no 5 folds"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_impossible_columns_are_refused(name):
    split, column, message = REFUSED[name]
    with pytest.raises(ConfigurationError) as error:
        divided(split, column, val=0.3, test=0.6)
    assert message in str(error.value)


@pytest.mark.parametrize(("fold", "folds"), [(5, 5), (-1, 3), (0, 1)])
def test_folds_that_are_not_there(fold, folds):
    with pytest.raises(ConfigurationError, match=f"fold {fold} of {folds} folds is impossible; use 2 or more"):
        Folds(fold, folds)


# ---- tables


def passengers(folder, **settings):
    usual = {"label_party": "ferry", "label_column": "Survived", "preprocess": "auto", "batch_size": 32}
    return CSVTables(files(folder, "ferry", "bank"), **usual | settings)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("titanic")
    joined = write_titanic(folder, 120)
    ferry = pd.read_csv(folder / "ferry.csv", dtype={"id": str})
    ferry["part"] = [("train", "train", "val", "test")[i % 4] for i in range(120)]
    write(folder, {"ferry": ferry})
    return folder, joined.assign(part=ferry.set_index("id")["part"])


def test_a_given_column_divides_tables_and_is_no_feature(tables):
    folder, joined = tables
    data = passengers(folder, split=GivenSplit("part"))
    for stage in ("fit", "test"):
        data.setup(stage)
    assert not [name for name in data.layout.columns if name.startswith("part")]
    for name in NAMES:
        assert data.records(name).ids.tolist() == joined.index[joined["part"] == name].tolist()


def test_new_tables_need_no_such_column(tables, tmp_path):
    folder, joined = tables
    data = passengers(folder, split=GivenSplit("part"))
    data.setup("fit")
    write(tmp_path / "new", {n: pd.read_csv(p, dtype={"id": str}) for n, p in files(folder, "ferry", "bank").items()})
    ferry = pd.read_csv(tmp_path / "new/ferry.csv", dtype={"id": str})
    write(tmp_path / "new", {"ferry": ferry.drop(columns=["part", "Survived"])})
    new, same = (passengers(part, split=GivenSplit("part")) for part in (tmp_path / "new", folder))
    for one in (new, same):
        one.use(data.fitted)
        one.setup("predict")
        assert one.records("predict").ids.tolist() == joined.index.tolist()
    assert torch.equal(new.records("predict").features, same.records("predict").features)
    write(tmp_path / "new", {"ferry": ferry.drop(columns="part")})
    late = passengers(tmp_path / "new", split=GivenSplit("part"))
    late.use(data.fitted)
    with pytest.raises(ConfigurationError, match="column 'part', which divides the records; add it, or give new_rec"):
        late.setup("test")


def test_a_mistyped_column_and_another_split_than_in_training_are_refused(tables):
    folder, _ = tables
    with pytest.raises(ConfigurationError, match=r"names column 'prat', which party 'ferry' does not .*mean part"):
        passengers(folder, split=GivenSplit("prat")).setup("fit")
    state = passengers(folder, split=Folds(1)).state_dict()
    passengers(folder, split=Folds(1)).load_state_dict(state)
    with pytest.raises(ConfigurationError, match=r"split = Folds\(fold=1, .*these data have None; give the same split"):
        passengers(folder).load_state_dict(state)


def test_the_command_line_takes_a_split(tables, tmp_path, monkeypatch):
    folder, joined = tables
    monkeypatch.chdir(tmp_path)
    given = ["--data.tables", str(files(folder, "ferry", "bank")), "--data.label_party", "ferry"]
    given += ["--data.label_column", "Survived", "--data.split", "GivenSplit", "--data.split.column", "part"]
    quiet = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false", "--trainer.fast_dev_run", "1"]
    done = run(["fit", "--config", "data/csv_tables", "--config", "protocol/mean", *given, *quiet])
    assert len(done.datamodule.records("train")) == (joined["part"] == "train").sum()


def test_combinations_of_labels_have_their_share_in_every_split():
    rng = np.random.default_rng(0)
    flags = (rng.random((500, 4)) < [0.5, 0.1, 0.3, 0.02]).astype(np.int64)
    flags[0] = 1  # a combination of one record
    given = ToDivide(500, None, "bank", None, 3, 0.1, 0.2, flags)
    rows = StratifiedLabels().rows(given)
    assert sorted(np.concatenate([rows[name] for name in NAMES])) == list(range(500))
    assert [len(rows[name]) for name in NAMES] == [350, 50, 100]
    for combination in np.unique(flags, axis=0):
        held = (flags == combination).all(1)
        for name, share in zip(NAMES, (0.7, 0.1, 0.2), strict=True):
            assert abs(held[rows[name]].sum() - share * held.sum()) < 2
    with pytest.raises(ConfigurationError, match="divides records that have several labels"):
        divided(StratifiedLabels(), [1] * 9, np.arange(9) % 2)


def test_several_labels_of_tables_are_stratified(tmp_path):
    write_titanic(tmp_path, 200)
    data = CSVTables(
        files(tmp_path, "ferry", "bank"), "ferry", ["Survived", "Alone"], preprocess="auto", split=StratifiedLabels()
    )
    data.setup("fit")
    data.setup("test")
    means = [data.records(name).labels.double().mean(0) for name in NAMES]
    assert all(torch.allclose(means[0], mean, atol=0.06) for mean in means)
