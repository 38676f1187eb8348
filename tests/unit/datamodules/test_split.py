"""Law: the splits are disjoint, together they are all records, and their sizes are the shares, rounded up."""

from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.datamodules.split import check_shares, split_rows
from lightning_vfl.errors import ConfigurationError

percent = st.integers(0, 60)


@given(st.integers(50, 5000), percent, percent, st.integers(0, 3))
def test_sizes_are_those_of_exact_arithmetic(records, val, test, seed):
    """The shares as decimal numbers, however their floats are off."""
    if val + test >= 95:
        val //= 4
    rows = split_rows(np.arange(records), seed, val / 100, test / 100)
    tests = ceil(Fraction(test, 100) * records)
    vals = ceil(Fraction(val, 100 - test) * (records - tests))
    assert [len(rows[name]) for name in ("train", "val", "test")] == [records - tests - vals, vals, tests]
    parts = np.concatenate([rows[name] for name in ("train", "val", "test")])
    assert sorted(parts) == list(range(records))
    assert all((np.diff(part) > 0).all() for part in rows.values())
    assert np.array_equal(rows["predict"], rows["test"])


def test_noise_in_a_share_takes_no_record_more():
    assert 0.1 / (1 - 0.4) * 1200 > 200  # the noise
    rows = split_rows(np.arange(2000), 0, 0.1, 0.4, np.arange(2000) % 10)
    assert [len(rows[name]) for name in ("train", "val", "test")] == [1000, 200, 800]
    for name, each in (("train", 100), ("val", 20), ("test", 80)):
        assert np.bincount(rows[name] % 10).tolist() == [each] * 10


def test_the_smallest_share_is_one_record():
    assert [len(part) for part in split_rows(np.arange(10), 0, 1e-9, 0.0).values()] == [9, 1, 0, 0]


@pytest.mark.parametrize(("records", "val", "test", "what"), [(1, 0.0, 0.5, "test"), (3, 0.4, 0.5, "validation")])
def test_too_few_records(records, val, test, what):
    with pytest.raises(
        ConfigurationError, match=rf"1 records give no {what} split of \d+% \(.*\); use more records, an"
    ):
        split_rows(np.arange(records), 0, val, test)


def test_too_few_of_a_class():
    with pytest.raises(ConfigurationError, match=r"20 records give no test split of 20% \(.*\); use more records"):
        split_rows(np.arange(20), 0, 0.1, 0.2, np.arange(20) == 0)


@pytest.mark.parametrize(("val", "test"), [(0, 0), (0.1, 0.2), (0, 0.99), (0.99, None), (0, None)])
def test_shares_that_leave_something(val, test):
    check_shares(val, test)


@pytest.mark.parametrize(("val", "test"), [(0.5, 0.5), (-0.1, 0.2), (0.2, -0.1), (1, 0), (float("nan"), 0.1)])
def test_shares_that_leave_nothing(val, test):
    with pytest.raises(ConfigurationError) as error:
        check_shares(val, test)
    assert str(error.value) == (
        f"val_share {val} and test_share {test} leave no records for training; use shares from 0 that add up to less "
        "than 1"
    )


@pytest.mark.parametrize("val", [1, -0.1])
def test_a_share_that_leaves_nothing(val):
    with pytest.raises(ConfigurationError) as error:
        check_shares(val)
    assert str(error.value) == f"val_share {val} leaves no records for training; use a share from 0 to less than 1"
