"""A passive party reads labels off its gradients, as docs/protection.md says, and the server those of a cut."""

import pytest

from lightning_vfl.aggregators import MaskedSum
from tests.attacks.labels import PLAIN, SETTINGS, majority, stolen
from tests.further import further


@pytest.mark.parametrize("name", [further(n) if n == "PBM, 2 levels" else n for n in SETTINGS])
def test_a_passive_party_reads_labels_off_its_gradients(name: str) -> None:
    aggregator, bottom, width = SETTINGS[name]
    assert stolen(aggregator(), bottom, width) > 0.97 > 0.7 > majority()


def test_the_server_reads_labels_off_the_gradients_of_a_cut() -> None:
    assert stolen(MaskedSum(), PLAIN, 64, cut=True) > 0.97 > 0.7 > majority()
