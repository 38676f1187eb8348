"""A top in halves computes what one top does; labels stay with the active party, and the cut is counted."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import SGD

from lightning_vfl import SplitVFL, VerticalBatch
from lightning_vfl.aggregators import Concat, MaskedSum, Mean
from lightning_vfl.downlinks import GaussianGradients, GradientDownlink
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.split_model import server_part
from lightning_vfl.export.trained import Trained
from lightning_vfl.networks import MLP, Linear
from lightning_vfl.networks.flops import work_of
from lightning_vfl.simulation import VirtualClock
from lightning_vfl.simulation.faults import RoundOutcome
from lightning_vfl.types import RoundNames, Stage
from tests.exported import built
from tests.further import further
from tests.subjects import Blobs, same, trainer

WIDTH = 4
HALVES = {"server": MLP, "active": Linear}


def whole(width, outputs):
    """One top with the layers of both halves."""
    return nn.Sequential(MLP(width, WIDTH), Linear(WIDTH, outputs))


def normed(width, outputs):
    """A half with a batch norm."""
    return nn.Sequential(nn.BatchNorm1d(width), Linear(width, outputs))


class Silence(GradientDownlink):
    """Sends no gradient at all."""

    def prepare(self, classes, outputs):
        pass

    def protect(self, gradient, labels, names, start):
        return torch.zeros_like(gradient)

    @property
    def event(self):
        return None

    def claim(self):
        return "no label"


def fitted(aggregator, folder, top, *callbacks, data=None, settings=None, **trained):
    torch.manual_seed(0)
    module = SplitVFL(aggregator, top=top, width=WIDTH, active=1, seed=0, **(settings or {}))
    trainer(folder, **{"max_epochs": 1, "callbacks": list(callbacks), **trained}).fit(
        module, datamodule=data or Blobs(batch_size=10)
    )
    return module


@pytest.mark.parametrize(
    ("aggregator", "settings"),
    [
        further(Mean, {}),
        (Mean, {"norm": nn.BatchNorm1d}),
        (Concat, {}),
        further(Concat, {"norm": nn.BatchNorm1d}),
        further(MaskedSum, {}),
        (MaskedSum, {"norm": nn.BatchNorm1d}),
    ],
)
def test_it_learns_the_bits_of_one_top(aggregator, settings, tmp_path):
    halves = fitted(aggregator(), tmp_path, HALVES, settings=settings)
    one = fitted(aggregator(), tmp_path, whole, settings=settings)
    renamed = {
        name.replace("top.server", "top.0").replace("top.active", "top.1"): value
        for name, value in halves.state_dict().items()
    }
    assert same(renamed, dict(one.state_dict()))


def test_the_cut_is_counted_and_labels_are_not_sent(tmp_path):
    sent = fitted(Mean(), tmp_path, HALVES).books.meter.state_dict()
    records = 54
    assert sent["down/cut activations"].tolist() == sent["up/cut gradients"].tolist() == [0, records * WIDTH * 4, 0]
    assert not any("labels" in kind for kind in sent)
    assert any("labels" in kind for kind in fitted(Mean(), tmp_path, whole).books.meter.state_dict())


@pytest.mark.parametrize("slow", [1.0, 3.0])
def test_the_time_of_a_round_has_a_closed_form(slow, tmp_path):
    """Beside what the parties and the server's half take: the cut there and back, and the active party's half."""
    clock = VirtualClock(bandwidth=8e5, latency=0.01, speed=1e6, server_speed=1e7)
    module = SplitVFL(Mean(), top=HALVES, width=WIDTH, active=1, clock=clock, party_shapes=[(3,), (2,)], num_classes=3)
    module.configure_model()
    rows = 20
    costs = module.costs.of_round(rows)
    work = work_of(module.top.active, (WIDTH,), input_gradient=True)
    transfer = 0.01 + rows * WIDTH * 4 / 1e5
    expected = 2 * transfer + slow * sum(work) * rows / 1e6
    assert costs.crossing(torch.tensor([1.0, slow])) == pytest.approx(expected, rel=1e-12)
    server = work_of(module.top.server, (WIDTH,), input_gradient=True)
    assert costs.server == pytest.approx(sum(server) * rows / 1e7, rel=1e-12)


@pytest.mark.parametrize(("lost", "given_up"), [(0, False), (1, True)])
def test_a_round_without_the_active_party_is_given_up(lost, given_up):
    """It alone has the labels, so without it there is no loss; any other party may be missing."""
    module, _ = built(Mean(), top=HALVES, width=WIDTH, active=1)
    nothing = RoundOutcome.nothing(module.roster)
    receives = torch.arange(module.roster.parties) != lost
    held = torch.ones(module.roster.parties, dtype=torch.bool)
    costs = module.costs.of_round(10)
    plan = module.plan(costs, held, nothing, replace(nothing, receives=receives))
    assert plan.skipped == given_up
    assert plan.learners.tolist() == ([False] * len(held) if given_up else receives.tolist())


def test_protected_evaluation_counts_the_way_to_the_active_party(tmp_path):
    sent = fitted(MaskedSum(), tmp_path, HALVES, max_epochs=1).books.meter.state_dict()
    assert sent["down/validation cut activations"].tolist() == [0, 18 * WIDTH * 4, 0]
    assert "up/validation cut gradients" not in sent


def test_the_half_of_the_active_party_is_clipped_with_its_bottom():
    module, _ = built(Mean(), top=HALVES, width=WIDTH, active=1)
    owners = [set(map(id, network.parameters())) for network in module.owners()]
    assert owners[1] == set(map(id, [*module.bottoms.parties[1].parameters(), *module.top.active.parameters()]))
    assert owners[-1] == set(map(id, module.top.server.parameters()))


def test_a_checkpoint_brings_both_halves_back(tmp_path):
    module = fitted(Mean(), tmp_path, HALVES, enable_checkpointing=True)
    module.trainer.save_checkpoint(tmp_path / "m.ckpt")
    again = SplitVFL.load_from_checkpoint(tmp_path / "m.ckpt")
    assert same(dict(again.state_dict()), dict(module.state_dict()))


def test_an_audit_hears_what_crosses_the_cut(tmp_path):
    """The gradient of the loss by the activations, which an own computation gives too; and no labels."""

    class Tap:
        def __init__(self):
            self.heard = []

        def sent(self, message, ids, at=None):
            self.heard.append(message)

        def joined(self, *_):
            pass

    module, data = built(Mean(), top=HALVES, width=WIDTH, active=1)
    module.train().tap = Tap()
    features = tuple(torch.randn(6, *shape) for shape in data.party_shapes)
    batch = VerticalBatch(features, torch.arange(6) % 3, torch.arange(6))
    outcome = module.round(batch, RoundNames(0, Stage.FIT, 0))
    module.rank_loss(outcome.output, batch).backward()
    there, back = [message for message in module.tap.heard if message.kind.startswith("cut")]
    crossing = there.pieces[0].clone().requires_grad_()
    torch.nn.functional.cross_entropy(module.top.active(crossing), batch.labels).backward()
    assert there.receivers == back.senders == (1,)
    assert torch.allclose(back.pieces[0], crossing.grad)
    assert "labels" not in {message.kind for message in module.tap.heard}


def test_a_downlink_acts_at_the_cut(tmp_path):
    """Without gradients at the cut the active party's half learns, and nobody else."""
    after = fitted(Mean(), tmp_path, HALVES, settings={"downlink": Silence(), "optimizer": partial(SGD, lr=0.1)})
    torch.manual_seed(0)
    first = SplitVFL(Mean(), top=HALVES, width=WIDTH, active=1, seed=0)
    first.build_for(Blobs(batch_size=10))
    learnt = {
        name.rpartition(".layer")[0] or name
        for name, value in after.state_dict().items()
        if not torch.equal(value, first.state_dict()[name])
    }
    assert learnt == {"top.active"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"active": None}, "no party holds the labels"),
        ({"top": {"server": MLP}}, "must have the keys server and active"),
        ({"top": {"server": MLP, "active": 3}}, r"top\[active\] must make a network"),
        ({"top": {"server": lambda width: nn.Linear(width, 9), "active": Linear}}, "outputs .* but 4 are needed"),
        (
            {"downlink": GaussianGradients(0.5, 2.0), "top": {"server": MLP, "active": normed}},
            "BatchNorm1d in .* mixes the records",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(settings, words):
    with pytest.raises(ConfigurationError, match=words) as refused:
        SplitVFL(
            Mean(), **{"top": HALVES, "width": WIDTH, "active": 1, **settings}, party_shapes=[(3,), (2,)], num_classes=2
        ).configure_model()
    assert "\n" not in str(refused.value)


def test_export_refuses_the_half_of_a_party():
    module, _ = built(Mean(), top=HALVES, width=WIDTH, active=1)
    with pytest.raises(ConfigurationError, match="half at the active party"):
        server_part(Trained(module, ""))
