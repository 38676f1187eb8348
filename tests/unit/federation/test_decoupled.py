"""Decoupled training between processes: nobody is sent a gradient, and the bits are those of the simulation."""

import pytest
import torch

from lightning_vfl import DecoupledVFL
from lightning_vfl.federation.decoupled import DecoupledAtParty, DecoupledAtServer
from tests.subjects import Blobs, same, trainer
from tests.unit.federation.test_halves import PARTIES, InMemory

EPOCHS = 5
PHASES = {"guest_epochs": 2, "replay_epochs": 1, "communicate_every": 2}


@pytest.mark.parametrize("active", [None, pytest.param(1, marks=pytest.mark.slow)])
def test_weights_bytes_metrics_and_predictions_are_those_of_the_simulation(tmp_path, active):
    """With the labels at a party, this party is the owner: its top, its metrics, its predictions."""

    def model():
        torch.manual_seed(0)
        return DecoupledVFL(width=4, hosts=2, host_width=3, standardise=True, active=active, seed=0, **PHASES)

    one = model()
    one.build_for(Blobs(batch_size=10))
    one.bottoms.groups = ()  # every guest learns alone, as in its process
    alone = trainer(tmp_path / "one", max_epochs=EPOCHS)
    alone.fit(one, datamodule=Blobs(batch_size=10))
    many = InMemory(tmp_path, model, active=active, places=(DecoupledAtServer, DecoupledAtParty))
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
        owner = ("top.", "encoding_") if party == active else ()
        assert all(name.startswith((*own, *owner)) for name in many.models[party].state_dict())
    assert set(answers) == set(range(PARTIES))
    for party, own in answers.items():  # no gradient, and nothing of another guest
        assert any(answer.tensors for answer in own) == (party == active)
    tested = alone.test(one, datamodule=Blobs(batch_size=10))
    assert set(many.run("test")[active][0].items()) == set(tested[0].items())
    expected = alone.predict(one, datamodule=Blobs(batch_size=10))
    assert same([p.values for p in many.run("predict")[active]], [p.values for p in expected])


def kept(many):
    """By guest, all answers that it will get."""
    answers = {party: [] for party in many.desks}

    def listening(party, desk):
        exchange = desk.exchange

        def kept_too(frame, read):
            answers[party].append(exchange(frame, read))
            return answers[party][-1]

        desk.exchange = kept_too

    for party, desk in many.desks.items():
        listening(party, desk)
    return answers
