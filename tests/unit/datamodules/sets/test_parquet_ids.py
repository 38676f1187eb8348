"""Ids of tables that are read in blocks."""

import pytest

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
