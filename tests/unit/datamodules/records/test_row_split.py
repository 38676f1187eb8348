"""Laws of the division of a long table's rows, against lists of all rows."""

import pickle
from math import ceil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.datamodules.records.row_split import RowSplit
from lightning_vfl.errors import ConfigurationError
from tests.examples import examples

LABELLED = ("train", "val", "test")


def every(split, name):
    return split.all_rows(name)


@given(st.integers(4, 20_000), st.integers(0, 3), st.sampled_from([(0.1, 0.2), (0.0, 0.0), (0.25, 0.0), (0.3, 0.5)]))
@examples(30)
def test_every_row_is_in_one_split(rows, seed, shares):
    split = RowSplit(rows, seed, *shares)
    parts = {name: every(split, name) for name in LABELLED}
    assert np.array_equal(np.sort(np.concatenate(list(parts.values()))), np.arange(rows))
    for name, own in parts.items():
        assert (np.diff(own) > 0).all(), name
    cells = max(1, rows // 4096)
    for name, share in zip(("val", "test"), shares, strict=True):
        assert share * rows - 1e-6 <= len(parts[name]) < share * rows + cells + 1e-6
    assert np.array_equal(every(split, "predict"), np.arange(rows))


@given(st.integers(4, 20_000))
@examples(30)
def test_counts_and_cells_are_those_of_the_list(rows):
    split = RowSplit(rows, 1, 0.1, 0.2)
    starts = np.r_[0, split.ends[:-1]]
    assert split.ends[-1] == rows
    for name in (*LABELLED, "predict"):
        own = every(split, name)
        assert split.count(name) == len(own)
        for cell, (start, end) in enumerate(zip(starts, split.ends, strict=True)):
            inside = own[(own >= start) & (own < end)]
            assert np.array_equal(start + split.in_cell(name, cell), inside)
            assert split.sizes(name)[cell] == len(inside)


def test_each_place_of_the_table_has_its_shares():
    tests = every(RowSplit(50_000, 0, 0.1, 0.2), "test")
    counts = np.bincount(tests // 4096, minlength=12)[:11]
    assert (counts == ceil(0.2 * 4096)).all()


def test_the_seed_names_the_draw_and_a_copy_draws_alike():
    split = RowSplit(9000, 0, 0.1, 0.2)
    assert np.array_equal(every(pickle.loads(pickle.dumps(split)), "val"), every(split, "val"))
    assert not np.array_equal(every(RowSplit(9000, 1, 0.1, 0.2), "val"), every(split, "val"))


def test_a_thousand_million_rows_are_divided_without_a_list():
    split = RowSplit(10**9, 0, 0.1, 0.2)
    assert sum(map(split.count, LABELLED)) == 10**9
    last = [split.in_cell(name, split.cells - 1) for name in LABELLED]
    assert sorted(np.concatenate(last)) == list(range(10**9 - split.ends[-2]))


def test_rows_for_training_must_be_left():
    with pytest.raises(ConfigurationError, match=r"2 records with val_share 0.1 and test_share 0.2 leave none"):
        RowSplit(2, 0, 0.1, 0.2)
