"""Against lists of releases kept by hand, enumeration, mpmath, and curves that are added one by one."""

import io
from dataclasses import dataclass
from itertools import product
from math import inf, log, nan, sqrt
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy import accountant as module
from lightning_vfl.privacy import compose_rdp, gaussian_epsilon, poisson_binomial_rdp, rdp_epsilon
from lightning_vfl.privacy.accountant import PrivacyAccountant, composed_epsilon
from lightning_vfl.privacy.events import UNITS, GaussianEvent, PoissonBinomialEvent, PrivacyEvent, UnknownEvent
from lightning_vfl.privacy.rdp import ORDERS

DELTA = 1e-5
HALF: Any = 1.5
NAN: Any = nan
FIVE = PoissonBinomialEvent(levels=4, beta=0.2, parties=5, coordinates=2)
FOUR = PoissonBinomialEvent(levels=4, beta=0.2, parties=4, coordinates=2)
WEAK = PoissonBinomialEvent(levels=1, beta=0.01, parties=3, coordinates=1)
NOTHING = PoissonBinomialEvent(levels=4, beta=0.0, parties=5, coordinates=2)
NOISE = GaussianEvent(sigma=3.0, sensitivity=1.0, parties=5)
LOUD = GaussianEvent(sigma=8.0, sensitivity=1.0, parties=4)
UNKNOWN = UnknownEvent("Sum")
KINDS = [FIVE, FOUR, WEAK, NOTHING, NOISE, LOUD]

rounds = st.lists(st.tuples(st.sampled_from(KINDS), st.lists(st.integers(0, 5), max_size=6)), max_size=12)
deltas = st.sampled_from([0.0, 1e-9, 1e-5, 1e-2, 0.7, 1.0])
units = st.sampled_from(UNITS)


def ids(*numbers):
    return torch.tensor(numbers, dtype=torch.int64)


def spent(rounds, records=6):
    accountant = PrivacyAccountant(records)
    for event, named in rounds:
        accountant.spend(event, ids(*named))
    return accountant


def priced(uses, delta, unit):
    """ε of a dictionary of counts, with every order of the grid."""
    used = {event: count for event, count in uses.items() if count}
    if not used:
        return 0.0
    signals = [event.signal(unit) for event in used]
    if None not in signals:
        joint = sum(signal * count for signal, count in zip(signals, used.values(), strict=True))
        return gaussian_epsilon(1.0, sqrt(joint), delta)
    return rdp_epsilon(ORDERS, compose_rdp([(event.curve(unit), n) for event, n in used.items()]), delta).epsilon


def near(uses, delta, unit):
    return pytest.approx(priced(uses, delta, unit), rel=1e-11, abs=0)


def by_hand(rounds, delta, unit, records=6):
    """Every record's own list of releases; for a party all of them in one list."""
    lists = [{} for _ in range(records)]
    for event, named in rounds:
        for record in named:
            owner = lists[0 if unit == "party" else record]
            owner[event] = owner.get(event, 0) + 1
    return max(priced(uses, delta, unit) for uses in lists)


def close(one, other):
    return one == other or one == pytest.approx(other, rel=1e-9)


def test_by_enumeration_of_everything_that_is_seen():
    """Two releases of one record, the sums of 2 and of 3 parties with b = 1 and two coordinates each: the joint
    distribution of all four numbers, the Rényi divergence of every order by its definition, Canonne's conversion."""
    two, three = (PoissonBinomialEvent(1, 0.25, parties, 2) for parties in (2, 3))
    accountant = PrivacyAccountant(2)
    accountant.spend(two, ids(1))
    accountant.spend(three, ids(0, 1))
    with mpmath.workdps(40):
        low, high = mpmath.mpf("0.25"), mpmath.mpf("0.75")
        sums = {}
        for parties, own in product((2, 3), (low, high)):  # the others all at low: that is the worst
            total = [mpmath.mpf(1)]
            for p in (own, *[low] * (parties - 1)):
                total = [x * (1 - p) + y * p for x, y in zip([*total, 0], [0, *total], strict=True)]
            sums[parties, own] = total
        seen = [range(3), range(3), range(4), range(4)]

        def probability(outcome, own):
            return mpmath.fprod(sums[2 if k < 2 else 3, own][j] for k, j in enumerate(outcome))

        pairs = [(probability(outcome, low), probability(outcome, high)) for outcome in product(*seen)]
        assert mpmath.almosteq(mpmath.fsum(p for p, _ in pairs), 1)
        true = inf
        for order in ORDERS[:-1]:
            a = mpmath.mpf(order)
            renyi = mpmath.log(mpmath.fsum(p**a * q ** (1 - a) for p, q in pairs)) / (a - 1)
            true = min(true, renyi + mpmath.log((a - 1) / a) - (mpmath.log(DELTA) + mpmath.log(a)) / (a - 1))
        true = min(true, mpmath.log(max(p / q for p, q in pairs)))
    assert true * (1 - 1e-14) <= accountant.epsilon(DELTA) <= true * (1 + 1e-9)


def test_figure_of_the_issue_through_the_accountant():
    """2.04352 at α = 2: with the δ for which order 2 is the best, ε(2) + log(1/2) - (log δ + log 2)."""
    event = PoissonBinomialEvent(levels=4, beta=0.25, parties=3, coordinates=1)
    at_two = 2.04352 + log(0.5) - log(0.2) - log(2)
    accountant = PrivacyAccountant(1)
    accountant.spend(event, ids(0))
    best = min(
        poisson_binomial_rdp(4, 0.25, 3, order) + log(1 - 1 / order) - (log(0.2) + log(order)) / (order - 1)
        for order in ORDERS[:-1]
    )
    assert accountant.epsilon(0.2) == pytest.approx(best, rel=1e-9)
    assert best <= at_two + 5e-6


def test_a_record_used_twice_is_charged_twice():
    once, twice, together = (PrivacyAccountant(3) for _ in range(3))
    once.spend(FIVE, ids(0, 1, 2))
    twice.spend(FIVE, ids(0, 1, 2))
    twice.spend(FIVE, ids(1))
    together.spend(FIVE, ids(0, 1, 1, 2))
    double = rdp_epsilon(ORDERS, [2 * epsilon for epsilon in FIVE.curve()], DELTA).epsilon
    assert twice.epsilon(DELTA) == together.epsilon(DELTA) == pytest.approx(double, rel=1e-12)
    assert once.epsilon(DELTA) < double
    assert once.reserve(FIVE, ids(2, 0, 2), DELTA) == pytest.approx(priced({FIVE: 3}, DELTA, "party-record"))


def test_records_that_take_turns_cost_what_one_costs_but_a_party_pays_for_all():
    accountant = PrivacyAccountant(100)
    for first in range(0, 100, 10):
        accountant.spend(FIVE, torch.arange(first, first + 10))
    assert accountant.epsilon(DELTA) == near({FIVE: 1}, DELTA, "party-record")
    assert accountant.epsilon(DELTA, "party (paper)") == accountant.epsilon(DELTA)
    assert accountant.epsilon(DELTA, "party") == near({FIVE: 100}, DELTA, "party")
    assert accountant.epsilon(DELTA, "party") > 10 * accountant.epsilon(DELTA, "party (paper)")


def test_largest_of_records_of_which_none_is_used_most_by_all():
    """The record that costs most is neither that of most releases nor the first one."""
    rounds = [(WEAK, [0] * 6), (FIVE, [1, 2, 2]), (FOUR, [2]), (LOUD, [3, 3])]
    assert spent(rounds).epsilon(DELTA) == near({FIVE: 2, FOUR: 1}, DELTA, "party-record")


@given(rounds, deltas, units)
def test_everything_is_what_a_list_by_hand_gives(rounds, delta, unit):
    assert close(spent(rounds).epsilon(delta, unit), by_hand(rounds, delta, unit))


@given(rounds, st.sampled_from([*KINDS, UNKNOWN]), st.lists(st.integers(0, 5), max_size=8), deltas, units)
def test_reserve_is_what_spending_makes_of_it_and_spends_nothing(rounds, event, named, delta, unit):
    accountant = spent(rounds)
    before, state = accountant.epsilon(delta, unit), accountant.state_dict()
    reserved = accountant.reserve(event, ids(*named), delta, unit)
    assert accountant.epsilon(delta, unit) == before
    assert torch.equal(accountant.state_dict()["counts"], state["counts"])
    assert accountant.state_dict()["events"] == state["events"]
    accountant.spend(event, ids(*named))
    assert accountant.epsilon(delta, unit) == reserved >= before


@given(rounds, st.integers(0, 12), deltas, units)
@example([(NOISE, [0, 0]), (WEAK, [1])], 0, 1e-9, "party-record")  # one kind when first priced, two kinds later
def test_resumed_is_uninterrupted_to_the_bit(rounds, cut, delta, unit):
    whole, first = PrivacyAccountant(6), PrivacyAccountant(6)
    for i, (event, named) in enumerate(rounds):
        whole.spend(event, ids(*named))
        whole.epsilon(delta, unit)  # somebody looks at it all the time
        if i < cut:
            first.spend(event, ids(*named))
    second = PrivacyAccountant(6)
    second.spend(UNKNOWN, ids(0))  # what was there is forgotten
    second.epsilon(delta, unit)
    second.load_state_dict(through_the_safe_loader(first.state_dict()))
    for event, named in rounds[cut:]:
        second.spend(event, ids(*named))
    for each in UNITS:
        assert second.epsilon(delta, each) == whole.epsilon(delta, each)
    assert second.state_dict()["events"] == whole.state_dict()["events"]
    assert torch.equal(second.state_dict()["counts"], whole.state_dict()["counts"])


def through_the_safe_loader(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@given(rounds, st.randoms(), deltas, units)
def test_order_of_rounds_does_not_matter(rounds, shuffled, delta, unit):
    other = list(rounds)
    shuffled.shuffle(other)
    assert close(spent(rounds).epsilon(delta, unit), spent(other).epsilon(delta, unit))


@given(rounds, deltas, deltas, units)
def test_it_never_falls_and_a_smaller_delta_costs_more(rounds, one, other, unit):
    accountant, before = PrivacyAccountant(6), 0.0
    for event, named in rounds:
        accountant.spend(event, ids(*named))
        now = accountant.epsilon(one, unit)
        assert now >= before
        before = now
    small, large = sorted((one, other))
    assert accountant.epsilon(large, unit) <= accountant.epsilon(small, unit)
    assert accountant.epsilon(one, "party") >= accountant.epsilon(one) == accountant.epsilon(one, "party (paper)")
    assert accountant.epsilon(one, "record") >= accountant.epsilon(one)


@given(st.lists(st.integers(0, 4), min_size=6, max_size=6), deltas, units)
@example([0, 4, 0, 0, 0, 0], 1e-9, "record")  # order 2 is the best
def test_composed_is_the_sum_of_curves_converted(counts, delta, unit):
    uses = dict(zip(KINDS, counts, strict=True))
    assert composed_epsilon(uses, delta, unit) == near(uses, delta, unit)


@pytest.mark.parametrize("counts", [(1, 0), (10**6, 0), (3, 10**9), (10**12, 10**12)])
@pytest.mark.parametrize("delta", [0.0, 1e-300, 1e-5, 0.99])
def test_composed_is_so_for_large_counts(counts, delta):
    uses = dict(zip((WEAK, NOISE), counts, strict=True))
    assert composed_epsilon(uses, delta) == near(uses, delta, "party-record")


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2, 0.3])
@pytest.mark.parametrize("falling", [False, True])
def test_distributions_that_hardly_differ_cost_nothing(delta, falling):
    """At the order whose ε(α) is the least, wherever it is, their distance in total variation is seen to be below δ."""
    rising = [order * 0.9 * delta**2 / ORDERS[0] if order < inf else 1.0 for order in ORDERS]

    @dataclass(frozen=True)
    class Slight(PrivacyEvent):
        times: float

        def curve(self, unit="party-record"):
            return tuple(self.times * epsilon for epsilon in (rising[::-1] if falling else rising))

    assert composed_epsilon({Slight(1.0): 1}, delta) == 0.0
    assert composed_epsilon({Slight(1.2): 1}, delta) == near({Slight(1.2): 1}, delta, "party-record")


@pytest.mark.parametrize("parties", [1, 5])
def test_gaussian_noise_alone_is_accounted_exactly(parties):
    """k releases cost what noise of σ / √k costs, with mpmath; and less than their curve says."""
    event = GaussianEvent(sigma=4.0, sensitivity=2.0, parties=parties)
    accountant = PrivacyAccountant(4)
    for _ in range(50):
        accountant.spend(event, ids(0, 3))
    accountant.spend(GaussianEvent(sigma=2.0, sensitivity=2.0, parties=parties), ids(3))
    for unit, uploads in (("party-record", 1), ("record", parties), ("party", 1)):
        found = accountant.epsilon(DELTA, unit)
        with mpmath.workdps(40):
            releases = (100 if unit == "party" else 50) * mpmath.mpf(0.25) + 1
            mu, e = mpmath.sqrt(releases * uploads), mpmath.mpf(found)
            delta = mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)
        assert DELTA * (1 - 1e-8) <= delta <= DELTA
        total = (100 if unit == "party" else 50) * 0.25 + 1
        curve = [order * total * uploads / 2 for order in ORDERS]
        assert found < rdp_epsilon(ORDERS, curve, DELTA).epsilon


def test_gaussian_noise_beside_other_releases_is_priced_by_its_curve():
    accountant = spent([(NOISE, [0, 1]), (FIVE, [1])])
    assert accountant.epsilon(DELTA) == near({NOISE: 1, FIVE: 1}, DELTA, "party-record")
    assert accountant.epsilon(DELTA, "record (paper)") == near({NOISE: 1, FIVE: 1}, DELTA, "record (paper)")


@pytest.mark.parametrize("unit", UNITS)
def test_unknown_is_infinite_for_the_records_it_names(unit):
    accountant = spent([(FIVE, [0, 1, 2, 3, 4, 5])])
    assert accountant.reserve(UNKNOWN, ids(), DELTA, unit) < inf
    assert accountant.reserve(UNKNOWN, ids(4), DELTA, unit) == inf
    accountant.spend(UNKNOWN, ids())
    assert accountant.epsilon(DELTA, unit) < inf
    accountant.spend(UNKNOWN, ids(4))
    assert accountant.epsilon(DELTA, unit) == inf
    resumed = PrivacyAccountant(6)
    resumed.load_state_dict(accountant.state_dict())
    assert resumed.epsilon(DELTA, unit) == inf
    assert resumed.tightest(DELTA, unit).epsilon == inf
    assert "1e+" not in str(resumed.tightest(DELTA, unit))


def test_noise_of_nothing_and_mechanisms_of_other_checkpoints_are_infinite():
    assert composed_epsilon({GaussianEvent(0.0, 1.0, 1): 1}, DELTA) == inf
    assert composed_epsilon({GaussianEvent(0.0, 1.0, 1): 0, NOISE: 1}, DELTA) < inf
    state = spent([(FIVE, [0])]).state_dict()
    state["events"][0]["mechanism"] = "Skellam"
    accountant = PrivacyAccountant(6)
    accountant.load_state_dict(state)
    assert accountant.epsilon(DELTA) == inf
    assert accountant.state_dict()["events"] == state["events"]


def test_nothing_costs_nothing():
    accountant = PrivacyAccountant(6)
    for unit in UNITS:
        assert accountant.epsilon(0.0, unit) == 0.0
        assert accountant.reserve(FIVE, ids(), 0.0, unit) == 0.0
        assert accountant.reserve(NOTHING, ids(3), 0.0, unit) == 0.0
    assert accountant.state_dict()["counts"].shape == (0, 6)
    assert composed_epsilon({}, DELTA) == composed_epsilon({UNKNOWN: 0}, DELTA) == 0.0
    other = PrivacyAccountant(6)
    other.load_state_dict(through_the_safe_loader(accountant.state_dict()))
    assert other.epsilon(DELTA) == 0.0


def test_pure_privacy_is_order_infinity():
    """δ = 0: the logarithm of 3 for each of the trials of one party, times coordinates and releases."""
    accountant = spent([(PoissonBinomialEvent(4, 0.25, 3, 2), [0, 0, 1])])
    assert accountant.epsilon(0.0) == pytest.approx(2 * 2 * 4 * log(3), rel=1e-12)
    assert accountant.epsilon(0.0, "record") == pytest.approx(2 * 3 * 2 * 4 * log(3), rel=1e-12)
    assert spent([(NOISE, [0])]).epsilon(0.0) == inf


def test_many_records_and_kinds(monkeypatch):
    """Random parties in every round: thousands of different counts, and more kinds than a name of 63 bits holds."""
    kinds = [PoissonBinomialEvent(2, 0.1, parties, 1) for parties in range(1, 9)] + [NOISE, LOUD]
    draw = np.random.default_rng(0)
    accountant = PrivacyAccountant(5000)
    for _ in range(60):
        named = torch.from_numpy(draw.integers(0, 5000, 1000))
        accountant.spend(kinds[draw.integers(len(kinds))], named)
    counts = accountant.state_dict()["counts"].numpy()
    events = list(accountant._counts)
    for unit in ("party-record", "record"):
        expected = max(
            priced(dict(zip(events, column.tolist(), strict=True)), DELTA, unit)
            for column in np.unique(counts[:, :300], axis=1).T
        )
        assert accountant.epsilon(DELTA, unit) >= expected
        few = PrivacyAccountant(300)
        state = {**accountant.state_dict(), "records": 300}
        few.load_state_dict({**state, "counts": state["counts"][:, :300].clone()})
        assert close(few.epsilon(DELTA, unit), expected)
        monkeypatch.setattr(module, "_AT_ONCE", 7)  # columns are looked at in pieces
        few._forget()
        assert close(few.epsilon(DELTA, unit), expected)
        monkeypatch.undo()
    large = module._distinct(np.array([[2**40, 1, 2**40], [2**40, 1, 2**40], [5, 5, 5]], np.int64))
    assert large.T.tolist() == [[1, 1, 5], [2**40, 2**40, 5]]


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, max_size=30))
def test_distinct_columns(columns):
    found = module._distinct(np.array(columns, np.int64).T)
    assert sorted(map(tuple, found.T.tolist())) == sorted(set(columns))


def test_the_callers_tensor_is_not_kept():
    accountant, named = PrivacyAccountant(4), ids(0, 1)
    assert accountant.epsilon(DELTA) == 0.0
    accountant.spend(FIVE, named)
    named.fill_(3)  # whoever has asked before looks only at what was named since
    assert accountant.epsilon(DELTA) == near({FIVE: 1}, DELTA, "party-record")
    state = accountant.state_dict()
    state["counts"].fill_(1000)
    fresh = PrivacyAccountant(4)
    fresh.load_state_dict(accountant.state_dict())
    given_state = accountant.state_dict()
    fresh.load_state_dict(given_state)
    fresh.spend(FIVE, ids(2))
    assert given_state["counts"].tolist() == [[1, 1, 0, 0]]


def test_prices_are_asked_for_in_several_units_between_rounds():
    """What was looked up in one unit, at one δ, is not taken for another, and the log of ids is not cut too early."""
    accountant, rounds = PrivacyAccountant(6), []
    draw = np.random.default_rng(1)
    for step in range(40):
        rounds.append((KINDS[draw.integers(len(KINDS))], draw.integers(0, 6, 2).tolist()))
        accountant.spend(rounds[-1][0], ids(*rounds[-1][1]))
        for k, unit in enumerate(UNITS):
            for delta in (1e-5, 1e-2):
                if step % (k + 2) == 0:
                    assert close(accountant.epsilon(delta, unit), by_hand(rounds, delta, unit))


def test_a_count_that_would_wrap_around_is_refused_and_not_charged():
    accountant = spent([(FIVE, [0, 1])], records=2)
    state = accountant.state_dict()
    state["counts"][0, 1] = 2**31 - 2
    accountant.load_state_dict(state)
    accountant.spend(FIVE, ids(1))
    before = accountant.epsilon(DELTA)
    with pytest.raises(ConfigurationError, match="2,147,483,647"):
        accountant.spend(FIVE, ids(0, 1, 0))
    assert accountant.state_dict()["counts"].tolist() == [[1, 2**31 - 1]]
    assert accountant.epsilon(DELTA) == before == near({FIVE: 2**31 - 1}, DELTA, "party-record")


def test_an_event_of_somebody_elses():
    """One class with a curve is all that a new mechanism needs."""

    class Shifted(PrivacyEvent):
        def curve(self, unit="party-record"):
            return tuple(0.125 * min(order, 100.0) for order in ORDERS)

    accountant = PrivacyAccountant(3)
    accountant.spend(Shifted(), ids(0))
    curve = [0.125 * min(order, 100.0) for order in ORDERS]
    assert accountant.epsilon(DELTA) == pytest.approx(rdp_epsilon(ORDERS, curve, DELTA).epsilon, rel=1e-12)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda a: PrivacyAccountant(-1), "records must be .*; got -1"),
        (lambda a: PrivacyAccountant(NAN), "records must be .*; got nan"),
        (lambda a: PrivacyAccountant(HALF), "records must be .*; got 1.5"),
        (lambda a: a.spend(FIVE, ids(0, 6)), "6 protected records; got 0 to 6"),
        (lambda a: a.spend(FIVE, ids(-1, 2)), "6 protected records; got -1 to 2"),
        (lambda a: a.reserve(FIVE, ids(6), DELTA), "6 protected records; got 6 to 6"),
        (lambda a: a.spend(FIVE, torch.tensor([True, False])), "of bool"),
        (lambda a: a.spend(FIVE, torch.tensor([0.0, 1.0])), "of float32"),
        (lambda a: a.spend(FIVE, torch.zeros(2, 3, dtype=torch.int64)), "2, 3"),
        (lambda a: a.epsilon(nan), "delta must be .*; got nan"),
        (lambda a: a.epsilon(1.5), "delta must be .*; got 1.5"),
        (lambda a: a.reserve(FIVE, ids(0), -0.1), "delta must be .*; got -0.1"),
        (lambda a: a.epsilon(DELTA, "sample"), "unit 'sample' is unknown"),
        (lambda a: a.reserve(FIVE, ids(0), DELTA, "sample"), "unit 'sample' is unknown"),
        (lambda a: composed_epsilon({FIVE: -1}, DELTA), "count of releases must be .*; got -1"),
        (lambda a: composed_epsilon({FIVE: HALF}, DELTA), "count of releases must be .*; got 1.5"),
        (lambda a: composed_epsilon({FIVE: 1}, 2.0), "delta must be .*; got 2.0"),
        (lambda a: composed_epsilon({FIVE: 1}, DELTA, "sample"), "unit 'sample' is unknown"),
        (lambda a: a.load_state_dict(PrivacyAccountant(7).state_dict()), "charged 7 records, but this run has 6"),
        (lambda a: a.load_state_dict({**a.state_dict(), "counts": torch.zeros(2, 6, dtype=torch.int32)}), "1 events"),
        (lambda a: a.load_state_dict({**a.state_dict(), "counts": torch.zeros(1, 6)}), "float32"),
        (
            lambda a: a.load_state_dict({**a.state_dict(), "counts": torch.full((1, 6), -1, dtype=torch.int32)}),
            "use an unchanged checkpoint",
        ),
    ],
)
def test_what_has_no_meaning_is_refused_and_charged_to_nobody(call, said):
    accountant = spent([(FIVE, [0])])
    before = accountant.epsilon(DELTA)
    with pytest.raises(ConfigurationError, match=said):
        call(accountant)
    assert accountant.epsilon(DELTA) == before
    assert accountant.state_dict()["counts"].sum() == 1


@pytest.mark.parametrize("colluders", [0, 1, 2, 3])
@pytest.mark.parametrize("unit", UNITS)
def test_against_colluders_every_round_is_charged_as_that_of_the_others(colluders, unit):
    """By an accountant that was given the others' events from the start; of 2 and 3 parties, 1 is left of either."""
    accountant, other = PrivacyAccountant(6), PrivacyAccountant(6)
    for parties, named in ((3, (0, 1, 2)), (2, (2, 3)), (3, (2, 2))):
        accountant.spend(PoissonBinomialEvent(4, 0.2, parties, 2), ids(*named))
        other.spend(PoissonBinomialEvent(4, 0.2, max(parties - colluders, 1), 2), ids(*named))
    before = accountant.epsilon(DELTA, unit)
    assert close(accountant.against(colluders).epsilon(DELTA, unit), other.epsilon(DELTA, unit))
    assert accountant.epsilon(DELTA, unit) == before
