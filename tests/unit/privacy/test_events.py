"""Against enumeration in exact fractions, mpmath, and the recursion that the paper writes down."""

from dataclasses import FrozenInstanceError
from fractions import Fraction
from functools import cache
from itertools import pairwise, product
from math import comb, inf, nan
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.events import (
    UNITS,
    GaussianEvent,
    PoissonBinomialEvent,
    PrivacyEvent,
    UnknownEvent,
    against,
    chained,
    coalitions,
    label,
    restored,
    unit_of_one_release,
)
from lightning_vfl.privacy.rdp import ORDERS
from tests.examples import examples
from tests.further import further

TWO, THREE = ORDERS.index(2.0), ORDERS.index(3.0)
HALF: Any = 1.5
INFINITE: Any = inf
ROOM = 1e-9  # what figures of the sum may be above the true ones, at the lowest order and for these events
EVENTS = [
    PoissonBinomialEvent(levels=4, beta=0.25, parties=3, coordinates=1),
    PoissonBinomialEvent(levels=1, beta=0.1, parties=1, coordinates=5),
    GaussianEvent(sigma=2.0, sensitivity=1.5, parties=3),
    GaussianEvent(sigma=1.0, sensitivity=2.0, parties=1),
    UnknownEvent("Sum"),
]


def test_every_event_is_tried_here():
    ours = [kind for kind in PrivacyEvent.__subclasses__() if kind.__module__.startswith("lightning_vfl")]
    assert {type(event) for event in EVENTS} == set(ours)


@cache
def fractions_of_a_sum(levels, beta, values):
    total = [Fraction(1)]
    for value in values:
        p = Fraction(1, 2) + value * beta
        drawn = [comb(levels, j) * p**j * (1 - p) ** (levels - j) for j in range(levels + 1)]
        longer = [Fraction(0)] * (len(total) + levels)
        for (i, x), (j, y) in product(enumerate(total), enumerate(drawn)):
            longer[i + j] += x * y
        total = longer
    return total


def logarithm(fraction):
    with mpmath.workdps(50):
        return mpmath.log(mpmath.mpf(fraction.numerator) / fraction.denominator)


@pytest.mark.parametrize(
    ("levels", "beta", "parties", "coordinates"), [(1, 0.25, 2, 2), (2, 0.125, 2, 2), (2, 0.25, 1, 3)]
)
def test_coordinates_by_enumerating_their_joint_distribution(levels, beta, parties, coordinates):
    """D_2 of the D numbers together: all (bn + 1)^D outcomes, all others' extremes, in fractions."""
    exact = Fraction(beta)
    worst = Fraction(0)
    for others in product((-1, 1), repeat=parties - 1):
        p = fractions_of_a_sum(levels, exact, (-1, *others))
        q = fractions_of_a_sum(levels, exact, (1, *others))
        for one, other in ((p, q), (q, p)):
            joint = Fraction(0)
            for outcome in product(range(len(p)), repeat=coordinates):
                above = np.prod([one[j] for j in outcome])
                joint += above**2 / np.prod([other[j] for j in outcome])
            worst = max(worst, joint)
    true = logarithm(worst)
    found = PoissonBinomialEvent(levels, beta, parties, coordinates).curve()[TWO]
    assert true <= found <= true * (1 + 1e-9)


@pytest.mark.parametrize(("levels", "parties", "coordinates"), [(1, 2, 1), (2, 2, 2), (3, 3, 4)])
def test_a_record_by_its_trials_in_fractions(levels, parties, coordinates):
    """All parties from -1 to +1: D_3 of b n D independent trials, one trial in fractions."""
    low, high = Fraction(1, 4), Fraction(3, 4)
    trial = high**3 / low**2 + low**3 / high**2
    true = logarithm(trial) / 2 * levels * parties * coordinates
    found = PoissonBinomialEvent(levels, 0.25, parties, coordinates).curve("record")[THREE]
    assert true <= found <= true * (1 + 1e-12)


def test_figures_of_the_issue():
    assert PoissonBinomialEvent(4, 0.25, 3, 1).curve()[TWO] == pytest.approx(2.04352, abs=5e-6)
    assert PoissonBinomialEvent(4, 0.25, 3, 16).curve()[TWO] == pytest.approx(16 * 2.04352, abs=1e-4)
    assert PoissonBinomialEvent(8, 0.2, 3, 1).curve("record")[THREE] == pytest.approx(16.2273, abs=5e-5)
    assert chained(2.0, 4) == pytest.approx(33.75, rel=1e-13)


@pytest.mark.parametrize(("beta", "ratio"), [further(0.05, 1.0104), (0.25, 1.3477)])
def test_exact_against_asymptotic(beta, ratio):
    """8 α b β² D / M at b = 16, M = 128, α = 2."""
    event = PoissonBinomialEvent(levels=16, beta=beta, parties=128, coordinates=10)
    assert event.curve()[TWO] / (8 * 2 * 16 * beta**2 * 10 / 128) == pytest.approx(ratio, abs=5e-5)


def closed(order, parties):
    """S_M(α) as Theorem 6.2 prints it."""
    a, power = Fraction(order), Fraction(2) ** parties
    return (2 * power - power / 2 - 2) * a - (power * 3 / 2 - 3 * parties) + (power / 2 - 1) / (power / 4 * (a - 1))


@given(st.floats(1.001, 1e4), st.integers(1, 40))
def test_chain_is_the_closed_form_of_the_theorem(order, parties):
    true = closed(order, parties)
    assert true <= Fraction(chained(order, parties)) <= true * (1 + Fraction(1, 10**12))


def test_chain_of_too_many_parties_is_infinite():
    assert chained(2.0, 1000) < inf == chained(2.0, 1001) == chained(inf, 1)


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.integers(1, 20), st.sampled_from(range(len(ORDERS) - 1)))
def test_curve_of_gaussian_noise(sigma, sensitivity, parties, i):
    event = GaussianEvent(sigma, sensitivity, parties)
    with mpmath.workdps(50):
        true = mpmath.mpf(ORDERS[i]) * (mpmath.mpf(sensitivity) / mpmath.mpf(sigma)) ** 2 / 2
        room = 1 + mpmath.mpf(1e-12)
        chain = true / ORDERS[i] * mpmath.mpf(closed(ORDERS[i], parties).numerator)
        chain /= closed(ORDERS[i], parties).denominator
        assert true <= event.curve()[i] <= true * room
        assert true * parties <= event.curve("record")[i] <= true * parties * room
        assert chain * (1 - mpmath.mpf(10) ** -40) <= event.curve("record (paper)")[i] <= chain * room
        squared = (mpmath.mpf(sensitivity) / mpmath.mpf(sigma)) ** 2
        assert squared <= event.signal() <= squared * room
        assert squared * parties <= event.signal("record") <= squared * parties * room
    assert event.signal("record (paper)") is None


def test_ends_of_gaussian_noise():
    for unit in UNITS:
        assert set(GaussianEvent(0.0, 1.0, 2).curve(unit)) == {inf}
        assert set(GaussianEvent(inf, inf, 2).curve(unit)) == {inf}
        assert set(GaussianEvent(0.0, 0.0, 2).curve(unit)) == {0.0}
        assert set(GaussianEvent(inf, 1.0, 2).curve(unit)) == {0.0}
        assert GaussianEvent(1.0, 1.0, 2).curve(unit)[-1] == inf
        assert 0 < GaussianEvent(1e200, 1e-200, 1).curve(unit)[0] < 1e-300
    assert GaussianEvent(0.0, 1.0, 2).signal() == inf
    assert GaussianEvent(0.0, 0.0, 2).signal("record") == 0.0


@pytest.mark.parametrize("event", EVENTS)
def test_a_party_is_charged_its_part_of_every_record(event):
    """Its columns of all records: the accountant adds up over records what one record costs here."""
    for unit in ("party", "party (paper)"):
        assert event.curve(unit) == event.curve("party-record") == event.curve()
        assert event.signal(unit) == event.signal()


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("unit", ["party-record", "record"])
def test_curves_never_fall(event, unit):
    curve = event.curve(unit)
    assert len(curve) == len(ORDERS)
    assert all(type(epsilon) is float for epsilon in curve)
    assert all(one <= other + ROOM for one, other in pairwise(curve))


@pytest.mark.parametrize("event", EVENTS)
def test_a_record_costs_no_less_than_a_part_of_it_and_the_paper_charges_no_less(event):
    for paper, record, part in zip(
        *(event.curve(u) for u in ("record (paper)", "record", "party-record")), strict=True
    ):
        assert part <= record + ROOM
        assert record <= paper * (1 + 1e-12) + ROOM


def test_the_bound_of_the_paper_grows_towards_order_one_and_falls_with_more_parties():
    """So neither end of anything is its worst case: whoever reserves for it has to try all numbers of parties."""
    three, four = (PoissonBinomialEvent(1, 0.125, parties, 1).curve("record (paper)") for parties in (3, 4))
    assert three[0] > three[TWO]
    assert three[0] > four[0]
    assert three[-1] < four[-1]


@examples(40)
@given(
    st.integers(1, 6),
    st.floats(0.001, 0.24),
    st.integers(1, 5),
    st.integers(1, 40),
    st.sampled_from(["party-record", "record"]),
)
def test_more_of_anything_costs_more_and_more_parties_cost_a_party_less(levels, beta, parties, coordinates, unit):
    def figures(b, x, n, d):
        return np.array(PoissonBinomialEvent(b, x, n, d).curve(unit))

    here = figures(levels, beta, parties, coordinates)
    slack = 1e-9 * here + 1e-8 * coordinates
    assert (here <= figures(levels + 1, beta, parties, coordinates) + slack).all()
    assert (here <= figures(levels, beta * 1.04, parties, coordinates) + slack).all()
    assert (here <= figures(levels, beta, parties, coordinates + 1) + slack).all()
    more = figures(levels, beta, parties + 1, coordinates)
    assert ((here <= more + slack) if unit == "record" else (more <= here + slack)).all()


def test_unknown_is_infinite_in_every_unit():
    for unit in UNITS:
        assert set(UnknownEvent("Max").curve(unit)) == {inf}
        assert UnknownEvent("Max").signal(unit) is None


@pytest.mark.parametrize("event", EVENTS)
def test_plain_and_back(event):
    plain = event.plain()
    assert restored(plain) == event
    assert restored(plain).plain() == plain
    assert {type(value) for value in plain.values()} <= {int, float, str}


def test_what_a_checkpoint_calls_by_a_name_that_nobody_knows_is_infinite_and_kept():
    strange = {"mechanism": "Skellam", "scale": 2.0, "parties": 3}
    event = restored(strange)
    assert event == UnknownEvent("Skellam", (("scale", 2.0), ("parties", 3)))
    assert set(event.curve("record")) == {inf}
    assert restored(event.plain()) == event
    assert restored({**strange, "scale": 3.0}) != event
    other = {"mechanism": "GaussianEvent", "sigma": 1.0, "sensitivity": 1.0, "parties": 1, "rate": 0.5}
    assert set(restored(other).curve()) == {inf}  # a meaning that this version does not know


def test_numbers_of_other_libraries_become_pythons_own():
    event = PoissonBinomialEvent(np.int64(4), np.float64(0.25), 3, np.int32(2))
    assert event == PoissonBinomialEvent(4, 0.25, 3, 2)
    assert [type(x) for x in event.plain().values()] == [str, int, float, int, int]
    assert [type(x) for x in GaussianEvent(1, np.float32(2), 1).plain().values()] == [str, float, float, int]


@pytest.mark.parametrize("event", EVENTS)
def test_events_are_frozen(event):
    with pytest.raises(FrozenInstanceError):
        event.parties = 7


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: PoissonBinomialEvent(0, 0.1, 3, 1), "levels must be .*; got 0"),
        (lambda: PoissonBinomialEvent(4, 0.3, 3, 1), "beta must be .*; got 0.3"),
        (lambda: PoissonBinomialEvent(4, nan, 3, 1), "beta must be .*; got nan"),
        (lambda: PoissonBinomialEvent(4, 0.1, 0, 1), "num_parties must be .*; got 0"),
        (lambda: PoissonBinomialEvent(4, 0.1, 3, 0), "coordinates must be .*; got 0"),
        (lambda: PoissonBinomialEvent(4, 0.1, 3, HALF), "coordinates must be .*; got 1.5"),
        (lambda: PoissonBinomialEvent(2**10, 0.1, 2**7, 1).curve(), "131072"),
        (lambda: GaussianEvent(-1.0, 1.0, 1), "sigma must be .*; got -1.0"),
        (lambda: GaussianEvent(1.0, nan, 1), "sensitivity must be .*; got nan"),
        (lambda: GaussianEvent(1.0, 1.0, 0), "parties must be .*; got 0"),
        (lambda: GaussianEvent(1.0, 1.0, INFINITE), "parties must be .*; got inf"),
        (lambda: GaussianEvent(1.0, 1.0, 1).curve("sample"), "unit 'sample' is unknown"),
        (lambda: GaussianEvent(1.0, 1.0, 1).signal("sample"), "unit 'sample' is unknown"),
        (lambda: PoissonBinomialEvent(4, 0.1, 3, 1).curve("sample"), "unit 'sample' is unknown"),
        (lambda: UnknownEvent("Sum").curve("sample"), "unit 'sample' is unknown"),
        (lambda: unit_of_one_release("party-"), "unit 'party-'"),
        (
            lambda: restored({"mechanism": "GaussianEvent", "sigma": -1.0, "sensitivity": 1.0, "parties": 1}),
            "sigma must be .*; got -1",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(make, said):
    with pytest.raises(ConfigurationError, match=said):
        make()


@pytest.mark.parametrize("colluders", [0, 1, 2, 3, 7])
def test_against_colluders_the_randomness_of_the_others_is_left(colluders):
    left = max(4 - colluders, 1)
    event = PoissonBinomialEvent(levels=4, beta=0.2, parties=4, coordinates=3)
    assert against(event, colluders) == PoissonBinomialEvent(levels=4, beta=0.2, parties=left, coordinates=3)
    own = GaussianEvent(sigma=1.0, sensitivity=2.0, parties=4)
    for unit in ("party", "party-record"):  # an upload has its own noise
        assert against(own, colluders).curve(unit) == own.curve(unit)
    assert against(own, colluders).signal("record") == pytest.approx(left * own.signal())
    assert against(UnknownEvent("Sum"), colluders) == UnknownEvent("Sum")


def test_fewer_than_no_colluders_are_refused():
    with pytest.raises(ConfigurationError, match="colluders must be a whole number, 0 or more; got -1"):
        against(UnknownEvent("Sum"), -1)


def test_coalitions_leave_one_party_at_least():
    assert [coalitions(parties, parties - 2) for parties in range(1, 7)] == [(), (1,), (1,), (1, 2), (1, 3), (1, 4)]
    assert coalitions(64, 22) == (1, 22)


def test_only_the_party_is_told_without_a_condition_and_it_comes_first():
    assert UNITS[0] == "party"
    assumed = "if weights and scaling do not depend on the record"
    for unit in UNITS:
        assert label(unit).startswith(f"{unit}, ")
        assert (assumed in label(unit)) == ("record" in unit)
    assert "no bound" in label("party (paper)")
    with pytest.raises(ConfigurationError, match="unit 'person' is unknown"):
        label("person")
