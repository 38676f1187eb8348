"""Batches of whole coded rows, against the table of blocks in plain Python."""

from math import ceil

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.aggregators.coded.blocks import PADDING, Blocks
from lightning_vfl.datamodules import VerticalRecords
from lightning_vfl.datamodules.loader import ScheduledLoader
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.schedules.batches import Aligned

cases = st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n), st.integers(1, 9)))
epochs = st.integers(0, 4)


def schedule(records, batch_size, count, seed=3, drop_last=False):
    return Aligned(Blocks.shuffled(records, count, seed, "fit"), batch_size, seed, drop_last)


def plan(aligned, epoch):
    return [ids.tolist() for ids, _ in aligned.epoch(epoch)]


def coded_rows(records, count, seed=3):
    table = Blocks.shuffled(records, count, seed, "fit").at(0, -(-records // count)).tolist()
    return [frozenset(i for i in row if i != PADDING) for row in table]


@given(cases, epochs)
def test_every_record_once_an_epoch(case, epoch):
    aligned = schedule(*case)
    assert sorted(i for ids in plan(aligned, epoch) for i in ids) == list(range(case[0]))


@given(cases, epochs, st.booleans())
def test_the_records_of_a_coded_row_are_always_in_one_batch(case, epoch, drop_last):
    records, _, count = case
    for ids in plan(schedule(*case, drop_last=drop_last), epoch):
        assert all(row <= set(ids) or not row & set(ids) for row in coded_rows(records, count))


@given(cases, epochs)
def test_a_batch_has_the_coded_rows_that_its_size_asks_for(case, epoch):
    """⌈batch_size / K⌉ coded rows: K - 1 records too many at most, the padded row and the last batch aside."""
    records, batch_size, count = case
    wanted = ceil(batch_size / count)
    aligned = schedule(*case)
    batches = plan(aligned, epoch)
    assert len(batches) == aligned.steps == ceil(ceil(records / count) / wanted)
    for number, ids in enumerate(batches):
        rows = [row for row in coded_rows(records, count) if row <= set(ids)]
        assert len(rows) == wanted or (number == len(batches) - 1 and 0 < len(rows) < wanted)
        assert len(ids) == sum(map(len, rows)) < batch_size + count


@given(cases, epochs)
def test_drop_last_leaves_out_the_smaller_batch_alone(case, epoch):
    records, batch_size, count = case
    wanted = ceil(batch_size / count)
    whole, dropped = plan(schedule(*case), epoch), schedule(*case, drop_last=True)
    kept = [ids for ids in whole if len([row for row in coded_rows(records, count) if row <= set(ids)]) == wanted]
    assert plan(dropped, epoch) == kept
    assert dropped.steps == len(kept) >= 1


@given(cases, st.booleans())
def test_a_pass_has_every_coded_row_once(case, drop_last):
    records, batch_size, count = case
    aligned = schedule(*case, drop_last=drop_last)
    rows, at_once = ceil(records / count), ceil(batch_size / count)
    assert aligned.pass_batches == (rows / at_once if drop_last else ceil(rows / at_once))


def test_an_epoch_depends_on_its_number_and_the_seed_alone():
    one, other = schedule(50, 6, 3), schedule(50, 6, 3)
    one.epoch(0), one.epoch(1)
    assert plan(one, 4) == plan(other, 4) != plan(one, 5)
    blocks = Blocks.shuffled(50, 3, 3, "fit")
    assert plan(Aligned(blocks, 6, seed=1), 4) != plan(Aligned(blocks, 6, seed=2), 4)


def test_which_records_are_together_is_the_same_in_every_epoch():
    first, second = (
        {frozenset(ids[i : i + 3]) for ids in plan(schedule(48, 6, 3), epoch) for i in (0, 3)} for epoch in (0, 1)
    )
    assert first == second == set(coded_rows(48, 3))


def test_blocks_in_order_may_be_aligned_too():
    batches = plan(Aligned(Blocks(7, 3), 3, seed=0), 0)
    assert sorted(batches) == [[0, 1, 2], [3, 4, 5], [6]]


def test_a_batch_larger_than_the_data_names_the_fix():
    assert schedule(10, 10, 4).steps == 1
    with pytest.raises(ConfigurationError, match="batch_size must be a whole number from 1 to 10; got 11"):
        schedule(10, 11, 4)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_together_see_the_joint_batch_whatever_their_number(world):
    """A joint batch of 12 records, in one process or shared by several: the same records in the same order."""
    data = VerticalRecords(torch.zeros(50, 2), ((2,),), torch.arange(50), np.arange(50))
    ranks = [list(ScheduledLoader(data, schedule(50, 12, 5), rank, world)) for rank in range(world)]
    together = [[i for batch in step for i in batch.record_ids.tolist()] for step in zip(*ranks, strict=True)]
    assert together == plan(schedule(50, 12, 5), 0)
    for batches in ranks:
        for batch, joint in zip(batches, together, strict=True):
            assert batch.joint is None if world == 1 else batch.joint.ids.tolist() == joint
