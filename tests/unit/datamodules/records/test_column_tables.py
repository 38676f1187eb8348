"""A table in memory has the columns of the pandas table, in an order of rows, and takes time linear in its columns."""

import time

import numpy as np
import pandas as pd
import pytest

from lightning_vfl.datamodules.records.column_tables import MemoryTable


def test_columns_are_those_of_the_table_in_the_order_of_the_rows():
    table = pd.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "z"]}, index=pd.Index([7, 8, 9]))
    ordered = MemoryTable(table).in_order(np.array([2, 0]))
    pd.testing.assert_frame_equal(pd.DataFrame({name: ordered[name] for name in ordered}), table.iloc[[2, 0]])
    assert ordered.pop("a").tolist() == [3, 1]
    assert list(ordered) == ["b"]
    with pytest.raises(KeyError):
        ordered["a"]


def test_many_columns_take_no_time():
    """Three thousand columns took more than a minute when each was taken out of the pandas table."""
    table = pd.DataFrame({f"c{i}": [i] for i in range(3000)})
    start = time.perf_counter()
    assert MemoryTable(table)["c2999"].tolist() == [2999]
    assert time.perf_counter() - start < 5
