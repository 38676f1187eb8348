"""A top whose forward takes ``columns`` is told which have arrived, and its factory the widths of the parties."""

import torch
from torch import nn

from lightning_vfl import SplitVFL, VerticalBatch
from lightning_vfl.aggregators import Concat, MaskedSum, Sum
from lightning_vfl.callbacks import FaultInjector
from lightning_vfl.export.split_model import server_part
from lightning_vfl.export.trained import Trained
from lightning_vfl.networks.column_aware import ColumnAwareTop
from lightning_vfl.simulation import PartyDropout
from lightning_vfl.simulation.faults import Faults
from lightning_vfl.types import Roll
from tests.exported import built
from tests.subjects import Blobs, trainer


class Noting(nn.Module):
    """A linear top that keeps the columns it was told."""

    def __init__(self, width, outputs, widths):
        super().__init__()
        self.widths = widths
        self.layer = nn.Linear(width, outputs)
        self.told = []

    def forward(self, joint, columns):
        self.told.append((columns.tolist(), bool((joint[:, ~columns] == 0).all())))
        return self.layer(joint)


def fitted(aggregator, tmp_path, *callbacks, **settings):
    module = SplitVFL(aggregator, top=Noting, width=4, seed=0, **settings)
    trainer(tmp_path, max_epochs=2, callbacks=list(callbacks)).fit(module, datamodule=Blobs(batch_size=10))
    return module


def test_it_is_told_the_columns_of_each_round(tmp_path):
    """Exactly those of the parties that the plan includes; the others are zeros."""
    module = fitted(Concat(), tmp_path, FaultInjector(PartyDropout(0.5, 0.4)))
    faults = Faults(module.seed)
    faults.add(PartyDropout(0.5, 0.4))
    plans = [faults.at(2 * n, module.roster).announced for n in range(module.books.rounds["fit"])]
    rounds = [there.repeat_interleave(4).tolist() for there in plans]
    told = [columns for columns, zeros in module.top.network.told if zeros]
    assert len(told) == len(module.top.network.told)
    partly = [columns for columns in told if not all(columns)]
    assert partly == [columns for columns in rounds if not all(columns)]
    assert partly
    assert module.top.network.widths == (4, 4, 4)


def test_it_is_told_in_evaluation_and_of_hidden_sums(tmp_path):
    module = fitted(Concat(), tmp_path)
    batch = Blobs(batch_size=10)
    batch.setup("test")
    features = VerticalBatch(batch.records("test").rows(torch.arange(6)), None, torch.arange(6))
    module.eval()
    module.output_in_the_clear(features, Roll.of(torch.tensor([True, False, True])))
    assert module.top.network.told[-1][0] == [True] * 4 + [False] * 4 + [True] * 4
    hidden = fitted(MaskedSum(layout="segments", allow_single=True), tmp_path, FaultInjector(PartyDropout(0.9, 0.4)))
    assert any(not all(columns) for columns, _ in hidden.top.network.told)


def test_a_sum_has_all_columns_whoever_is_there(tmp_path):
    module = fitted(Sum(), tmp_path, FaultInjector(PartyDropout(0.9, 0.4)))
    assert {tuple(columns) for columns, _ in module.top.network.told} == {(True,) * 4}


def test_its_work_is_counted_and_its_weights_resume(tmp_path):
    module = fitted(Concat(), tmp_path)
    assert isinstance(module.top, ColumnAwareTop)
    assert module.costs.work[1].forward == 2 * 12 * 3
    again = SplitVFL(Concat(), top=Noting, width=4, seed=1)
    again.build_for(Blobs(batch_size=10))
    again.load_state_dict(module.state_dict())
    assert torch.equal(again.top.network.layer.weight, module.top.network.layer.weight)


def test_exported_halves_are_told_who_is_never_called(tmp_path):
    """As evaluation is: a party that training never calls brings no columns."""
    module, _ = built(Concat(), top=Noting)
    module.books.left_out = (1,)
    roll = module.evaluation_roll()
    server_part(Trained(module, ""))  # it runs the half once
    columns = module.aggregator.columns(module.embedding_widths, roll).tolist()
    assert not all(columns)
    assert module.top.network.told[-1][0] == columns
