"""Bottoms and data that let one record tell of others are refused where the privacy of records is accounted for."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn

from lightning_vfl import CascadeVFL, SplitVFL
from lightning_vfl.aggregators import LocalGaussian, Mean, PoissonBinomial
from lightning_vfl.datamodules import Standardise
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import VGG13, ConvNet, PolynomialNetwork, ResNet18
from lightning_vfl.protocols.accounts.charging import batch_statistics
from tests.subjects import Blobs, split, trainer

IMAGE = (2, 8, 8)


class Centred(nn.Module):
    """Statistics of a batch without a batch norm."""

    def forward(self, x):
        return x - x.mean(0)


class Remembers(nn.Module):
    """Statistics of a batch that are kept for later."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        with torch.no_grad():
            self.mean.lerp_(x.mean(), 0.5)
        return x


class Counts(nn.Module):
    """A buffer that training moves, whatever the records are."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.steps += 1
        return x


class Table(nn.Module):
    """Takes whole numbers from 0 on alone."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(2, 3)

    def forward(self, x):
        return self.table(x.flatten(1).long()).flatten(1)


def flat(*layers):
    return nn.Sequential(nn.Flatten(), nn.Linear(128, 6), *layers)


@pytest.mark.parametrize(
    ("network", "found"),
    [
        (lambda: flat(nn.BatchNorm1d(6)), "2 (BatchNorm1d)"),
        (lambda: flat(nn.BatchNorm1d(6, track_running_stats=False)), "2 (BatchNorm1d)"),
        (lambda: flat(nn.SyncBatchNorm(6)), "2 (SyncBatchNorm)"),
        (lambda: nn.Sequential(nn.BatchNorm2d(2), nn.Flatten()), "0 (BatchNorm2d)"),
        (lambda: nn.Sequential(nn.InstanceNorm2d(2, track_running_stats=True), nn.Flatten()), "0 (InstanceNorm2d)"),
        (lambda: ResNet18(IMAGE, 4, base=2, norm="batch"), "layers.1 (BatchNorm2d)"),
        (lambda: VGG13(IMAGE, 4, base=2, batch_norm=True), "layers.1 (BatchNorm2d)"),
        (lambda: VGG13(IMAGE, 4, base=2, norm="batch"), "layers.1 (BatchNorm2d)"),
        (lambda: flat(Centred()), "a layer of Sequential"),
        (lambda: flat(Remembers()), "a layer of Sequential"),
        (lambda: nn.Sequential(Table(), Centred()), "a layer of Sequential"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Embedding(2, 3), nn.Flatten(), Centred()), "a layer of Sequential"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Embedding(2, 3), nn.Flatten(), nn.Dropout()), ""),
        (lambda: Table(), ""),
        (lambda: flat(nn.LayerNorm(6), nn.Dropout(), nn.Tanh()), ""),
        (lambda: flat(Counts()), ""),
        (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)), ""),
        (lambda: nn.Sequential(nn.InstanceNorm2d(2), nn.Flatten()), ""),
        (lambda: ResNet18(IMAGE, 4, base=2), ""),
        (lambda: ResNet18(IMAGE, 4, base=2, norm="group"), ""),
        (lambda: VGG13(IMAGE, 4, base=2, norm="group"), ""),
        (lambda: VGG13(IMAGE, 4, base=2), ""),
        (lambda: ConvNet(IMAGE, 4), ""),
        (lambda: PolynomialNetwork(IMAGE, 4), ""),
    ],
)
def test_what_looks_at_several_records_is_found(network, found):
    torch.manual_seed(0)
    bottom = network()
    shape = (6,) if hasattr(bottom, "in_features") else IMAGE
    before, generator = deepcopy(bottom.state_dict()), torch.get_rng_state()
    assert batch_statistics(bottom, shape) == found
    assert torch.equal(torch.get_rng_state(), generator)
    assert bottom.training
    assert all(torch.equal(before[name], now) for name, now in bottom.state_dict().items())


def test_the_published_norms_have_the_bits_they_had():
    torch.manual_seed(0)
    usual = ResNet18(IMAGE, 4, base=32)
    for norm in ("group", None):
        torch.manual_seed(0)
        assert str(ResNet18(IMAGE, 4, base=32, norm=norm)) == str(usual)
    torch.manual_seed(0)
    assert str(ResNet18(IMAGE, 4, norm="batch")) == str(ResNet18(IMAGE, 4, norm=nn.BatchNorm2d))
    assert str(VGG13(IMAGE, 4, norm="batch")) == str(VGG13(IMAGE, 4, batch_norm=True))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ResNet18((2, 8, 8), 4, norm="layer"), "norm of ResNet18 must be .*; got 'layer'"),  # type: ignore[arg-type]
        (lambda: VGG13((2, 8, 8), 4, norm="layer"), "norm of VGG13 must be 'batch', 'group' or None; got 'layer'"),  # type: ignore[arg-type]
        (
            lambda: VGG13((2, 8, 8), 4, batch_norm=True, norm="group"),
            "norm of VGG13 must be .*; got 'group'; leave batch_norm out",
        ),
    ],
)
def test_norms_that_do_not_exist_are_refused(make, said):
    with pytest.raises(ConfigurationError, match=said):
        make()


def normed(shape, width):
    return nn.Sequential(nn.Linear(shape[0], width), nn.BatchNorm1d(width), nn.Tanh())


class Fitted(Blobs):
    def default_normaliser(self):
        return Standardise()


@pytest.mark.parametrize("aggregator", [partial(PoissonBinomial, clip_outside=True), LocalGaussian])
@pytest.mark.parametrize("protocol", [SplitVFL, CascadeVFL])
@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_before_training_naming_the_party_and_the_remedy(tmp_path, aggregator, protocol):
    name = "PoissonBinomial" if aggregator is not LocalGaussian else "LocalGaussian"
    with pytest.raises(ConfigurationError, match=rf"{name} .* in the bottom of party 1 .* use norm: group"):
        trainer(tmp_path).fit(protocol(aggregator(), bottom_of={1: normed}, width=4), datamodule=Blobs())
    with pytest.raises(
        ConfigurationError, match=rf"{name} .* in Fitted .*: Standardise is fitted .*; use normaliser: Given"
    ):
        trainer(tmp_path).fit(protocol(aggregator(), width=4), datamodule=Fitted())


def test_a_norm_over_what_was_released_is_allowed_and_aggregators_that_claim_nothing_take_anything(tmp_path):
    top = lambda width, outputs: nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, outputs))  # noqa: E731
    module = SplitVFL(LocalGaussian(), width=4, norm=nn.BatchNorm1d, top=top)
    trainer(tmp_path, max_epochs=1).fit(module, datamodule=Blobs(batch_size=27))
    assert module.privacy.epsilon() > 0
    plain = SplitVFL(Mean(), bottom=normed, width=4)
    trainer(tmp_path, max_epochs=1).fit(plain, datamodule=Fitted(batch_size=27))
    assert plain.books.rounds["fit"] == 2


def test_predictions_for_features_of_nobody_knows_whom_are_refused_only_where_they_cost():
    features = tuple(torch.zeros(5, n) for n in (3, 3, 2))
    shapes = {"party_shapes": [(3,), (3,), (2,)], "num_classes": 3}
    for settings, answered in (({}, False), ({"evaluate": "plain"}, True), ({"evaluate": "protocol"}, False)):
        module = SplitVFL(LocalGaussian(), **shapes, **settings)
        module.configure_model()
        if answered:
            assert module(features).shape == (5, 3)
            continue
        with pytest.raises(
            ConfigurationError, match=r"use trainer\.predict with a VerticalDataModule, or evaluate: plain"
        ):
            module(features)
    assert split().aggregator.accounting is None
