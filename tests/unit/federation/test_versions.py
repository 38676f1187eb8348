"""Two versions that do not fit are told which side has to be upgraded."""

import pytest

from lightning_vfl.federation.versions import upgrade, versions

OWN = versions()


@pytest.mark.parametrize(
    ("theirs", "side"),
    [
        ({"package": "99.0.0"}, "the server"),
        ({"package": "0.10.0", "frames": 9}, "the server"),  # 10 comes after 9
        ({"package": "0.0.9"}, "party bank"),
        ({"frames": OWN["frames"] + 1}, "the server"),
        ({"frames": OWN["frames"] - 1}, "party bank"),
        ({"package": None}, "party bank"),
        ({"package": "no version"}, "party bank"),
        ({"frames": "1"}, "party bank"),
    ],
)
def test_the_older_side_is_named(theirs, side):
    line = upgrade({**OWN, **theirs}, "party bank", "the server")
    assert line.endswith(f"; upgrade {side}")


def test_equal_versions_need_no_upgrade():
    assert upgrade({**OWN, "torch": "another"}, "party bank", "the server") is None
