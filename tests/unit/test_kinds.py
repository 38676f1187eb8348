"""Objects of another kind than a setting takes, as Python code passes them."""

from typing import Any

import pytest

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.callbacks import FaultInjector
from lightning_vfl.datamodules import ContiguousColumns, Digits
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols import VFLModule
from tests.subjects import Blobs, trainer

CLASS: Any = Mean  # where an object is needed
WORD: Any = "Mean"

WRONG = {
    "aggregator class": (lambda: SplitVFL(CLASS), r"aggregator must be an Aggregator, such as Mean\(\); got <class"),
    "aggregator name": (lambda: SplitVFL(WORD), r"aggregator must be an Aggregator, such as Mean\(\); got 'Mean'"),
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
        self.enter_round(batch)
        return self.rank_loss(self.output(batch, names), batch)


def test_a_step_that_returns_a_loss_is_told_to_wrap_it(tmp_path):
    with pytest.raises(ConfigurationError, match=r"what step returns must be a Step, such as Step\(loss\)"):
        trainer(tmp_path, max_epochs=1).fit(
            Bare(Mean(), width=4, seed=0), datamodule=Blobs(ContiguousColumns(3), batch_size=9)
        )
