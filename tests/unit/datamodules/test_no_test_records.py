"""A test of data without test records."""

import pytest

from lightning_vfl.datamodules import ParquetTables
from lightning_vfl.errors import ConfigurationError
from tests.unit.datamodules.miniature import LONG_TABLES, write_parquet


def test_a_share_of_zero_is_named(tmp_path):
    write_parquet(tmp_path, 80, 33)
    data = ParquetTables(**LONG_TABLES, data_dir=tmp_path, batch_size=9, test_share=0)
    data.setup("test")
    with pytest.raises(ConfigurationError, match=r"has no 'test' records in this stage; .* set test_share above 0"):
        data.test_dataloader()
