"""Tables joined on ids: against a pandas merge, and every refusal with its count."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_vfl.datamodules import ContiguousColumns, CSVTables, NamedColumns, Standardise, Unchanged
from lightning_vfl.datamodules.records.table_files import TableSource
from lightning_vfl.errors import ConfigurationError

from ..miniature import write_csv

JOBS = ("clerk", "farmer", "cook")
SPLITS = ("train", "val", "test")


def bank(records: int = 60, start: int = 0) -> dict[str, list[Any]]:
    """Ids, a label and two numbers, in an order that is not sorted."""
    ids = [(7 * i) % records + start for i in range(records)]  # 7 does not divide any size used here
    return {"id": ids, "y": [i % 3 % 2 for i in ids], "age": [20 + i for i in ids], "income": [i * 1.5 for i in ids]}


def shop(records: int = 50, start: int = 20) -> dict[str, list[Any]]:
    ids = list(range(start + records - 1, start - 1, -1))
    return {"id": ids, "visits": [i % 5 for i in ids], "age": [i / 4 for i in ids]}


@pytest.fixture
def files(tmp_path):
    return {"bank": write_csv(tmp_path / "bank.csv", bank()), "shop": write_csv(tmp_path / "shop.csv", shop())}


def open_tables(files, **settings: Any):
    usual: dict[str, Any] = {"label_party": "bank", "label_column": "y", "normaliser": Unchanged(), "batch_size": 4}
    data = CSVTables(files, **usual | settings)
    for stage in ("fit", "test"):
        data.setup(stage)
    return data


def joined(data) -> pd.DataFrame:
    """All records of all splits, sorted by id, columns as the layout names them, and the label."""
    parts = []
    for name in SPLITS:
        records = data.records(name)
        part = pd.DataFrame(records.features.numpy(), index=records.ids, columns=list(data.layout.columns))
        parts.append(part.assign(label=records.labels.numpy()))
    return pd.concat(parts).sort_index()


def oracle(how: Any) -> pd.DataFrame:
    both = pd.DataFrame(bank()).merge(pd.DataFrame(shop()), on="id", how=how, suffixes=("_bank", "_shop"))
    both = both.rename(columns={"age_bank": "bank.age", "age_shop": "shop.age", "y": "label"})
    columns = ["bank.age", "income", "visits", "shop.age"]
    both = both.set_index("id").sort_index()
    return both[columns].fillna(0).astype(np.float32).assign(label=both["label"])


@pytest.mark.parametrize(("overlap", "how"), [("inner", "inner"), ("keep", "left")])
def test_the_join_equals_pandas_merge(files, overlap, how):
    data = open_tables(files, overlap=overlap)
    pd.testing.assert_frame_equal(joined(data), oracle(how), check_names=False)
    assert data.party_shapes == ((2,), (2,))
    assert data.layout.view_names == ("bank", "shop")


def test_inner_says_nothing_about_presence(files):
    assert open_tables(files).records("train").present is None


def test_keep_says_who_holds_what(files):
    data = open_tables(files, overlap="keep")
    held = set(shop()["id"])
    for name in SPLITS:
        records = data.records(name)
        assert records.present.tolist() == [[True, int(i) in held] for i in records.ids]
    batch = next(iter(data.train_dataloader()))
    absent = ~batch.present[:, 1]
    assert torch.equal(batch.features[1][absent], torch.zeros(int(absent.sum()), 2))


def test_absent_features_stay_zero_after_scaling(files):
    records = open_tables(files, overlap="keep", normaliser=None).records("train")
    _, shop_features = records.rows(torch.arange(len(records)))
    assert torch.equal(shop_features[~records.present[:, 1]], torch.zeros(int((~records.present[:, 1]).sum()), 2))
    held = shop_features[records.present[:, 1]].double()
    torch.testing.assert_close(held.mean(0), torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-6)


def test_the_counts_are_reported(files, monkeypatch):
    said = []
    monkeypatch.setattr("lightning_vfl.datamodules.sets.csv_tables.rank_zero_info", said.append)
    open_tables(files, overlap="keep")
    joined = "CSVTables: 60 joined records; 'bank' holds 60 of them, 'shop' holds 40 of them, 10 more are left out"
    assert said[0] == joined


def test_the_order_of_rows_changes_nothing(files, tmp_path):
    turned = {name: write_csv(tmp_path / f"{name}2.csv", {k: v[::-1] for k, v in columns.items()})
              for name, columns in (("bank", bank()), ("shop", shop()))}  # fmt: skip
    one, two = open_tables(files), open_tables(turned)
    for name in SPLITS:
        assert np.array_equal(one.records(name).ids, two.records(name).ids)
        assert torch.equal(one.records(name).features, two.records(name).features)
        assert torch.equal(one.records(name).labels, two.records(name).labels)


def test_parquet_equals_csv(files, tmp_path):
    columns = {"bank": bank() | {"job": [JOBS[i % 3] for i in range(60)]}, "shop": shop()}
    csv = {name: write_csv(tmp_path / f"{name}.csv", table) for name, table in columns.items()}
    parquet = {name: tmp_path / f"{name}.parquet" for name in columns}
    for name, path in parquet.items():
        pd.DataFrame(columns[name]).to_parquet(path)
    one, two = open_tables(csv, categorical=["job"]), open_tables(parquet, categorical=["job"])
    pd.testing.assert_frame_equal(joined(one), joined(two))
    assert one.layout == two.layout


def test_ids_keep_their_text_unless_all_are_whole_numbers_as_usually_written(tmp_path):
    def opened(ids):
        n = len(ids)
        path = write_csv(tmp_path / "a.csv", {"id": ids, "y": [i % 2 for i in range(n)], "x": range(n)})
        return joined(open_tables({"bank": path})).index.tolist()

    codes = [f"{i:03}" for i in range(40)]
    assert opened(codes) == codes
    assert opened([*codes[:-1], "39"]) == sorted([*codes[:-1], "39"])
    assert opened([f" {i}" for i in range(-3, 37)]) == list(range(-3, 37))
    large = [str(10**20 + i) for i in range(40)]
    assert opened(large) == large


def test_a_party_may_hold_the_labels_alone(files, tmp_path):
    labels = {key: bank()[key] for key in ("id", "y")}
    files |= {"bank": write_csv(tmp_path / "labels.csv", labels)}
    data = open_tables(files)
    assert data.party_shapes == ((2,),)
    assert data.layout.view_names == ("shop",)
    assert joined(data).index.tolist() == list(range(20, 60))


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ((" no", "yes"), ("no", "yes")),
        ((5, -1), (-1, 5)),
        (("1.0", "2.0"), (1, 2)),
        (("False", "True"), ("False", "True")),
    ],
)
def test_labels_of_any_kind_are_numbered_in_sorted_order(tmp_path, labels, classes):
    path = write_csv(tmp_path / "a.csv", {"id": range(20), "y": [labels[i % 2] for i in range(20)], "x": range(20)})
    data = open_tables({"bank": path})
    assert data.classes == classes
    assert data.num_classes == 2
    first = sorted(labels).index(labels[0]) if isinstance(labels[0], int) else 0
    assert joined(data)["label"].tolist() == [(i + first) % 2 for i in range(20)]


def test_regression_labels_are_real_numbers(files):
    data = open_tables(files, label_column="income", task="regression")
    assert (data.num_classes, data.classes) == (None, ())
    assert data.records("train").labels.dtype == torch.float32
    assert joined(data)["label"].tolist() == [i * 1.5 for i in range(20, 60)]


def one_hot(tmp_path, seed: int = 0):
    """One party; record 'rI' works as JOBS[I % 3], only the first test record works as an astronaut."""
    ids = [f"r{i:02}" for i in range(40)]
    table: dict[str, Any] = {
        "id": ids,
        "y": [i % 2 for i in range(40)],
        "job": [JOBS[i % 3] for i in range(40)],
        "age": range(40),
    }
    tested = (
        open_tables({"bank": write_csv(tmp_path / "a.csv", table)}, categorical=["job"], seed=seed).records("test").ids
    )
    rare = ids.index(tested[0])
    table["job"][rare] = "astronaut"
    return open_tables({"bank": write_csv(tmp_path / "a.csv", table)}, categorical=["job"], seed=seed), ids[rare]


def test_one_hot_categories_come_from_the_training_rows(tmp_path):
    data, rare = one_hot(tmp_path)
    assert data.layout.columns == ("job=clerk", "job=cook", "job=farmer", "age")
    table = joined(data)
    assert table.loc[rare].tolist()[:3] == [0.0, 0.0, 0.0]  # not seen in training
    for position, record in enumerate(table.index):
        if record != rare:
            assert table.loc[record, f"job={JOBS[position % 3]}"] == 1
            assert table.loc[record, ["job=clerk", "job=cook", "job=farmer"]].sum() == 1
    assert data.records("train").ids.dtype.kind == "U"


def test_categories_may_be_numbers_and_shared_names_are_told_apart(tmp_path):
    table = {"id": range(20), "y": [i % 2 for i in range(20)], "code": [i % 2 + 7 for i in range(20)]}
    paths = {party: write_csv(tmp_path / f"{party}.csv", table) for party in ("bank", "shop")}
    data = open_tables(paths, categorical=["code"], partitioner=NamedColumns({"a": ["bank.code"]}, drop_rest=True))
    assert data.layout.columns == ("bank.code=7", "bank.code=8", "y", "shop.code=7", "shop.code=8")
    assert data.party_shapes == ((2,),)


def test_another_separator_and_another_id_column(tmp_path):
    paths = {}
    for party, columns in (("bank", bank()), ("shop", shop())):
        columns["key"] = columns.pop("id")
        paths[party] = write_csv(tmp_path / f"{party}.csv", columns, ";")
    data = open_tables(paths, separator=";", id_column="key")
    assert joined(data).index.tolist() == list(range(20, 60))


def change(table: dict[str, list[Any]], column: str, **values: object) -> dict[str, list[Any]]:
    """The table with some values (r3=... is row 3) of a column replaced."""
    cells = list(table[column])
    for row, value in values.items():
        cells[int(row[1:])] = value
    return table | {column: cells}


REFUSALS = {
    "duplicate ids": (change(bank(), "id", r3=7, r4=7, r5=14), "ids of party 'bank' are duplicates, first 7; keep one"),
    "missing ids": (change(bank(), "id", r3=None, r4=None), "2 records of party 'bank' have no id; add ids or remove"),
    "ids are fractions": (change(bank(), "id", r3=0.5), r"party 'bank' are float64 \(first 0.0\); write them as text"),
    "ids are huge": (change(bank(), "id", r3=2**63), "ids of party 'shop' are whole numbers but those of .* are text"),
    "ids are codes": (change(bank(), "id", r1="007"), "ids of party 'shop' are whole numbers but those of .* are text"),
    "ids of two kinds": (
        bank() | {"id": [f"a{i}" for i in range(60)]},
        "ids of party 'shop' are whole numbers but those of party 'bank' are text; write them in the same form in "
        "all files",
    ),
    "no common ids": (bank(start=500), r"id in common \(first ids: bank 500, shop 69\); correct id_column or the ids"),
    "no records": ({"id": [], "y": [], "age": []}, "bank.csv of party 'bank' holds no record; correct tables"),
    "mixed": (
        change(bank(), "age", r3="?", r4="unknown"),
        r"2 values of column 'age' of party 'bank' are not numbers, first '\?' of record 21; correct them, list",
    ),
    "text": (
        bank() | {"age": ["old"] * 60},
        r"40 values of column 'age' of party 'bank' are not numbers, .* list the column under categorical",
    ),
    "missing values": (
        change(bank(), "income", r3=None, r5=None, r6=""),
        "3 values of column 'income' of party 'bank' are missing, first 'nan' of record 21; fill them in, or",
    ),
    "missing label": (change(bank(), "y", r3=None), "1 values of column 'y' of party 'bank' are missing, first of rec"),
    "mixed labels": (
        change(bank(), "y", r3="yes"),
        r"'y' of party 'bank' mixes 39 numbers and 1 texts .*labels "
        r"in the same form",
    ),
    "real labels": (
        change(bank(), "y", r3=0.5),
        "labels 'y' of party 'bank' are fractions, not classes; use task: regr",
    ),
    "a rare class": (change(bank(), "y", r3=9), r"40 records give no test split of 20% \(.*\); use more records"),
    "no label column": (
        {"id": bank()["id"], "age": bank()["age"]},
        "party 'bank' has no label column 'y', only age; correct label_column",
    ),
    "no id column": (
        {"key": bank()["id"], "y": bank()["y"]},
        "bank.csv of party 'bank' has no id column 'id', only key, y; correct id_column or separator",
    ),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_bad_tables_are_refused(files, tmp_path, refusal):
    table, message = REFUSALS[refusal]
    write_csv(tmp_path / "bank.csv", table)
    with pytest.raises(ConfigurationError, match=message):
        open_tables(files)


def test_bad_records_that_are_not_joined_do_not_matter(files, tmp_path):
    write_csv(tmp_path / "bank.csv", change(bank(), "income", r0=None, r1="?"))  # ids 0 and 7, which the shop lacks
    assert len(joined(open_tables(files))) == 40


def test_the_party_that_has_the_label_column_is_named(files):
    with pytest.raises(ConfigurationError, match=r"party 'shop' has no label column 'y', .* label_party: 'bank' has"):
        open_tables(files, label_party="shop")


@pytest.mark.parametrize("label", ["inf", "-1e39"])
def test_infinite_labels_of_a_regression(label, files, tmp_path):
    write_csv(tmp_path / "bank.csv", change(bank(), "y", r3=label))
    with pytest.raises(ConfigurationError, match=r"1 of the labels 'y' of party 'bank' .* first of record 21"):
        open_tables(files, task="regression")


def test_text_labels_of_a_regression(files, tmp_path):
    write_csv(tmp_path / "bank.csv", bank() | {"y": ["good"] * 60})
    with pytest.raises(ConfigurationError, match=r"column 'y' of party 'bank' is text .* use task: classification"):
        open_tables(files, task="regression")


def test_a_party_without_training_records(files, tmp_path):
    write_csv(tmp_path / "shop.csv", shop(50, 500))
    with pytest.raises(ConfigurationError, match="party 'shop' holds none of the 42 training records"):
        open_tables(files, overlap="keep")


def test_no_features_at_all(tmp_path):
    path = write_csv(tmp_path / "a.csv", {key: bank()[key] for key in ("id", "y")})
    with pytest.raises(ConfigurationError, match="no party has a column besides the ids and the labels; add features"):
        open_tables({"bank": path})


@pytest.mark.parametrize("content", ["", "id,y,age\n1,0,3,4\n", 'id,y\n1,"'])
def test_files_that_cannot_be_read(files, tmp_path, content):
    (tmp_path / "bank.csv").write_text(content)
    with pytest.raises(ConfigurationError, match=r"bank.csv of party 'bank' cannot be read \(.*\); correct the path"):
        open_tables(files)


@pytest.mark.parametrize("name", ["gone.csv", "gone.parquet"])
def test_files_that_are_not_there(files, tmp_path, name):
    with pytest.raises(ConfigurationError, match=f"{name} of party 'shop' cannot be read"):
        open_tables(files | {"shop": tmp_path / name})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"label_party": "tax"}, "label_party 'tax' has no table; use one of bank, shop"),
        ({"task": "ranking"}, "task 'ranking' is unknown; use classification or regression"),
        ({"overlap": "outer"}, "overlap 'outer' is unknown; use inner or keep"),
        ({"overlap": "keep", "partitioner": ContiguousColumns(2)}, "leave out ContiguousColumns or use overlap: inner"),
        ({"val_share": 0.5, "test_share": 0.5}, "use shares from 0 that add up to less than 1"),
        ({"test_share": -0.1}, "use shares from 0 that add up to less than 1"),
        ({"categorical": ["job"]}, "categorical names column 'job', which no party has; they have age, income, visits"),
    ],
)
def test_impossible_settings(files, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        open_tables(files, **settings)


def test_relative_names_start_from_data_dir(tmp_path, files):
    names = {party: path.name for party, path in files.items()}
    there, here = open_tables(names, data_dir=tmp_path), open_tables(files)
    pd.testing.assert_frame_equal(joined(there), joined(here))


def test_a_text_far_down_in_a_column_leaves_the_texts_above_as_they_are(tmp_path):
    """pandas reads long files in parts, and would guess that the codes of the first part are numbers."""
    records = 30_000
    codes = [*(f"0{i % 3}" for i in range(records - 1)), "x"]
    columns = {"id": range(records), "y": [0, 1] * (records // 2), "code": codes} | {f"c{i}": codes for i in range(9)}
    pd.DataFrame(columns).to_csv(tmp_path / "a.csv", index=False)
    table = TableSource(tmp_path / "a.csv", "bank", "id").read()
    assert table["code"].tolist() == codes


def test_digits_beyond_float32_survive_until_the_scaling(tmp_path):
    """Timestamps a second apart: one value in float32, as many as records after scaling in float64."""
    columns = {"id": range(60), "t": [1_700_000_000 + i for i in range(60)], "y": [0, 1] * 30}
    path = write_csv(tmp_path / "t.csv", {name: list(column) for name, column in columns.items()})
    data = open_tables({"bank": path}, normaliser=Standardise())
    assert len(data.records("train").features.unique()) == len(data.records("train"))


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (
            "1e300",
            r"are too large for float32, which ends at 3.4e38 \(the first is 1e\+300\), first of party 0, column",
        ),
        ("-1e39", r"are too large for float32, .* is -1e\+39\).* 'income', record 21; give them in another unit, or"),
    ],
)
def test_numbers_that_cannot_be_used_are_told_apart(files, value, told):
    table = bank()
    table["income"][3] = value
    write_csv(files["bank"], table)
    with pytest.raises(ConfigurationError, match=f"1 feature values of the .* records {told}"):
        open_tables(files)


def test_infinite_numbers(files, tmp_path):
    write_csv(tmp_path / "bank.csv", change(bank(), "income", r3="inf"))
    with pytest.raises(
        ConfigurationError, match=r"1 values of column 'income' of party 'bank' are infinite, .*record 21"
    ):
        open_tables(files)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "latin-1", "cp1252"])
@pytest.mark.parametrize("beside", ["in memory", "on disk"])
def test_another_encoding_is_told(tmp_path, encoding, beside):
    path = tmp_path / "bank.csv"
    path.write_text("id,größe\n1,2\n", encoding=encoding)
    readers = {
        "in memory": TableSource(path, "bank", "id").read,
        "on disk": lambda: TableSource(path, "bank", "id").store(tmp_path),
    }
    with pytest.raises(
        ConfigurationError,
        match=r"bank\.csv of party 'bank' is not UTF-8 text .* or give its encoding",
    ):
        readers[beside]()


def test_utf_8_with_a_mark_is_read(tmp_path):
    path = tmp_path / "bank.csv"
    path.write_text("id,größe\n1,2\n", encoding="utf-8-sig")
    assert TableSource(path, "bank", "id").read().columns.tolist() == ["größe"]
