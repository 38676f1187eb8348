"""What a lying server and small coalitions read, with and without what this version has added."""

import pytest

from lightning_vfl.errors import ConfigurationError
from tests.attacks import keys


@pytest.mark.parametrize(
    "attack", [keys.one_survivor, keys.another_roster, keys.many_stories, keys.replaced_round_keys]
)
def test_what_needed_no_colluder_is_refused(attack):
    assert attack(False) == 1.0
    with pytest.raises((RuntimeError, ValueError, ConfigurationError)):
        attack(True)


def test_two_stories_need_more_colluders_than_auto_had():
    assert keys.two_stories(False, 1, {"threshold": 3}) == 1.0
    with pytest.raises(RuntimeError, match="reveals nothing"):
        keys.two_stories(True, 1)
    assert keys.two_stories(True, 1, {"threshold": 3}) == 1.0  # tolerates none, as its summary says


def test_replaced_public_keys_are_noticed_with_identities_alone():
    assert keys.replaced_public_keys(None) == 1.0
    with keys.identity_folder(4) as folder, pytest.raises(ValueError, match="public key of party 1 is refused"):
        keys.replaced_public_keys(folder)


@pytest.mark.parametrize(("colluder", "fallen"), [(0, {(1, 0), (2, 1), (3, 2)}), (1, {(0, 0)}), (3, {(0, 2)})])
def test_one_colluder_in_segments(colluder, fallen):
    """C_0 with the server has everybody's embedding; a passive party has C_0's columns of its segment."""
    errors, _ = keys.segments_error({colluder})
    assert {slot for slot, error in errors.items() if error <= 1e-6} == fallen


def test_the_rows_are_told():
    rows = keys.rows()
    assert [row.before.startswith("100") for row in rows] == [True] * 7 + [False]
    assert [row.now.startswith("refused") for row in rows] == [True] * 4 + [False, True, True, False]
