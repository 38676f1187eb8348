"""Small versions of the attacks through files and messages."""

import pytest

from tests.attacks.formats import checkpoint, grown_idx, grown_npz, grown_png, messages


def test_no_code_of_a_checkpoint_runs():
    ways = ("in init_args",)  # test_trusted_classes.py has the others
    assert checkpoint(False, ways) == (1, 1)
    assert checkpoint(True, ways) == (0, 1)


@pytest.mark.parametrize(
    ("grown", "size", "least"),
    [
        (grown_idx, 2**25, 30),
        pytest.param(grown_npz, 2**26, 30, marks=pytest.mark.slow),
        pytest.param(grown_png, 8000, 200, marks=pytest.mark.slow),
    ],
)
def test_files_do_not_grow(grown, size, least):
    held, before, now = grown(size)
    assert held < 1
    assert before > least
    assert now < before / 3


@pytest.mark.slow
def test_spoilt_messages_are_refused_or_change_nothing():
    names = ("LagrangeCoded",)
    before, now = messages(False, names), messages(True, names)
    assert before["wrong"] > 20
    assert now["wrong"] == now["not named"] == 0
    assert before.total() == now.total()
