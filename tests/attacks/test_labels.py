"""A passive party reads labels off its gradients, as docs/protection.md says."""

import pytest

from tests.attacks.labels import SETTINGS, majority, stolen
from tests.further import further


@pytest.mark.parametrize("name", [further(n) if n == "PBM, 2 levels" else n for n in SETTINGS])
def test_a_passive_party_reads_labels_off_its_gradients(name: str) -> None:
    aggregator, bottom, width = SETTINGS[name]
    assert stolen(aggregator(), bottom, width) > 0.97 > 0.7 > majority()
