"""Rates and decays of single parties: those of a plain loop with parameter groups."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LearningRateFinder
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector as flat
from torch.optim.lr_scheduler import OneCycleLR, StepLR

from lightning_vfl import AsyncVFL, EnsembleVFL, SplitVFL
from lightning_vfl.aggregators import Mean, Sum
from lightning_vfl.audit.attacks.drift.served import rule_of
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.local_updates import LocalSteps
from tests.further import further
from tests.subjects import Blobs, split, trainer

HALVING = partial(StepLR, step_size=1, gamma=0.5)
ADAM = partial(torch.optim.Adam, lr=1e-2)
OWN = {"1": {"lr": 0.05, "weight_decay": 0.1}, "server": {"lr": 0.002}}


class Watching(Callback):
    """Keeps the networks before training, and all batches."""

    def on_train_start(self, trainer, module):
        self.bottoms = deepcopy([*module.bottoms.parties])
        self.top = deepcopy(module.top)
        self.batches = []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.batches.append((trainer.current_epoch, batch))


def by_plain_torch(watching, steps=1):
    """The weights after the batches: one Adam with three groups, whose rates are halved after each epoch."""
    bottoms, top = watching.bottoms, watching.top
    networks = torch.nn.ModuleList([bottoms[0], bottoms[2]])
    adam = torch.optim.Adam(
        [
            {"params": bottoms[1].parameters(), "lr": 0.05, "weight_decay": 0.1},
            {"params": top.parameters(), "lr": 0.002},
            {"params": networks.parameters()},
        ],
        lr=1e-2,
    )
    rates = [group["lr"] for group in adam.param_groups]
    for epoch, batch in watching.batches:
        for group, rate in zip(adam.param_groups, rates, strict=True):
            group["lr"] = rate * 0.5**epoch
        h = [bottom(x) for bottom, x in zip(bottoms, batch.features, strict=True)]
        loss = cross_entropy(top(sum(h)), batch.labels)
        gradients = torch.autograd.grad(loss, h, retain_graph=True)
        loss.backward()
        adam.step()
        adam.zero_grad()
        for _ in range(steps - 1):
            for bottom, x, gradient in zip(bottoms, batch.features, gradients, strict=True):
                bottom(x).backward(gradient)
            adam.step()
            adam.zero_grad()
    return [*torch.nn.ModuleList(bottoms).parameters(), *top.parameters()]


def trained(tmp_path, callbacks=(), protocol=SplitVFL, aggregator=Sum, data=Blobs, epochs=1, **settings):
    torch.manual_seed(0)
    module = protocol(aggregator(), **{"width": 5, "seed": 0, "optimizer": ADAM, "optimizer_of": OWN} | settings)
    trainer(tmp_path, max_epochs=epochs, callbacks=list(callbacks)).fit(module, datamodule=data(batch_size=10))
    return module


@pytest.mark.parametrize("steps", [1, further(3)])
def test_the_weights_are_those_of_parameter_groups_in_plain_torch(tmp_path, steps):
    watching = Watching()
    update = None if steps == 1 else LocalSteps(steps)
    module = trained(tmp_path, [watching], lr_scheduler=HALVING, local_update=update, epochs=2)
    assert len(watching.batches) == 12
    expected = by_plain_torch(watching, steps)
    for mine, theirs in zip([*module.bottoms.parameters(), *module.top.parameters()], expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("protocol", [SplitVFL, AsyncVFL])
def test_a_rate_of_zero_keeps_one_party_and_changes_the_others(tmp_path, protocol):
    watching = Watching()
    module = trained(tmp_path, [watching], protocol, Mean, optimizer_of={0: {"lr": 0.0}})
    pairs = list(zip(watching.bottoms, module.bottoms.parties, strict=True))
    same = [torch.equal(flat(old.parameters()), flat(new.parameters())) for old, new in pairs]
    assert same == [True, False, False]


def test_equal_settings_have_the_bits_of_none(tmp_path):
    one = trained(tmp_path, optimizer_of={1: {"lr": 1e-2}}, aggregator=Mean)
    none = trained(tmp_path, optimizer_of=None, aggregator=Mean)
    for mine, theirs in zip(one.parameters(), none.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_a_checkpoint_keeps_the_settings_by_number(tmp_path):
    module = trained(tmp_path)
    module.trainer.save_checkpoint(tmp_path / "own.ckpt")
    again = SplitVFL.load_from_checkpoint(tmp_path / "own.ckpt", weights_only=True)
    assert again.hparams["optimizer_of"] == {1: OWN["1"], "server": OWN["server"]}
    again.configure_model()
    names = [group["name"] for group in again.configure_optimizers().param_groups]
    assert names == ["party 1", "server", "others"]


def test_an_audit_does_not_take_the_rate_of_one_party_for_that_of_all(tmp_path):
    for own, rate in (({1: {"lr": 0.5}}, None), ({"server": {"lr": 0.5}}, 1e-2), (None, 1e-2)):
        module = trained(tmp_path, optimizer_of=own)
        rule = rule_of(module.trainer.optimizers[0])
        assert (None if rule is None else rule[1]) == rate


class Search(LearningRateFinder):
    """One that must not begin."""

    def lr_find(self, trainer, pl_module):
        raise AssertionError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer_of": {"9": {"lr": 0.1}}}, "optimizer_of names party '9', which does not exist"),
        ({"optimizer_of": {7: {"lr": 0.1}}}, "a party of optimizer_of must be a whole number from 0 to 2; got 7"),
        ({"optimizer_of": {1: {"lr": 0.1}, "1": {"lr": 0.1}}}, "optimizer_of names a party twice"),
        ({"optimizer_of": {1: {"rate": 0.1}}}, r"optimizer_of\[1\] cannot be made: .*rate"),
        ({"optimizer_of": {1: {"lr": -0.1}}}, r"optimizer_of\[1\] cannot be made: Invalid learning rate"),
        ({"optimizer_of": {1: 0.1}}, "optimizer_of must be a dictionary from parties to settings"),
        ({"lr_scheduler": partial(OneCycleLR, max_lr=0.1, total_steps=12)}, "OneCycleLR would replace the rates"),
        ({"callbacks": [Search()]}, "LearningRateFinder finds one rate for all"),
        ({"protocol": EnsembleVFL, "aggregator": Mean}, "this protocol has none; name parties"),
    ],
)
def test_settings_that_would_be_lost_are_refused(tmp_path, settings, message):
    with pytest.raises(ConfigurationError, match=message):
        trained(tmp_path, **settings)


def test_a_rate_for_all_beside_rates_of_parties_is_refused(tmp_path):
    module = split(optimizer_of=OWN)
    module.lr = 0.1
    with pytest.raises(ConfigurationError, match="lr is one rate for all"):
        trainer(tmp_path).fit(module, datamodule=Blobs(batch_size=10))
