"""Small versions of the attacks through files and messages."""

import pytest

from tests.attacks.formats import checkpoint, grown_idx, grown_npz, grown_png, messages


def test_no_code_of_a_checkpoint_runs():
    ways = ("aggregator", "a factory", "a structure as text", "in init_args")
    assert checkpoint(False, ways) == (4, 4)
    assert checkpoint(True, ways) == (0, 4)


@pytest.mark.parametrize(
    ("grown", "size", "least"), [(grown_idx, 2**26, 60), (grown_npz, 2**26, 30), (grown_png, 8000, 200)]
)
def test_files_do_not_grow(grown, size, least):
    held, before, now = grown(size)
    assert held < 1
    assert before > least
    assert now < before / 3


def test_spoilt_messages_are_refused_or_change_nothing():
    names = ("Mean", "LagrangeCoded", "MaskedSum")
    before, now = messages(False, names), messages(True, names)
    assert before["wrong"] > 20
    assert now["wrong"] == now["not named"] == 0
    assert before.total() == now.total()
