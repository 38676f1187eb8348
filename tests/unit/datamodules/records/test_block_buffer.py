"""Law: a buffer of blocks gathers what the whole table has, at any positions, and reads few blocks in a good order."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.datamodules.records.block_buffer import BlockBuffer

TABLE = torch.arange(300.0).reshape(100, 3)


class Blocks:
    """Reads blocks of ``TABLE``, and counts."""

    def __init__(self, sizes, broken=None):
        self.ends = np.cumsum(sizes)
        self.read, self.broken = [], broken

    def __call__(self, block, into):
        self.read.append(block)
        if block == self.broken:
            self.broken = None
            raise OSError("the disk is gone")
        start = 0 if block == 0 else int(self.ends[block - 1])
        into.copy_(TABLE[start : int(self.ends[block])])


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9).filter(any), st.integers(1, 5), st.data())
def test_any_positions_in_any_order(sizes, slots, data):
    buffer = BlockBuffer(np.array(sizes), slots, (3,), torch.float32, Blocks(sizes))
    for _ in range(4):
        wanted = np.array(data.draw(st.lists(st.integers(0, sum(sizes) - 1), max_size=12)), dtype=np.int64)
        assert torch.equal(buffer.gather(wanted), TABLE[torch.from_numpy(wanted)])


def test_a_pass_window_by_window_reads_each_block_once():
    sizes = [10] * 10
    blocks = Blocks(sizes)
    buffer = BlockBuffer(np.array(sizes), 2, (3,), torch.float32, blocks)
    order = np.concatenate([np.random.default_rng(0).permutation(20) + 20 * i for i in range(5)])
    for part in np.split(order, range(7, 100, 7)):  # batches across the ends of windows
        assert torch.equal(buffer.gather(part), TABLE[torch.from_numpy(part)])
    assert sorted(blocks.read) == list(range(10))


def test_a_copy_reads_for_itself():
    buffer = BlockBuffer(np.array([50, 50]), 1, (3,), torch.float32, Blocks([50, 50]))
    buffer.gather(np.array([3]))
    assert torch.equal(pickle.loads(pickle.dumps(buffer)).gather(np.array([60, 3])), TABLE[[60, 3]])


def test_a_block_that_could_not_be_read_is_not_in_memory():
    buffer = BlockBuffer(np.array([50, 50]), 1, (3,), torch.float32, Blocks([50, 50], broken=1))
    buffer.gather(np.array([0]))
    with pytest.raises(OSError, match="the disk is gone"):
        buffer.gather(np.array([70]))
    assert torch.equal(buffer.gather(np.array([70, 0])), TABLE[[70, 0]])
