"""Bytes, seconds, staleness and privacy of CascadeVFL, each from a closed form."""

from collections import Counter
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from lightning_vfl.aggregators import Concat, MaskedSum, Mean, PoissonBinomial, Sum
from lightning_vfl.callbacks import PrivacyBudget
from lightning_vfl.crypto.sealed import OVERHEAD
from lightning_vfl.networks import MLP
from lightning_vfl.privacy import composed_epsilon, poisson_binomial_rdp
from lightning_vfl.privacy.events import PoissonBinomialEvent
from lightning_vfl.simulation import VirtualClock
from lightning_vfl.simulation.faults import FaultModel, RoundOutcome
from lightning_vfl.waiting import WaitForAll
from tests.further import further
from tests.unit.protocols.cascade.cascade_by_hand import (
    PARTIES,
    WIDTH,
    B,
    ByHand,
    assert_same_training,
    cascade,
    fit,
    heard,
    shared,
    trouble,
)

OTHERS = PARTIES - 1
WIDE = [2, 5, 3, 4]
FAST = 1e300
BOUNDED = partial(MLP, hidden=(6,), output_activation=nn.Tanh)


def turns(run):
    """How often each party had its END."""
    counts = Counter(event.party for _, event in run.events)
    return [counts[m] for m in range(PARTIES)]


def of_others(ended, each):
    """What a party sends in, or is sent back in, the events of the others."""
    return [each[m] * (sum(ended) - ended[m]) for m in range(PARTIES)]


# ---- bytes


@pytest.mark.parametrize(
    ("variant", "q"),
    [
        *(("async", 2.0), ("sync", 1.0), ("single", 2.0)),
        *(further(*more) for more in (("async", 1.0), ("sync", 2.0), ("single", 1.0))),
    ],
)
def test_bytes_of_an_event(tmp_path, variant, q):
    """What a party tells itself travels nowhere; the factor is computed where a slow party's has an exponent alone."""
    module = cascade(Concat(WIDE), variant=variant, slower={1: 0.5}, q=q, alone=1)
    run = fit(tmp_path, module)
    ended, meter = turns(run), module.books.meter
    top = sum(p.numel() for p in module.top.parameters())
    slow = [count if m == 1 and q > 1 else 0 for m, count in enumerate(ended)]
    messages = [B * width * 4 for width in WIDE]
    told = [a + b for a, b in zip(of_others(ended, messages), of_others(slow, [4] * PARTIES), strict=True)]
    assert meter.total("peer", "record ids").tolist() == [OTHERS * B * 8 * count for count in ended]
    assert meter.total("up", "embeddings").tolist() == of_others(ended, messages)
    assert meter.total("up", "regularisers").tolist() == of_others(slow, [4] * PARTIES)
    assert meter.total("down", "gradients").tolist() == told
    assert meter.total("up", "top gradients").tolist() == [4 * top * count for count in ended]
    assert meter.total("down", "top").tolist() == [4 * top * count for count in ended]
    assert meter.kinds("peer") == ("record ids",)
    assert set(meter.kinds("up")) - {"regularisers"} == {"embeddings", "top gradients"}
    assert meter.kinds("down") == ("gradients", "top")


def test_in_one_place_nothing_is_sent(tmp_path):
    module = cascade(Concat(), variant="centralized", q=3.0)
    run = fit(tmp_path, module)
    assert all(not module.books.meter.total(way).any() for way in ("up", "down", "peer"))
    assert "train/staleness_mean" not in run.logged[-1]
    assert "train/amplification" not in run.logged[-1]


def test_bytes_of_a_masked_sum_with_keys_that_are_renewed(tmp_path):
    module = cascade(MaskedSum(rekey_every=5), slower={2: 0.5}, q=2.0, evaluate="plain")
    run = fit(tmp_path, module)
    ended, meter = turns(run), module.books.meter
    periods = len({number // 5 for number in range(len(run.events))})
    assert meter.total("peer", "public keys").tolist() == [periods * OTHERS * 32] * PARTIES
    assert meter.total("peer", "record ids").tolist() == [OTHERS * (B * 8 + OVERHEAD) * count for count in ended]
    assert meter.total("up", "masked embeddings").tolist() == of_others(ended, [B * WIDTH * 4] * PARTIES)
    slow = [count * (m == 2) for m, count in enumerate(ended)]
    assert meter.total("up", "regularisers").tolist() == of_others(slow, [4] * PARTIES)


def test_bytes_of_draws_are_those_of_the_smallest_ring(tmp_path):
    """16 trials of 4 parties: 64 and everything below take 7 bits."""
    module = cascade(PoissonBinomial(levels=16), bottom=BOUNDED)
    run = fit(tmp_path, module, epochs=1)
    uploads = module.books.meter.total("up", "masked embeddings").tolist()
    assert uploads == of_others(turns(run), [-(-B * WIDTH * 7 // 8)] * PARTIES)


class Said(FaultModel):
    """The same in every request, by field."""

    silent = True

    def __init__(self, **fields):
        self.fields = fields

    def sample(self, request, roster, seed):
        outcome, values = RoundOutcome.nothing(roster), {}
        for name, (way, places, value) in self.fields.items():
            values[name] = getattr(outcome, name).clone()
            if way in (None, request % 2):
                values[name][places] = value
        return replace(outcome, **values)


COLLECT, DELIVER = 0, 1


def test_what_is_lost_was_sent_and_what_is_not_sent_is_not_counted(tmp_path):
    """Of four parties: the first is active, the second silent, the third's connection and the fourth's ears down."""
    module = cascade(Concat(), variant="single", waiting=WaitForAll(8.0))
    down = Said(sends=(COLLECT, [1], False), links=(COLLECT, [2], False), receives=(DELIVER, [3], False))
    fit(tmp_path, module, faults=(down,), epochs=1)
    message = 3 * B * WIDTH * 4
    assert module.books.meter.total("up", "embeddings").tolist() == [0, 0, message, message]
    assert module.books.meter.total("down", "gradients").tolist() == [0, 0, 0, message]
    assert module.books.mini_batches == 3 * 2


@pytest.mark.parametrize("broken", ["links", "hosts"])
def test_a_top_that_is_not_stepped_is_not_sent_back(tmp_path, broken):
    module = cascade(variant="single", waiting=WaitForAll(8.0))
    fit(tmp_path, module, faults=(Said(**{broken: (DELIVER, [0], False)}),), epochs=1)
    top = 4 * sum(p.numel() for p in module.top.parameters())
    assert module.books.meter.total("up", "top gradients").tolist() == [3 * top, 0, 0, 0]
    assert not module.books.meter.total("down", "top").any()


def test_who_is_away_sends_nothing(tmp_path):
    module = cascade(variant="single", waiting=WaitForAll(8.0))
    run = fit(tmp_path, module, faults=(Said(announced=(COLLECT, [0], False)),), epochs=1)
    assert all(not module.books.meter.total(way).any() for way in ("up", "down", "peer"))
    assert module.books.given_up == 3
    assert [(event.start, event.end) for _, event in run.events] == [(0, 4), (4, 8), (8, 12)]  # time passes


# ---- seconds


def seconds_of(tmp_path, clock, **settings):
    """How long a period of party 1 takes."""
    faults = settings.pop("faults", ())
    module = cascade(Concat(WIDE), variant="single", alone=1, clock=clock, **settings)
    run = fit(tmp_path, module, faults=faults, epochs=1)
    lengths = {event.end - event.start for _, event in run.events}
    assert module.clock.seconds == run.events[-1][1].end == pytest.approx(3 * run.events[0][1].end)
    return module, lengths.pop()


def top_bytes(module):
    return 4 * sum(p.numel() for p in module.top.parameters())


@pytest.mark.parametrize(("slow", "q"), [(0.0, 1.0), (0.75, 1.0), (0.75, 2.0)])
def test_seconds_on_the_wire(tmp_path, slow, q):
    """A byte a second: the ids to the others, the widest embedding, then the top both ways, which is the longest."""
    module, seconds = seconds_of(tmp_path, VirtualClock(8.0, 0.0, FAST, FAST), slower={1: slow}, q=q)
    regulariser = 4 if q > 1 else 0
    widest = max(width for m, width in enumerate(WIDE) if m != 1)
    back = max(B * widest * 4 + regulariser, 2 * top_bytes(module))
    period = OTHERS * B * 8 + (B * widest * 4 + regulariser) + back
    assert seconds == pytest.approx(period / (1 - slow))


def test_seconds_on_the_wire_where_gradients_are_the_longest(tmp_path):
    module, seconds = seconds_of(tmp_path, VirtualClock(8.0, 0.0, FAST, FAST), top=partial(Thin, used=1))
    assert 2 * top_bytes(module) < B * 4 * 4
    assert seconds == pytest.approx(OTHERS * B * 8 + B * 4 * 4 + B * 4 * 4)


class Thin(nn.Module):
    """A top of few parameters."""

    def __init__(self, width, outputs, used):
        super().__init__()
        self.used, self.linear = used, nn.Linear(used, outputs, bias=False)

    def forward(self, x):
        return self.linear(x[:, : self.used])


def test_seconds_of_latency(tmp_path):
    """Ids, embeddings, the top's gradient and the top; the regularisers travel with the embeddings."""
    _, seconds = seconds_of(tmp_path, VirtualClock(FAST, 0.25, FAST, FAST), slower={1: 0.5}, q=2.0)
    assert seconds == 2 * 4 * 0.25


def flops(shapes, input_gradient):
    """Of linear layers, forward and backward, for one record: two for a product; inputs of the first may need none."""
    forward = [2 * rows * columns for rows, columns in shapes]
    backward = [2 * own for own in forward]
    return sum(forward), sum(backward) - (0 if input_gradient else forward[0])


@pytest.mark.parametrize("slower", [0.0, 0.5])
def test_seconds_of_computing(tmp_path, slower):
    """Bottoms, then the top at the active party, then bottoms forward and backward; others wait for the slowest."""
    speed_of = {1: 4.0, 3: 2.0}
    clock = VirtualClock(FAST, 0.0, 8.0, FAST, speed_of)
    _, seconds = seconds_of(tmp_path, clock, slower={1: slower})
    speeds = [8.0, 4.0, 8.0, 2.0]
    bottoms = [flops([(3, 6), (6, width)], False) for width in WIDE]
    top = flops([(sum(WIDE), 5), (5, 3)], True)
    forward = max(f * B / speed for (f, _), speed in zip(bottoms, speeds, strict=True))
    again = max((f + b) * B / speed for (f, b), speed in zip(bottoms, speeds, strict=True))
    assert seconds == pytest.approx((forward + sum(top) * B / speeds[1] + again) / (1 - slower))


def test_who_computes_more_slowly_does_so_in_all_it_computes(tmp_path):
    """Joining embeddings is work of the active party, as the bottoms are of everybody."""
    clock = VirtualClock(FAST, 0.0, 8.0, FAST)
    _, once = seconds_of(tmp_path, clock)
    _, thrice = seconds_of(tmp_path, VirtualClock(FAST, 0.0, 8.0, FAST), faults=(Slowed(),))
    assert thrice == pytest.approx(3 * once)


class Slowed(FaultModel):
    """Everybody computes three times as long."""

    def sample(self, request, roster, seed):
        outcome = RoundOutcome.nothing(roster)
        return replace(outcome, slowdown=3 * outcome.slowdown)


def test_delays_are_those_of_the_others_answers_and_of_the_own_delivery(tmp_path):
    """Between a party and itself nothing is late; what it delivers late ends its period later."""

    class Late(FaultModel):
        def sample(self, request, roster, seed):
            delay = torch.tensor([[0.5, 64.0, 3.0, 1.0], [32.0, 0.25, 16.0, 8.0]][request % 2], dtype=torch.float64)
            return replace(RoundOutcome.nothing(roster), delay=delay)

    _, seconds = seconds_of(tmp_path, VirtualClock(FAST, 1.0, FAST, FAST), faults=(Late(),), slower={1: 0.5})
    assert seconds == 2 * (1 + (3.0 + 1) + 2 + 0.25)


def test_a_party_with_few_labels_has_shorter_periods(tmp_path):
    """Three labels where a batch has six: half the embeddings are on the wire."""
    path = tmp_path / "labels.csv"
    path.write_text("id,party\n" + "".join(f"{1000 + i},{0 if i < 3 else 1}\n" for i in range(54)))
    module = cascade(clock=VirtualClock(8.0, 0.0, FAST, FAST))
    run = fit(tmp_path, module, shared(file=path), epochs=1)
    back = 2 * top_bytes(module)
    for rows, party in ((3, 0), (6, 1)):
        lengths = [event.end - event.start for ids, event in run.events if event.party == party]
        assert lengths == pytest.approx([OTHERS * rows * 8 + rows * WIDTH * 4 + back] * len(lengths))
        assert all(len(ids) == rows for ids, event in run.events if event.party == party)


def test_the_clock_stands_at_the_last_end_and_no_time_passes_in_evaluation(tmp_path):
    module = cascade(slower={0: 0.75})
    run = fit(tmp_path, module, limit_val_batches=None)
    assert module.clock.seconds == run.events[-1][1].end
    before = module.standing()
    run.trainer.test(module, datamodule=run.data, verbose=False)
    assert module.standing() == before
    assert before["progress/passes"] == 2.0
    assert module.books.rounds["fit"] == 18
    assert module.books.mini_batches == 18 * PARTIES


def test_in_one_place_time_is_computing(tmp_path):
    module = cascade(Mean(), variant="centralized", clock=VirtualClock(8.0, 1.0, 1.0, 2.0))
    run = fit(tmp_path, module, epochs=1)
    work = PARTIES * sum(flops([(3, 6), (6, 3)], False)) + sum(flops([(3, 5), (5, 3)], True))
    assert module.clock.seconds == pytest.approx(len(run.events) * B * work / 2.0)


def test_a_second_fit_goes_on_with_clock_and_events(tmp_path):
    module = cascade(slower={1: 0.5}, q=3.0)
    first = fit(tmp_path, module, epochs=1)
    second = fit(tmp_path, module, epochs=1)
    assert all(event.start >= first.events[-1][1].end for _, event in second.events)
    numbers = [event.number for _, event in first.events + second.events]
    assert len(set(numbers)) == len(numbers)
    busiest = max(event.request for _, event in first.events)
    assert {event.request for _, event in second.events if event.party == 1} == {busiest + 1, busiest + 2}
    assert module.clock.seconds == second.events[-1][1].end
    assert module.books.rounds["fit"] == 18
    oracle = ByHand(second, None, {1: Fraction(1, 2)}, 3.0)  # everybody begins with the networks as they are now
    oracle.batches = {}
    for ids, event in second.events:
        had = sum(party == event.party for party, _ in oracle.batches)
        oracle.batches[event.party, had] = ids
    oracle.play(9)
    assert [event.party for _, event in second.events] == [period.party for period in oracle.ended]
    for who, parameters in second.parameters().items():
        for own, other in zip(parameters, oracle.parameters()[who], strict=True):
            torch.testing.assert_close(own, other, rtol=0, atol=2e-5)


# ---- staleness


@pytest.mark.parametrize(
    ("variant", "epochs"),
    [
        (
            "async",
            [(Fraction(0 + 1 + 7 * 2, 9), 2), (Fraction(2), 2)],
        ),  # at first only those of lower number have ended
        ("sync", [(Fraction(1), 2)] * 2),
        ("single", [(Fraction(0), 0)] * 2),
    ],
)
def test_staleness_of_equals(tmp_path, variant, epochs):
    run = fit(tmp_path, cascade(variant=variant))
    assert [(row["train/staleness_mean"], row["train/staleness_max"]) for row in run.logged] == [
        (pytest.approx(float(mean), rel=1e-6), most) for mean, most in epochs
    ]


def test_staleness_is_by_hand_what_lies_between_start_and_end(tmp_path):
    run = fit(tmp_path, cascade(slower={0: 0.75, 2: 0.5}), epochs=3)
    oracle = ByHand(run, None, {0: Fraction(3, 4), 2: Fraction(1, 2)}).play(27)
    assert_same_training(run, oracle)
    compare(run, oracle, 9)
    assert max(oracle.behind) == 5 or max(oracle.behind) == 6


def compare(run, oracle, steps):
    for epoch, row in enumerate(run.logged):
        own = [behind for behind in oracle.behind[epoch * steps : (epoch + 1) * steps] if behind is not None]
        assert row["train/staleness_mean"] == pytest.approx(sum(own) / len(own), rel=1e-6)
        assert row["train/staleness_max"] == max(own)


def test_staleness_counts_from_the_replica_also_of_a_party_that_was_away_or_was_not_answered(tmp_path):
    model = trouble("announced", "receives", "hosts", of=0.3)
    run = fit(tmp_path, cascade(waiting=WaitForAll(2.0)), faults=(model,), epochs=3)
    oracle = ByHand(run, collection=heard(model)).play(27)
    assert_same_training(run, oracle)
    compare(run, oracle, 9)


def test_the_staleness_of_an_unfinished_epoch_is_not_counted_in_the_next_fit(tmp_path):
    module = cascade()
    fit(tmp_path, module, epochs=1, max_steps=5)
    run = fit(tmp_path, module, epochs=1)
    assert run.logged[0]["train/staleness_mean"] == pytest.approx(15 / 9)


# ---- privacy


def test_every_event_is_charged_to_the_records_of_its_batch_as_a_sum_of_the_others(tmp_path):
    """What the active party has drawn itself hides nothing from it."""
    module = cascade(PoissonBinomial(levels=16, beta=0.125), bottom=BOUNDED, slower={0: 0.5})
    run = fit(tmp_path, module)
    charged = module.privacy.accountant.state_dict()
    (event,) = module.privacy.accountant._counts
    assert event == PoissonBinomialEvent(16, 0.125, PARTIES - 1, WIDTH)
    counts = np.zeros(54, int)
    for ids, _ in run.events:
        counts[ids.numpy()] += 1
    assert module.privacy.accountant._counts[event].tolist() == counts.tolist()
    assert counts.sum() == 18 * B
    assert charged
    assert run.logged[-1]["privacy/epsilon"] == pytest.approx(module.privacy.epsilon())


def test_a_plain_sum_is_not_accounted_for(tmp_path):
    module = cascade(Sum())
    fit(tmp_path, module, epochs=1, max_steps=2)
    assert module.privacy.accountant is None


def test_a_budget_is_kept_of_what_an_active_party_can_read(tmp_path):
    """Two releases of a record would be too much, as sums of three; as sums of four they would not."""
    two = composed_epsilon({PoissonBinomialEvent(16, 0.125, PARTIES - 1, WIDTH): 2}, 1e-5)
    module = cascade(PoissonBinomial(levels=16, beta=0.125), bottom=BOUNDED)
    budget = PrivacyBudget(two * (1 - 1e-9))
    run = fit(tmp_path, module, epochs=3, callbacks=[budget])
    assert len(run.events) == 54 // B  # every record once
    assert 0 < module.privacy.epsilon() < two


def test_the_summary_tells_what_protects_from_an_active_party():
    module = cascade(PoissonBinomial(levels=16, beta=0.125), bottom=BOUNDED)
    said = module.protection(7)
    for unit in ("party-record", "record"):
        assert f"{poisson_binomial_rdp(16, 0.125, PARTIES - 1, 2.0, unit):.4g} of a {unit}" in said
