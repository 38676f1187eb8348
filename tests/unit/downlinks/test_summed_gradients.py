"""Sums over a batch in place of gradients: their numbers, what is sent, and what a party still finds out."""

from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Concat, LocalGaussian, MaskedSum, Mean, Sum
from lightning_vfl.audit import LabelsByDirection, LabelsFromSums
from lightning_vfl.audit.count import both_counts
from lightning_vfl.callbacks import Audit
from lightning_vfl.datamodules import ContiguousColumns, Groups
from lightning_vfl.downlinks import SummedGradients
from lightning_vfl.downlinks.batch_sums import (
    BLINDED,
    COLUMN_STEP,
    GRADIENT_STEP,
    OPENED,
    SEALED,
    SUMS,
    EncryptedSums,
    SumsInTheClear,
    SumSizes,
)
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import MLP, Linear
from lightning_vfl.simulation import FaultModel, RoundOutcome
from lightning_vfl.types import RoundNames, Stage
from tests.further import further
from tests.subjects import Blobs, YesNo, same, split, trainer

NAMES = RoundNames(0, Stage.FIT, 0)
NOT_COMPUTED = pytest.mark.filterwarnings("ignore:the audit has not heard .* bytes of")
EQUIVALENT = partial(SummedGradients, execution="equivalent", allow_solvable_batches=True)


@pytest.fixture(scope="module")
def encrypted():
    return EncryptedSums(SumSizes(2048, 8.0, 128.0))


def fit(folder, downlink, aggregator=Mean, data=None, ckpt_path=None, **settings):
    torch.manual_seed(0)
    module = split(aggregator(), bottom=Linear, downlink=downlink)
    t = trainer(folder, **{"limit_val_batches": 0, **settings})
    t.fit(module, datamodule=data or Blobs(ContiguousColumns(4), batch_size=10), ckpt_path=ckpt_path)
    return module


# ---- the numbers


@pytest.mark.parametrize("width", [3, 90], ids=["one ciphertext a record", "several"])
def test_sums_are_those_of_python_integers(encrypted, width):
    random = torch.Generator().manual_seed(0)
    gradients = torch.rand(6, width, generator=random, dtype=torch.float64) * 16 - 8
    basis = torch.randn(6, 3, generator=random) * 20
    basis[:, 2], basis[0, 0] = 1.0, -128.0
    g, x = ([[round(v / step) for v in row] for row in table.tolist()]
            for table, step in ((gradients, GRADIENT_STEP), (basis, COLUMN_STEP)))  # fmt: skip
    wanted = [[sum(x[b][f] * g[b][d] for b in range(6)) for d in range(width)] for f in range(3)]
    told = []
    for sums in (encrypted, SumsInTheClear(encrypted.sizes)):
        found = sums.run(gradients, basis, 1, NAMES, told.append)
        assert (found / (GRADIENT_STEP * COLUMN_STEP)).to(torch.int64).tolist() == wanted
    assert [(one.kind, one.to, one.senders, one.receivers) for one in told] == [
        (SEALED, "parties", (), (1,)), (BLINDED, "server", (1,), None), (OPENED, "parties", (), (1,))
    ]  # fmt: skip


def test_the_largest_numbers_do_not_run_into_each_other(encrypted):
    gradients, basis = torch.full((256, 20), 8.0).double(), torch.full((256, 1), -128.0)
    gradients[:, ::2] = -8.0
    found = SumsInTheClear(encrypted.sizes).run(gradients, basis, 0, NAMES, None)
    assert torch.equal(found, basis.double().T @ gradients)
    assert torch.equal(encrypted.run(gradients[:4], basis[:4], 0, NAMES, None), basis[:4].double().T @ gradients[:4])


def test_numbers_outside_the_ranges_are_refused():
    sums = SumsInTheClear(SumSizes(2048, 8.0, 128.0))
    with pytest.raises(ConfigurationError, match="a gradient has a number of size 9, above gradient_range = 8"):
        sums.run(torch.full((2, 1), 9.0), torch.ones(2, 1), 0, NAMES, None)
    with pytest.raises(ConfigurationError, match="a column has a number of size nan, above column_range = 128"):
        sums.run(torch.ones(2, 1), torch.full((2, 1), np.nan), 0, NAMES, None)


# ---- trainings


@pytest.mark.parametrize("aggregator", [further(Concat), lambda: MaskedSum(clip=4.0, insecure_seeded_secrets=True)])
def test_a_training_has_the_same_bits_with_encryption_and_nearly_those_of_gradients(tmp_path, aggregator):
    runs = [
        fit(tmp_path, downlink, aggregator, max_steps=2).state_dict()
        for downlink in (SummedGradients(allow_solvable_batches=True), EQUIVALENT(), None)
    ]
    assert same(runs[0], runs[1])
    for name, exact in runs[2].items():
        assert torch.allclose(runs[0][name], exact, atol=1e-3), name


def test_all_bytes_are_counted_and_no_gradient_is_among_them(tmp_path):
    listening = Audit("party:1", [LabelsByDirection(1)])
    loud = fit(tmp_path, SummedGradients(allow_solvable_batches=True), max_steps=1, callbacks=[listening])
    quiet = fit(tmp_path, EQUIVALENT(), max_steps=1)
    assert same(loud.state_dict(), quiet.state_dict())
    transcript = listening.transcript
    assert all(torch.equal(heard, metered) for heard, metered in both_counts(loud, transcript).values())
    assert {kind for kind, _ in transcript.kinds()} == {"embeddings", SEALED, BLINDED, OPENED}
    assert same(loud.books.meter.state_dict(), quiet.books.meter.state_dict())
    sums = list(transcript.find(SUMS))
    assert {(one.receiver, tuple(one.value.shape)) for one in sums} == {(1, (3, 5))}
    assert "nothing to attack" in listening.findings[0].verdict


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_a_resumed_training_has_the_same_bits(tmp_path):
    saver = ModelCheckpoint(every_n_train_steps=4, save_top_k=-1, filename="{step}")
    whole = fit(tmp_path / "whole", EQUIVALENT(), callbacks=[saver], enable_checkpointing=True)
    (kept,) = (tmp_path / "whole").rglob("step=4.ckpt")
    again = fit(tmp_path / "again", EQUIVALENT(), ckpt_path=str(kept))
    assert same(whole.state_dict(), again.state_dict())
    assert same(whole.books.state(), again.books.state())


class Deaf(FaultModel):
    """The server's answer does not reach party 1 in odd rounds."""

    def sample(self, request, roster, seed):
        nothing = RoundOutcome.nothing(roster)
        return replace(nothing, receives=torch.arange(roster.parties) != 1) if request % 4 == 3 else nothing

    def hosts(self, request, roster, seed):
        return RoundOutcome.nothing(roster).hosts


def test_a_party_that_does_not_hear_the_answer_gets_no_sums(tmp_path):
    listening = Audit("party:1", [LabelsByDirection(1)])
    torch.manual_seed(0)
    module = split(Mean(), bottom=Linear, downlink=SummedGradients(allow_solvable_batches=True))
    module.faults.add(Deaf())
    data = Blobs(ContiguousColumns(4), batch_size=2)
    trainer(tmp_path, callbacks=[listening], max_steps=3, limit_val_batches=0).fit(module, datamodule=data)
    assert [entry.round for entry in listening.transcript.find(SUMS)] == [0, 2]
    assert all(torch.equal(heard, metered) for heard, metered in both_counts(module, listening.transcript).values())


def test_rows_that_a_party_does_not_hold_are_not_in_its_sums(tmp_path):
    class PartlyHeld(Blobs):
        partly_held = True

    data = PartlyHeld(ContiguousColumns(3), batch_size=20)
    summed, plain = (fit(tmp_path, downlink, Mean, data, max_steps=3) for downlink in (EQUIVALENT(), None))
    for name, exact in plain.state_dict().items():
        assert torch.allclose(summed.state_dict()[name], exact, atol=1e-3), name


def test_a_copy_of_the_module_makes_keys_of_its_own(tmp_path):
    data = Blobs(ContiguousColumns(4), batch_size=1)
    module = fit(tmp_path, SummedGradients(allow_solvable_batches=True), data=data, max_steps=1)
    assert module.summing._sums is not None
    assert deepcopy(module).summing._sums is None


# ---- what a party still finds out


class Many(YesNo):
    records_in_all = 600


@NOT_COMPUTED
def test_sums_of_one_epoch_tell_little_and_those_of_many_the_labels(tmp_path):
    """Batches of 20 and F = 3: after 20 / 3 epochs there are as many equations as labels."""
    torch.manual_seed(0)
    module = SplitVFL(Concat(), Linear, width=8, seed=0, downlink=SummedGradients(execution="equivalent"))
    listening = Audit("party:1", [LabelsFromSums(1), LabelsFromSums(12), LabelsByDirection(1)])
    data = Many(ContiguousColumns(4), batch_size=20)
    trainer(tmp_path, max_epochs=12, callbacks=[listening], limit_val_batches=0).fit(module, datamodule=data)
    once, often, direction = listening.findings
    assert once.success < once.without + 0.1
    assert often.low > 0.95
    assert direction.verdict == "nothing to attack: no gradient is sent"


@NOT_COMPUTED
def test_an_audit_of_summed_gradients_tries_the_attack(tmp_path):
    listening = Audit("party:1")
    data = Many(ContiguousColumns(4), batch_size=20)
    module = SplitVFL(Concat(), Linear, width=8, seed=0, downlink=EQUIVALENT())
    trainer(tmp_path, max_epochs=1, callbacks=[listening], limit_val_batches=0).fit(module, datamodule=data)
    assert "LabelsFromSums" in {one.attack for one in listening.findings}


# ---- what is refused


def refused(folder, words, aggregator=None, data=None, bottom=Linear, downlink=None, **settings):
    module = SplitVFL(aggregator or Mean(), bottom, width=5, seed=0, downlink=downlink or EQUIVALENT(), **settings)
    with pytest.raises(ConfigurationError, match=words):
        trainer(folder).fit(module, datamodule=data or Blobs(ContiguousColumns(4), batch_size=10))


def test_bottoms_that_are_not_linear_are_refused(tmp_path):
    refused(tmp_path, "the MLP of party 0 is not linear: use model.bottom: Linear", bottom=MLP)


def test_parties_that_change_their_gradient_are_refused(tmp_path):
    refused(tmp_path, "a party of LocalGaussian changes its gradient itself", LocalGaussian(draws="seeded"))


def test_groups_are_refused(tmp_path):
    data = Blobs(Groups(ContiguousColumns(2), [1, 3]), batch_size=10)
    refused(tmp_path, "does not join the updates of groups", Sum(), data, allow_invertible_updates=True)


def test_batches_whose_sums_tell_every_gradient_are_refused(tmp_path):
    data = Blobs(ContiguousColumns(4), batch_size=17)
    words = "the smallest batch has 3 records, and the bottom of party 0 has 3 inputs"
    refused(tmp_path, words, None, data, downlink=SummedGradients(execution="equivalent"))


def test_data_that_a_party_may_hold_little_of_are_refused(tmp_path):
    class PartlyHeld(Blobs):
        partly_held = True

    data = PartlyHeld(ContiguousColumns(3), batch_size=18)
    words = "some records are held by some parties only"
    refused(tmp_path, words, None, data, downlink=SummedGradients(execution="equivalent"))


def test_sums_that_are_too_large_are_refused_before_training(tmp_path):
    downlink = EQUIVALENT(gradient_range=2.0**20, column_range=2.0**20)
    refused(tmp_path, "sums of 10 records take more than 62 bits with gradient_range = 1.04858e.06", downlink=downlink)


def test_columns_beyond_their_range_are_refused_before_training(tmp_path):
    words = "party 0: a column has a number of size .*, above column_range = 1 of SummedGradients"
    refused(tmp_path, words, downlink=SummedGradients(column_range=1.0, execution="equivalent"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"key_bits": 1000}, "key_bits must be one of 2048, 3072, 4096; got 1000"),
        ({"gradient_range": 0.0}, "gradient_range of SummedGradients must be at least 2.-10; got 0.0"),
        ({"column_range": float("nan")}, "column_range of SummedGradients must be at least 2.-10; got nan"),
        ({"execution": "masked"}, "execution must be 'encrypted' or 'equivalent'; got 'masked'"),
    ],
)
def test_settings_outside_their_range_are_refused(settings, words):
    with pytest.raises(ConfigurationError, match=words):
        SummedGradients(**settings)
