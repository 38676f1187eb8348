"""Laws of the order of records that are read in blocks."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.schedules.batches import Shuffled
from lightning_vfl.schedules.blocks import BlockShuffled, shuffled
from lightning_vfl.types import RecordBlocks

blocks = st.lists(st.integers(0, 12), min_size=1, max_size=9).filter(any)


def positions(schedule, epoch=0, played=0):
    return [ids.tolist() for ids, _ in schedule.rest(epoch, played)]


def windows(order, sizes, together):
    """The blocks of each window, read off an order of records: an oracle that knows nothing of how it was made."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    seen = list(dict.fromkeys(owner[order].tolist()))
    return [seen[i : i + together] for i in range(0, len(seen), together)]


@given(blocks, st.integers(1, 10), st.integers(1, 30), st.integers(0, 3), st.integers(0, 3), st.booleans())
def test_every_record_once_an_epoch(sizes, together, batch_size, seed, epoch, drop_last):
    records = sum(sizes)
    batch_size = min(batch_size, records)
    schedule = BlockShuffled(RecordBlocks(tuple(sizes), together), batch_size, seed, drop_last)
    plan = positions(schedule, epoch)
    order = list(chain.from_iterable(plan))
    whole = records - records % batch_size if drop_last else records
    assert len(order) == len(set(order)) == whole
    assert set(order) <= set(range(records))
    assert len(plan) == schedule.steps
    assert all(len(ids) == batch_size for ids in plan[:-1])
    assert schedule.whole_passes == (sorted(order) == list(range(records)))


@given(blocks, st.integers(1, 10), st.integers(1, 30), st.integers(0, 3))
def test_the_rest_of_an_epoch_begins_anywhere(sizes, together, batch_size, epoch):
    schedule = BlockShuffled(RecordBlocks(tuple(sizes), together), min(batch_size, sum(sizes)), seed=5)
    plan = positions(schedule, epoch)
    for played in range(schedule.steps + 1):
        assert positions(schedule, epoch, played) == plan[played:]


@given(st.lists(st.integers(1, 12), min_size=1, max_size=9), st.integers(1, 4), st.integers(0, 3))
def test_a_block_is_in_one_window_only(sizes, together, epoch):
    schedule = BlockShuffled(RecordBlocks(tuple(sizes), together), 1, seed=2)
    order = [i for (i,) in positions(schedule, epoch)]
    owner, end = np.repeat(np.arange(len(sizes)), sizes), 0
    while end < len(order):
        members, start = set(), end
        while end < len(order) and len(members | {owner[order[end]]}) <= together:
            members.add(owner[order[end]])
            end += 1
        assert sorted(order[start:end]) == sorted(np.flatnonzero(np.isin(owner, list(members))).tolist())


def test_windows_differ_between_epochs_and_seeds():
    sizes = [40] * 12

    def cut(seed, epoch):
        order = list(chain.from_iterable(positions(BlockShuffled(RecordBlocks(tuple(sizes), 3), 7, seed), epoch)))
        return order, [sorted(own) for own in windows(order, sizes, 3)]

    assert cut(0, 4) == cut(0, 4)
    assert cut(0, 4)[1] != cut(0, 5)[1]
    assert cut(0, 4)[1] != cut(1, 4)[1]
    order = np.array(cut(0, 0)[0][:120])
    assert (np.diff(np.repeat(np.arange(12), 40)[order]) != 0).mean() > 0.5  # records of a window are mixed


def test_a_single_window_visits_every_order():
    """3 records in 2 blocks: all 6 orders, each about as often."""
    schedule = BlockShuffled(RecordBlocks((2, 1), 2), 1, seed=0)
    orders = [tuple(chain.from_iterable(positions(schedule, epoch))) for epoch in range(600)]
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 6
    assert min(counts) > 60  # 100 expected, deviation 9


def test_a_resumed_run_needs_the_same_windows():
    state = BlockShuffled(RecordBlocks((5, 5), 2), 2, seed=0).state_dict()
    BlockShuffled(RecordBlocks((5, 5), 2), 2, seed=0).load_state_dict(state)
    with pytest.raises(ConfigurationError, match="2 of them shuffled together, this run has 2 and 1; resume with"):
        BlockShuffled(RecordBlocks((5, 5), 1), 2, seed=0).load_state_dict(state)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ConfigurationError, match="batch_size must be a whole number from 1 to 10"):
        BlockShuffled(RecordBlocks((5, 5), 2), 11, seed=0)


def test_the_order_is_chosen_by_how_records_are_read():
    class Records:
        blocks = None

        def __len__(self):
            return 10

    records = Records()
    assert isinstance(shuffled(records, 3, 0), Shuffled)
    records.blocks = RecordBlocks((5, 5), 1)
    assert isinstance(shuffled(records, 3, 0), BlockShuffled)


def test_a_batch_far_into_a_thousand_million_records_is_planned_at_once():
    schedule = BlockShuffled(RecordBlocks((65_536,) * 16_384, 2), 1024, seed=0)
    ids, _ = next(iter(schedule.rest(epoch=7, played=900_000)))
    assert len(np.unique(ids)) == 1024
    assert len(np.unique(ids // 65_536)) == 2
