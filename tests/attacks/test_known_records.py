"""Under FedVS, 66 known records of a batch give the other 190, as docs/protection.md says."""

import pytest

from tests.attacks.known_records import explained


def test_an_aggregate_as_wide_as_the_features_gives_them_away() -> None:
    assert explained(64, 66) == pytest.approx(0.9993, abs=2e-4)


def test_a_narrow_aggregate_gives_less() -> None:
    assert explained(16, 66) < 0.8
