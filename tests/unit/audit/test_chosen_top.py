"""A top of the attacker's own: what it reads of a batch, and that the answers are those of the protocol."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from lightning_vfl import CascadeVFL, SplitVFL
from lightning_vfl.aggregators import Concat, MaskedSum
from lightning_vfl.audit import ChosenTop, NothingSeen
from lightning_vfl.audit.attacks.top_gradients import Staircase
from lightning_vfl.callbacks import Audit
from lightning_vfl.networks import MLP
from tests.subjects import Blobs, trainer
from tests.unit.audit.test_attacks import audited

UNITS = 64
WIDE = partial(MLP, hidden=[UNITS])


def alone(measured, thresholds):
    """(B,) bool, the records above a threshold that no other record shares with them."""
    places = (measured[:, None] > thresholds).sum(1)
    return torch.tensor([place > 0 and int((places == place).sum()) == 1 for place in places])


@pytest.mark.parametrize("records", [1, 16, 64])
@pytest.mark.parametrize("outputs", [1, 2, 10])
def test_exactly_the_records_that_are_alone_between_thresholds_are_read_with_their_labels(records, outputs):
    torch.manual_seed(records)
    classes = max(outputs, 2)
    top = nn.Sequential(nn.Linear(12, UNITS), nn.ReLU(), nn.Linear(UNITS, outputs))
    steps = Staircase(top, classes)
    h = torch.randn(records, 12)
    labels = torch.arange(records) % classes
    steps.measured = torch.randn(500, 12) @ steps.direction
    vector_to_parameters(steps.top(), top.parameters())
    if outputs == 1:
        loss = binary_cross_entropy_with_logits(top(h)[:, 0], labels.float())
    else:
        loss = cross_entropy(top(h), labels)
    thresholds = -top[0].bias.detach()
    loss.backward()
    gradient = parameters_to_vector(parameter.grad for parameter in top.parameters())
    found, named = steps.read(gradient, records)
    single = alone(h @ steps.direction, thresholds)
    distances = torch.cdist(h[single].double(), found)
    assert len(found) >= int(single.sum())
    if len(distances):
        assert distances.amin(1).max() < 0.05
        assert torch.equal(named[distances.argmin(1)], labels[single])


class Asks(ChosenTop):
    """Asks for the answers to all tops that an active party was really sent before it answered."""

    found = ()

    def run(self, seen, known):
        tops = list(seen.transcript.find("top", "down"))
        Asks.found = [
            (one.value, [seen.answer(one.round, top.value) for top in before])
            for one in seen.transcript.find("top gradients", "up")
            if (before := [top for top in tops if top.receiver == one.sender and top.round < one.round])
        ]
        raise NothingSeen("it has asked")

    def reads(self, kind, way, sender, epoch):
        return (kind, way) in (("top gradients", "up"), ("top", "down"))


def test_the_answer_to_the_top_that_was_sent_is_the_gradient_that_was_sent(tmp_path):
    module = CascadeVFL(Concat(), top=WIDE, width=8, seed=0)
    audited(module, Blobs(batch_size=2), "server", [Asks()], tmp_path, 1)
    assert len(Asks.found) > 10
    for gradient, answers in Asks.found:
        distances = [float((answer - gradient).norm() / gradient.norm()) for answer in answers]
        assert min(distances) < 1e-5


@pytest.mark.parametrize("aggregator", [Concat(), MaskedSum()])
def test_it_is_a_usual_attack_and_reads_batches_that_a_curious_collaborator_cannot(aggregator, tmp_path):
    audit = Audit("server")
    module = CascadeVFL(aggregator, top=WIDE, width=4, seed=0)
    trainer(tmp_path, max_epochs=1, callbacks=[audit], limit_val_batches=0).fit(module, datamodule=Blobs(batch_size=16))
    found = {one.attack: one for one in audit.findings}
    assert found["ChosenTop"].success > 0.3
    assert found["ChosenTop"].chance == 0.0
    assert found["TopGradientInversion"].verdict.startswith("not attacked")


@pytest.mark.parametrize(
    "top",
    [partial(MLP, hidden=[8, 8]), partial(MLP, hidden=[32], activation=nn.Tanh), partial(nn.Linear, out_features=3)],
)
def test_other_tops_are_not_called_safe(top, tmp_path):
    (found,) = audited(
        CascadeVFL(Concat(), top=top, width=4), Blobs(batch_size=6), "server", [ChosenTop()], tmp_path, 1
    )
    assert found.verdict.startswith("not attacked: the top is not two linear layers")


def test_it_is_for_the_collaborator_alone(tmp_path):
    for number, (module, attacker) in enumerate(
        [(CascadeVFL(Concat(), top=WIDE, width=4), "party:1"), (SplitVFL(Concat(), top=WIDE, width=4), "server")]
    ):
        (found,) = audited(module, Blobs(batch_size=4), attacker, [ChosenTop()], tmp_path / str(number), 1)
        assert found.verdict == "nothing to attack: no gradient of the top is sent"
