"""The event queue against a simulation that walks through time without a queue."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.flops import Work
from lightning_vfl.rounds.plan import RoundCosts
from lightning_vfl.schedules.arrivals import FirstComeFirstServed
from lightning_vfl.simulation.clock import VirtualClock
from lightning_vfl.simulation.faults import FaultModel, Faults, RoundOutcome
from lightning_vfl.types import Roster
from lightning_vfl.wire import Leg

M, N, B, WIDTH = 3, 20, 6, 25
ROSTER = Roster.singles(M)
SLOWER, SLOW = 1.03791, 1.93718  # no sums of durations that are equal but for rounding
# 600 bytes at 1 MB/s: 0.6 ms up and down; bottoms 6 ms forward and 12 ms back (times SLOWER, SLOW); server 3 ms
CLOCK = VirtualClock(bandwidth=8e6, speed=1e6, server_speed=2e6, speed_of={1: 1e6 / SLOWER, 2: 1e6 / SLOW})


def costs():
    elements, none = torch.full((M,), B * WIDTH), torch.zeros(M).double()
    up, down = Leg("embeddings", "server", elements, 32, none), Leg("gradients", "parties", elements, 32, none)
    return RoundCosts.of((up,), down, B, [Work(1000, 2000)] * M, Work(400, 600), CLOCK)


class Scripted(FaultModel):
    """Delays and absences from a table: (request, party) -> seconds, or None for away."""

    def __init__(self, table, servers_down=()):
        self.table = table
        self.servers_down = servers_down

    def sample(self, request, roster, seed):
        nothing = RoundOutcome.nothing(roster)
        said = [self.table.get((request, m), 0.0) for m in range(M)]
        delay = torch.tensor([s or 0.0 for s in said], dtype=torch.float64)
        sends = torch.tensor([s is not None for s in said])
        hosts = torch.tensor([request not in self.servers_down])
        return dataclasses.replace(nothing, delay=delay, sends=sends, hosts=hosts)


class Records:
    def __init__(self, records, present=None):
        self.records = records
        self.present = present

    def __len__(self):
        return self.records

    def rows(self, ids):
        raise AssertionError("an order needs no features")


def queue(table=None, servers_down=(), present=None):
    faults = Faults(0)
    faults.add(Scripted(table or {}, servers_down))
    return FirstComeFirstServed(Records(N, present), B, ROSTER, costs(), faults, seed=0)


def walk(table, servers_down, events):
    """[(party, request, start, end, served)]: at every moment serve whoever has been waiting longest."""
    forward, back, up, down, service = (
        [6e-3, 6e-3 * SLOWER, 6e-3 * SLOW],
        [12e-3, 12e-3 * SLOWER, 12e-3 * SLOW],
        0.6e-3,
        0.6e-3,
        3e-3,
    )
    start, count, free, seen = [0.0] * M, [0] * M, 0.0, []
    while len(seen) < events:
        arrivals = [start[m] + forward[m] + (table.get((2 * count[m], m), 0.0) or 0.0) + up for m in range(M)]
        party = min(range(M), key=lambda m: (arrivals[m], count[m], m))
        away = table.get((2 * count[party], party), 0.0) is None or 2 * len(seen) + 1 in servers_down
        end = arrivals[party] if away else max(arrivals[party], free) + service
        seen.append((party, count[party], start[party], end, not away))
        if not away:
            free = end
        start[party] = end if away else end + down + back[party]
        count[party] += 1
    return seen


delays = st.dictionaries(
    st.tuples(st.integers(0, 12).map(lambda k: 2 * k), st.integers(0, M - 1)),
    st.sampled_from([0.0041379, 0.5173, None]),
)


@given(delays, st.sets(st.integers(0, 20).map(lambda c: 2 * c + 1)))
def test_events_come_in_the_order_of_their_arrivals(table, servers_down):
    made = queue(table, servers_down)
    events = []
    for epoch in range(3):
        events += [event for _, event in made.epoch(epoch)]
        made.advance(made.steps)
    expected = walk(table, servers_down, len(events))
    assert [event.number for event in events] == list(range(3 * M * (N // B)))
    for event, (party, request, start, end, served) in zip(events, expected, strict=True):
        assert (event.party, event.request, bool(event.refresh)) == (party, request, served)
        assert (event.start, event.end) == pytest.approx((start, end), abs=1e-9)


def test_without_faults_parties_come_as_often_as_they_are_fast():
    made = queue()
    events = [event for epoch in range(20) for _, event in (made.epoch(epoch), made.advance(made.steps))[0]]
    counts = Counter(event.party for event in events)
    # a turn takes 4.2 ms and 18 ms of computing, and nobody waits long for the server
    assert counts[1] / counts[0] == pytest.approx(22.2 / (4.2 + 18 * SLOWER), rel=0.1)
    assert counts[2] / counts[0] == pytest.approx(22.2 / (4.2 + 18 * SLOW), rel=0.1)


def test_every_party_goes_through_all_its_whole_batches_in_an_order_of_its_own():
    made = queue({(2 * k, 0): 0.05 for k in range(100)})
    batches = {m: [] for m in range(M)}
    for epoch in range(8):
        for ids, event in made.epoch(epoch):
            batches[event.party].append(ids)
        made.advance(made.steps)
    first = {}
    for party, own in batches.items():
        assert len(own) >= 2 * (N // B)
        passes = [np.concatenate(own[k : k + N // B]) for k in range(0, 2 * (N // B), N // B)]
        assert all(len(set(one.tolist())) == N // B * B for one in passes)
        assert passes[0].tolist() != passes[1].tolist()
        first[party] = tuple(passes[0].tolist())
    assert len(set(first.values())) == M


def test_the_queue_goes_on_from_its_state():
    table = {(2 * k, m): 0.01 * ((k * 7 + m * 3) % 5) for k in range(50) for m in range(M)}
    one, other = queue(table), queue(table)
    for epoch in range(2):
        one.epoch(epoch)
        one.advance(one.steps)
    other.load_state_dict(one.state_dict())
    for (a, left), (b, right) in zip(one.epoch(2), other.epoch(2), strict=True):
        assert a.tolist() == b.tolist()
        assert left == right
    assert one.steps == M * (N // B)
    assert one.pass_batches == N / B


def test_the_plan_of_an_epoch_does_not_move_the_queue():
    made = queue()
    before = made.state_dict()
    assert [e for _, e in made.epoch(0)] == [e for _, e in made.epoch(0)]
    assert made.state_dict() == before


def test_epochs_that_are_cut_short_go_on_with_the_very_next_event():
    table = {(2 * k, m): 0.01 * ((k * 7 + m * 3) % 5) for k in range(50) for m in range(M)}
    whole, cut = queue(table), queue(table)
    expected = list(whole.epoch(0))
    whole.advance(whole.steps)
    expected += whole.epoch(1)
    seen = []
    for played in (4, 0, 7, 5):
        seen += [event for _, event in zip(range(played), cut.epoch(0), strict=False)]
        cut.advance(played)
    assert [event for _, event in seen] == [event for _, event in expected][: len(seen)]
    assert [ids.tolist() for ids, _ in seen] == [ids.tolist() for ids, _ in expected][: len(seen)]


def test_a_party_goes_through_the_records_that_it_holds():
    present = torch.ones(N, M, dtype=torch.bool)
    present[:, 1] = torch.arange(N) % 2 == 0
    present[4:, 2] = False
    made = queue(present=present)
    assert made.steps == 3 + 1 + 1
    batches = {m: [ids.tolist() for ids, event in made.epoch(0) if event.party == m] for m in range(M)}
    assert all(i % 2 == 0 for ids in batches[1] for i in ids)
    assert sorted(batches[2][0]) == [0, 1, 2, 3]
    with pytest.raises(ConfigurationError, match="party 2 holds no training record"):
        queue(present=present & torch.tensor([True, True, False]))


def test_only_what_is_asked_for_is_planned():
    made = queue()
    asked = []
    at = made.faults.at
    made.faults.at = lambda request, roster: (asked.append(request), at(request, roster))[1]
    events = iter(made.epoch(0))
    for _ in range(3):
        next(events)
    assert max(asked) <= 2 * 3


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(ConfigurationError, match="must be a whole number from 1 to 5"):
        FirstComeFirstServed(Records(5), 6, ROSTER, costs(), Faults(0), 0)
