"""Clipping, noise and its cost; statistical thresholds are at 1e-6 and the seeds are fixed."""

from dataclasses import replace
from math import inf, nan

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from lightning_vfl.aggregators import Concat, LocalGaussian, Max, Mean, Sum
from lightning_vfl.aggregators.clear import InTheClear, wire_of
from lightning_vfl.aggregators.local_gaussian import normal
from lightning_vfl.callbacks import Stragglers
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Stale
from lightning_vfl.privacy import (
    Budget,
    GaussianEvent,
    MatchedPBM,
    PublishedPBM,
    Sigma,
    composed_epsilon,
    poisson_binomial_rdp,
)
from lightning_vfl.rounds.exchange import Exchange
from lightning_vfl.types import Roll, Roster, RoundNames, Rows, Stage
from lightning_vfl.waiting import Deadline
from lightning_vfl.wire import Embeddings, PartyView, ServerView
from tests.subjects import Blobs, same, split, trainer
from tests.unit.aggregators.sides import first_leg

M, B, D = 4, 6, 3
INNERS = {"Mean": Mean, "Sum": Sum, "Concat": Concat, "Max": Max}
every_inner = pytest.mark.parametrize("inner", INNERS)
RARE = 1e-6


def setting(
    inner="Mean", who=(1, 1, 1, 1), rows=None, names=None, dtype=torch.float32, present=None, scale=1.0, draws="seeded"
):
    aggregator = LocalGaussian(inner=INNERS[inner](), draws=draws)
    generator = torch.Generator().manual_seed(0)
    h = tuple((torch.randn(B, D, generator=generator, dtype=dtype) * scale).requires_grad_() for _ in range(M))
    roll = Roll.of(torch.tensor(who, dtype=torch.bool))
    rows = rows or Rows(torch.arange(B), 0, B)
    names = names or RoundNames(0, Stage.FIT, 0)
    roster = Roster.singles(M)
    parties = PartyView(names, roster, tuple(range(M)), roll.called, rows, {}, present)
    return aggregator, Embeddings(h), parties, ServerView(names, roster, rows, roll, (D,) * M, present)


def uploads(aggregator, contribution, view):
    return torch.stack(first_leg(aggregator, contribution, view).pieces)


def drawn(**names):
    """Uploads of zero embeddings: the noise alone, in units of σ."""
    names = RoundNames(**{"seed": 0, "stage": "fit", "round": 0, **names})
    aggregator, _, view, _ = setting()
    rows = Rows(torch.arange(20_000), 0, 20_000)
    zeros = Embeddings(tuple(torch.zeros(20_000, D, dtype=torch.float64) for _ in range(M)))
    return uploads(aggregator, zeros, replace(view, names=names, rows=rows)) / aggregator.sigma(D, M)


# ---- what it costs


def exact_delta(epsilon, mu):
    def phi(t):
        return mpmath.erfc(-t / mpmath.sqrt(2)) / 2

    return phi(mu / 2 - epsilon / mu) - mpmath.exp(epsilon) * phi(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(("epsilon", "delta", "clip"), [(5.0, 1e-5, 1.0), (0.5, 1e-6, 3.0), (20.0, 1e-3, 0.1)])
def test_noise_solves_the_equation_of_balle_and_wang(epsilon, delta, clip):
    with mpmath.workdps(40):
        low, high = mpmath.mpf("0.01"), mpmath.mpf(20)
        for _ in range(120):
            mu = (low + high) / 2
            low, high = (mu, high) if exact_delta(epsilon, mu) <= delta else (low, mu)
        expected = float(2 * mpmath.mpf(clip) / mu)
    sigma = LocalGaussian(Budget(epsilon, delta), clip).sigma(D, M)
    assert sigma == pytest.approx(expected, rel=1e-9)
    assert sigma >= expected * (1 - 1e-14)


@pytest.mark.parametrize("times", [1, 30, 1000])
def test_the_cost_of_all_uploads_is_that_of_one_larger_one(times):
    event = LocalGaussian().accounting.event((0,), (D,) * M, Roster.singles(M))
    with mpmath.workdps(60):
        mu = 2 * mpmath.sqrt(times) / mpmath.mpf(event.sigma)
        epsilon = composed_epsilon({event: times}, 1e-5)
        assert exact_delta(epsilon, mu) <= 1e-5 < exact_delta(epsilon * (1 - 1e-8), mu)
        assert exact_delta(composed_epsilon({event: times}, 1e-8), mu) <= 1e-8
    assert epsilon >= 5.0 * (1 - 1e-11)


@pytest.mark.parametrize("bounds", ["record", "value"])
def test_one_upload_costs_what_was_asked_for(bounds):
    event = LocalGaussian(clip=3.0, bounds=bounds).accounting.event((0, 1), (D,) * M, Roster.singles(M))
    assert composed_epsilon({event: 1}, 1e-5) == pytest.approx(5.0, rel=1e-10)
    assert LocalGaussian().accounting.event((), (D,) * M, Roster.singles(M)) is None


@pytest.mark.parametrize("noise", [PublishedPBM(8, 0.1), MatchedPBM(8, 0.1), MatchedPBM(8, 0.1, order=5.0)])
def test_local_noise_stands_beside_the_poisson_binomial_mechanism(noise):
    """Rényi ε of one value, 2 α C² / σ², against the exact figure of the sum of M draws."""
    sigma, order = LocalGaussian(noise, clip=3.0, bounds="value").sigma(D, M), getattr(noise, "order", 2.0)
    one, summed = 2 * order * 9.0 / sigma**2, poisson_binomial_rdp(8, 0.1, M, order)
    if isinstance(noise, MatchedPBM):
        assert one == pytest.approx(summed, rel=1e-12)
        assert sigma**2 == pytest.approx(9.0 * M / (4 * 8 * 0.1**2), rel=0.1)
    else:
        assert sigma**2 == pytest.approx(9.0 * 2 * M / (8 * 0.1**2))
        assert 8 < summed / one < 9


def test_values_are_cut_one_by_one():
    aggregator = LocalGaussian(Sigma(0.5), clip=1.0, bounds="value", inner=Sum())
    h = torch.tensor([[3.0, -0.5], [0.25, -7.0]], dtype=torch.float64, requires_grad=True)
    value = aggregator.plain((h, torch.zeros_like(h)), Roll.everyone(2))
    assert value.tolist() == [[1.0, -0.5], [0.25, -1.0]]
    event = aggregator.accounting.event((0, 1), (2, 2), Roster.singles(2))
    assert event == GaussianEvent(0.5, 2 * 2**0.5, 2)


# ---- what is sent


def test_short_embeddings_are_left_and_long_ones_put_on_the_sphere():
    aggregator, contribution, view, _ = setting(dtype=torch.float64, scale=1.0)
    drawn = uploads(aggregator, Embeddings(tuple(torch.zeros_like(h) for h in contribution.leaves)), view)
    clipped = uploads(aggregator, contribution, view) - drawn
    h = torch.stack(contribution.leaves).detach()
    norm = h.norm(dim=2, keepdim=True)
    assert 0 < (norm < 1).sum() < norm.numel()
    torch.testing.assert_close(clipped, torch.where(norm <= 1, h, h / norm), rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 7.7, 1e30])
def test_no_embedding_is_longer_than_the_clip(dtype, scale):
    """In exact arithmetic: the sensitivity rests on it."""
    h = torch.randn(60, 64, generator=torch.Generator().manual_seed(0)).to(dtype) * scale
    clipped = LocalGaussian(clip=0.3)._mechanism.clipped(h)
    with mpmath.workdps(50):
        longest = max(mpmath.sqrt(sum(mpmath.mpf(x) ** 2 for x in row)) for row in clipped.tolist())
        assert longest <= mpmath.mpf(0.3)
        assert scale < 1 or longest >= mpmath.mpf(0.3) * (1 - 1e-11)
    assert scale > 1e-3 or torch.equal(clipped, h.double())


def test_noise_is_standard_normal():
    z = drawn().numpy().ravel()
    n = len(z)
    assert stats.kstest(z, "norm").pvalue > RARE
    assert abs(z.mean()) * np.sqrt(n) < stats.norm.isf(RARE / 2)
    low, high = stats.chi2(n).ppf([RARE / 2, 1 - RARE / 2])
    assert low < (z**2).sum() < high
    beyond = (abs(z) > 3.5).sum()  # the tails, where a transform goes wrong first
    low, high = stats.binom(n, 2 * stats.norm.sf(3.5)).ppf([RARE / 2, 1 - RARE / 2])
    assert low <= beyond <= high


def test_noise_is_independent_of_everything_else_that_is_drawn():
    """Parties, coordinates, rounds, stages and seeds, by their correlations; squares too, for what cosines share."""
    kinds = [drawn(), drawn(round=1), drawn(stage="validation"), drawn(stage="test"), drawn(seed=1)]
    columns = torch.cat([z.permute(0, 2, 1).reshape(-1, z.shape[1]) for z in kinds])
    pairs = len(columns) * (len(columns) - 1) / 2
    for numbers in (columns, columns**2):
        correlation = np.corrcoef(numbers.numpy())
        largest = abs(correlation[~np.eye(len(columns), dtype=bool)]).max()
        assert largest * np.sqrt(columns.shape[1]) < stats.norm.isf(RARE / 2 / pairs)
    following = np.corrcoef(columns[:, :-1].ravel().numpy(), columns[:, 1:].ravel().numpy())[0, 1]
    assert abs(following) * np.sqrt(columns.numel()) < stats.norm.isf(RARE / 2)


def test_a_row_of_noise_does_not_depend_on_how_many_there_are():
    """Also where a pair of the transform stretches over two rows."""
    for columns in (1, 3, 4):
        assert (normal(7, columns, 0, "noise") == normal(50, columns, 0, "noise")[:7]).all()
    assert normal(0, 3, 0, "noise").shape == (0, 3)


def test_words_of_randomness_are_transformed_as_box_and_muller_say(monkeypatch):
    """Extreme words too: no infinity, and no zero where there should be none."""
    words = [0, 0, 2**64 - 1, 2**63, 2**62, 2**61, 1, 2**64 - 1]

    class Words:
        def random_raw(self, n):
            return np.array(words[:n], dtype=np.uint64)

    monkeypatch.setattr("lightning_vfl.aggregators.local_gaussian.stream", lambda *_: Words())
    got = normal(4, 2, 0, "noise").ravel()
    with mpmath.workdps(30):
        for pair in range(4):
            u, v = (mpmath.mpf(w + 1) / 2**64 for w in words[2 * pair : 2 * pair + 2])
            radius = mpmath.sqrt(-2 * mpmath.log(u))
            expected = radius * mpmath.cos(2 * mpmath.pi * v), radius * mpmath.sin(2 * mpmath.pi * v)
            assert got[2 * pair : 2 * pair + 2] == pytest.approx([float(x) for x in expected], rel=1e-12, abs=1e-14)
    assert 9.4 < abs(got).max() < 9.5


def test_two_processes_draw_what_one_would_have_drawn():
    aggregator, contribution, view, server = setting()
    whole, value = uploads(aggregator, contribution, view), aggregator.wire.clear(contribution, view, server.roll).value
    for rows in (slice(0, 2), slice(2, 6), slice(6, 6)):
        part = Rows(torch.arange(B)[rows], rows.start, B)
        mine = Embeddings(tuple(h[rows] for h in contribution.leaves))
        own = replace(view, rows=part)
        assert torch.equal(uploads(aggregator, mine, own), whole[:, rows])
        assert torch.equal(aggregator.wire.clear(mine, own, server.roll).value, value[rows])


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_what_no_noise_hides_is_refused(bad):
    aggregator, contribution, view, _ = setting()
    with torch.no_grad():
        contribution.leaves[2][1, 0] = bad
    with pytest.raises(ConfigurationError, match="learning rate"):
        first_leg(aggregator, contribution, view)


# ---- what the server makes of it


@every_inner
@pytest.mark.parametrize("who", [(1, 1, 1, 1), (1, 0, 0, 1), (0, 0, 0, 0)])
@pytest.mark.parametrize("partly", [False, True])
def test_decode_is_clear_bit_for_bit(inner, who, partly):
    present = torch.rand(B, M, generator=torch.Generator().manual_seed(3)) < 0.6 if partly else None
    aggregator, contribution, view, server = setting(inner, who, present=present)
    decoded = Exchange(aggregator, contribution, view, server).send()
    clear = aggregator.wire.clear(contribution, view, server.roll)
    assert torch.equal(decoded.value, clear.value)
    noisy = tuple(uploads(aggregator, contribution, view))
    assert torch.equal(decoded.value, aggregator.inner.plain(noisy, server.roll, present))


@every_inner
def test_shapes_are_those_of_the_inner(inner):
    aggregator, _, _, server = setting(inner)
    plain, roster = INNERS[inner](), server.roster
    assert aggregator.out_width(D, roster) == plain.out_width(D, roster)
    assert aggregator.widths(D, roster) == plain.widths(D, roster)
    assert aggregator.wire.needed(M) == wire_of(plain).needed(M)
    assert torch.equal(aggregator.columns((D,) * M, server.roll), plain.columns((D,) * M, server.roll))
    assert aggregator.wire.legs(B, server.widths, (), roster)[0].bytes.tolist() == [4 * B * D] * M
    assert aggregator.wire.downlink(B, server.widths, roster).bytes.tolist() == [4 * B * D] * M


@every_inner
@pytest.mark.parametrize("who", [(1, 1, 1, 1), (1, 0, 0, 1)])
def test_pullback_is_the_adjoint_of_the_round_with_its_noise(inner, who):
    """With a maximum the noise decides who wins, and so who learns."""
    aggregator, contribution, view, server = setting(inner, who, dtype=torch.float64)
    check_adjoint(
        aggregator, contribution, view, server, lambda h: aggregator.wire.clear(Embeddings(h), view, server.roll).value
    )


def check_adjoint(aggregator, contribution, view, server, function):
    exchange = Exchange(aggregator, contribution, view, server)
    exchange.aggregate = exchange.send()
    generator = torch.Generator().manual_seed(1)
    g = torch.randn(exchange.aggregate.value.shape, generator=generator, dtype=torch.float64)
    v = [torch.randn(h.shape, generator=generator, dtype=torch.float64) for h in contribution.leaves]
    ends = [
        function(tuple(h.detach() + s * 1e-6 * d for h, d in zip(contribution.leaves, v, strict=True))) for s in (1, -1)
    ]
    pulled = exchange.send_back(g)
    left = (g * (ends[0] - ends[1]) / 2e-6).sum()
    right = sum((p * d).sum() for p, d in zip(pulled, v, strict=True))
    torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-8)


def test_zero_and_the_uncounted_have_gradients_without_nan():
    aggregator, contribution, view, server = setting(who=(1, 0, 1, 1))
    with torch.no_grad():
        contribution.leaves[0].zero_()
    value = Exchange(aggregator, contribution, view, server).run()
    grads = torch.autograd.grad(value.sum(), contribution.leaves)
    torch.testing.assert_close(grads[0], torch.full((B, D), 1 / 3))
    assert not grads[1].any()
    assert all(torch.isfinite(grad).all() for grad in grads)


def test_nobody_learns_from_what_stands_in_for_it():
    """A stale upload is counted, but is no function of the embedding of today."""
    aggregator, contribution, view, server = setting()
    away = torch.tensor([True, False, True, True])
    roll = Roll(torch.ones(M, dtype=torch.bool), away, away, ~away)
    policy = Stale()
    policy.memory.prepare(B, (D,) * M, torch.device("cpu"))
    Exchange(aggregator, contribution, view, server, policy).run()
    later = RoundNames(0, Stage.FIT, 1)
    then = Exchange(
        aggregator, contribution, replace(view, names=later), replace(server, roll=roll, names=later), policy
    )
    grads = torch.autograd.grad(then.run().sum(), contribution.leaves)
    first, second = (
        uploads(aggregator, contribution, replace(view, names=RoundNames(0, Stage.FIT, round_))) for round_ in (0, 1)
    )
    torch.testing.assert_close(then.aggregate.value, (second.sum(0) - second[1] + first[1]) / M)
    assert not grads[1].any()
    assert grads[0].any()


# ---- whole trainings


@pytest.mark.slow
def test_it_learns_as_much_as_its_noise_lets_it(tmp_path):
    accuracies = []
    for epsilon in (1e-2, 1e6):
        fit = trainer(tmp_path, max_epochs=10)
        fit.fit(split(LocalGaussian(Budget(epsilon), clip=3.0)), datamodule=Blobs(batch_size=10))
        accuracies.append(float(fit.callback_metrics["val/accuracy"]))
    assert accuracies[0] < 0.7
    assert accuracies[1] > 0.9


def test_a_resumed_run_with_seeded_draws_has_the_noise_of_the_uninterrupted_one(tmp_path):
    whole = split(LocalGaussian(draws="seeded"))
    trainer(tmp_path, max_epochs=3).fit(whole, datamodule=Blobs(batch_size=10))
    first = trainer(tmp_path, max_epochs=2)
    first.fit(split(LocalGaussian(draws="seeded")), datamodule=Blobs(batch_size=10))
    first.save_checkpoint(tmp_path / "two.ckpt")
    rest = split(LocalGaussian(draws="seeded"))
    trainer(tmp_path, max_epochs=3).fit(rest, datamodule=Blobs(batch_size=10), ckpt_path=tmp_path / "two.ckpt")
    assert same(whole.state_dict(), rest.state_dict())


def test_another_budget_is_another_aggregator_to_a_checkpoint(tmp_path):
    fit = trainer(tmp_path, max_epochs=1)
    fit.fit(split(LocalGaussian()), datamodule=Blobs(batch_size=10))
    fit.save_checkpoint(tmp_path / "one.ckpt")
    with pytest.raises(
        ConfigurationError, match=r"LocalGaussian\(noise=Budget\(epsilon=5.0, delta=1e-05\), clip=1.0, inner=Mean\(\)"
    ):
        trainer(tmp_path).test(
            split(LocalGaussian(Budget(4.0))),
            datamodule=Blobs(batch_size=10),
            ckpt_path=tmp_path / "one.ckpt",
            verbose=False,
        )


def test_it_stands_late_parties_and_stale_uploads(tmp_path):
    module = split(LocalGaussian(), waiting=Deadline(0.3), missing=Stale())
    trainer(tmp_path, callbacks=[Stragglers()]).fit(module, datamodule=Blobs(batch_size=10))
    assert module.books.rounds["fit"] == 12
    assert all(torch.isfinite(p).all() for p in module.parameters())


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed", "bf16-true"])
def test_it_runs_in_every_precision(tmp_path, precision):
    fit = trainer(tmp_path, max_epochs=1, precision=precision)
    fit.fit(split(LocalGaussian()), datamodule=Blobs(batch_size=10))
    assert torch.isfinite(fit.callback_metrics["val/loss"])


def test_evaluation_is_noisy_unless_the_user_says_otherwise(tmp_path):
    module = split(LocalGaussian())
    fit = trainer(tmp_path, max_epochs=1)
    fit.fit(module, datamodule=Blobs(batch_size=10))
    assert module.protected_evaluation
    assert not split(LocalGaussian(), evaluate="plain").protected_evaluation
    assert "validation embeddings" in module.books.meter.kinds("up")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_adds_the_same_noise():
    aggregator, contribution, view, _ = setting()
    moved = Embeddings(tuple(h.detach().cuda() for h in contribution.leaves))
    there = uploads(aggregator, moved, view)
    assert there.is_cuda
    torch.testing.assert_close(there.cpu(), uploads(aggregator, contribution, view), rtol=1e-6, atol=1e-6)


# ---- what is refused


class Hidden(Mean):
    """Has a wire of its own, so it is not in the clear."""

    @property
    def wire(self):
        return InTheClear(self)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"clip": 0.0}, "clip must be .* got 0.0"),
        ({"clip": -1.0}, "clip must be .* got -1.0"),
        ({"clip": nan}, "clip must be .* got nan"),
        ({"clip": inf}, "clip must be .* got inf"),
        ({"bounds": "row"}, "bounds must be 'record' or 'value'; got 'row'"),
        ({"inner": Hidden()}, "Hidden does not take; use Mean"),
        ({"inner": LocalGaussian()}, "LocalGaussian does not take"),
    ],
)
def test_bad_settings_are_refused_with_the_way_out(settings, said):
    with pytest.raises(ConfigurationError, match=said):
        LocalGaussian(**settings)


def test_the_price_of_one_upload_never_stands_alone_where_there_were_more():
    assert LocalGaussian().wire.protection(1) == "ε = 5 for one upload, δ = 1e-05"
    assert LocalGaussian().wire.protection(1000) == (
        "ε = 5 for one upload; ε = 778.9 for the 1,000 of a record, if weights and scaling do not depend on the "
        "record, δ = 1e-05"
    )
