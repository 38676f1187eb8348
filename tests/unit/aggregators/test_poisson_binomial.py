"""PoissonBinomial against exact probabilities, fractions, and the runs it makes."""

from dataclasses import replace
from fractions import Fraction
from itertools import product
from math import comb, log2, sqrt

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import MaskedSum, PoissonBinomial
from lightning_vfl.aggregators.poisson_binomial import Binomial
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.rounds.exchange import Exchange, open_round
from lightning_vfl.types import Roll, Roster, RoundNames, Rows, Stage
from lightning_vfl.wire import Embeddings, PartyView, ServerView
from tests.subjects import Blobs, trainer
from tests.unit.aggregators.sides import first_leg

M = 3


def round_of(aggregator, h, number=0, start=0, total=None, called=None):
    """The aggregate of these embeddings in round ``number``."""
    roster = Roster.singles(len(h))
    aggregator = aggregator.among(roster)
    roll = Roll.of(torch.ones(len(h), dtype=torch.bool) if called is None else torch.tensor(called))
    rows = Rows(torch.arange(len(h[0])), start, total or len(h[0]))
    names = RoundNames(7, Stage.FIT, number)
    parties = PartyView(names, roster, tuple(range(len(h))), roll.called, rows)
    parties = PartyView(
        **{**vars(parties), "memory": open_round(aggregator.opening, aggregator.opening.empty_memory(parties), parties)}
    )
    server = ServerView(names, roster, rows, roll, tuple(x.shape[1] for x in h))
    return Exchange(aggregator, Embeddings(tuple(h)), parties, server).run()


def probabilities(levels, beta, values):
    """Exact probabilities of the sum of independent draws, by multiplying polynomials in fractions."""
    poly = [Fraction(1)]
    for x in values:
        p = Fraction(1, 2) + Fraction(beta) * Fraction(x)
        own = [comb(levels, k) * p**k * (1 - p) ** (levels - k) for k in range(levels + 1)]
        poly = [
            sum(poly[i] * own[k - i] for i in range(len(poly)) if 0 <= k - i < len(own))
            for k in range(len(poly) + len(own) - 1)
        ]
    return poly


@pytest.mark.parametrize("values", [(0.0, 0.0, 0.0), (1.0, -1.0, 0.5), (1.0, 1.0, 1.0)])
def test_the_sum_is_distributed_as_the_mechanism_says(values):
    levels, beta, count = 4, 0.25, 40_000
    h = [torch.full((count, 1), x) for x in values]
    estimate = round_of(PoissonBinomial(levels=levels, beta=beta), h)
    total = (estimate.double() * (2 * beta * levels) + levels * M).flatten() / 2
    counts = np.bincount(total.round().long().numpy(), minlength=levels * M + 1)
    torch.testing.assert_close(total, total.round(), atol=1e-5, rtol=0)
    expected = count * np.array([float(p) for p in probabilities(levels, beta, values)])
    seen = expected > 5
    statistic = float(((counts - expected)[seen] ** 2 / expected[seen]).sum())
    assert statistic < chi2.ppf(1 - 1e-6, int(seen.sum()) - 1)
    assert counts[expected == 0].sum() == 0


@pytest.mark.parametrize(("levels", "beta", "clip"), [(1, 0.25, 1.0), (16, 0.1, 1.0), (8, 0.25, 3.0)])
def test_unbiased_with_the_stated_variance(levels, beta, clip):
    count = 60_000
    values = (0.0, 0.9 * clip, -0.4 * clip)
    h = [torch.full((count, 1), x, dtype=torch.float64) for x in values]
    estimate = round_of(PoissonBinomial(levels=levels, beta=beta, clip=clip), h).double()
    variance = sum(levels * (0.25 - (beta * x / clip) ** 2) for x in values) * (clip / (beta * levels)) ** 2
    assert variance <= clip**2 * M / (4 * beta**2 * levels)  # Theorem 2.3
    assert abs(float(estimate.mean()) - sum(values)) < 5 * sqrt(variance / count)
    assert float(estimate.var()) == pytest.approx(variance, rel=0.05)


def test_the_estimate_is_the_fraction_that_the_paper_writes():
    codec = Binomial(5, 0.2, 1.5, False)
    for n, q in product((1, 2, 7), range(0, 36, 5)):
        if q <= 5 * n:
            exact = Fraction(3, 2) / (Fraction(1, 5) * 5) * (q - Fraction(5 * n, 2))
            assert float(codec.to_real(np.array([q], np.uint32), n)[0]) == pytest.approx(float(exact), abs=1e-12)


@pytest.mark.parametrize("parties", [2, 3, 4, 7, 10, 128])
@pytest.mark.parametrize("levels", [1, 2, 16, 63])
def test_a_number_takes_as_many_bits_as_the_sum_needs(parties, levels):
    roster = Roster.singles(parties)
    aggregator = PoissonBinomial(levels=levels).among(roster)
    (leg,) = aggregator.wire.legs(10, (4,) * parties, (), roster)
    assert leg.bits == -int(-log2(levels * parties + 1) // 1)
    assert 2**leg.bits > levels * parties >= 2 ** (leg.bits - 1)
    assert leg.elements.tolist() == [40] * parties


def test_uploads_are_uniform_in_their_ring():
    roster = Roster.singles(M)
    aggregator = PoissonBinomial(MaskedSum(insecure_seeded_secrets=True), levels=5).among(roster)  # 15: a ring of 16
    names, rows = RoundNames(1, Stage.FIT, 0), Rows(torch.arange(20_000), 0, 20_000)
    view = PartyView(names, roster, (0, 1, 2), torch.ones(M, dtype=torch.bool), rows)
    view = replace(view, memory=open_round(aggregator.opening, aggregator.opening.empty_memory(view), view))
    message = first_leg(aggregator, Embeddings(tuple(torch.zeros(20_000, 1) for _ in range(M))), view)
    for piece in message.pieces:
        counts = np.bincount(piece.numpy().ravel(), minlength=16)
        assert len(counts) == 16
        assert float(((counts - 1250.0) ** 2 / 1250.0).sum()) < chi2.ppf(1 - 1e-6, 15)


def test_processes_draw_what_one_would_have_drawn():
    generator = torch.Generator().manual_seed(0)
    h = [torch.rand(10, 3, generator=generator) * 2 - 1 for _ in range(M)]
    joint = round_of(PoissonBinomial(draws="seeded"), h)
    parts = [
        round_of(PoissonBinomial(draws="seeded"), [x[rows] for x in h], start=rows.start, total=10)
        for rows in (slice(0, 6), slice(6, 10))
    ]
    assert torch.equal(torch.cat(parts), joint)
    assert not torch.equal(round_of(PoissonBinomial(draws="seeded"), h, number=1), joint)


def test_only_those_who_are_included_count():
    h = [torch.zeros(5000, 1), torch.full((5000, 1), 0.5), torch.full((5000, 1), float("nan"))]
    estimate = round_of(PoissonBinomial(), h, called=[True, True, False])
    assert float(estimate.mean()) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("bad", [1.0001, -2.0, float("nan"), float("inf")])
def test_values_out_of_range_end_the_run_unless_they_may_be_clipped(bad):
    h = [torch.zeros(4, 2) for _ in range(M)]
    h[1][2, 0] = bad
    with pytest.raises(ConfigurationError, match="end the bottoms in a bounded activation"):
        round_of(PoissonBinomial(), h)
    if np.isfinite(bad):
        with pytest.warns(UserWarning, match="more than 1% of the values of embeddings"):
            round_of(PoissonBinomial(clip_outside=True), h)
    else:
        with pytest.raises(ConfigurationError, match="no numbers"):
            round_of(PoissonBinomial(clip_outside=True), h)


def test_settings_that_cannot_be_are_refused():
    for settings, words in (
        ({"levels": 0}, "levels must be .* got 0"),
        ({"levels": 2.5}, "levels must be .* got 2.5"),
        ({"beta": 0.0}, "beta must be .* got 0.0"),
        ({"beta": 0.3}, "at most 0.25"),
        ({"clip": 0.0}, "clip must be .* got 0.0"),
        ({"inner": MaskedSum(clip=2.0)}, "set them on PoissonBinomial"),
        ({"inner": MaskedSum(levels=16)}, "set them on PoissonBinomial"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            PoissonBinomial(**settings)
    with pytest.raises(ConfigurationError, match="use fewer levels"):
        PoissonBinomial(levels=2**31).among(Roster.singles(4))
    with pytest.raises(ConfigurationError, match="takes groups of one"):
        PoissonBinomial().among(Roster(((0,), (1, 2))))


def test_a_fit_says_what_an_upload_costs_and_counts_its_bits(tmp_path):
    module = SplitVFL(PoissonBinomial(levels=4, beta=0.25), bottom=bounded, width=4, seed=0)
    trainer(tmp_path, max_epochs=2).fit(module, datamodule=Blobs(batch_size=10))
    said = module.wire.protection(2)
    assert "2.044 of a party-record" in said  # the exact figure of order 2 for b = 4, β = 1/4, M = 3
    rounds_bits = [(rows * 4 * 4 + 7) // 8 for rows in (10, 10, 10, 10, 10, 4)]  # 4 bits hold 12
    assert module.books.meter.total("up", "masked embeddings").tolist() == [2 * sum(rounds_bits)] * 3
    assert not module.protected_evaluation


def bounded(shape, width):
    return torch.nn.Sequential(torch.nn.Linear(shape[0], width), torch.nn.Tanh())
