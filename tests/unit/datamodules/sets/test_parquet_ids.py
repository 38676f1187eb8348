"""Ids of tables that are read in blocks."""

import numpy as np
import pytest
import torch

from lightning_vfl.datamodules import ParquetTables
from lightning_vfl.errors import ConfigurationError
from tests.unit.datamodules.miniature import LONG_TABLES, write_parquet


def texts(table):
    return table.assign(id=table["id"].astype(str))


def lacking(table):
    return table.assign(id=table["id"].where(table.index != 5))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bank": lacking, "telco": lacking}, "1 rows of the file of party 'bank' have no id in column 'id'; add ids"),
        ({"bank": texts, "telco": lambda t: lacking(texts(t))}, "1 rows of the file of party 'telco' have no id"),
        ({"telco": texts}, "string in the file of party 'telco' and int64 in that of 'bank'; write ids of one kind"),
    ],
    ids=["missing numbers", "missing texts", "two kinds"],
)
def test_missing_ids_and_ids_of_two_kinds_are_refused(changes, message, tmp_path):
    write_parquet(tmp_path, 80, 33, **changes)
    with pytest.raises(ConfigurationError, match=message) as refused:
        ParquetTables(**LONG_TABLES, data_dir=tmp_path, id_column="id", batch_size=9).setup("fit")
    assert "\n" not in str(refused.value)


def test_ids_may_be_texts(tmp_path):
    write_parquet(tmp_path, 80, 33, bank=texts, telco=texts)
    data = ParquetTables(**LONG_TABLES, data_dir=tmp_path, id_column="id", batch_size=9)
    data.setup("predict")
    assert data.records("predict").ids[0] == "1000"


def renamed(table):
    return table.rename(columns={"id": "customer"})


def test_each_party_may_have_its_own_id_column(tmp_path):
    (tmp_path / "one").mkdir()
    write_parquet(tmp_path / "one", 80, 33)
    write_parquet(tmp_path, 80, 33, telco=renamed)
    settings = {**LONG_TABLES, "batch_size": 9}
    one = ParquetTables(**settings, data_dir=tmp_path / "one", id_column="id")
    own = ParquetTables(**settings, data_dir=tmp_path, id_column={"telco": "customer"})
    for data in (one, own):
        data.setup("fit")
    assert own.layout.columns == one.layout.columns  # no id is a feature
    records, expected = own.records("train"), one.records("train")
    np.testing.assert_array_equal(records.ids, expected.ids)
    for values, those in zip(records.rows(torch.arange(20)), expected.rows(torch.arange(20)), strict=True):
        np.testing.assert_array_equal(values, those)


def test_ids_are_those_of_the_first_party_whose_column_has_its_own_name(tmp_path):
    write_parquet(tmp_path, 80, 33, bank=renamed)
    data = ParquetTables(**LONG_TABLES, data_dir=tmp_path, id_column={"bank": "customer"}, batch_size=9)
    data.setup("predict")
    assert np.asarray(data.records("predict").ids).tolist() == list(range(1000, 1080))


@pytest.mark.parametrize(
    ("changes", "id_column", "message"),
    [
        ({}, {"telko": "customer"}, "id_column names party 'telko', which has no table"),
        ({}, {"telco": "customer"}, "the file of party 'telco' has no id column 'customer'; correct id_column"),
        (
            {"telco": lambda t: renamed(t)[::-1]},
            {"telco": "customer"},
            "row 0 has id 1079 in the file of party 'telco' and 1000 in that of 'bank'",
        ),
        (
            {"telco": lambda t: renamed(t).assign(customer=lambda own: own["customer"].replace(1007, 1006))},
            {"telco": "customer"},
            "1006",
        ),
    ],
    ids=["a party", "a column", "another order", "repeated"],
)
def test_wrong_id_columns_of_parties_are_refused(changes, id_column, message, tmp_path):
    write_parquet(tmp_path, 80, 33, **changes)
    with pytest.raises(ConfigurationError, match=message) as refused:
        ParquetTables(**LONG_TABLES, data_dir=tmp_path, id_column=id_column, batch_size=9).setup("fit")
    assert "\n" not in str(refused.value)
