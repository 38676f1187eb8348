"""Against numpy's own Philox."""

import numpy as np
import pytest

from lightning_vfl.fast_streams import FastStream
from lightning_vfl.streams import stream


@pytest.mark.parametrize("portions", [(0,), (1,), (3, 1, 4), (5, 6, 7, 0, 8), (4096,), (2, 4095, 4096, 1)])
@pytest.mark.parametrize("names", [("order",), ("weights", "fit", 2**40, 3)])
def test_words_are_those_of_numpy(portions, names):
    fast, slow = FastStream(7, *names), stream(7, *names)
    for n in portions:
        found = fast.words(n)
        assert found.dtype == np.uint64
        assert (found == slow.random_raw(n)).all()


@pytest.mark.parametrize("n", [0, 1, 3, 4, 5, 1856, 1859])
def test_words_can_be_written_into_a_part_of_an_array(n):
    out = np.zeros(n + 2, np.uint64)
    FastStream(3, "weights", n).fill(out[1:-1])
    assert (out[1:-1] == stream(3, "weights", n).random_raw(n)).all()
    assert not out[[0, -1]].any()
