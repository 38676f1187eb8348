"""Validation, test and prediction with faults: who took part, bytes and seconds, against computation by hand."""

from dataclasses import replace

import pandas as pd
import pytest
import torch

from lightning_vfl.aggregators import MaskedSum, Mean
from lightning_vfl.callbacks import FaultInjector, PredictionWriter
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Exclude, Skip, Stale, Zeros
from lightning_vfl.protocols import DropParties
from lightning_vfl.protocols.split import faults_of
from lightning_vfl.simulation import PartyDropout
from lightning_vfl.simulation.faults import FaultModel, RoundOutcome
from lightning_vfl.types import Stage
from tests.subjects import Blobs, split, trainer


class Odd(FaultModel):
    """Party 1 is absent from odd rounds."""

    def sample(self, request, roster, seed):
        there = torch.ones(roster.parties, dtype=torch.bool)
        there[1] = request // 2 % 2 == 0
        return replace(RoundOutcome.nothing(roster), announced=there)


def predicted(tmp_path, **settings):
    """The module, the table of predictions and the batches."""
    module, data = split(faults_in_evaluation=True, **settings), Blobs(batch_size=6)
    writer = PredictionWriter(str(tmp_path / "p.csv"))
    running = trainer(tmp_path, max_epochs=1, callbacks=[writer, FaultInjector(Odd())])
    running.fit(module, datamodule=data)
    before = module.standing()
    running.predict(module, datamodule=data)
    data.setup("predict")
    return module, pd.read_csv(tmp_path / "p.csv", dtype={"parties": str}), list(data.predict_dataloader()), before


@pytest.mark.parametrize("missing", [Exclude(), Zeros(), Stale()], ids=lambda m: type(m).__name__)
def test_a_prediction_is_that_of_the_parties_that_took_part(missing, tmp_path):
    module, table, batches, before = predicted(tmp_path, missing=missing)
    at = 0
    for number, batch in enumerate(batches):
        there = [0, 2] if number % 2 else [0, 1, 2]
        divisor = len(there) if isinstance(missing, Exclude) else 3
        h = [bottom(x) for bottom, x in zip(module.bottoms.parties, batch.features, strict=True)]
        z = sum(h[m] for m in there) / divisor
        rows = table.iloc[at : at + len(z)]
        expected = module.top(z).softmax(1).detach()
        torch.testing.assert_close(torch.from_numpy(rows.filter(like="probability").to_numpy()).float(), expected)
        assert set(rows["parties"]) == {" ".join(map(str, there))}
        at += len(z)
    after = module.standing()
    assert after["clock/virtual_seconds"] > before["clock/virtual_seconds"]
    sent = module.books.meter.total("up", "predict embeddings")
    assert sent.tolist() == [4 * 5 * n for n in (18, 12, 18)]  # party 1 sends in two of three batches of 6
    assert module.books.meter.total("down").tolist() == [4 * 5 * 54 if m != 1 else 4 * 5 * 30 for m in range(3)]


def test_a_round_that_is_given_up_has_no_prediction_and_is_not_scored(tmp_path):
    module, table, _, _ = predicted(tmp_path, missing=Skip())
    lost = table["parties"].isna()
    assert lost.tolist() == [False] * 6 + [True] * 6 + [False] * 6
    assert table.loc[lost].drop(columns=["record"]).isna().all(axis=None)
    found = trainer(tmp_path, callbacks=[FaultInjector(Odd())]).test(module, datamodule=Blobs(batch_size=6))[0]
    assert found["test/unanswered"] == 6
    assert 0 <= found["test/accuracy"] <= 1


def test_masked_sums_are_evaluated_through_their_messages(tmp_path):
    _module, table, _, _ = predicted(tmp_path, aggregator=MaskedSum(clip=50), allow_embeddings_by_subtraction=True)
    assert table["parties"].tolist() == ["0 1 2"] * 6 + ["0 2"] * 6 + ["0 1 2"] * 6
    assert table.filter(like="probability").notna().all(axis=None)


def test_evaluation_has_requests_of_its_own_and_no_subsets():
    module = split(faults_in_evaluation=True, subsets=DropParties(0.5, by="round"))
    module.build_for(Blobs())
    model = PartyDropout(0.5, 0.5)
    for one in (model, *module.subsets.absences):
        module.faults.add(one)
    validation, test = (faults_of(module, stage, module.subsets.absences) for stage in (Stage.VALIDATION, Stage.TEST))
    assert validation.models == test.models == (model,)
    drawn = [
        [tuple(faults.at(2 * i, module.roster).announced.tolist()) for i in range(60)]
        for faults in (validation, test, module.faults)
    ]
    assert drawn[0] != drawn[1] != drawn[2] != drawn[0]


def test_without_the_setting_no_fault_happens(tmp_path):
    module, data = split(Mean()), Blobs(batch_size=6)
    found = trainer(tmp_path, callbacks=[FaultInjector(Odd())]).test(module, datamodule=data)[0]
    clean = trainer(tmp_path).test(module, datamodule=data)[0]
    assert found == clean
    assert module.books.meter.kinds("up") == ()


def test_rules_that_do_not_suit_the_faults_are_refused_before_the_test(tmp_path):
    module = split(faults_in_evaluation=True)
    silent = FaultInjector(PartyDropout(0.5, 0.5, announced=False))
    with pytest.raises(ConfigurationError):
        trainer(tmp_path, callbacks=[silent]).test(module, datamodule=Blobs())
