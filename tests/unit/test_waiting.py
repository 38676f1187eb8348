"""Waiting rules against their definition in plain Python."""

from math import inf, isfinite, isnan, nan

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lightning_vfl.waiting as room
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.testing import check_waiting_rule
from lightning_vfl.waiting import Deadline, Fastest, Ignore, Threshold, WaitForAll, WaitingRule
from tests.further import few

RULES = {
    "WaitForAll": WaitForAll(),
    "WaitForAll, timeout": WaitForAll(timeout=1.0),
    "Ignore": Ignore(),
    "Ignore, timeout": Ignore(timeout=1.0),
    "Fastest": Fastest(2),
    "Fastest, timeout": Fastest(3, timeout=1.0),
    "Deadline": Deadline(1.0),
    "Threshold": Threshold(),
    "Threshold, timeout": Threshold(timeout=1.0),
}
every_rule = pytest.mark.parametrize("name", RULES)
moments = st.sampled_from([0.0, 0.2, 0.5, 0.5, 1.0, 1.5, 3.0, inf, nan])
crowds = st.lists(moments, min_size=1, max_size=6)


def expected(rule, arrivals, needed):
    """Who and when, party by party: walk through the arrivals in order of (time, number)."""
    called = [m for m, a in enumerate(arrivals) if not isnan(a)]
    order = sorted((arrivals[m], m) for m in called if isfinite(arrivals[m]))
    stop = rule.seconds if isinstance(rule, Deadline) else rule.timeout
    if isinstance(rule, Fastest | Threshold):
        wanted = min(rule.n if isinstance(rule, Fastest) else needed, len(called))
    else:
        wanted = len(called)
    who = [m for _, m in order[:wanted]]
    when = inf if len(who) < wanted else max((arrivals[m] for m in who), default=0.0)
    if stop is not None and when > stop:
        who, when = [m for t, m in order if t <= stop], stop
    return sorted(who), when


@pytest.mark.parametrize(
    "name", few(RULES, "WaitForAll, timeout", "Ignore", "Fastest, timeout", "Deadline", "Threshold")
)
def test_laws(name):
    check_waiting_rule(RULES[name])


@every_rule
@given(crowds, st.integers(1, 6))
def test_who_is_in_and_when_it_closes(name, arrivals, needed):
    rule = RULES[name]
    who, when = rule.close(torch.tensor(arrivals, dtype=torch.float64), needed)
    assert (who.nonzero().flatten().tolist(), when) == expected(rule, arrivals, needed)


@every_rule
@given(st.lists(st.floats(0, 5), min_size=2, max_size=6), st.integers(0, 5), st.floats(0, 5))
def test_a_later_party_lets_nobody_else_drop_out(name, arrivals, late, delay):
    late %= len(arrivals)
    before, _ = RULES[name].close(torch.tensor(arrivals, dtype=torch.float64))
    arrivals[late] += delay
    after, _ = RULES[name].close(torch.tensor(arrivals, dtype=torch.float64))
    others = [m for m in range(len(arrivals)) if m != late]
    assert all(after[m] or not before[m] for m in others)


@every_rule
@given(crowds, st.integers(1, 6))
def test_a_rule_that_waits_on_closes_at_its_patience_at_the_earliest(name, arrivals, needed):
    rule, arrived, expected_ones = RULES[name], sum(map(isfinite, arrivals)), arrivals.count(inf)
    if not expected_ones or not rule.waits_on(arrived, needed):
        return
    known = [min(at, 0.9) if isfinite(at) else at for at in arrivals]  # all that have come, came in time
    _, when = rule.close(torch.tensor(known, dtype=torch.float64), needed)
    assert when == (inf if rule.patience is None else rule.patience)


@every_rule
def test_some_crowds_are_waited_for_without_asking(name):
    assert RULES[name].waits_on(0)
    assert RULES[name].waits_on(3) == (name.partition(",")[0] in ("WaitForAll", "Ignore", "Deadline"))


@every_rule
@given(st.integers(1, 6), st.integers(1, 6))
def test_fewest_are_in_when_all_arrive_at_once(name, parties, needed):
    needed = min(needed, parties)
    who, _ = RULES[name].close(torch.zeros(parties, dtype=torch.float64), needed)
    assert int(who.sum()) == RULES[name].fewest(parties, needed)


def test_every_rule_is_here():
    concrete = {name for name in room.__all__ if not getattr(room, name).__abstractmethods__}
    assert concrete == {type(rule).__name__ for rule in RULES.values()}
    assert all(issubclass(getattr(room, name), WaitingRule) for name in room.__all__)


def test_ignore_calls_nobody_who_is_known_to_be_slow():
    announced, slow = torch.tensor([True, True, False]), torch.tensor([False, True, False])
    assert Ignore().calls(announced, slow).tolist() == [True, False, False]
    assert WaitForAll().calls(announced, slow).tolist() == [True, True, False]


@pytest.mark.parametrize("rule", [WaitForAll(), Ignore(), Fastest(2), Threshold()])
def test_waiting_for_ever_is_refused(rule):
    rule.check(torch.ones(4, dtype=torch.bool), silent=False)
    with pytest.raises(ConfigurationError, match="give a timeout"):
        rule.check(torch.ones(4, dtype=torch.bool), silent=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WaitForAll(timeout=0), "above 0; got 0"),
        (lambda: WaitForAll(timeout=inf), "above 0; got inf"),
        (lambda: Fastest(0), "n of Fastest must be a whole number, 1 or more; got 0"),
        (lambda: Deadline(-1), "must be a finite number above 0; got -1"),
        (lambda: Fastest(5).check(torch.ones(4, dtype=torch.bool), silent=False), "lower n"),
    ],
)
def test_bad_settings_name_the_fix(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_a_deadline_never_waits_for_ever():
    Deadline(1.0).check(torch.ones(4, dtype=torch.bool), silent=True)
    assert repr(Fastest(2)) == "Fastest(n=2, timeout=None)"
