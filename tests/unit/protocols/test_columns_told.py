"""What a fit says of the columns behind its uploads, before training and in its summary."""

from functools import partial

import pytest
import torch

from lightning_vfl import AsyncVFL, CascadeVFL, DecoupledVFL, SplitVFL
from lightning_vfl.aggregators import (
    Concat,
    LagrangeCoded,
    LagrangeShared,
    LocalGaussian,
    MaskedSum,
    Mean,
    PoissonBinomial,
)
from lightning_vfl.networks import MLP, Linear, PolynomialNetwork
from lightning_vfl.protocols.columns_told import Columns, Noise, Read, columns_told
from tests.subjects import Blobs, trainer

TEN, DEEP = Columns(10, True), Columns(10, False)
SUM, NARROW = Read(64, (0, 1, 2)), Read(16, (0, 1, 2))


@pytest.mark.parametrize(
    ("reads", "columns", "more", "line", "claim"),
    [
        ([SUM], TEN, {}, "every column up to rotation", "compute them up to rotation"),
        ([Read(30, (0, 1, 2))], TEN, {}, "every column up to rotation", "compute them up to rotation"),
        ([Read(29, (0, 1, 2))], TEN, {}, None, "approximately; a width below"),
        ([NARROW], TEN, {}, None, "approximately; a width below"),
        ([NARROW], DEEP, {}, None, "below the number of columns and a hidden layer"),
        ([NARROW, Read(16, (1,))], TEN, {}, "16 numbers for the 10 columns of party 1", "up to rotation"),
        ([SUM], DEEP, {}, "approximately: a hidden layer makes this harder, not safe", "approximately; a hidden layer"),
        (
            [SUM],
            TEN,
            {"uploads": 1},
            "one epoch tells the server which records are alike; from the second epoch on",
            "which records are alike",
        ),
        ([SUM], TEN, {"noise": Noise.UNCHARGED}, "approximately: noise without an ε", "approximately; noise without"),
        ([SUM], TEN, {"noise": Noise.CHARGED}, None, None),
        ([SUM], TEN, {"learns": False}, None, None),
        ([], TEN, {}, None, None),
    ],
)
def test_each_case_has_its_words(reads, columns, more, line, claim):
    told = columns_told(reads, (columns,) * 3, **{"uploads": 12} | more)
    said = (None, None) if told is None else (told.line("the server"), told.claim("the server"))
    for words, expected in zip(said, (line, claim), strict=True):
        assert (words is None) == (expected is None)
        assert expected is None or expected in words
    if said[0] is not None:
        assert said[0].endswith("or noise with its ε")


def built(protocol, bottom, width=8, **settings):
    module = protocol(bottom=bottom, width=width, seed=0, **settings)
    module.build_for(Blobs())
    return module


@pytest.mark.parametrize(
    ("protocol", "bottom", "reads"),
    [
        (partial(SplitVFL, Mean()), Linear, ((8, (0,)), (8, (1,)), (8, (2,)))),
        (partial(SplitVFL, Concat()), Linear, ((8, (0,)), (8, (1,)), (8, (2,)))),
        (partial(SplitVFL, MaskedSum()), Linear, ((8, (0, 1, 2)),)),
        (partial(SplitVFL, MaskedSum("segments"), active=0), Linear, ((8, (0, 1)), (8, (0, 2)))),
        (partial(SplitVFL, LagrangeCoded(blocks=1)), PolynomialNetwork, ((8, (0, 1, 2)),)),
        (partial(SplitVFL, LagrangeShared(blocks=1)), Linear, ((8, (0, 1, 2)),)),
        (partial(AsyncVFL, Mean()), Linear, ((8, (0,)), (8, (1,)), (8, (2,)))),
        (partial(CascadeVFL, MaskedSum()), Linear, ((8, (1, 2)), (8, (0, 2)), (8, (0, 1)))),
    ],
)
def test_who_joins_reads_single_embeddings_or_sums(protocol, bottom, reads):
    module = built(protocol, bottom)
    with torch.inference_mode():  # the record of a run is written after a validation
        assert module.reads() == reads
    assert sum(columns.number for columns in module.party_columns) == Blobs.columns
    assert module.columns_told(2).exact
    assert "not hidden" in (module.protection(2) or "") or module.wire.traits.visible


def test_noise_with_an_epsilon_and_parties_that_learn_alone_are_left_out():
    assert built(partial(SplitVFL, LocalGaussian()), Linear).columns_told(2) is None
    assert built(partial(SplitVFL, PoissonBinomial()), Linear).columns_told(2) is None
    assert built(DecoupledVFL, MLP).columns_told(2) is None
    assert not built(partial(AsyncVFL, Mean(), noise=1.0), Linear).columns_told(2).exact
    assert built(partial(SplitVFL, MaskedSum()), MLP).columns_told(2).blurs == ("a hidden layer",)


@pytest.mark.parametrize(("aggregator", "lines"), [(Mean(), 0), (MaskedSum(), 1)])
def test_a_simulation_that_hides_embeddings_says_it_once(aggregator, lines, tmp_path, told):
    trainer(tmp_path, max_epochs=2).fit(SplitVFL(aggregator, Linear, width=8, seed=0), datamodule=Blobs(batch_size=10))
    assert sum("every column up to rotation" in message for message in told) == lines
