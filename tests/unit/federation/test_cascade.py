"""Cascade training between processes: the bits of the simulation, and embeddings that the server cannot read."""

import pytest
import torch

from lightning_vfl import CascadeVFL
from lightning_vfl.aggregators import Concat
from lightning_vfl.federation.cascade import CascadeAtParty, CascadeAtServer
from lightning_vfl.networks import MLP
from tests.subjects import Blobs, same, trainer
from tests.unit.federation.test_decoupled import kept
from tests.unit.federation.test_halves import PARTIES, InMemory

EPOCHS = 3


@pytest.mark.parametrize("variant", ["async", "sync"])
def test_weights_bytes_metrics_and_predictions_are_those_of_the_simulation(tmp_path, variant):
    def model():
        torch.manual_seed(0)
        return CascadeVFL(Concat(), top=MLP, width=4, seed=0, variant=variant, slower={1: 0.5})

    one = model()
    one.build_for(Blobs(batch_size=10))
    one.bottoms.groups = ()  # every party learns alone, as in its process
    alone = trainer(tmp_path / "one", max_epochs=EPOCHS)
    alone.fit(one, datamodule=Blobs(batch_size=10))
    many = InMemory(tmp_path, model, active=None, places=(CascadeAtServer, CascadeAtParty))
    answers = kept(many)
    for own in many.trainers.values():
        own.fit_loop.max_epochs = EPOCHS
    assert many.run("fit") == dict.fromkeys((None, *range(PARTIES)))
    assert same(many.weights(), dict(one.state_dict()))
    events = one.books.rounds["fit"]
    for process in many.models.values():
        assert same(process.books.meter.state_dict(), one.books.meter.state_dict())
        assert process.clock.seconds == one.clock.seconds
        assert process.counts.staleness == one.counts.staleness
    for party in range(PARTIES):
        assert all(name.startswith(f"bottoms.parties.{party}.") for name in many.models[party].state_dict())
        relayed = [answer for answer in answers[party] if answer.header.get("relayed")]
        sealed = [tensor for answer in relayed for tensor in answer.tensors[: len(answer.header["relayed"])]]
        assert all(tensor.dtype == torch.uint8 for tensor in sealed)
        assert len(relayed) == events  # embeddings in the events of its own, a gradient in those of others
    assert many.run("test")[None] == alone.test(one, datamodule=Blobs(batch_size=10))
    expected = alone.predict(one, datamodule=Blobs(batch_size=10))
    assert same([p.values for p in many.run("predict")[None]], [p.values for p in expected])
