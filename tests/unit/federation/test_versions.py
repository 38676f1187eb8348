"""Two versions that do not fit are told which side has to be upgraded."""

import pytest

from lightning_vfl.federation.versions import upgrade, versions

OWN = versions()


@pytest.mark.parametrize(
    ("theirs", "side"),
    [
        ({"package": "99.0.0"}, "the server"),
        ({"package": "1.10.0", "frames": 9}, "the server"),  # 10 comes after 9
        ({"package": "1.1.0"}, "the server"),
        ({"package": "0.9.9"}, "party bank"),
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


@pytest.mark.parametrize("other", [{"torch": "another"}, {"package": "1.0.9"}, {"package": "1.0"}])
def test_releases_of_one_minor_version_work_together(other):
    assert upgrade({**OWN, **other}, "party bank", "the server") is None
