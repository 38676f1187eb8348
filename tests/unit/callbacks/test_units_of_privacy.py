"""A unit of privacy without a figure is refused before the first round, where a figure in this unit is needed."""

import pytest
from lightning.pytorch import Callback
from torch import nn

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import PoissonBinomial
from lightning_vfl.callbacks import PrivacyBudget, RunSummary
from lightning_vfl.errors import ConfigurationError
from tests.subjects import Blobs, trainer

HUGE = 2**18  # trials: the distribution of their sum is not computed
NO_FIGURE = "levels \\* num_parties must be a whole number from 1 to 65,536; got 786432; lower levels"


def bounded(shape, width):
    return nn.Sequential(nn.Linear(shape[0], width), nn.Tanh())


def fit(folder, *callbacks, **limits):
    module = SplitVFL(PoissonBinomial(levels=HUGE), bounded, width=4, seed=0)
    trainer(folder, callbacks=list(callbacks), **{"max_epochs": 1} | limits).fit(
        module, datamodule=Blobs(batch_size=10)
    )
    return module


@pytest.mark.parametrize(
    ("callbacks", "limits"),
    [
        pytest.param((), {}, id="the log of an epoch"),
        pytest.param((PrivacyBudget(1e9),), {"max_steps": 2}, id="a budget"),
        pytest.param((RunSummary(),), {"max_steps": 2}, id="the summary"),
        pytest.param((RunSummary(), PrivacyBudget(1e9, unit="record")), {}, id="the summary, which has all units"),
    ],
)
def test_a_training_that_needs_the_figure_is_refused_before_its_first_round(tmp_path, callbacks, limits):
    class Rounds(Callback):
        begun = 0

        def on_train_batch_start(self, *_):
            self.begun += 1

    rounds = Rounds()
    with pytest.raises(ConfigurationError, match=NO_FIGURE):
        fit(tmp_path, *callbacks, rounds, **limits)
    assert not rounds.begun


def test_a_training_that_needs_no_figure_runs(tmp_path):
    assert fit(tmp_path / "short", max_steps=2).books.rounds["fit"] == 2
    assert fit(tmp_path / "records", PrivacyBudget(1e9, unit="record")).books.rounds["fit"] == 6
