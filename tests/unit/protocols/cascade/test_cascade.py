"""CascadeVFL against CVFL written out by hand, END by END."""

import csv
from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest
import torch
from torch import nn

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Aggregator, Concat, LocalGaussian, MaskedSum, Max, Mean, PoissonBinomial, Sum
from lightning_vfl.datamodules import ContiguousColumns, LabelPartition
from lightning_vfl.networks import MLP
from lightning_vfl.privacy.calibration import Sigma
from lightning_vfl.protocols.cascade import protocol
from lightning_vfl.schedules.batches import Schedule
from lightning_vfl.simulation import Constant, Stragglers
from lightning_vfl.simulation.faults import FaultModel, RoundOutcome
from lightning_vfl.waiting import WaitForAll
from tests.further import further
from tests.subjects import dropping, same, trainer
from tests.unit.protocols.cascade.cascade_by_hand import (
    ADAM,
    BOTTOM,
    PARTIES,
    PERIOD,
    RATE,
    TOP,
    WIDTH,
    B,
    ByHand,
    Collection,
    FourParties,
    N,
    assert_same_training,
    cascade,
    fit,
    shared,
)

HALF, SLOW = Fraction(1, 2), Fraction(3, 4)


@pytest.mark.parametrize(
    ("aggregator", "variant", "optimizer", "slower", "q"),
    [
        (Concat(), "async", ADAM, {2: SLOW, 1: Fraction(7, 8)}, 3.0),
        (Max(), "sync", ADAM, {0: Fraction(0), 2: HALF}, 3.0),
        further(Concat(), "async", None, {1: HALF}, 3.0),
        further(Concat(), "sync", ADAM, {1: HALF}, 3.0),
        further(Mean(), "async", ADAM, {1: HALF}, 3.0),
        further(Mean(), "sync", None, {1: HALF}, 3.0),
        further(Sum(), "async", None, {1: HALF}, 3.0),
        further(Mean(), "async", None, {}, 3.0),
        further(Mean(), "sync", None, {0: HALF}, 1.0),
        further(Mean(), "async", None, {2: SLOW, 1: Fraction(7, 8)}, 1.0),
    ],
    ids=lambda case: (
        repr(case) if isinstance(case, Aggregator) else str(case) if isinstance(case, str | float | dict) else ""
    ),
)
def test_a_fit_is_cvfl_written_out_by_hand(tmp_path, aggregator, variant, optimizer, slower, q):
    """Slower parties have longer periods and with q a larger say; share 0 makes nobody slow."""
    settings = {} if optimizer is None else {"optimizer": optimizer}
    module = cascade(aggregator, variant=variant, slower={m: float(s) for m, s in slower.items()}, q=q, **settings)
    run = fit(tmp_path, module)
    oracle = ByHand(run, optimizer, slower, q, together=variant == "sync").play(18)
    assert_same_training(run, oracle)
    slow = {m for m, share in slower.items() if share}
    assert len(oracle.factors) == sum(period.party in slow for period in oracle.ended)
    assert all((factor > 1) == (q > 1) for factor in oracle.factors)


def test_stragglers_among_the_active_parties_are_amplified_too(tmp_path):
    """Party 3 is one as well, but has no labels; the faults here delay nobody."""
    model = Stragglers(parties=[3, 1], fast=Constant(0.0), slow=Constant(0.0))
    run = fit(tmp_path, cascade(q=2.0, slower={2: 0.5}), faults=(model,))
    oracle = ByHand(run, None, {2: HALF}, 2.0, slow={1, 2}).play(18)
    assert_same_training(run, oracle)
    assert len(oracle.factors) == sum(period.party in (1, 2) for period in oracle.ended) > 3


def test_a_small_objective_is_not_amplified_below_one(tmp_path):
    """q F^(q-1) < 1 for F below 1/4 with q = 2 is not used; the regularisers of all parties are in F."""
    module = cascade(q=2.0, slower={0: 0.5}, decay=0.0625, optimizer=partial(torch.optim.SGD, lr=0.0))
    for parameter in module.parameters():
        parameter.data *= 0.125
    run = fit(tmp_path, module, epochs=1, log_every_n_steps=1)
    oracle = ByHand(run, torch_sgd(0.0), {0: HALF}, 2.0, decay=0.0625).play(9)
    assert_same_training(run, oracle)
    assert oracle.factors[0] > 2  # F > ln 3

    module.top.layers[-1].bias.data[:] = torch.tensor([0.0, 0.0, 0.0])
    confident = fit(tmp_path, module, Alike(LabelPartition(active=3), batch_size=B), epochs=1, log_every_n_steps=1)
    assert {row["train/amplification"] for row in confident.logged} != {1.0}
    module.top.layers[-1].bias.data[1] = 30.0
    confident = fit(tmp_path, module, Alike(LabelPartition(active=3), batch_size=B), epochs=1, log_every_n_steps=1)
    assert {row["train/amplification"] for row in confident.logged} == {1.0}


class Alike(FourParties):
    """Everybody is of class 1."""

    def target(self, y):
        return torch.ones_like(y)


def torch_sgd(rate):
    return partial(torch.optim.SGD, lr=rate)


# ---- labels


def write_holders(path, holders):
    with open(path, "w", newline="", encoding="utf-8") as stream:
        rows = csv.writer(stream)
        rows.writerow(["id", "party"])
        rows.writerows((1000 + i, party) for i, party in enumerate(holders) if party >= 0)
    return path


@pytest.mark.parametrize("variant", ["async", further("sync")])
def test_events_weigh_as_much_as_their_partys_labels(tmp_path, variant):
    """Party 1 has two of three classes: N_l L / N = 36 * 2 / 54."""
    data = shared(classes=[[2], [0, 1]])
    run = fit(tmp_path, cascade(variant=variant, slower={0: 0.5}, q=3.0), data)
    oracle = ByHand(run, None, {0: HALF}, 3.0, together=variant == "sync").play(18)
    assert oracle.weights == {0: Fraction(2, 3), 1: Fraction(4, 3)}
    assert len(run.events) == 2 * (18 // B + 36 // B)
    assert_same_training(run, oracle)


def test_labels_that_a_file_gives_to_nobody_are_never_learnt_from(tmp_path):
    """N counts the labels that are held; parties 1 and 3 are active, 13 and 20 labels make 2 + 3 events."""
    holders = [1] * 13 + [-1] * 5 + [3] * 20 + [-1] * 16
    data = shared(file=write_holders(tmp_path / "labels.csv", holders))
    run = fit(tmp_path, cascade(slower={3: 0.5}), data)
    oracle = ByHand(run, None, {3: HALF}).play(2 * (13 // B + 20 // B))
    assert oracle.weights == {1: Fraction(26, 33), 3: Fraction(40, 33)}
    assert len(run.events) == 2 * 5
    assert_same_training(run, oracle)
    for ids, event in run.events:
        assert {holders[i] for i in ids.tolist()} == {event.party}


def test_without_a_partition_of_labels_all_parties_share_them_evenly(tmp_path):
    run = fit(tmp_path, cascade(), FourParties(batch_size=B), epochs=1)
    seen = {m: {i for (party, _), ids in run.batches.items() if party == m for i in ids.tolist()} for m in range(4)}
    assert [len(own) for own in seen.values()] == [12, 12, 12, 12]  # of 14, 14, 13, 13, whole batches
    assert len(set().union(*seen.values())) == 48


class Poisoned(FourParties):
    """Labels that are not the party's are of another class than they were."""

    spared: int | None = None

    def load(self, names):
        splits = dict(super().load(names))
        if self.spared is not None:
            train = splits["train"]
            others = torch.from_numpy(self.partitioner.label_holders(None, train.ids, PARTIES) != self.spared)
            train.labels = torch.where(others, (train.labels + 1) % 3, train.labels)
        return splits


class Unseen(LabelPartition):
    """Held as a list says, which does not look at labels."""

    def label_holders(self, labels, ids, parties):
        return super().label_holders(ids, ids, parties)


def poisoned(spared):
    data = Poisoned(Unseen(active=3, seed=1), batch_size=B)
    data.spared = spared
    return data


@pytest.fixture
def messages(monkeypatch):
    """What receivers are told, by END: gradients and factor."""
    told = []

    def noted(loss, values, gradients, parameters, decay, scale):
        told.append([*(g.clone() for g in gradients), scale.clone()])
        return surrogate(loss, values, gradients, parameters, decay, scale)

    surrogate = protocol.surrogate
    monkeypatch.setattr(protocol, "surrogate", noted)
    return told


@pytest.mark.parametrize(("variant", "party"), [("async", 0), further("async", 1), ("sync", 2)])
def test_the_first_message_of_a_party_depends_on_no_label_but_its_own(tmp_path, messages, variant, party):
    firsts = []
    for spared in (None, party):
        messages.clear()
        settings = {"variant": variant, "slower": {party: 0.75}, "q": 3.0, "bottom": BOTTOM}
        run = fit(tmp_path, cascade(Concat(), **settings), poisoned(spared), max_steps=13)
        parties = [event.party for _, event in run.events]
        firsts.append((messages[parties.index(party)], messages[parties.index((party + 1) % 3)]))
    (own, another), (own_then, another_then) = firsts
    assert same(own, own_then)
    assert not same(another, another_then)


@pytest.mark.parametrize("party", [further(0), 2])
def test_a_party_alone_learns_from_no_label_but_its_own(tmp_path, messages, party):
    runs = []
    for spared in (None, party, (party + 1) % 3):
        messages.clear()
        settings = {"variant": "single", "alone": party, "slower": {party: 0.5}, "q": 3.0, "optimizer": ADAM}
        run = fit(tmp_path, cascade(**settings), poisoned(spared))
        # the books too: bytes, seconds, losses
        runs.append((run.parameters(), list(messages), run.logged, run.module.books.meter.state_dict()))
    assert same(runs[0], runs[1])
    assert not same(runs[0][0], runs[2][0])
    assert not same(runs[0][1], runs[2][1])


# ---- variants


@pytest.mark.parametrize("optimizer", [further(None), ADAM], ids=["SGD", "Adam"])
def test_a_party_alone_is_by_hand_one_that_is_never_out_of_date(tmp_path, optimizer):
    settings = {} if optimizer is None else {"optimizer": optimizer}
    run = fit(tmp_path, cascade(variant="single", alone=1, slower={1: 0.5}, q=3.0, **settings), epochs=3)
    oracle = ByHand(run, optimizer, {1: HALF}, 3.0, parties=(1,)).play(9)
    assert_same_training(run, oracle)
    assert set(oracle.behind) == {0}
    assert oracle.weights == {1: 1}


class Replayed(Schedule):
    """Batches that have been noted."""

    def __init__(self, batches, epochs):
        self.batches, self.steps = batches, len(batches) // epochs

    def epoch(self, epoch):
        return [(ids.numpy(), None) for ids in self.batches[epoch * self.steps : (epoch + 1) * self.steps]]


def split_of(aggregator, run, epochs, decay, **settings):
    """SplitVFL on the same batches, with weight decay on the bottoms alone."""

    def make(parameters):
        parameters = list(parameters)
        own = [p for bottom in module.bottoms.parties for p in bottom.parameters()]
        assert all(p is q for p, q in zip(own, parameters, strict=False))
        groups = [{"params": own, "weight_decay": decay}, {"params": parameters[len(own) :]}]
        return torch.optim.SGD(groups, lr=RATE, weight_decay=0.0)

    module = SplitVFL(aggregator, bottom=BOTTOM, top=TOP, width=WIDTH, optimizer=make, seed=0, **settings)
    torch.manual_seed(0)
    module.build_for(run.data)
    module.schedule = lambda *_: Replayed([ids for ids, _ in run.events], epochs)
    trainer("", max_epochs=epochs, limit_val_batches=0).fit(module, datamodule=run.data)
    return module


@pytest.mark.parametrize("aggregator", [further(Concat()), Mean(), further(Max())], ids=repr)
def test_centralized_is_split_learning_with_weight_decay_on_the_bottoms(tmp_path, aggregator):
    run = fit(tmp_path, cascade(aggregator, variant="centralized", decay=0.03125), epochs=2)
    other = split_of(aggregator, run, 2, 0.03125)
    for (name, p), q in zip(run.module.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7, msg=name)
    assert len(run.events) == 2 * (N // B)
    for epoch in range(2):  # all labels, once an epoch
        ids = torch.cat([ids for ids, _ in run.events[epoch * 9 : epoch * 9 + 9]])
        assert sorted(ids.tolist()) == list(range(N))


def test_centralized_of_a_hidden_sum_is_of_the_sum_itself(tmp_path):
    run = fit(tmp_path, cascade(MaskedSum(), variant="centralized"), epochs=1)
    plain = fit(tmp_path, cascade(Sum(), variant="centralized"), epochs=1)
    for p, q in zip(run.module.parameters(), plain.module.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


def test_centralized_is_what_one_party_alone_would_learn_from_all_labels(tmp_path):
    """The update of Algorithm 2 without staleness is the gradient of the objective."""
    file = write_holders(tmp_path / "labels.csv", [0] * N)
    alone = fit(tmp_path, cascade(Concat()), shared(file=file))
    together = fit(tmp_path, cascade(Concat(), variant="centralized"), shared())
    assert [ids.tolist() for ids, _ in alone.events] == [ids.tolist() for ids, _ in together.events]
    for own, other in zip(alone.parameters().values(), together.parameters().values(), strict=True):
        for p, q in zip(own, other, strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


# ---- what is logged


def test_the_loss_that_is_logged_is_the_mean_loss_of_the_batches(tmp_path):
    """Neither amplified nor regularised nor weighted; in the last event of the epoch, and over its rows."""
    holders = [0] * 10 + [1] * 44
    data = shared(file=write_holders(tmp_path / "labels.csv", holders))
    run = fit(tmp_path, cascade(slower={0: 0.5}, q=3.0), data, log_every_n_steps=1)
    oracle = ByHand(run, None, {0: HALF}, 3.0).play(2 * 8)
    assert_same_training(run, oracle)
    for epoch, logged in enumerate(run.logged):
        losses = oracle.losses[epoch * 8 : epoch * 8 + 8]
        rows = [len(ids) for ids, _ in run.events[epoch * 8 : epoch * 8 + 8]]
        mean = sum(loss * n for loss, n in zip(losses, rows, strict=True)) / sum(rows)
        assert logged["train/loss_epoch"] == pytest.approx(mean, rel=1e-5)
        assert logged["train/loss"] == pytest.approx(losses[-1], rel=1e-5)
    factors = iter(oracle.factors)
    so_far = [next(factors) for period in oracle.ended if period.party == 0]
    assert run.logged[-1]["train/amplification"] == pytest.approx(so_far[-1], rel=1e-5)


# ---- who is heard of


@pytest.mark.parametrize(
    ("variant", "execution"), [further("async", "masked"), ("async", "equivalent"), ("sync", "masked")]
)
def test_a_masked_sum_is_a_sum(tmp_path, variant, execution):
    """Keys are exchanged once, before the first event, and take a second."""
    aggregator = MaskedSum(rekey_every=1000, execution=execution, clip=8.0)
    module = cascade(aggregator, variant=variant, slower={1: 0.5}, q=3.0, evaluate="plain")
    run = fit(tmp_path, module)
    oracle = ByHand(run, None, {1: HALF}, 3.0, together=variant == "sync")
    oracle.collection = oracle.everybody_after_keys
    assert_same_training(run, oracle.play(18), tolerance=1e-4)


def test_draws_of_the_poisson_binomial_mechanism_sum_up_to_the_sum(tmp_path):
    """Draws of many trials are close to the numbers that they stand for: a standard deviation below 0.005 each."""
    bottom = partial(MLP, hidden=(6,), output_activation=nn.Tanh)
    module = cascade(PoissonBinomial(MaskedSum(rekey_every=1000), levels=2**18), bottom=bottom, evaluate="plain")
    run = fit(tmp_path, module, max_steps=8)  # nobody asks what so many trials cost in privacy
    oracle = ByHand(run)
    oracle.collection = oracle.everybody_after_keys
    assert_same_training(run, oracle.play(8), tolerance=2e-3)


def test_embeddings_with_little_noise_are_almost_the_embeddings(tmp_path):
    aggregator = LocalGaussian(Sigma(1e-5), clip=100.0, inner=Mean())
    run = fit(tmp_path, cascade(aggregator, evaluate="plain"))
    assert_same_training(run, ByHand(run, aggregator=Mean()).play(18), tolerance=1e-3)


class Wider(FourParties):
    """Ten parties of two columns, whose bottoms are run in one call."""

    columns = 20

    def default_partitioner(self):
        return ContiguousColumns(10)


def test_many_equal_bottoms_learn_as_single_ones_do(tmp_path):
    data = Wider(LabelPartition(active=4), batch_size=B)
    module = cascade(Concat(), data, slower={2: 0.5}, q=3.0, optimizer=ADAM)
    assert module.bottoms.groups
    run = fit(tmp_path, module, data, epochs=1)
    assert_same_training(run, ByHand(run, ADAM, {2: HALF}, 3.0).play(len(run.events)))


# ---- records that not every party holds


class PartlyHeld(FourParties):
    """Party 1 lacks every second record, party 3 all but the first nine."""

    def load(self, names):
        splits = dict(super().load(names))
        for split in splits.values():
            rows = torch.arange(len(split.features))
            split.present = torch.stack([rows >= 0, rows % 2 == 0, rows >= 0, rows < 9], 1)
        return splits


@pytest.mark.parametrize("aggregator", [Concat(), Mean(), further(Sum())], ids=repr)
def test_records_that_a_party_does_not_hold_are_nothing_to_it(tmp_path, aggregator):
    data = PartlyHeld(LabelPartition(active=1), batch_size=B)
    run = fit(tmp_path, cascade(aggregator, data, q=3.0, slower={0: 0.5}), data, epochs=1)
    oracle = ByHand(run, None, {0: HALF}, 3.0)

    def collection(number, party):
        some = {m for m in range(PARTIES) if oracle.held(oracle.batches[0, number])[:, m].any()}
        return Collection(PERIOD, True, some - {party}, some, {}, some)

    oracle.batches[0, 9] = run.events[0][0]  # of the period that is under way at the end
    oracle.collection = collection
    assert_same_training(run, oracle.play(9))
    learnt = [collection(number, 0).learn for number in range(9)]
    assert {3 in some for some in learnt} == {True, False}


def test_a_party_may_hold_labels_of_records_that_it_does_not_hold(tmp_path):
    """It joins the embeddings of others; its own bottom has no part, and the top's way takes as long as ever."""
    holders = [1 if i % 2 else -1 for i in range(N)]
    data = PartlyHeld(LabelPartition(file=write_holders(tmp_path / "labels.csv", holders)), batch_size=B)
    run = fit(tmp_path, cascade(Mean(), data), data, epochs=2)
    oracle = ByHand(run)

    def collection(number, party):
        some = {m for m in range(PARTIES) if oracle.held(oracle.batches[1, number])[:, m].any()}
        return Collection(PERIOD, True, some - {party}, some, {}, some)

    oracle.batches[1, 8] = run.events[0][0]
    oracle.collection = collection
    assert_same_training(run, oracle.play(8))
    assert all(torch.equal(p, q) for p, q in zip(run.parameters()["1"], run.bottoms[1].parameters(), strict=True))


def test_in_a_masked_sum_everybody_takes_part_with_zeros_for_what_it_does_not_hold(tmp_path):
    data = PartlyHeld(LabelPartition(active=1), batch_size=B)
    aggregator = MaskedSum(rekey_every=1000, allow_single=True)
    run = fit(tmp_path, cascade(aggregator, data, evaluate="plain"), data, epochs=1)
    oracle = ByHand(run)
    oracle.collection = oracle.everybody_after_keys
    assert_same_training(run, oracle.play(9), tolerance=1e-4)


# ---- the trainer's own ways


def test_validation_in_between_changes_nothing(tmp_path):
    one = fit(tmp_path, cascade(slower={1: 0.5}, optimizer=ADAM, bottom=dropping))
    settings = {"limit_val_batches": None, "val_check_interval": 2, "num_sanity_val_steps": 1}
    other = fit(tmp_path, cascade(slower={1: 0.5}, optimizer=ADAM, bottom=dropping), **settings)
    assert same(one.parameters(), other.parameters())


def test_epochs_that_are_cut_short_go_on_where_they_were(tmp_path):
    run = fit(tmp_path, cascade(slower={1: 0.5}, q=3.0), epochs=3, limit_train_batches=5)
    oracle = ByHand(run, None, {1: HALF}, 3.0).play(15)
    assert_same_training(run, oracle)
    for epoch, row in enumerate(run.logged):
        own = oracle.behind[5 * epoch : 5 * epoch + 5]
        assert row["train/staleness_mean"] == pytest.approx(sum(own) / 5, rel=1e-6)
        assert row["train/staleness_max"] == max(own)


def test_worker_processes_and_a_smaller_last_batch_change_nothing(tmp_path):
    """Plans are made where the loader is; an epoch has whole batches, with and without ``drop_last``."""
    one = fit(tmp_path, cascade(slower={1: 0.5}, waiting=WaitForAll(9.0)), faults=(Deaf(),))
    data = shared()
    data.drop_last = True
    other = fit(tmp_path, cascade(slower={1: 0.5}, waiting=WaitForAll(9.0)), data, faults=(Deaf(),))
    assert same(one.parameters(), other.parameters())
    assert [event for _, event in one.events] == [event for _, event in other.events]


class Deaf(FaultModel):
    """Party 3 hears every second event."""

    silent = True

    def sample(self, request, roster, seed):
        outcome = RoundOutcome.nothing(roster)
        receives = outcome.receives.clone()
        receives[3] = request % 4 < 2
        return replace(outcome, receives=receives)


class AsTheyAre(nn.Module):
    """A bottom that is the columns themselves; ``zero``: with a parameter that does nothing."""

    def __init__(self, zero: bool) -> None:
        super().__init__()
        self.zero = nn.Parameter(torch.zeros(1), requires_grad=False) if zero else None

    def forward(self, x):
        return x[:, :1].repeat(1, WIDTH)


def test_bottoms_may_have_no_parameters(tmp_path):
    def top_of(zero):
        module = cascade(Concat(), bottom=lambda *_: AsTheyAre(zero), slower={2: 0.5}, q=3.0, optimizer=ADAM)
        fit(tmp_path / str(zero), module)
        return module.top.state_dict()

    assert same(top_of(False), top_of(True))
