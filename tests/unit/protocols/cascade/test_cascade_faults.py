"""Losses, delays and absences in CascadeVFL, each against periods written out by hand."""

from fractions import Fraction
from functools import partial
from typing import ClassVar

import pytest
import torch

from lightning_vfl.aggregators import Concat, MaskedSum, Mean
from lightning_vfl.callbacks import TraceRecorder, TraceReplay
from lightning_vfl.missing import Exclude, Skip, Stale, Zeros
from lightning_vfl.networks import MLP
from lightning_vfl.protocols.cascade import protocol
from lightning_vfl.simulation import Constant, Stragglers
from lightning_vfl.waiting import Deadline, Fastest, Ignore, WaitForAll
from tests.further import further
from tests.subjects import dropping, same
from tests.unit.protocols.cascade.cascade_by_hand import (
    ACTIVE,
    ADAM,
    DEADLINE,
    KINDS,
    PARTIES,
    PERIOD,
    WIDTH,
    B,
    ByHand,
    Collection,
    N,
    Scripted,
    assert_same_training,
    cascade,
    fit,
    heard,
    shared,
    trouble,
)

POLICIES = {"Exclude": Exclude, "Zeros": Zeros, "Skip": Skip, "Stale": Stale}


@pytest.mark.parametrize(
    ("policy", "aggregator", "variant"),
    [
        ("Exclude", Mean(), "async"),
        pytest.param("Exclude", Concat(), "sync", marks=pytest.mark.slow),
        ("Zeros", Mean(), "async"),
        ("Skip", Concat(), "async"),
        pytest.param("Skip", Mean(), "sync", marks=pytest.mark.slow),
        ("Stale", Mean(), "sync"),
        pytest.param("Stale", Concat(), "async", marks=pytest.mark.slow),
    ],
    ids=repr,
)
def test_everything_at_once_is_by_hand_what_it_should_be(tmp_path, policy, aggregator, variant):
    """Adam: whoever does not learn keeps the state of its optimiser."""
    model = trouble(*KINDS, delays=(0.0, 0.5, 3.0, 6.0), of=0.05 if policy == "Skip" else 0.15)
    module = cascade(
        aggregator,
        variant=variant,
        waiting=Deadline(float(DEADLINE)),
        missing=POLICIES[policy](),
        slower={2: 0.5},
        q=3.0,
        optimizer=ADAM,
    )
    run = fit(tmp_path, module, faults=(model,), epochs=3)
    collection, slower = heard(model, policy), {2: Fraction(1, 2)}
    oracle = ByHand(run, ADAM, slower, 3.0, together=variant == "sync", collection=collection, policy=policy)
    assert_same_training(run, oracle.play(27))
    assert module.books.given_up == oracle.losses.count(None) > 0
    met = [collection(period.number, period.party) for period in oracle.ended]
    assert any(one.late for one in met)
    if policy == "Skip":  # trouble is rarer: most of it ends in nothing
        return
    assert any(not one.there for one in met)
    assert any(one.learn and not one.steps for one in met)
    assert any(one.steps and not one.returned for one in met)
    assert any(one.fresh - one.learn for one in met)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_trouble_alone(tmp_path, kind):
    model = trouble(kind, of=0.4)
    run = fit(tmp_path, cascade(Mean(), waiting=WaitForAll(timeout=2.0)), faults=(model,))
    collection = heard(model)
    oracle = ByHand(run, collection=collection).play(18)
    assert_same_training(run, oracle)
    met = [collection(period.number, period.party) for period in oracle.ended]
    assert (kind in ("announced", "sends")) == any(not one.there for one in met)
    assert (kind in ("links", "hosts")) == any(not one.steps for one in met if one.there)
    assert (kind == "receives") == any(not one.returned for one in met)
    assert (kind in ("receives", "links")) == any(one.fresh - one.learn for one in met)


def test_the_first_that_come_are_enough_where_the_rule_says_so(tmp_path):
    model = trouble(delays=(0.0, 0.5, 3.0, 6.0))
    run = fit(tmp_path, cascade(Concat(), waiting=Fastest(3, timeout=100.0)), faults=(model,))
    assert_same_training(run, ByHand(run, collection=heard(model, first=3)).play(18))


def test_stragglers_that_are_ignored_are_never_called(tmp_path):
    """Passive party 3 is slow: nobody waits for it, and it learns nothing."""
    model = Stragglers(parties=[3], fast=Constant(0.0), slow=Constant(64.0))
    run = fit(tmp_path, cascade(Concat(), waiting=Ignore()), faults=(model,))

    def without_three(number, party):
        return Collection(PERIOD, True, {0, 1, 2} - {party}, {0, 1, 2}, {}, {0, 1, 2})

    assert_same_training(run, ByHand(run, collection=without_three).play(18))


# ---- those who are late, where their last answer stands in


def late(party, seconds, since=0):
    return Scripted(lambda event, way: {"delay": {party: seconds}} if way == 0 and event >= since else {})


@pytest.mark.parametrize("seconds", [further(4.0), 5.0, further(12.0)])
def test_a_passive_party_that_is_always_late_teaches_with_its_last_answers(tmp_path, seconds):
    """Zeros in the first pass; then what it has said of the same records a pass, or a little more, before."""
    model = late(3, seconds)
    module = cascade(Concat(), variant="single", waiting=Deadline(2.0), missing=Stale())
    run = fit(tmp_path, module, faults=(model,), epochs=4)
    oracle = ByHand(run, parties=(0,), collection=heard(model, "Stale"), policy="Stale").play(12)
    assert_same_training(run, oracle)
    ids = run.events[0][0]
    assert all(oracle.table[i, 3].any() for i in ids.tolist())
    assert not torch.equal(run.parameters()["3"][0], run.bottoms[3].state_dict()["layers.1.weight"])


def test_zeros_stand_in_before_anything_has_come_and_are_learnt_from(tmp_path):
    """An answer after an hour: in the fit it never comes, its sender is answered all the same."""
    model = late(3, 3600.0)
    module = cascade(Concat(), waiting=Deadline(2.0), missing=Stale())
    run = fit(tmp_path, module, faults=(model,), epochs=1)
    oracle = ByHand(run, collection=heard(model, "Stale"), policy="Stale").play(9)
    assert_same_training(run, oracle)
    assert not any(row.any() for (_, m), row in oracle.table.items() if m == 3)
    moved = [not torch.equal(p, q) for p, q in zip(run.parameters()["3"], run.bottoms[3].parameters(), strict=True)]
    assert all(moved)
    assert int(module.books.meter.total("down", "gradients")[3]) == 9 * B * 3 * 4


def test_who_sends_nothing_is_stood_in_for_and_learns_nothing(tmp_path):
    """A late party is answered, a lost message is nobody's."""
    model = Scripted(lambda event, way: {"sends": {3: False}} if way == 0 and event > 8 else {})
    run = fit(tmp_path, cascade(Concat(), waiting=Deadline(2.0), missing=Stale()), faults=(model,), epochs=2)
    oracle = ByHand(run, collection=heard(model, "Stale"), policy="Stale")
    assert_same_training(run, oracle.play(18))
    assert int(run.module.books.meter.total("down", "gradients")[3]) == 9 * B * 3 * 4


def test_a_late_answer_is_not_used_before_it_comes(tmp_path):
    """It is sent in the first period of party 0 and comes in the middle of the fourth, which has the same records."""
    holders = shared(active=1)
    module = cascade(Concat(), data=holders, waiting=Deadline(2.0), missing=Stale())
    batch = 54  # all records in every batch
    holders.batch_size = batch
    arrives_in = 4 * 5 - 2.0  # seconds after its START; every period takes 5
    model = Scripted(lambda event, way: {"delay": {3: arrives_in - 2.0 if event == 0 else 3600.0}} if way == 0 else {})
    run = fit(tmp_path, module, holders, faults=(model,), epochs=6)
    assert [event.start for _, event in run.events] == [0, 5, 10, 15, 20, 25]
    oracle = ByHand(run, collection=heard(model, "Stale"), policy="Stale")
    assert_same_training(run, oracle.play(6))
    assert sum(row.any() for (_, m), row in oracle.table.items() if m == 3) == 54


def test_what_is_on_its_way_when_a_fit_ends_never_comes(tmp_path):
    """As the periods that were under way are never ended; what has come is still known."""
    model = late(3, 18.0)
    module = cascade(Concat(), variant="single", waiting=Deadline(2.0), missing=Stale())
    fit(tmp_path, module, faults=(model,))
    known = module.missing.memory.table.read(torch.arange(N))[3]
    assert int(known.any(1).sum()) == 2 * B  # of the first two periods
    run = fit(tmp_path, module, epochs=2)
    oracle = ByHand(run, parties=(0,), collection=heard(model, "Stale"), policy="Stale")
    oracle.table |= {(i, 3): row for i, row in enumerate(known)}
    oracle.batches = {(0, k): ids for k, (ids, _) in enumerate(run.events)}
    for who, parameters in oracle.play(6).parameters().items():
        for own, other in zip(run.parameters()[who], parameters, strict=True):
            torch.testing.assert_close(own, other, rtol=0, atol=2e-5)


def test_late_answers_to_a_slow_party_come_as_much_later_as_its_period_is_longer(tmp_path):
    """What it hears goes the same slow way: whoever misses the deadline comes after the collection has closed."""
    model = late(3, 1.5)
    module = cascade(
        Concat(), variant="single", slower={0: 0.5}, waiting=Deadline(2.0), missing=Stale(), optimizer=ADAM
    )
    run = fit(tmp_path, module, faults=(model,), epochs=1)
    assert run.events[0][1].end == 2 * (1 + 2 + 2)
    closes = run.events[-1][1].start + 2 * (1 + 2.0)
    moments = [message.moment for message in module.memory.late[0]]
    assert moments
    assert all(moment >= closes for moment in moments)


# ---- absences in hidden sums


def test_a_hidden_sum_needs_two_others(tmp_path):
    """Events 3 and 7 find party 2 and 3 away, event 5 only one of them."""
    away = {3: {2: False, 3: False}, 7: {0: False, 2: False}, 5: {3: False}}
    model = Scripted(lambda event, way: {"announced": away.get(event, {})}, silent=False)
    settings = {"evaluate": "plain", "optimizer": ADAM, "allow_embeddings_by_subtraction": True}
    module = cascade(MaskedSum(rekey_every=1000), variant="single", alone=1, **settings)
    learnt = []
    step = module.optimizer_step

    def noted(*arguments, **settings):
        before = [p.detach().clone() for p in module.parameters()]
        step(*arguments, **settings)
        learnt.append(any(not torch.equal(p, q) for p, q in zip(before, module.parameters(), strict=True)))

    module.optimizer_step = noted
    fit(tmp_path, module, faults=(model,), epochs=3)
    assert [event for event, moved in enumerate(learnt) if not moved] == [3, 7]
    assert module.books.given_up == 2


# ---- to the bit


def state(run, party):
    optimizer = run.trainer.optimizers[0]
    networks = [*run.module.bottoms.parties, run.module.top]
    return [optimizer.state[p] for p in networks[party].parameters()]


def test_who_does_not_hear_keeps_every_bit(tmp_path):
    model = Scripted(lambda event, way: {"receives": {2: False}, "links": {0: False}} if way == 1 else {})
    run = fit(tmp_path, cascade(variant="single", optimizer=ADAM, waiting=WaitForAll(9.0)), faults=(model,), epochs=1)
    for party, network in enumerate([*run.module.bottoms.parties, run.module.top]):
        before = (*run.bottoms, run.top)[party].parameters()
        kept = [torch.equal(p, q) for p, q in zip(network.parameters(), before, strict=True)]
        assert all(kept) == (party in (2, PARTIES)), party  # the active party's connection is the collaborator's
        assert any(state(run, party)) == (party not in (2, PARTIES))


class Listening(MLP):
    """A top, of which every copy notes what it is given in training."""

    heard: ClassVar[list[torch.Tensor]] = []

    def forward(self, x):
        if self.training:
            self.heard.append(x.detach().clone())
        return super().forward(x)


@pytest.mark.parametrize("policy", [Exclude, Stale])
@pytest.mark.parametrize("deaf", [(), (0, 2)])
def test_dropout_is_the_same_at_the_end_as_at_the_start_whoever_learns(tmp_path, monkeypatch, policy, deaf):
    """Nobody has changed in between, so what a gradient is of is what is differentiated now."""
    drawn = []
    surrogate = protocol.surrogate

    def noted(loss, values, *others):
        drawn.append([value.detach().clone() for value in values if value.shape == (B, WIDTH)])
        return surrogate(loss, values, *others)

    monkeypatch.setattr(protocol, "surrogate", noted)
    monkeypatch.setattr(Listening, "heard", [])
    module = cascade(
        Concat(),
        variant="single",
        alone=1,
        bottom=dropping,
        top=Listening,
        optimizer=partial(torch.optim.SGD, lr=0.0),
        waiting=Deadline(9.0),
        missing=policy(),
    )
    model = Scripted(lambda event, way: {"receives": dict.fromkeys(deaf, False)} if way else {})
    fit(tmp_path, module, faults=(model,), epochs=1, max_steps=2)
    for joined, values in zip(Listening.heard, drawn, strict=True):
        everybody = dict(enumerate(joined.split(WIDTH, 1)))
        learning = [m for m in range(PARTIES) if m not in deaf]
        assert all(torch.equal(everybody[m], value) for m, value in zip(learning, values, strict=True))
    assert not torch.equal(drawn[0][0], drawn[1][0])


# ---- what is asked


def test_the_requests_that_are_asked_are_those_of_the_events_that_have_begun(tmp_path):
    module = cascade(waiting=WaitForAll(9.0), slower={0: 0.75})
    asked = []
    at = module.faults.at
    module.faults.at = lambda request, roster: (asked.append(request), at(request, roster))[1]
    run = fit(tmp_path, module, faults=(trouble("receives"),), epochs=2)
    assert set(asked) >= {2 * event.number + way for _, event in run.events for way in (0, 1)}
    assert max(asked) < module.requests_made()
    assert sorted({request // 2 for request in asked}) == list(range(max(asked) // 2 + 1))
    assert ACTIVE + len(run.events) >= max(asked) // 2 + 1


def test_a_recorded_trace_has_all_that_the_same_fit_asks(tmp_path):
    model = trouble(*KINDS, delays=(0.0, 0.5, 3.0), of=0.15)
    settings = {"waiting": Deadline(2.0), "slower": {1: 0.75}, "q": 2.0}
    one = fit(tmp_path, cascade(**settings), faults=(model,), callbacks=[TraceRecorder(tmp_path / "trace.csv")])
    other = fit(tmp_path, cascade(**settings), callbacks=[TraceReplay(tmp_path / "trace.csv")])
    assert [event for _, event in one.events] == [event for _, event in other.events]
    assert same(one.parameters(), other.parameters())
