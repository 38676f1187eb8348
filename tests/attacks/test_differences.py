"""What sums with and without a party tell, where a training accepts them, and that it is refused otherwise."""

import pytest

from lightning_vfl.errors import ConfigurationError
from tests.attacks import differences


@pytest.mark.slow
def test_an_honest_server_reads_embeddings_from_dropped_rounds():
    read, module = differences.dropped_rounds(**differences.ALLOWED)
    assert read.r2 > 0.7
    assert read.share > 0.9
    assert "party 3's embeddings of 398 records can be computed from sums with and without them" in module.protection(1)


@pytest.mark.slow
def test_a_lying_server_reads_all_embeddings_exactly():
    read, _ = differences.zero_gradients(**differences.ALLOWED)
    assert read.r2 > 0.999999
    assert read.share == 1.0


@pytest.mark.parametrize("attack", [differences.dropped_rounds, differences.zero_gradients])
def test_both_are_refused_before_training(attack):
    with pytest.raises(ConfigurationError, match="or accept it with allow_embeddings_by_subtraction: true"):
        attack()
