"""Joined embeddings from the gradient of the top, against a known batch and against what a top was really given."""

from functools import partial

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

from lightning_vfl import CascadeVFL, SplitVFL
from lightning_vfl.aggregators import Concat, MaskedSum
from lightning_vfl.audit import TopGradientInversion
from lightning_vfl.audit.attacks.top_gradients import embeddings_of
from lightning_vfl.callbacks import Audit
from lightning_vfl.networks import MLP
from tests.subjects import Blobs, trainer
from tests.unit.audit.test_attacks import audited

WIDE = partial(MLP, hidden=[64])


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("records", [1, 2, 4, 6])
def test_the_batch_behind_a_gradient_is_found_up_to_its_order(records, classes):
    torch.manual_seed(records)
    h = torch.randn(records, 12)
    top = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, classes))
    nn.functional.cross_entropy(top(h), torch.arange(records) % classes).backward()
    gradients = (top[0].weight.grad.double(), top[0].bias.grad.double())
    found = embeddings_of(*gradients, records, 4000, top[2].weight.T.double().detach())
    distances = torch.cdist(found, h.double())
    assert distances.shape == (records, records)
    assert distances[linear_sum_assignment(distances)].max() < 1e-3


def test_what_is_not_there_is_not_found():
    assert len(embeddings_of(torch.zeros(32, 12).double(), torch.zeros(32).double(), 3, 100)) == 0  # all units are off
    assert len(embeddings_of(torch.randn(32, 2).double(), torch.randn(32).double(), 3, 100)) == 0  # of rank 2


@pytest.fixture
def given(monkeypatch):
    """What the tops of active parties are given, by round."""
    noted = {}
    differentiate = CascadeVFL.differentiate

    def noting(self, leaves, batch, event, names, plan):
        noted[names.round] = self.aggregator.plain(leaves, plan.round.roll).detach()
        return differentiate(self, leaves, batch, event, names, plan)

    monkeypatch.setattr(CascadeVFL, "differentiate", noting)
    return noted


@pytest.mark.parametrize(("aggregator", "batch"), [(Concat(), 1), (Concat(), 4), (MaskedSum(), 4)])
def test_an_audit_scores_by_what_the_top_was_given_in_each_round_of_the_epoch(aggregator, batch, given, tmp_path):
    torch.manual_seed(0)
    module = CascadeVFL(aggregator, top=WIDE, width=8, seed=0)
    audit = Audit("server", [TopGradientInversion(epoch=2, rounds=6)])
    trainer(tmp_path, callbacks=[audit], limit_val_batches=0).fit(module, datamodule=Blobs(batch_size=batch))
    truth = audit._joined.rounds
    assert [*truth] == [*given][len(given) // 2 :]
    for number, h in truth.items():  # masked sums are rounded
        torch.testing.assert_close(h, given[number], atol=1e-3, rtol=0)
    (found,) = audit.findings
    assert found.success > 0.8
    assert (found.chance, found.verdict) == (0.0, "leak")


UNSUITABLE = "for batches of 6 records, the first layer of the top needs ReLU and more than 6 units, and the attack 2^5"


@pytest.mark.parametrize(
    ("top", "attack", "why"),
    [
        (partial(MLP, hidden=[6]), TopGradientInversion(), UNSUITABLE),
        (partial(MLP, hidden=[32], activation=nn.Tanh), TopGradientInversion(), UNSUITABLE),
        (WIDE, TopGradientInversion(tries=31), UNSUITABLE),
        (partial(nn.Linear, out_features=3, bias=False), TopGradientInversion(), "not linear with a bias"),
    ],
)
def test_what_the_attack_cannot_take_apart_is_not_called_safe(top, attack, why, tmp_path):
    (found,) = audited(CascadeVFL(Concat(), top=top, width=4), Blobs(batch_size=6), "server", [attack], tmp_path, 1)
    assert found.verdict.startswith("not attacked: ")
    assert found.verdict.endswith("this is not a safety result")
    assert why in found.verdict


def test_a_top_of_one_layer_tells_single_records(tmp_path):
    module = CascadeVFL(Concat(), width=4, seed=0)
    (found,) = audited(module, Blobs(batch_size=1), "server", [TopGradientInversion()], tmp_path, 1)
    assert found.success == 1.0


def test_the_gradient_of_the_top_is_sent_to_the_collaborator_alone(tmp_path):
    attack = TopGradientInversion()
    for number, (module, attacker) in enumerate(
        [(CascadeVFL(Concat(), top=WIDE, width=4), "party:1"), (SplitVFL(Concat(), top=WIDE, width=4), "server")]
    ):
        (found,) = audited(module, Blobs(batch_size=4), attacker, [attack], tmp_path / str(number), 1)
        assert found.verdict == "nothing to attack: no gradient of the top is sent"


def test_it_is_a_usual_attack_of_the_collaborator(tmp_path):
    audit = Audit("server")
    module = CascadeVFL(Concat(), top=WIDE, width=4, seed=0)
    trainer(tmp_path, max_epochs=1, callbacks=[audit], limit_val_batches=0, limit_train_batches=3).fit(
        module, datamodule=Blobs(batch_size=4)
    )
    (found,) = (found for found in audit.findings if found.attack == "TopGradientInversion")
    assert found.success > 0.8
