"""The table of latest embeddings against a dictionary."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.record_table import RecordTable, table_bytes

WIDTHS = (2, 1, 3)
writes = st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True)))


@given(writes)
def test_what_is_read_is_what_was_written_last(steps):
    table, known = RecordTable(6, WIDTHS), {}
    for number, (party, ids) in enumerate(steps):
        h = torch.arange(len(ids) * WIDTHS[party]).view(len(ids), -1).float() + 100 * number
        table.write(torch.tensor(ids), party, h)
        known.update({(party, i): row for i, row in zip(ids, h.tolist(), strict=True)})
    asked = torch.tensor([5, 0, 3, 0])
    for party, h in enumerate(table.read(asked)):
        assert h.tolist() == [known.get((party, int(i)), [0.0] * WIDTHS[party]) for i in asked]


def test_writing_everybody_at_once_is_writing_each():
    h = tuple(torch.randn(3, w) for w in WIDTHS)
    ids = torch.tensor([4, 0, 2])
    one, other = RecordTable(6, WIDTHS), RecordTable(6, WIDTHS)
    one.write_all(ids, h)
    for party, rows in enumerate(h):
        other.write(ids, party, rows.requires_grad_())
    assert torch.equal(one.rows, other.rows)


def test_half_precision_halves_the_memory_and_rounds():
    table = RecordTable(10, (4,), "float16")
    table.write(torch.tensor([3]), 0, torch.full((1, 4), 1 / 3))
    (h,) = table.read(torch.tensor([3]))
    assert h.dtype == torch.float32
    assert h[0].tolist() == pytest.approx([1 / 3] * 4, rel=2**-11)
    assert table.rows.nbytes == table_bytes(10, (4,), "float16") == 80
    assert table_bytes(10, (4,)) == 160


def test_a_table_above_the_limit_is_refused_with_its_size():
    with pytest.raises(ConfigurationError, match="take 430 MB, more than limit_bytes = 100000000; raise limit_bytes"):
        RecordTable(60_000, (64,) * 28, limit_bytes=1e8)
    with pytest.raises(ConfigurationError, match="must be 'float32' or 'float16'"):
        RecordTable(1, (1,), "float64")


def test_state_goes_into_a_table_of_the_same_size_only():
    table = RecordTable(4, (2,))
    table.write(torch.tensor([1]), 0, torch.ones(1, 2))
    other = RecordTable(4, (2,))
    other.load_state(table.state())
    assert torch.equal(other.rows, table.rows)
    assert not other.state_dict()
    with pytest.raises(ConfigurationError, match="resume with the same data and width"):
        RecordTable(5, (2,)).load_state(table.state())
