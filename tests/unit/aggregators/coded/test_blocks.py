import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.aggregators.coded.blocks import PADDING, Blocks

sizes = st.tuples(st.integers(1, 60), st.integers(1, 12))


def both(records, count):
    """In order, and shuffled."""
    return Blocks(records, count), Blocks.shuffled(records, count, 3, "fit")


def cells(blocks):
    return blocks.at(0, blocks.rows).tolist()


@given(sizes)
def test_every_record_has_exactly_one_place(size):
    for blocks in both(*size):
        places = torch.stack(blocks.place(torch.arange(size[0]))).T.tolist()
        table = cells(blocks)
        assert len({tuple(place) for place in places}) == size[0]
        assert [table[row][block] for row, block in places] == list(range(size[0]))
        assert sorted(i for row in table for i in row if i != PADDING) == list(range(size[0]))


@given(sizes)
def test_all_padding_is_at_the_end_of_the_last_coded_row(size):
    records, count = size
    for blocks in both(*size):
        table = cells(blocks)
        assert len(table) == blocks.rows
        assert (blocks.rows - 1) * count < records <= blocks.rows * count
        assert all(len(row) == count for row in table)
        assert [i == PADDING for row in table for i in row] == [
            position >= records for position in range(blocks.rows * count)
        ]


@given(sizes, st.integers(0, 60), st.integers(0, 60))
def test_a_part_of_the_table_is_that_part(size, start, length):
    for blocks in both(*size):
        assert blocks.at(start, start + length).tolist() == cells(blocks)[start : start + length]


@given(sizes, st.data())
def test_coded_rows_are_the_distinct_rows_of_the_records(size, data):
    """In Python's sets; records may be asked for in any order, and twice."""
    ids = data.draw(st.lists(st.integers(0, size[0] - 1), max_size=20))
    for blocks in both(*size):
        row_of = {i: r for r, row in enumerate(cells(blocks)) for i in row if i != PADDING}
        rows, within = blocks.coded_rows(torch.tensor(ids, dtype=torch.int64))
        assert rows.tolist() == sorted({row_of[i] for i in ids})
        assert [rows.tolist()[w] for w in within.tolist()] == [row_of[i] for i in ids]
        assert rows.dtype == within.dtype == torch.int64


def test_the_order_depends_on_names_alone():
    def table(*names):
        Blocks.shuffled.cache_clear()  # what was asked for before must not matter
        return cells(Blocks.shuffled(*names))

    one = table(40, 3, 1, "fit")
    table(40, 3, 2, "fit")
    assert table(40, 3, 1, "fit") == one
    others = [(40, 3, 2, "fit"), (40, 3, 1, "test"), (40, 3, 1, "fit", 0)]
    assert all(table(*names) != one for names in others)
    assert len({str(table(*names)) for names in others}) == len(others)


def test_the_order_of_records_does_not_depend_on_the_number_of_blocks():
    flat = [[i for row in cells(Blocks.shuffled(40, count, 1, "fit")) for i in row][:40] for count in (1, 3, 7, 50)]
    assert all(order == flat[0] for order in flat)
    assert flat[0] != list(range(40))


def test_records_in_order_stand_in_succession():
    blocks = Blocks(7, 3)
    assert cells(blocks) == [[0, 1, 2], [3, 4, 5], [6, PADDING, PADDING]]
    assert [x.tolist() for x in blocks.place(torch.tensor([6, 0, 5]))] == [[2, 0, 1], [0, 0, 2]]


def test_the_order_that_is_given_is_kept():
    blocks = Blocks(5, 2, np.array([4, 2, 0, 1, 3]))
    assert cells(blocks) == [[4, 2], [0, 1], [3, PADDING]]
    assert [x.tolist() for x in blocks.place(torch.arange(5))] == [[1, 1, 0, 2, 0], [0, 1, 1, 0, 0]]


@pytest.mark.parametrize("records", [1, 4])
def test_more_blocks_than_records_make_one_coded_row(records):
    for blocks in both(records, 9):
        assert blocks.rows == 1
        assert blocks.coded_rows(torch.arange(records))[0].tolist() == [0]
