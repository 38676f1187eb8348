"""A federation of processes, over TLS, has the weights, the optimiser states and the books of the simulation."""

import pytest

from tests.integration.injected import DIGITS, federated, simulated


@pytest.mark.processes
def test_a_federation_is_the_simulation_to_the_last_bit(tmp_path):
    recipe = (*DIGITS, "--config", "protocol/concat", "--data.partitioner.parties", "2")
    recipe += ("--trainer.max_epochs", "1", "--trainer.limit_train_batches", "5", "--trainer.limit_val_batches", "2")
    one, two = simulated(tmp_path, *recipe), federated(tmp_path, *recipe, parties=2)
    assert len(one.weights) == len(one.moments) == 12
    assert one.differences(two) == []
    assert one.metrics["val/loss"]
    assert two.books["meter"]["up/embeddings"].tolist() == [5 * 32 * 64 * 4] * 2
