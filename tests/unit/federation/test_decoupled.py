"""Decoupled training between processes: nobody is sent a gradient, and the bits are those of the simulation."""

import torch

from lightning_vfl import DecoupledVFL
from lightning_vfl.federation.decoupled_at_party import DecoupledAtParty
from lightning_vfl.federation.decoupled_at_server import DecoupledAtServer
from tests.subjects import Blobs, same, trainer
from tests.unit.federation.test_halves import PARTIES, InMemory

EPOCHS = 5


def model():
    torch.manual_seed(0)
    return DecoupledVFL(width=4, hosts=2, host_width=3, guest_epochs=2, replay_epochs=1, communicate_every=2, seed=0)


def test_weights_bytes_metrics_and_predictions_are_those_of_the_simulation(tmp_path):
    one = model()
    one.build_for(Blobs(batch_size=10))
    one.bottoms.groups = ()  # every guest learns alone, as in its process
    alone = trainer(tmp_path / "one", max_epochs=EPOCHS)
    alone.fit(one, datamodule=Blobs(batch_size=10))
    many = InMemory(tmp_path, model, active=None, places=(DecoupledAtServer, DecoupledAtParty))
    answers = kept(many)
    for own in many.trainers.values():
        own.fit_loop.max_epochs = EPOCHS
    assert many.run("fit") == dict.fromkeys((None, *range(PARTIES)))
    assert same(many.weights(), dict(one.state_dict()))
    for process in many.models.values():
        assert same(process.books.meter.state_dict(), one.books.meter.state_dict())
        assert same(process.counts.host_meter.state_dict(), one.counts.host_meter.state_dict())
    for party in range(PARTIES):
        own = (f"bottoms.parties.{party}.", f"guest_partners.parties.{party}.")
        assert all(name.startswith(own) for name in many.models[party].state_dict())
    assert answers
    assert not any(answer.tensors for answer in answers)  # no gradient, and nothing of another guest
    tested = alone.test(one, datamodule=Blobs(batch_size=10))
    assert set(many.run("test")[None][0].items()) == set(tested[0].items())
    expected = alone.predict(one, datamodule=Blobs(batch_size=10))
    assert same([p.values for p in many.run("predict")[None]], [p.values for p in expected])


def kept(many):
    """All answers that the guests will get."""
    answers = []

    def listening(desk):
        exchange = desk.exchange

        def kept_too(frame, read):
            answers.append(exchange(frame, read))
            return answers[-1]

        desk.exchange = kept_too

    for desk in many.desks.values():
        listening(desk)
    return answers
