"""Updates of groups: sums over rounds, noise, what is charged for it, what is refused, and whose gradients are sent."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_vfl.aggregators import LocalGaussian, MaskedSum, Sum
from lightning_vfl.aggregators.secure.group_updates import MaskedUpdates
from lightning_vfl.callbacks import RunSummary
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import Linear
from lightning_vfl.privacy.events import GaussianEvent
from lightning_vfl.protocols import UpdateNoise
from lightning_vfl.protocols.groups.invertible import Exposure, refuse_solvable
from lightning_vfl.protocols.groups.sums import UpdateSums
from lightning_vfl.rounds.exchange import Exchange, Sides
from lightning_vfl.types import Roll, Roster, RoundNames, Rows
from lightning_vfl.waiting import WaitForAll
from lightning_vfl.wire import Embeddings, PartyView, ServerView
from tests.examples import examples
from tests.further import further
from tests.subjects import same, trainer
from tests.unit.protocols.test_faulty_rounds import Scripted
from tests.unit.protocols.test_groups import GROUPS, OPTIMIZERS, built, data, fit, grouped, masked_sum

NOISE = UpdateNoise(clip=0.1, sigma=0.02, draws="seeded")
RECORDS = 54  # of training, in batches of 10: the last has 4


# ---- sums over k rounds


def by_hand(bottoms, top, source, schedule, optimizer, over, epochs=2, away=lambda number: ()):
    """Layout sum: one optimiser; a group's gradients are added up, and its bottom moves when the sum is complete."""
    optimizer = optimizer([p for b in bottoms for p in b.parameters()] + list(top.parameters()))
    records, number = source.records("train"), 0
    sums, rounds = {1: None, 2: None}, {1: 0, 2: 0}
    for epoch in range(epochs):
        for ids, _ in schedule.epoch(epoch):
            ids = torch.from_numpy(ids)
            x, present = records.rows(ids), records.present[ids]
            unions = [sum(torch.where(present[:, m, None], x[m], 0.0) for m in group) for group in GROUPS]
            value = sum(bottom(x.double()) for bottom, x in zip(bottoms, unions, strict=True))
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(top(value), records.labels[ids]).backward()
            for group in (1, 2):
                own = [p.grad for p in bottoms[group].parameters()]
                complete = False
                if group not in away(number):
                    sums[group] = own if rounds[group] == 0 else [a + b for a, b in zip(sums[group], own, strict=True)]
                    rounds[group] += 1
                    complete = rounds[group] == over
                for number_of, p in enumerate(bottoms[group].parameters()):
                    p.grad = sums[group][number_of] if complete else None
                rounds[group] = 0 if complete else rounds[group]
            optimizer.step()
            number += 1
    return rounds


SCRIPT = {7: {"receives": [1, 1, 1, 1, 0, 1]}, 9: {"receives": [1, 0, 1, 1, 1, 1]}}  # not in rounds 3 and 4


@pytest.mark.parametrize(
    ("optimizer", "script"),
    [
        *(("SGD with momentum", None), ("Adam", SCRIPT)),
        *(further(*more) for more in (("SGD", None), ("Adam", None), ("SGD", SCRIPT), ("SGD with momentum", SCRIPT))),
    ],
)
def test_a_groups_bottom_moves_once_in_k_rounds_with_the_sum_of_their_gradients(tmp_path, optimizer, script):
    """Twelve rounds, k = 5; a round that the group does not learn from is not in its sum. The last two are not sent."""
    module = grouped(Sum(), optimizer, sum_updates_over=5, waiting=WaitForAll(timeout=1.0))
    bottoms, top, source = built(module)
    bottoms, top = [b.double() for b in bottoms], top.double()
    with pytest.warns(UserWarning, match="have summed their updates over . of 5 rounds at the end of training"):
        fit(tmp_path, module, script, precision="64-true")
    away = {3: (2,), 4: (1,)} if script else {}
    schedule = module.schedule(source.records("train"), 10, source.seed)
    torch.set_default_dtype(torch.float64)
    try:
        left = by_hand(bottoms, top, source, schedule, OPTIMIZERS[optimizer], 5, away=lambda n: away.get(n, ()))
    finally:
        torch.set_default_dtype(torch.float32)
    assert module.sums.rounds == {GROUPS[group]: rounds for group, rounds in left.items()}
    for group, bottom in zip(GROUPS, bottoms, strict=True):
        for party in group:
            for ours, theirs in zip(module.bottoms.parties[party].parameters(), bottom.parameters(), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.filterwarnings("ignore:the parties of group")
@pytest.mark.parametrize("noise", [pytest.param(None, marks=pytest.mark.slow), NOISE], ids=["exact", "noisy"])
def test_a_run_that_was_stopped_within_a_sum_goes_on_to_the_same_bits(tmp_path, noise):
    def fitted(ckpt_path=None, **more):
        module = grouped(
            masked_sum(),
            "Adam",
            sum_updates_over=4,
            update_noise=noise,
            waiting=WaitForAll(timeout=1.0),
            allow_embeddings_by_subtraction=True,
        )
        module.faults.add(Scripted(SCRIPT))
        t = trainer(tmp_path, max_epochs=2, num_sanity_val_steps=0, limit_val_batches=0, **more)
        t.fit(module, datamodule=data(), ckpt_path=ckpt_path)
        return t, module

    saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1, save_on_train_epoch_end=False)
    t, whole = fitted(callbacks=[saver], enable_checkpointing=True)
    for step in (3, 10):
        u, again = fitted(tmp_path / f"step={step}.ckpt")
        assert same(dict(again.state_dict()), dict(whole.state_dict()))
        assert same(u.optimizers[0].state_dict(), t.optimizers[0].state_dict())
        assert same(again.books.meter.state_dict(), whole.books.meter.state_dict())
        assert same(again.sums.state(), whole.sums.state())
        if noise is not None:  # the ledger of the whole run, and the updates that were sent again
            assert again.privacy.accountant.covers(whole.privacy.accountant)
        assert again.standing() == whole.standing()


@pytest.mark.filterwarnings("ignore:the parties of group")
def test_updates_are_in_the_books_of_the_rounds_in_which_they_are_sent(tmp_path):
    """Six rounds, k = 3: two updates. With k = 7 there is none, and rounds are shorter by the time of the update."""
    sizes = [0, 59, 59, 53, 53, 53]
    seconds = {}
    for over, sent in ((1, 6), (3, 2), (7, 0)):
        module = grouped(masked_sum(), sum_updates_over=over)
        module.clock.bandwidth = 1e6
        fit(tmp_path, module, max_epochs=1)
        expected = [4 * sent * size for size in sizes]
        assert module.books.meter.total("up", "model updates").tolist() == expected
        assert module.books.meter.total("down", "shared bottoms").tolist() == expected
        seconds[over] = module.clock.seconds
    assert seconds[1] - seconds[7] == pytest.approx(3 * (seconds[3] - seconds[7]))
    assert seconds[1] > seconds[7]


@given(st.integers(1, 5), st.lists(st.integers(0, 2), max_size=30))
@examples(30)
def test_every_update_that_is_sent_is_the_sum_of_the_last_k_rounds(over, rounds):
    sums, groups = UpdateSums(over), [(0, 1), (2, 3), (4, 5)]
    added = {group: [] for group in groups}
    for number, which in enumerate(rounds):
        group = groups[which]
        due = sums.due(groups)
        sent = sums.add(
            group, {m: torch.tensor([float(m + 10**number)]).double() for m in group}, torch.tensor([number])
        )
        added[group].append(number)
        assert (sent is not None) == (group in due) == (len(added[group]) == over)
        if sent is not None:
            expected = {m: float(sum(Fraction(m + 10**n) for n in added[group])) for m in group}
            assert {m: float(total) for m, total in sent.gradients.items()} == pytest.approx(expected)
            assert sent.records.tolist() == added[group]
            added[group].clear()


@pytest.mark.parametrize("over", [0, -1])
def test_a_sum_over_no_rounds_is_refused(over):
    with pytest.raises(ConfigurationError, match=f"sum_updates_over must be at least 1; got {over}"):
        grouped(Sum(), sum_updates_over=over)


# ---- noise


def test_noise_is_gaussian_around_the_clipped_update():
    """Mean, variance and fourth moment of 100,000 numbers, within five deviations; seeded: by names."""
    update, names = torch.randn(100_000, generator=torch.Generator().manual_seed(0)), RoundNames(0, "fit", 3)
    shorter = update.double() * (NOISE.clip / float(update.double().norm()))
    for draws in ("seeded", "system"):
        noise = UpdateNoise(clip=0.1, sigma=0.02, draws=draws)
        left = (noise.noisy(update, names, 2).double() - shorter) / 0.02
        assert abs(float(left.mean())) < 5 / math.sqrt(len(left))
        assert abs(float(left.var()) - 1) < 5 * math.sqrt(2 / len(left))
        assert abs(float((left**4).mean()) - 3) < 5 * math.sqrt(96 / len(left))
        repeated = torch.equal(noise.noisy(update, names, 2), noise.noisy(update, names, 2))
        assert repeated == (draws == "seeded")
    for other in (names._replace(round=4), names._replace(seed=1), names._replace(stage="test")):
        assert not torch.equal(NOISE.noisy(update, names, 2), NOISE.noisy(update, other, 2))
    assert not torch.equal(NOISE.noisy(update, names, 2), NOISE.noisy(update, names, 1))


@given(st.integers(1, 50), st.floats(1e-3, 1e3), st.integers(0, 10**6))
@examples(25)
def test_two_updates_are_never_further_apart_than_the_sensitivity_that_is_charged(size, clip, seed):
    """In exact arithmetic: norms as fractions, with the noise, which is the same for both, taken out."""
    noise, names = UpdateNoise(clip=clip, sigma=1e-300, draws="seeded"), RoundNames(0, "fit", 0)
    generator = torch.Generator().manual_seed(seed)
    one = torch.randn(size, generator=generator, dtype=torch.float64) * clip * 10
    sent = [noise.noisy(update, names, 0).tolist() for update in (one, -one)]
    apart = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(*sent, strict=True))
    assert apart <= Fraction(noise.event(1).sensitivity) ** 2


@pytest.mark.filterwarnings("ignore:the parties of group")
@pytest.mark.parametrize("over", [1, 4])
def test_every_update_that_is_sent_is_charged_to_the_records_of_its_batches(tmp_path, over):
    module = grouped(masked_sum(), "Adam", update_noise=NOISE, sum_updates_over=over, allow_invertible_updates=False)
    steps = 6 if over == 1 else 5
    fit(tmp_path, module, max_epochs=2, limit_train_batches=steps)
    charged = module.privacy.accountant._counts
    assert set(charged) == {GaussianEvent(0.02, 0.2, 2)}  # both groups send in the same rounds
    (counts,) = charged.values()
    source = data()
    source.setup("fit")
    schedule = module.schedule(source.records("train"), 10, source.seed)
    batches = [ids for epoch in range(2) for ids, _ in list(schedule.epoch(epoch))[:steps]]
    expected = np.zeros(RECORDS, int)
    for first in range(0, len(batches) // over * over, over):
        expected[np.unique(np.concatenate(batches[first : first + over]))] += 1
    assert counts.tolist() == expected.tolist()


def test_groups_that_send_in_different_rounds_are_charged_apart(tmp_path):
    module = grouped(
        masked_sum(), update_noise=NOISE, waiting=WaitForAll(timeout=1.0), allow_embeddings_by_subtraction=True
    )
    fit(tmp_path, module, {7: {"receives": [1, 1, 1, 1, 0, 1]}}, max_epochs=1)
    counts = module.privacy.accountant._counts
    assert sorted((event.parties, int(own.sum())) for event, own in counts.items()) == [(1, 10), (2, RECORDS - 10)]


def test_noise_is_on_the_sum_that_the_server_is_given(tmp_path, monkeypatch):
    """With plain SGD what is sent is -η times the noisy gradient; every member adds noise of its own."""
    heard, tell = [], MaskedUpdates.tell

    def listening(self, updates, view):
        heard.append((view.names, {m: own.clone() for m, own in updates.items()}))
        return tell(self, updates, view)

    monkeypatch.setattr(MaskedUpdates, "tell", listening)
    grads = []

    class Gradients(Callback):
        def on_before_optimizer_step(self, trainer, module, optimizer):
            parties = module.bottoms.parties
            grads.append([torch.cat([p.grad.flatten() for p in parties[m].parameters()]).clone() for m in range(1, 6)])

    fit(tmp_path, grouped(masked_sum(), update_noise=NOISE), max_epochs=1, callbacks=[Gradients()])
    for number, own in enumerate(grads):
        for names, updates in heard[2 * number : 2 * number + 2]:
            for party, sent in updates.items():
                torch.testing.assert_close(sent, -0.05 * NOISE.noisy(own[party - 1], names, party))


@pytest.mark.parametrize(
    "setting", [{"clip": 0.0}, {"sigma": 0.0}, {"sigma": math.inf}, {"clip": -1.0}, {"draws": "os"}]
)
def test_noise_that_cannot_be_is_refused(setting):
    with pytest.raises(ConfigurationError, match=next(iter(setting))):
        UpdateNoise(**({"clip": 1.0, "sigma": 1.0} | setting))
    with pytest.raises(ConfigurationError, match="NaN or infinite numbers"):
        NOISE.noisy(torch.tensor([math.nan]), RoundNames(0, "fit", 0), 0)


def test_the_summary_says_what_the_figure_is_of(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "600")
    module = grouped(masked_sum(), update_noise=NOISE, allow_invertible_updates=False)
    t = fit(tmp_path, module, max_epochs=1, callbacks=[RunSummary()])
    said = " ".join(capsys.readouterr().out.split())
    for words in (
        "their ε is no ε of the embeddings",
        "draws are known to who knows the seed",
        "in model updates of groups alone",
    ):
        assert words in said, words
    assert "privacy/update_epsilon" in t.callback_metrics
    assert "privacy/epsilon" not in t.callback_metrics


# ---- what is refused


def exposures():
    sizes = st.lists(st.integers(1, 40), min_size=1, max_size=6)
    return st.builds(
        Exposure,
        group=st.just((1, 2, 3)),
        width=st.integers(1, 20),
        parameters=st.integers(1, 60),
        features=st.integers(1, 10),
        records=st.integers(1, 200),
        batches=sizes,
        rounds=st.integers(1, 24),
        absences=st.booleans(),
    )


@given(exposures(), st.integers(1, 12))
@examples(60)
def test_the_smallest_update_is_that_of_all_that_can_come_about(exposure, over):
    """Every k batches that follow each other, in epochs that follow each other; any k batches, where some are lost."""
    sizes = list(exposure.batches)
    endless = sizes * (over + 2)
    windows = [sum(endless[i : i + over]) for i in range(len(sizes))]
    assert exposure.smallest(over) == (over * min(sizes) if exposure.absences else min(windows))


@given(exposures())
@examples(60)
def test_the_sum_that_is_proposed_is_the_smallest_that_is_accepted(exposure):
    accepted = [k for k in range(1, int(exposure.rounds) + 1) if not exposure.solvable(k)]
    assert exposure.enough() == (accepted[0] if accepted else None)
    for k in (1, int(exposure.rounds)):
        if exposure.solvable(k):
            with pytest.raises(ConfigurationError, match="allow_invertible_updates: true") as refusal:
                refuse_solvable(exposure, k)
            assert (f"sum_updates_over: {accepted[0]}," in str(refusal.value)) if accepted else True
        else:
            refuse_solvable(exposure, k)


def test_a_training_without_an_end_is_refused():
    exposure = Exposure((1, 2, 3), 2, 4, 2, 10**9, [1000], math.inf, absences=False)
    assert exposure.solvable(5)
    with pytest.raises(ConfigurationError, match="an unlimited number of updates"):
        refuse_solvable(exposure, 5)


def refused(folder, message, aggregator, source=None, **settings):
    module = grouped(aggregator, **{"allow_invertible_updates": False, **settings})
    with pytest.raises(ConfigurationError, match=message):
        fit(folder, module, source=source, max_epochs=1)
    assert module.books.rounds.get("fit", 0) == 0


def test_trainings_that_give_records_away_are_refused_before_a_round(tmp_path):
    linear = {"bottom": Linear}
    refused(
        tmp_path, r"6 planned updates of 20 numbers, the smallest over 4 records, against 54", masked_sum(), **linear
    )
    refused(tmp_path, "reads every embedding of group", Sum())
    refused(tmp_path, "reads every embedding of group", Sum(), update_noise=NOISE)
    refused(tmp_path, "the ε of LocalGaussian does not cover", LocalGaussian(), allow_invertible_updates=True)
    both = {"source": data((3, 3, 3)), "active": None}
    refused(tmp_path, "every group shares a bottom that the server knows", MaskedSum(), update_noise=NOISE, **both)


def test_sums_of_enough_records_are_accepted(tmp_path, capsys, monkeypatch):
    """Width 5, three columns: 20 numbers in the one update of 6 batches, 54 records of 3 numbers."""
    monkeypatch.setenv("COLUMNS", "600")
    wide = data((1, 3, 3), batch_size=10)
    module = grouped(MaskedSum(), bottom=Linear, sum_updates_over=6, allow_invertible_updates=False, optimizer="Adam")
    fit(tmp_path, module, source=wide, max_epochs=1, callbacks=[RunSummary()])
    assert module.books.meter.total("up", "model updates").tolist() == [0, *[80] * 3, *[60] * 3]
    assert "fewer numbers in all than their records" in " ".join(capsys.readouterr().out.split())


# ---- gradients of records that a party does not hold


class Poisoned:
    """A server that answers with numbers that no update survives, in the rows that a party does not hold."""

    def __init__(self, side, held):
        self.side, self.held = side, held

    def decode(self, messages, view):
        return self.side.decode(messages, view)

    def answer(self, grad, aggregate, view):
        sent = self.side.answer(grad, aggregate, view)
        rows = zip(sent.receivers, sent.pieces, strict=True)
        return replace(sent, pieces=tuple(torch.where(self.held[:, m, None], a, torch.nan) for m, a in rows))


@pytest.mark.parametrize("layout", ["sum", "segments"])
def test_a_party_is_sent_zeros_in_the_place_of_gradients_of_records_that_it_does_not_hold(layout):
    roster, rows = Roster(((0,), (1, 2, 3)), active=0), Rows(torch.arange(9), 0, 9)
    present = torch.zeros(9, 4, dtype=torch.bool)
    present[:, 0] = True
    present[torch.arange(9), 1 + torch.arange(9) % 3] = True
    aggregator = MaskedSum(layout, execution="equivalent").among(roster)
    honest = Sides.of(aggregator.wire)
    for sides in (honest, honest._replace(server=Poisoned(honest.server, present))):
        h = tuple(torch.randn(9, 4, generator=torch.Generator().manual_seed(m)).requires_grad_() for m in range(4))
        names, roll = RoundNames(0, "fit", 0), Roll.everyone(4)
        parties = PartyView(names, roster, (0, 1, 2, 3), roll.called, rows, None, present)
        server = ServerView(names, roster, rows, roll, (4,) * 4)
        exchange = Exchange(aggregator, Embeddings(h), parties, server, sides=sides)
        value = exchange.run()
        grad = torch.randn(value.shape, generator=torch.Generator().manual_seed(9))
        answers = torch.autograd.grad(value, h, grad)
        for m, answer in enumerate(answers):
            assert torch.equal(answer, torch.where(present[:, m, None], grad, 0.0))
