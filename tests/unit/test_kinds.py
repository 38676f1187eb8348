"""Objects of another kind than a setting takes, as Python code passes them."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import StepLR

from lightning_vfl import DecoupledVFL, SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.callbacks import FaultInjector
from lightning_vfl.datamodules import ContiguousColumns, Digits
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols import Step, VFLModule
from tests.subjects import Blobs, trainer

CLASS: Any = Mean  # where an object is needed
WORD: Any = "Mean"

WRONG = {
    "aggregator class": (lambda: SplitVFL(CLASS), r"aggregator must be an Aggregator, such as Mean\(\); got <class"),
    "aggregator name": (lambda: SplitVFL(WORD), r"aggregator must be an Aggregator, such as Mean\(\); got 'Mean'"),
    "bottom": (
        lambda: SplitVFL(Mean(), bottom=nn.Linear(4, 3)),
        r"bottom must make a network from a party's shape and the width, such as MLP, .* got the Linear itself",
    ),
    "bottom's name": (lambda: SplitVFL(Mean(), bottom=WORD), "bottom must make a network .*; got 'Mean'"),
    "bottom of a party": (
        lambda: SplitVFL(Mean(), bottom_of={2: nn.Linear(4, 3)}),
        r"bottom_of\[2\] must make a network",
    ),
    "host": (lambda: DecoupledVFL(host=nn.Linear(4, 3)), "host must make a network"),
    "top": (lambda: SplitVFL(Mean(), top=nn.Linear(4, 3)), "top must make a network from the width of its input"),
    "optimizer": (
        lambda: SplitVFL(Mean(), optimizer=SGD([nn.Parameter(torch.zeros(1))], lr=0.1)),
        r"optimizer must make an optimiser from parameters, such as partial\(.*\); got the SGD itself",
    ),
    "lr_scheduler": (
        lambda: SplitVFL(Mean(), lr_scheduler=StepLR(SGD([nn.Parameter(torch.zeros(1))], lr=0.1), 1)),
        "lr_scheduler must make a schedule from the optimiser",
    ),
    "downlink": (lambda: SplitVFL(Mean(), downlink=CLASS()), r"downlink must be a Downlink, such as MaxNorm\(\)"),
    "partitioner": (lambda: Digits(CLASS), r"partitioner must be a Partitioner, such as ContiguousColumns\(4\)"),
    "normaliser": (
        lambda: Digits(normaliser=WORD),
        r"normaliser must be a Normaliser, such as Standardise\(\); got 'Mean'",
    ),
    "faults": (lambda: FaultInjector(CLASS), r"model must be a FaultModel, such as PartyDropout\(0.3\)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_another_kind_is_refused_where_it_is_given(name):
    make, message = WRONG[name]
    with pytest.raises(ConfigurationError, match=message):
        make()


class Bare(VFLModule):
    """A protocol whose ``step`` returns the loss alone."""

    def output(self, batch, names):
        return self.top(self.bottoms(batch.features)[0])

    def step(self, batch, names):
        self.enter_round(batch, names)
        return self.rank_loss(self.output(batch, names), batch)


def test_a_step_that_returns_a_loss_is_told_to_wrap_it(tmp_path):
    with pytest.raises(ConfigurationError, match=r"what step returns must be a Step, such as Step\(loss\)"):
        trainer(tmp_path, max_epochs=1).fit(
            Bare(Mean(), width=4, seed=0), datamodule=Blobs(ContiguousColumns(3), batch_size=9)
        )


class FromOne(Bare):
    """It counts parties from 1."""

    def step(self, batch, names):
        return Step(super().step(batch, names), (1, 2, 3))


def test_learners_that_are_no_parties_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="the learners of a Step must be parties from 0 to 2; got 3"):
        trainer(tmp_path, max_epochs=1).fit(
            FromOne(Mean(), width=4, seed=0), datamodule=Blobs(ContiguousColumns(3), batch_size=9)
        )


class Wrong(Bare):
    """Its ``step`` returns a loss that is none."""

    wrong = staticmethod(lambda loss: loss)

    def step(self, batch, names):
        return Step(self.wrong(super().step(batch, names)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda loss: loss.repeat(3), r"must be a scalar tensor; got a tensor of shape \(3,\); return its mean"),
        (lambda loss: 0.5, "the loss of a Step must be a scalar tensor; got 0.5"),
        (lambda loss: loss.detach(), "the loss of a Step has no graph, so nobody would learn"),
    ],
)
def test_a_loss_that_is_none_is_refused(tmp_path, wrong, message):
    module = Wrong(Mean(), width=4, seed=0)
    module.wrong = wrong
    with pytest.raises(ConfigurationError, match=message):
        trainer(tmp_path, max_epochs=1).fit(module, datamodule=Blobs(ContiguousColumns(3), batch_size=9))


def test_one_tensor_is_no_features_of_parties():
    module = SplitVFL(Mean(), width=4, seed=0, party_shapes=[[3], [2]], num_classes=2)
    module.configure_model()
    with pytest.raises(ConfigurationError, match=r"a tensor for each party; got one tensor of shape \(7, 5\)"):
        module(torch.zeros(7, 5))
