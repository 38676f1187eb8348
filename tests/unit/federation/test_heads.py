"""A head at every party, between processes: the bits are those of the simulation, and the server reads no embedding."""

from types import SimpleNamespace

import pytest
import torch

from lightning_vfl import EnsembleVFL, LaserVFL
from lightning_vfl.aggregators import Concat, Max
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.heads import HeadsAtParty, HeadsAtServer
from lightning_vfl.federation.hub import At
from lightning_vfl.networks import MLP
from lightning_vfl.types import Roster
from tests.further import few
from tests.subjects import Blobs, same, trainer
from tests.unit.federation.test_halves import PARTIES, InMemory, points

CASES = {  # processes of this test share torch's generator, so that nothing draws: see test_federated
    "ensemble": (EnsembleVFL, {}),
    "laser": (LaserVFL, {}),
    "laser with the maximum": (LaserVFL, {"aggregator": Max(), "top": MLP}),
}


@pytest.mark.parametrize("case", few(CASES, "ensemble", "laser with the maximum"))
def test_weights_losses_metrics_and_predictions_are_those_of_the_simulation(tmp_path, case):
    kind, settings = CASES[case]

    def model():
        torch.manual_seed(0)
        return kind(width=4, seed=0, **settings)

    one = model()
    one.build_for(Blobs(batch_size=10))
    one.bottoms.groups = ()  # every party learns alone, as in its process
    record, alone = simulated(tmp_path / "one")
    alone.fit(one, datamodule=Blobs(batch_size=10))
    many = InMemory(tmp_path, model, active=None, places=(HeadsAtServer, HeadsAtParty))
    told = asked(many)
    assert many.run("fit") == dict.fromkeys((None, *range(PARTIES)))
    assert same(many.weights(), dict(one.state_dict()))
    assert many.models[None].state_dict() == {}
    for name in ("train/loss_epoch", "val/loss", "val/accuracy"):
        assert points(many.points[None], name) == points(record, name)
    for party in range(PARTIES):
        own = (f"bottoms.parties.{party}.", f"top.{party}.")
        assert all(name.startswith(own) for name in many.models[party].state_dict())
    for process in many.models.values():
        assert same(process.books.meter.state_dict(), one.books.meter.state_dict())
        assert process.books.mini_batches == one.books.mini_batches
    uploads = [frame for frame in told if frame.header["say"] == "tell"]
    assert uploads
    readable = {
        frame.header["message"]["kind"] for frame in uploads if len(frame.tensors) and "sealed" not in frame.header
    }
    assert readable <= {"outputs", "embeddings"}
    for frame in uploads:
        if frame.header["message"]["kind"] == "embeddings" and "sealed" not in frame.header:
            assert [tensor.numel() for tensor in frame.tensors] == [0]
    tested = alone.test(one, datamodule=Blobs(batch_size=10))
    assert set(many.run("test")[None][0].items()) == set(tested[0].items())
    expected = alone.predict(one, datamodule=Blobs(batch_size=10))
    assert same([p.values for p in many.run("predict")[None]], [p.values for p in expected])


def simulated(folder):
    """What the training of one process logs, and its trainer."""
    from lightning_vfl.callbacks import ExperimentRecord

    record = ExperimentRecord()
    return record, trainer(folder, callbacks=[record])


def asked(many):
    """All requests of the parties, as the server reads them."""
    read, kept = many.hub.read, []

    def reading(party, pieces):
        request = read(party, pieces)
        kept.append(request.frame)
        return request

    many.hub.read = reading
    return kept


def test_embeddings_of_several_widths_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="embeddings of one width between processes"):
        InMemory(
            tmp_path,
            lambda: LaserVFL(Concat(widths=[2, 3, 4]), width=4, seed=0),
            active=None,
            places=(HeadsAtServer, HeadsAtParty),
        )


def test_who_hears_nobody_has_zeros_of_its_own_type(monkeypatch):
    """A party that repeats a request after the others have ended the batch is told their output alone."""
    party = HeadsAtParty(None, 0, None, injected=False)
    monkeypatch.setattr(party, "message", lambda *_: None)
    monkeypatch.setattr(party, "tell_peers", lambda *_: ([], None))
    module = SimpleNamespace(roster=Roster.singles(3), embedding_widths=(2, 2, 2))
    h, roll = party._hear(module, torch.ones(4, 2, dtype=torch.bfloat16), SimpleNamespace(names=None), At(0, 3, 0))
    assert [(x.dtype, x.shape, float(x.abs().max())) for x in h] == 3 * [(torch.bfloat16, (4, 2), 0.0)]
    assert len({x.data_ptr() for x in h}) == 3
    assert not roll.included.any()
