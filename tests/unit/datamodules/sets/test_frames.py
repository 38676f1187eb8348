"""Tables in memory give what their Parquet files give; predictions come back as a frame."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from lightning_vfl.aggregators import Mean
from lightning_vfl.callbacks import PredictionWriter, predictions_of
from lightning_vfl.datamodules import CSVTables
from lightning_vfl.errors import ConfigurationError
from tests.subjects import split, trainer

SETTINGS = {"label_party": "bank", "label_column": "default", "preprocess": "auto"}


def frames(records=120):
    draw = np.random.default_rng(0)
    ids = draw.permutation(records)
    bank = {"id": [f"c{i}" for i in ids], "income": draw.normal(size=records), "city": draw.choice(["a", "b"], records)}
    bank["since"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(draw.integers(0, 900, records), "D")
    bank["default"] = draw.choice(["no", "yes"], records)
    telco = {"id": [f"c{i}" for i in range(records)], "calls": draw.integers(0, 9, records).astype(float)}
    telco["calls"][3] = np.nan
    return pd.DataFrame(bank), pd.DataFrame(telco)


def records(tables):
    data = CSVTables(tables, **SETTINGS)
    data.setup("fit")
    train = data.records("train")
    return data.layout.columns, train.ids.tolist(), train.rows(torch.arange(len(train)))


def viewed(table, name):
    """The table with a column of texts as categories whose texts are views."""
    coded = table[name].combine_chunks().dictionary_encode()
    views = pa.DictionaryArray.from_arrays(coded.indices, coded.dictionary.cast(pa.string_view()))
    return table.set_column(table.column_names.index(name), name, views)


FORMS = {
    "pandas": lambda frame: frame,
    "ids as the index": lambda frame: frame.set_index("id"),
    "arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "ids in an index of several levels": lambda frame: frame.set_index([pd.RangeIndex(len(frame)), "id"]),
    "categories as polars has them": lambda frame: viewed(pa.Table.from_pandas(frame, preserve_index=False), "city"),
    "arrow batches": lambda frame: pa.Table.from_pandas(frame, preserve_index=False).to_reader(),
}


@pytest.mark.parametrize("form", FORMS)
def test_frames_are_read_as_their_parquet_files(form, tmp_path):
    bank, telco = frames()
    bank.to_parquet(tmp_path / "bank.parquet")
    telco.to_parquet(tmp_path / "telco.parquet")
    expected = records({"bank": tmp_path / "bank.parquet", "telco": tmp_path / "telco.parquet"})
    found = records({"bank": FORMS[form](bank), "telco": tmp_path / "telco.parquet"})
    assert found[:2] == expected[:2]
    assert all(torch.equal(a, b) for a, b in zip(found[2], expected[2], strict=True))


def test_the_frame_is_not_changed_and_its_file_goes(tmp_path):
    bank, telco = frames()
    before = bank.copy()
    data = CSVTables({"bank": bank, "telco": telco}, work_dir=tmp_path / "work", **SETTINGS)
    data.setup("fit")
    pd.testing.assert_frame_equal(bank, before)
    assert [*(tmp_path / "work").rglob("bank.parquet")]
    del data
    assert not [*(tmp_path / "work").rglob("bank.parquet")]


def test_predictions_come_back_as_the_frame_of_the_file(tmp_path):
    bank, telco = frames()
    module = split(Mean(), width=4)
    trainer(tmp_path).fit(module, datamodule=CSVTables({"bank": bank, "telco": telco}, **SETTINGS))
    new = {"bank": bank.drop(columns="default").iloc[::3], "telco": telco}
    found = predictions_of(module, CSVTables(new, **SETTINGS))
    trainer(tmp_path, callbacks=[PredictionWriter(str(tmp_path / "p.parquet"))]).predict(
        module, datamodule=CSVTables(new, **SETTINGS)
    )
    pd.testing.assert_frame_equal(found, pd.read_parquet(tmp_path / "p.parquet"))
    assert sorted(found["record"]) == sorted(new["bank"]["id"])
    assert sorted(path.name for path in tmp_path.glob("p*")) == ["p.left_out.parquet", "p.parquet"]


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        (pd.DataFrame({"id": [1]}), "tables must give each party a file or a frame"),
        ({"bank": pd.DataFrame({"id": [1, 2], "x": [1, "b"]})}, "frame of party 'bank' cannot be read"),
        ({"bank": pd.DataFrame([[1, 2, 3]], columns=["id", "x", "x"])}, "frame of party 'bank' cannot be read"),
        ({"bank": pd.DataFrame({"id": [1], "x": [10**30]})}, "frame of party 'bank' cannot be read"),
        ({"bank": pd.DataFrame({"id": [1], "x": pd.cut([1.0], 2)})}, "frame of party 'bank' cannot be read"),
        ({"bank": [1, 2]}, "must give party 'bank' a file or a frame of pandas, polars or Arrow; got a list"),
    ],
)
def test_what_is_no_frame_is_refused_in_one_line(tables, words):
    with pytest.raises(ConfigurationError, match=words) as refused:
        CSVTables(tables, **SETTINGS)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("preprocess", ["auto", None])
def test_a_party_without_a_feature_is_refused_in_one_line(preprocess):
    bank, telco = frames()
    tables = {"bank": bank[["id", "income", "default"]], "telco": telco[["id"]]}
    data = CSVTables(tables, **{**SETTINGS, "preprocess": preprocess})
    with pytest.raises(ConfigurationError, match="'telco' has no column besides the ids, and so no feature; leave"):
        data.setup("fit")


@pytest.mark.parametrize("blank", ["", " "])
def test_an_empty_label_of_a_frame_is_no_class(blank):
    bank, telco = frames()
    bank.loc[[7, 9], "default"] = blank
    data = CSVTables({"bank": bank, "telco": telco}, **SETTINGS)
    with pytest.raises(ConfigurationError, match="2 labels 'default' of party 'bank' are empty texts, first of record"):
        data.setup("fit")
