"""Local updates: one step is no change, more steps are those of plain torch, and everybody else is as without."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from lightning.pytorch import Callback
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_, parameters_to_vector

from lightning_vfl import AsyncVFL, SplitVFL
from lightning_vfl.aggregators import LagrangeCoded, MaskedSum, Mean, Sum
from lightning_vfl.callbacks import FaultInjector
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.local_updates import LocalSteps, LocalUpdate
from lightning_vfl.networks import MLP, PolynomialNetwork
from lightning_vfl.protocols.subsets import TaskSampling
from lightning_vfl.simulation import PartyDropout
from tests.further import further
from tests.subjects import Blobs, trainer

SGD = partial(torch.optim.SGD, lr=0.1)
SMALL = partial(MLP, hidden=(6,))
DRAWING = partial(MLP, hidden=(6,), activation=torch.nn.Dropout)


def trained(tmp_path, update, protocol=SplitVFL, aggregator=Mean, bottom=SMALL, callbacks=(), clip=None, **settings):
    torch.manual_seed(0)
    module = protocol(aggregator(), bottom=bottom, width=5, seed=0, local_update=update, **settings)
    t = trainer(tmp_path, max_epochs=2, callbacks=list(callbacks), gradient_clip_val=clip)
    t.fit(module, datamodule=Blobs(batch_size=10))
    return module


def same(one, other):
    """Whether weights, optimiser states, bytes and counts have the same bits."""
    (mine,), (others,) = one.trainer.optimizers, other.trainer.optimizers
    states = [mine.state_dict()["state"], others.state_dict()["state"]]
    assert states[0].keys() == states[1].keys()
    moments = [(states[0][n][key], states[1][n][key]) for n in states[0] for key in states[0][n]]
    pairs = [*zip(one.parameters(), other.parameters(), strict=True), *moments]
    assert torch.equal(one.books.meter.total("up"), other.books.meter.total("up"))
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    "settings",
    [
        further({}),
        {"clip": 0.05, "bottom": DRAWING},
        further({"aggregator": MaskedSum, "clip": 0.05}),
        {"protocol": AsyncVFL, "clip": 0.05, "bottom": DRAWING},
        {"active": 0, "top": {"server": SMALL, "active": SMALL}, "clip": 0.05},
    ],
    ids=["plain", "clipped", "masked", "asynchronous", "two halves"],
)
def test_one_step_has_the_bits_of_a_training_without_local_updates(tmp_path, settings):
    one, none = trained(tmp_path, LocalSteps(1), **settings), trained(tmp_path, None, **settings)
    assert same(one, none)
    assert one.clock.seconds == none.clock.seconds
    assert not same(trained(tmp_path, LocalSteps(2), **settings), none)


class Oracle(Callback):
    """Computes every round again with autograd and SGD of plain torch, from the weights before it."""

    def __init__(self, steps, clip=None, rates=(1.0, 1.0, 1.0)):
        self.steps = steps
        self.clip = clip
        self.rates = rates
        self.rounds = 0

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.before = deepcopy([*module.bottoms.parties]), deepcopy(module.top)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        bottoms, top = self.before
        h = [bottom(x) for bottom, x in zip(bottoms, batch.features, strict=True)]
        loss = cross_entropy(top(sum(h)), batch.labels)
        gradients = torch.autograd.grad(loss, h, retain_graph=True)
        loss.backward()
        self.step(top, 1.0)
        for party, bottom in enumerate(bottoms):
            self.step(bottom, self.rates[party])
            for _ in range(self.steps.get(party, 1) - 1):
                bottom.zero_grad()
                (bottom(batch.features[party]) * gradients[party]).sum().backward()
                self.step(bottom, self.rates[party])
            for mine, expected in zip(module.bottoms.parties[party].parameters(), bottom.parameters(), strict=True):
                torch.testing.assert_close(mine, expected)
        for mine, expected in zip(module.top.parameters(), top.parameters(), strict=True):
            torch.testing.assert_close(mine, expected)
        self.rounds += 1

    def step(self, network, rate):
        if self.clip is not None:
            clip_grad_norm_(network.parameters(), self.clip)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter -= 0.1 * rate * parameter.grad


@pytest.mark.parametrize("clip", [None, 0.05])
def test_local_steps_are_those_of_plain_torch_with_the_gradient_of_the_round(tmp_path, clip):
    oracle = Oracle({0: 3, 2: 2}, clip)
    update = LocalSteps({0: 3, 2: 2})
    trained(tmp_path, update, aggregator=Sum, optimizer=SGD, callbacks=[oracle], clip=clip)
    assert oracle.rounds == 12


def test_a_party_that_does_not_learn_makes_no_local_step(tmp_path):
    learnt, changed = [], []

    class Noting(LocalSteps):
        def learn(self, party, *more):
            learnt.append(party)
            super().learn(party, *more)

    class Watching(Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            self.before = weights(module)

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            pairs = zip(self.before, weights(module), strict=True)
            changed.extend(party for party, (old, new) in enumerate(pairs) if not torch.equal(old, new))

    def weights(module):
        return [parameters_to_vector(bottom.parameters()).clone() for bottom in module.bottoms.parties]

    trained(tmp_path, Noting(2), callbacks=[FaultInjector(PartyDropout(0.9, 0.4)), Watching()])
    assert learnt == changed
    assert 0 < len(learnt) < 3 * 12


def test_more_steps_take_longer_and_send_nothing_more(tmp_path):
    none, more = trained(tmp_path, None), trained(tmp_path, LocalSteps(4))
    costs, longer = none.costs.of_round(10), more.costs.of_round(10)
    torch.testing.assert_close(longer.backward, 4 * costs.backward + 3 * costs.forward)
    assert more.clock.seconds > none.clock.seconds
    assert torch.equal(more.books.meter.total("up"), none.books.meter.total("up"))
    assert torch.equal(more.books.meter.total("down"), none.books.meter.total("down"))


class Rates(LocalUpdate):
    """A learning rate by party."""

    def __init__(self, rates):
        self.rates = rates

    def learn(self, party, bottom, features, gradient, optimizer):
        for group in optimizer.param_groups:
            group["lr"] *= self.rates[party]
        optimizer.step()

    def flops(self, party, bottom):
        return 0.0


def test_a_setting_of_one_party_is_undone_for_the_next(tmp_path):
    rates = (0.1, 2.0, 1.0)
    oracle = Oracle({}, rates=rates)
    module = trained(tmp_path, Rates(rates), aggregator=Sum, optimizer=SGD, callbacks=[oracle])
    assert oracle.rounds == 12
    assert module.trainer.optimizers[0].param_groups[0]["lr"] == 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"update": LocalSteps({5: 2})}, "names party 5; parties are from 0 to 2"),
        ({"aggregator": LagrangeCoded, "bottom": PolynomialNetwork}, "learns from gradients of embeddings"),
        ({"subsets": TaskSampling()}, "local updates use one gradient"),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        trained(tmp_path, **{"update": LocalSteps(2), **settings})


@pytest.mark.parametrize("steps", [0, 1.5, {0: 0}])
def test_a_number_of_steps_is_a_whole_number_from_1(steps):
    with pytest.raises(ConfigurationError, match="steps must be a whole number, 1 or more"):
        LocalSteps(steps)


def test_a_proximal_term_is_part_of_the_loss_of_local_steps():
    """Against the loss with the term, written out and differentiated by torch."""
    torch.manual_seed(0)
    bottom, features, gradient = SMALL((4,), 5), torch.randn(10, 4), torch.randn(10, 5)
    expected = deepcopy(bottom)
    first = [parameter.detach().clone() for parameter in bottom.parameters()]
    for network, steps in ((bottom, LocalSteps(4, proximal=3.0)), (expected, None)):
        sgd = SGD(network.parameters())
        network(features).backward(gradient)
        if steps is not None:
            steps.learn(0, network, features, gradient, sgd)
            continue
        for number in range(4):
            sgd.step()
            if number < 3:
                sgd.zero_grad()
                pull = sum((p - start).square().sum() for p, start in zip(network.parameters(), first, strict=True))
                ((network(features) * gradient).sum() + 1.5 * pull).backward()
    for mine, theirs in zip(bottom.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    with pytest.raises(ConfigurationError, match="proximal must be a finite number of at least 0"):
        LocalSteps(2, proximal=-1.0)
