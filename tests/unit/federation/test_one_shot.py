"""One-shot training between processes: three messages of a record, and the bits of the simulation."""

import torch

from lightning_vfl import OneShotVFL
from lightning_vfl.aggregators import Concat
from lightning_vfl.federation.one_shot import OneShotAtParty, OneShotAtServer
from lightning_vfl.networks import MLP
from tests.subjects import Blobs, same, trainer
from tests.unit.federation.test_decoupled import kept
from tests.unit.federation.test_halves import PARTIES, InMemory

EPOCHS = 5


def model():
    torch.manual_seed(0)
    return OneShotVFL(Concat(), top=MLP, width=4, local_epochs=2, seed=0)


def test_weights_bytes_metrics_and_predictions_are_those_of_the_simulation(tmp_path):
    one = model()
    one.build_for(Blobs(batch_size=10))
    one.bottoms.groups = ()  # every party learns alone, as in its process
    alone = trainer(tmp_path / "one", max_epochs=EPOCHS)
    alone.fit(one, datamodule=Blobs(batch_size=10))
    many = InMemory(tmp_path, model, active=None, places=(OneShotAtServer, OneShotAtParty))
    answers = kept(many)
    for own in many.trainers.values():
        own.fit_loop.max_epochs = EPOCHS
    assert many.run("fit") == dict.fromkeys((None, *range(PARTIES)))
    assert same(many.weights(), dict(one.state_dict()))
    records = len(many.data[None].records("train"))
    for process in many.models.values():
        assert same(process.books.meter.state_dict(), one.books.meter.state_dict())
    for party in range(PARTIES):
        own = (f"bottoms.parties.{party}.", f"heads.{party}.")
        assert all(name.startswith(own) for name in many.models[party].state_dict())
        told = [tensor for answer in answers[party] for tensor in answer.tensors]
        assert sum(len(tensor) for tensor in told) == records  # one gradient of each record, and nothing else
        assert {tensor.shape[1] for tensor in told} == {4}
    assert many.run("test")[None] == alone.test(one, datamodule=Blobs(batch_size=10))
    expected = alone.predict(one, datamodule=Blobs(batch_size=10))
    assert same([p.values for p in many.run("predict")[None]], [p.values for p in expected])
