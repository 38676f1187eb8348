"""Rounds between processes, with subsets of the parties and with hidden uploads: the bits of the simulation."""

import pytest
import torch

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Concat, MaskedSum, Mean
from lightning_vfl.protocols import DropParties, TaskSampling
from tests.subjects import Blobs, same, trainer
from tests.unit.federation.test_halves import PARTIES, InMemory

CASES = {
    "drop parties": (Mean(), DropParties(0.4)),
    "one subset of each size": (Concat(), TaskSampling()),
    "all subsets": (Mean(), TaskSampling("records", "all")),
    "masked, without subsets": (MaskedSum(rekey_every=3), None),
}
SLOW = ("one subset of each size",)


@pytest.mark.parametrize("case", [pytest.param(c, marks=pytest.mark.slow) if c in SLOW else c for c in CASES])
def test_weights_and_bytes_are_those_of_the_simulation(case, tmp_path):
    aggregator, subsets = CASES[case]

    def model():
        torch.manual_seed(0)
        return SplitVFL(aggregator, width=4, subsets=subsets, seed=0)

    one = model()
    trainer(tmp_path / "one").fit(one, datamodule=Blobs(batch_size=10))
    many = InMemory(tmp_path, model, active=None)
    assert many.run("fit") == dict.fromkeys((None, *range(PARTIES)))
    assert same(many.weights(), dict(one.state_dict()))
    for process in many.models.values():
        assert same(process.books.meter.state_dict(), one.books.meter.state_dict())
