"""``draws: system``: secret noise without the gaps of floating point, new in every round that is computed.

Statistical thresholds are at 1e-6; draws of the system have no seed, so a test may fail by chance once in 10⁶ runs.
"""

import pickle
from copy import copy, deepcopy
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import log2

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import Callback
from scipy import stats

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import LocalGaussian, MaskedSum, Max, PoissonBinomial
from lightning_vfl.callbacks.run_summary import summary_lines
from lightning_vfl.crypto import Keystream
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy import Budget, PublishedPBM, Sigma, composed_epsilon
from lightning_vfl.privacy.draws import SIMULATED, OwnKeystreams
from lightning_vfl.privacy.exact_normal import grid, rounded_normal
from lightning_vfl.rounds.exchange import Exchange, Sides, open_round
from lightning_vfl.streams import stream
from lightning_vfl.testing.rounds import Upload
from lightning_vfl.types import Roll, Roster, RoundNames, Rows, Stage
from lightning_vfl.wire import Embeddings, PartyView, ServerView
from tests.subjects import Blobs, same, trainer

RARE = 1e-6
NAMES = RoundNames(0, Stage.FIT, 3)


def bounded(shape, width):
    return torch.nn.Sequential(torch.nn.Linear(shape[0], width), torch.nn.Tanh())


def private(aggregator):
    torch.manual_seed(0)
    return SplitVFL(aggregator, bottom=bounded, width=5, seed=0)


AGGREGATORS = {"LocalGaussian": LocalGaussian, "PoissonBinomial": PoissonBinomial}
every_aggregator = pytest.mark.parametrize("make", AGGREGATORS.values(), ids=AGGREGATORS)


def view_of(parties, rows):
    roster = Roster.singles(parties)
    called = torch.ones(parties, dtype=torch.bool)
    return PartyView(NAMES, roster, tuple(range(parties)), called, Rows(torch.arange(rows), 0, rows))


def uploads(aggregator, h, side=None):
    return Upload(aggregator, Embeddings(tuple(h)), view_of(len(h), len(h[0])), side).first.pieces


def sums(aggregator, h, side=None):
    """The aggregate of one round of PoissonBinomial, with fresh masks."""
    bound, view = aggregator.among(Roster.singles(len(h))), view_of(len(h), len(h[0]))
    view = replace(view, memory=open_round(bound.opening, bound.opening.empty_memory(view), view))
    server = ServerView(NAMES, view.roster, view.rows, Roll.everyone(len(h)), tuple(x.shape[1] for x in h))
    sides = Sides(bound.wire, side or bound.wire.party_side(), bound.wire.server_side())
    return Exchange(bound, Embeddings(tuple(h)), view, server, sides=sides).run()


# ---- LocalGaussian: the ideal mechanism, rounded


@pytest.mark.parametrize("bounds", ["record", "value"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_an_upload_is_the_clipped_embedding_on_the_grid_and_a_rounded_normal(bounds, dtype, monkeypatch):
    """In fractions, with known words in the place of the keystream: nothing else enters."""
    aggregator = LocalGaussian(Budget(2.0), clip=0.7, bounds=bounds)
    h = [torch.randn(5, 3, generator=torch.Generator().manual_seed(m)).to(dtype) for m in range(2)]
    monkeypatch.setattr(OwnKeystreams, "of", lambda self, party: stream(9, party).random_raw)
    sent = uploads(aggregator, h)
    sigma = aggregator.sigma(3, 2)
    step = Fraction(grid(sigma, 0.7))
    for party, (x, got) in enumerate(zip(h, sent, strict=True)):
        noise = rounded_normal(15, sigma / float(step), stream(9, party).random_raw).tolist()
        clipped = aggregator._mechanism.clipped(x).flatten().tolist()
        exact = [step * (int(Fraction(value) / step) + n) for value, n in zip(clipped, noise, strict=True)]
        assert torch.equal(got, torch.tensor([float(y) for y in exact], dtype=torch.float64).to(dtype).reshape(5, 3))


@given(st.floats(1e-300, 1e300), st.floats(1e-140, 1e300))
def test_the_grid_is_a_power_of_two_that_the_noise_hides_and_64_bits_hold(sigma, clip):
    step = grid(sigma, clip)
    assert log2(step).is_integer()
    assert step <= sigma * 2.0**-20 or step <= clip * 2.0**-58
    assert clip / step <= 2.0**60
    assert sigma / step < 2.0**21


@pytest.mark.parametrize("noise", [Sigma(1e-300), Sigma(1e-12), Sigma(1.0), Sigma(1e300)])
@pytest.mark.parametrize("clip", [1e-140, 1.0, 1e300])
def test_what_is_added_to_the_noise_is_no_longer_than_the_clip(noise, clip, monkeypatch):
    """In exact arithmetic, for all proportions of clip and noise; rounding takes less than a step."""
    monkeypatch.setattr(
        "lightning_vfl.privacy.exact_normal.rounded_normal", lambda n, scale, words: np.zeros(n, np.int64)
    )
    h = torch.randn(50, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * clip / 2
    aggregator = LocalGaussian(noise, clip)
    (sent,) = uploads(aggregator, [h])
    step = grid(aggregator.sigma(8, 1), clip)
    with mpmath.workdps(60):
        assert all(sum(mpmath.mpf(x) ** 2 for x in row) <= mpmath.mpf(clip) ** 2 for row in sent.tolist())
    assert (sent - aggregator._mechanism.clipped(h)).abs().max() <= step


def test_uploads_have_the_mean_and_the_noise_of_the_mechanism():
    aggregator = LocalGaussian(Budget(1.0))
    h = torch.zeros(40_000, 2, dtype=torch.float64)
    h[:, 0] = 0.6
    sigma = aggregator.sigma(2, 3)
    for sent in uploads(aggregator, [h, h, h]):
        z = ((sent - h) / sigma).numpy()
        assert stats.kstest(z.ravel(), "norm").pvalue > RARE
        assert abs(np.corrcoef(z.T)[0, 1]) * np.sqrt(len(z)) < stats.norm.isf(RARE / 2)


def test_all_uploads_lie_on_one_grid_whatever_is_sent():
    """Which numbers can come out does not depend on the embedding: Mironov's attack has nothing to read."""
    aggregator = LocalGaussian(Budget(1.0))
    step = grid(aggregator.sigma(1, 1), 1.0)
    for value in (0.0, 1.0, -1.0, 1 / 3):
        (sent,) = uploads(aggregator, [torch.full((2000, 1), value, dtype=torch.float64)])
        whole = sent / step
        assert torch.equal(whole, whole.round())
        last = np.bincount(whole.long().flatten().numpy() & 1, minlength=2)  # also the last bit is fair
        assert stats.binomtest(int(last[0]), 2000).pvalue > RARE


# ---- PoissonBinomial


@pytest.mark.parametrize("values", [(1.0, -1.0, 0.5), (0.0, 0.0, 0.0)])
def test_secret_sums_have_the_probabilities_of_the_mechanism(values):
    levels, beta, rows = 4, 0.25, 40_000
    made = sums(PoissonBinomial(levels=levels, beta=beta), [torch.full((rows, 1), x) for x in values])
    total = ((made.double() * 2 * beta * levels + 3 * levels) / 2).round().long().flatten()
    pmf = [1.0]
    for x in values:
        pmf = np.convolve(pmf, stats.binom.pmf(np.arange(levels + 1), levels, 0.5 + beta * x))
    expected, counts = rows * np.array(pmf), np.bincount(total, minlength=len(pmf))
    large = expected > 5
    statistic = ((counts - expected)[large] ** 2 / expected[large]).sum()
    assert stats.chi2.sf(statistic, large.sum() - 1) > RARE
    assert counts[expected == 0].sum() == 0


def test_each_slot_draws_from_a_keystream_of_its_own(monkeypatch):
    asked = {}

    def of(self, owner):
        keystream = asked.setdefault(owner, Keystream())
        return keystream.words

    monkeypatch.setattr(OwnKeystreams, "of", of)
    sums(PoissonBinomial(), [torch.zeros(4, 2)] * 3)
    assert sorted(asked) == [0, 1, 2]
    asked.clear()
    uploads(LocalGaussian(), [torch.zeros(4, 2)] * 3)
    assert sorted(asked) == [0, 1, 2]


# ---- both


def drawn(aggregator, side=None):
    """What the randomness of one round makes of zeros."""
    h = [torch.zeros(50, 5) for _ in range(3)]
    return torch.cat(uploads(aggregator, h, side)) if aggregator.wire.traits.visible else sums(aggregator, h, side)


@every_aggregator
def test_no_draw_comes_twice(make):
    """Not in a second encoding of the same round, in a copy, nor in what was pickled: the names decide nothing."""
    aggregator = make().among(Roster.singles(3))
    side = aggregator.wire.party_side()
    drawn(aggregator, side)
    others = [side, side, copy(side), deepcopy(side), pickle.loads(pickle.dumps(side)), aggregator.wire.party_side()]
    kinds = [drawn(aggregator, other) for other in (*others, None)]
    kinds += [drawn(other) for other in (deepcopy(aggregator), make())]
    for one, other in pairwise(kinds):
        assert (one == other).double().mean() < 0.3


@every_aggregator
def test_the_seed_says_nothing_about_secret_draws(make):
    known, secret = drawn(make(draws="seeded")).double(), drawn(make()).double()
    assert torch.equal(known, drawn(make(draws="seeded")).double())
    correlation = np.corrcoef(known.flatten(), secret.flatten())[0, 1]
    assert abs(correlation) * np.sqrt(known.numel()) < stats.norm.isf(RARE / 2)


class Uploads(Callback):
    """Keeps the aggregate of every training round."""

    def __init__(self):
        self.of_round = {}

    def watch(self, module):
        send = Exchange.send

        def kept(exchange):
            aggregate = send(exchange)
            if exchange.parties.names.stage == "fit":
                self.of_round[exchange.parties.names.round] = (exchange.contribution.leaves, aggregate.value)
            return aggregate

        return kept


@every_aggregator
def test_a_round_that_is_repeated_after_a_kill_has_new_noise(make, tmp_path, monkeypatch):
    """From the same weights and records: the embeddings are equal, what is released differs."""
    data, runs = Blobs(batch_size=10), []
    fit = trainer(tmp_path, max_steps=3, max_epochs=None)
    fit.fit(private(make()), datamodule=data)
    fit.save_checkpoint(tmp_path / "three.ckpt")
    for _ in range(2):
        kept = Uploads()
        with monkeypatch.context() as patch:
            patch.setattr(Exchange, "send", kept.watch(None))
            again = trainer(tmp_path, max_steps=5, max_epochs=None)
            again.fit(private(make()), datamodule=data, ckpt_path=tmp_path / "three.ckpt")
        runs.append(kept.of_round)
    assert sorted(runs[0]) == sorted(runs[1]) == [3, 4]
    (h, one), (same_h, other) = (run[3] for run in runs)
    assert same(list(h), list(same_h))
    assert (one == other).double().mean() < 0.3


@every_aggregator
def test_a_checkpoint_trains_on_with_either_kind_of_draws(make, tmp_path):
    """Also one from before there was the setting: its printed form is the one without it."""
    data = Blobs(batch_size=10)
    assert make().identity == make(draws="seeded").identity
    assert "draws" not in make().identity
    for before, after in (("system", "seeded"), ("seeded", "system")):
        fit = trainer(tmp_path, max_epochs=1)
        fit.fit(private(make(draws=before)), datamodule=data)
        fit.save_checkpoint(tmp_path / "one.ckpt")
        module = private(make(draws=after))
        trainer(tmp_path, max_epochs=2).fit(module, datamodule=data, ckpt_path=tmp_path / "one.ckpt")
        assert module.books.rounds["fit"] == 12


def test_the_printed_form_is_that_of_older_checkpoints():
    assert LocalGaussian(inner=Max()).identity == (
        "LocalGaussian(noise=Budget(epsilon=5.0, delta=1e-05), clip=1.0, inner=Max(), bounds='record')"
    )
    assert PoissonBinomial().identity == (
        "PoissonBinomial(levels=16, beta=0.25, clip=1.0, clip_outside=False) in MaskedSum(layout='sum', clip=4.0, "
        "levels='auto', allow_single=False, recovery=None)"
    )


@every_aggregator
def test_the_summary_says_beside_epsilon_that_seeded_draws_are_known(make, tmp_path):
    for draws in ("system", "seeded"):
        module = private(make(draws=draws))
        t = trainer(tmp_path, max_epochs=1)
        t.fit(module, datamodule=Blobs(batch_size=10))
        said = " ".join(f"{name} {value}" for name, value in summary_lines(t, module, ("val/",)))
        times = 0 if draws == "system" else 1 + len(module.privacy.figures())  # of protection, and of every ε
        assert said.count(SIMULATED) == times
        assert module.aggregator.accounting.simulated == (None if draws == "system" else SIMULATED)


def test_the_figures_do_not_depend_on_where_draws_come_from():
    for noise in (Budget(1.0), PublishedPBM(8, 0.1)):
        events = [
            LocalGaussian(noise, draws=draws).accounting.event((0, 1), (4, 4), Roster.singles(2)) for draws in KINDS
        ]
        assert events[0] == events[1]
    events = [PoissonBinomial(draws=draws).accounting.event((0, 1), (4, 4), Roster.singles(2)) for draws in KINDS]
    assert events[0] == events[1]
    assert composed_epsilon({events[0]: 1}, 1e-5) > 0


KINDS = ("system", "seeded")


@every_aggregator
def test_other_words_for_draws_are_refused(make):
    with pytest.raises(ConfigurationError, match=r"must be 'system' or 'seeded'"):
        make(draws="secret")


def test_draws_are_those_of_the_masks_beside_them():
    """Secret draws under masks of any kind: the sum decodes to the clear one's distribution."""
    made = sums(PoissonBinomial(MaskedSum(recovery="auto"), levels=2), [torch.ones(2000, 1)] * 3)
    assert float(made.mean()) == pytest.approx(3.0, abs=0.35)  # 6.4 standard deviations
