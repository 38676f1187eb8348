"""The sentences about labels in docs/protection.md: a passive party reads them off its gradients."""

import pytest

from tests.attacks.labels import SETTINGS, majority, stolen


@pytest.mark.parametrize("name", SETTINGS)
def test_a_passive_party_reads_labels_off_its_gradients(name: str) -> None:
    aggregator, bottom, width = SETTINGS[name]
    assert stolen(aggregator(), bottom, width) > 0.97 > 0.7 > majority()
