"""The order of periods against a list of periods in exact fractions, searched through from its beginning every time."""

import json
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.schedules.periods import Periods


@dataclass
class Case:
    """Who has how many labels, and how long event c of a party takes, in eighths of a second."""

    sizes: dict[int, int]
    batch_size: int
    eighths: list[int]
    together: bool
    begin: Fraction = Fraction(0)
    number: int = 0
    first: int = 0
    seed: int = 0

    def took(self, number, party):
        return Fraction(self.eighths[(3 * number + party) % len(self.eighths)], 8)

    def shares(self):
        ends = np.cumsum([0, *self.sizes.values()])
        return {m: np.arange(ends[i], ends[i + 1])[::-1] for i, m in enumerate(self.sizes)}

    def periods(self):
        return Periods(
            self.shares(),
            self.batch_size,
            self.seed,
            lambda number, party, ids: float(self.took(number, party)),
            self.together,
            float(self.begin),
            self.number,
            self.first,
        )

    @property
    def steps(self):
        return sum(n // min(n, self.batch_size) for n in self.sizes.values())


@st.composite
def cases(draw: st.DrawFn) -> Case:
    parties = sorted(draw(st.sets(st.integers(0, 6), min_size=1, max_size=4)))
    return Case(
        {m: draw(st.integers(1, 9)) for m in parties},
        draw(st.integers(1, 5)),
        draw(st.lists(st.integers(1, 12), min_size=1, max_size=7)),
        draw(st.booleans()),
        Fraction(draw(st.integers(0, 20)), 4),
        draw(st.integers(0, 9)),
        draw(st.integers(0, 9)),
        draw(st.integers(0, 2**40)),
    )


def by_hand(case, events):
    """(number, party, request, start, end, who begins its next period), END by END."""
    running, resting, ended = [], [], []
    number = case.number
    for party in sorted(case.sizes):
        running.append((number, party, case.first, case.begin, case.begin + case.took(number, party)))
        number += 1
    for _ in range(events):
        first = min(running, key=lambda period: (period[4], period[1]))
        running.remove(first)
        resting.append(first)
        begins = [] if case.together and running else sorted(resting, key=lambda period: period[1])
        ended.append((*first, tuple(period[1] for period in begins)))
        for _, party, request, _, _ in begins:
            running.append((number, party, request + 1, first[4], first[4] + case.took(number, party)))
            number += 1
            resting = []
    return ended


def played(periods, epochs):
    """All epochs, as a loader goes through them."""
    everything = []
    for epoch in range(epochs):
        everything += list(periods.epoch(epoch))
        periods.advance(periods.steps)
    return everything


@given(cases())
def test_events_come_in_the_order_of_their_ends(case):
    periods = case.periods()
    assert periods.steps == case.steps
    events = [tuple(event) for _, event in played(periods, 3)]
    assert events == [(*one[:3], float(one[3]), float(one[4]), one[5]) for one in by_hand(case, 3 * case.steps)]


@given(cases())
def test_batches_are_whole_and_every_label_is_in_one_of_a_pass(case):
    """A party of fewer labels than a batch takes all of them; what does not fill a batch waits for another pass."""
    shares, seen = case.shares(), {}
    for ids, event in played(case.periods(), 3):
        assert (event.party, event.request) not in seen
        assert len(ids) == min(case.batch_size, len(shares[event.party]))
        seen[event.party, event.request] = ids.tolist()
    for party, own in shares.items():
        whole = len(own) // min(case.batch_size, len(own))
        requests = sorted(request for m, request in seen if m == party)
        assert requests == list(range(case.first, case.first + len(requests)))
        passes = {}
        for request in requests:
            passes.setdefault(request // whole, []).extend(seen[party, request])
        for ids in passes.values():
            assert len(set(ids)) == len(ids)
            assert set(ids) <= set(own.tolist())


@given(cases(), st.data())
def test_whoever_stops_anywhere_goes_on_as_if_nothing_had_happened(case, data):
    """The state is that of the start of an epoch, as JSON can keep it; a loader then leaves out what was played."""
    whole = played(case.periods(), 4)
    epoch, place = data.draw(st.integers(0, 3)), data.draw(st.integers(0, case.steps))
    before = case.periods()
    for number in range(epoch):
        list(islice(before.epoch(number), data.draw(st.integers(0, case.steps))))  # looked at, and not played
        before.advance(case.steps)
    list(islice(before.epoch(epoch), place))
    state = json.loads(json.dumps(before.state_dict()))

    after = case.periods()
    list(islice(after.epoch(0), data.draw(st.integers(0, case.steps))))
    after.load_state_dict(state)
    assert after.state_dict() == state
    rest = list(islice(after.epoch(epoch), place, None))
    after.advance(case.steps)
    for number in range(epoch + 1, 4):
        rest += list(after.epoch(number))
        after.advance(case.steps)
    expected = whole[epoch * case.steps + place :]
    assert [event for _, event in rest] == [event for _, event in expected]
    assert all(np.array_equal(a, b) for (a, _), (b, _) in zip(rest, expected, strict=True))


@given(cases(), st.integers(0, 30))
def test_an_epoch_that_ends_early_is_left_where_it_was(case, some):
    """As under a limit on an epoch's batches."""
    some = min(some, case.steps)
    periods, events = case.periods(), []
    for epoch in range(3):
        events += list(islice(periods.epoch(epoch), some))
        periods.advance(some)
    expected = by_hand(case, 3 * some)
    assert [event.number for _, event in events] == [one[0] for one in expected]
    assert [event.end for _, event in events] == [float(one[4]) for one in expected]


@given(cases())
def test_together_nobody_begins_before_the_slowest_has_ended(case):
    case.together = True
    parties = len(case.sizes)
    events = [event for _, event in played(case.periods(), 3)]
    for start in range(0, len(events) - parties + 1, parties):
        round = events[start : start + parties]
        assert sorted(event.party for event in round) == sorted(case.sizes)
        assert {event.start for event in round} == {events[start - 1].end if start else float(case.begin)}
        assert [bool(event.refresh) for event in round] == [False] * (parties - 1) + [True]
        assert round[-1].refresh == tuple(sorted(case.sizes))


@given(cases(), st.integers(0, 2**40))
def test_another_seed_is_another_order_at_the_same_times(case, seed):
    one, other = played(case.periods(), 2), None
    case.seed = seed
    other = played(case.periods(), 2)
    assert [event for _, event in one] == [event for _, event in other]
    assert Counter(len(ids) for ids, _ in one) == Counter(len(ids) for ids, _ in other)


@pytest.mark.parametrize(
    ("slow", "fast"),
    [(0.2, 0.1), (0.6, 0.3), (1.4, 0.7), (2 * 0.001 / 3, 0.001 / 3)],
    ids=lambda seconds: f"{seconds:g}",
)
@pytest.mark.parametrize("slow_party", [0, 1])
def test_equal_ends_go_by_party_number_whatever_seconds_are_rounded_to(slow, fast, slow_party):
    """With periods twice as long as another's, every second END of that one is a tie."""
    assert slow == 2 * fast
    shares = {0: np.arange(30), 1: np.arange(30, 60)}
    periods = Periods(shares, 1, 0, lambda number, party, ids: slow if party == slow_party else fast)
    order = [event.party for _, event in periods.epoch(0)]
    other = 1 - slow_party
    tied = [other, *sorted((other, slow_party))]
    assert order == tied * 20


def test_labels_are_shuffled_anew_for_every_pass_and_for_everybody_apart():
    orders = [tuple(ids.tolist()) for ids, _ in played(Case({0: 40, 1: 40}, 40, [8], False).periods(), 3)]
    relative = {tuple(i % 40 for i in order) for order in orders}
    assert len(relative) == len(orders) == 6


def test_a_period_is_planned_once_it_begins_and_not_before():
    """How long it takes may depend on its number; nobody is asked about periods that are not needed."""
    asked = []

    def seconds(number, party, ids):
        asked.append((number, party, len(ids)))
        return 1.0

    periods = Periods({0: np.arange(6), 2: np.arange(6, 12)}, 3, 0, seconds)
    assert asked == []
    plan = iter(periods.epoch(0))
    next(plan)
    assert asked == [(0, 0, 3), (1, 2, 3), (2, 0, 3)]
