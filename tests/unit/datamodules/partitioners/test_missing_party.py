"""Parties that are missing at test time: training is as ever, evaluation is as if their embeddings were left out."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Concat, LagrangeCoded, MaskedSum, Max, Mean, Sum
from lightning_vfl.datamodules import ContiguousColumns, Groups, Layout, LimitedOverlap, MissingAtTest
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import PolynomialNetwork
from tests.further import further
from tests.subjects import Blobs, same, trainer

from ..miniature import InMemory, table

SPLITS = {"train": table(23, 6, 0), "val": table(9, 6, 1), "test": table(8, 6, 2), "predict": table(7, 6, 3)}


def fitted(tmp_path, aggregator, cut, **settings):
    torch.manual_seed(0)
    module = SplitVFL(aggregator, width=5, seed=0, optimizer=partial(torch.optim.Adam, lr=1e-2), **settings)
    fitting = trainer(tmp_path, max_epochs=1)
    fitting.fit(module, datamodule=Blobs(cut, batch_size=10))
    return module, fitting


# ---- who holds what


@pytest.mark.parametrize("splits", [("val", "test", "predict"), ("test",), ("test", "predict")])
def test_the_missing_hold_nothing_of_these_splits(splits):
    data = InMemory(SPLITS, partitioner=MissingAtTest(ContiguousColumns(3), [0, 2], splits))
    for stage in ("fit", "test", "predict"):
        data.setup(stage)
    for name in SPLITS:
        records = data.records(name)
        if name not in splits:
            assert records.present is None
            assert all(part.any() for part in records.rows(torch.arange(len(records))))
            continue
        assert torch.equal(records.present, torch.tensor([[False, True, False]]).expand(len(records), 3))
        first, second, third = records.rows(torch.arange(len(records)))
        assert not first.any()
        assert not third.any()
        assert second.any()


def test_what_others_say_about_records_still_holds():
    cut = MissingAtTest(LimitedOverlap(ContiguousColumns(3), 6, only_aligned=True), [1])
    data = InMemory(SPLITS, partitioner=cut)
    data.setup("fit")
    assert len(data.records("train")) == 6
    grouped = MissingAtTest(Groups(ContiguousColumns(2), [1, 2]), [1])
    held, without = grouped.held("test", 10, 3), grouped.partitioner.held("test", 10, 3)
    assert held[:, 0].all()
    assert not held[:, 1].any()
    assert (held[:, 2] == without[:, 2]).all()
    assert without[:, 1].any()
    assert (grouped.held("train", 10, 3) == grouped.partitioner.held("train", 10, 3)).all()


def test_the_word_of_another_is_not_written_over():
    class Remembers(ContiguousColumns):
        said = np.ones((4, 2), dtype=bool)

        def held(self, split, records, parties):
            return self.said

    cut = MissingAtTest(Remembers(2), [1])
    assert cut.held("test", 4, 2).tolist() == [[True, False]] * 4
    assert cut.held("train", 4, 2).all()


# ---- training and evaluation


@pytest.mark.parametrize("aggregator", [further(Mean), Concat])
def test_training_is_the_same_to_the_bit(tmp_path, aggregator):
    module, fitting = fitted(tmp_path, aggregator(), ContiguousColumns(3))
    without, other = fitted(tmp_path, aggregator(), MissingAtTest(ContiguousColumns(3), [1]))
    mine, theirs = module.state_dict(), without.state_dict()
    learnt = [name for name in mine if "val_" not in name and "test_" not in name]
    assert len(learnt) >= 8
    assert same({name: mine[name] for name in learnt}, {name: theirs[name] for name in learnt})
    assert same(fitting.optimizers[0].state_dict(), other.optimizers[0].state_dict())
    assert float(fitting.callback_metrics["val/loss"]) != float(other.callback_metrics["val/loss"])


JOINS = {
    Mean: lambda h, there: torch.stack([h[m] for m in there]).mean(0),
    Sum: lambda h, there: torch.stack([h[m] for m in there]).sum(0),
    Max: lambda h, there: torch.stack([h[m] for m in there]).max(0).values,
    Concat: lambda h, there: torch.cat([x if m in there else torch.zeros_like(x) for m, x in enumerate(h)], 1),
}


@pytest.mark.parametrize(
    ("aggregator", "missing"),
    [
        case if (i + j) % 2 else further(*case)
        for i, case_of in enumerate(JOINS)
        for j, case in enumerate([(case_of, [1]), (case_of, [0, 2])])
    ],
)
def test_results_are_those_of_leaving_their_embeddings_out(tmp_path, aggregator, missing):
    join = JOINS[aggregator]
    module, _ = fitted(tmp_path, aggregator(), ContiguousColumns(3))
    (told,) = trainer(tmp_path).test(
        module, datamodule=Blobs(MissingAtTest(ContiguousColumns(3), missing), batch_size=10), verbose=False
    )
    whole = Blobs(ContiguousColumns(3), batch_size=10)
    whole.setup("test")
    records = whole.records("test")
    there = [m for m in range(3) if m not in missing]
    with torch.no_grad():
        h = module.eval().bottoms(records.rows(torch.arange(len(records))))
        output = module.top(join(h, there))
        everybody = module.top(join(h, [0, 1, 2]))
    loss = nn.functional.cross_entropy(output, records.labels)
    assert told["test/loss"] == pytest.approx(float(loss), rel=1e-5)
    assert told["test/accuracy"] == pytest.approx(float((output.argmax(1) == records.labels).float().mean()))
    assert told["test/loss"] != pytest.approx(float(nn.functional.cross_entropy(everybody, records.labels)), rel=1e-3)


def test_validation_may_be_with_everybody(tmp_path):
    _, whole = fitted(tmp_path, Mean(), ContiguousColumns(3))
    _, other = fitted(tmp_path, Mean(), MissingAtTest(ContiguousColumns(3), [1], ["test", "predict"]))
    assert same(dict(whole.callback_metrics), dict(other.callback_metrics))


def coded(**settings):
    return {
        "aggregator": LagrangeCoded(blocks=1, privacy=1),
        "bottom": partial(PolynomialNetwork, degree=1),
        "evaluate": "protocol",
        **settings,
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            lambda: {"aggregator": MaskedSum(clip=1000.0)},
            "18 records are held by no party of group (1,), first at position 0: another's embedding might stand alone "
            "in their sum; leave them out (overlap: inner), or accept it with allow_single: true",
        ),
        (
            coded,
            "LagrangeCoded needs every party to hold every record; use overlap: inner, or an aggregator that joins "
            "partly held records (Concat, Sum, Mean, Max)",
        ),
    ],
    ids=["MaskedSum", "LagrangeCoded"],
)
def test_aggregators_that_cannot_do_without_a_party_refuse(tmp_path, settings, message):
    cut = MissingAtTest(ContiguousColumns(3), [1], ["test"])
    module, _ = fitted(tmp_path, cut=cut, **settings())
    with pytest.raises(ConfigurationError) as error:
        trainer(tmp_path).test(module, datamodule=Blobs(cut, batch_size=10), verbose=False)
    assert str(error.value) == message
    with pytest.raises(ConfigurationError) as error:  # before the first round of training
        fitted(tmp_path, cut=MissingAtTest(ContiguousColumns(3), [1]), **settings())
    assert str(error.value) == message


def test_in_the_clear_they_do_without(tmp_path):
    """``evaluate: plain`` has the server see embeddings, of which those of the missing are left out."""
    module, _ = fitted(tmp_path, cut=ContiguousColumns(3), **coded(evaluate="plain"))
    cut = MissingAtTest(ContiguousColumns(3), [1])
    (told,) = trainer(tmp_path).test(module, datamodule=Blobs(cut, batch_size=10), verbose=False)
    whole = Blobs(ContiguousColumns(3))
    whole.setup("test")
    records = whole.records("test")
    with torch.no_grad():
        h = module.eval().bottoms(records.rows(torch.arange(len(records))))
        loss = nn.functional.cross_entropy(module.top((h[0] + h[2]) / 2), records.labels)
    assert told["test/loss"] == pytest.approx(float(loss), rel=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MissingAtTest(None, []), "parties must name at least one missing party, each once; got []"),
        (lambda: MissingAtTest(None, [1, 1]), "at least one missing party, each once; got [1, 1]"),
        (
            lambda: MissingAtTest(None, [1], ["train"]),  # type: ignore[list-item]  # wrong on purpose
            "splits must be one or more of val, test, predict; got ['train']",
        ),
        (lambda: MissingAtTest(None, [1], []), "splits must be one or more of val, test, predict; got []"),
        (
            lambda: MissingAtTest(ContiguousColumns(3), [3]).split(Layout((4,))),
            "parties names party 3, but the parties are 0 to 2; correct its number",
        ),
        (lambda: MissingAtTest(ContiguousColumns(3), [-1]).split(Layout((4,))), "party -1, but the parties are 0 to 2"),
        (
            lambda: MissingAtTest(ContiguousColumns(2), [0, 1]).split(Layout((4,))),
            "all 2 parties would be missing; name fewer in parties",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ConfigurationError) as error:
        make()
    assert message in str(error.value)
