"""What is found meets its target, and a little more of it does not: every answer is priced again by its definition."""

from math import atanh, inf, nan, sqrt, tanh
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy import (
    analytic_sigma,
    compose_rdp,
    composed_epsilon,
    poisson_binomial_curve,
    rdp_epsilon,
    solve,
)
from lightning_vfl.privacy.events import GaussianEvent, PoissonBinomialEvent, UnknownEvent
from lightning_vfl.privacy.rdp import ORDERS
from lightning_vfl.privacy.solve import planned_epsilon, worst_epsilon
from tests.examples import examples

DELTA = 1e-5
SETTING: dict[str, Any] = {"parties": 5, "coordinates": 16}
HALF: Any = 1.5
NAN: Any = nan


def solve_beta(target, delta, *, levels, parties, coordinates, epochs, unit="party-record", records=1):
    def epsilon(beta):
        return planned_epsilon(PoissonBinomialEvent(levels, beta, parties, coordinates), epochs, delta, unit, records)

    return solve.solve_beta(target, epsilon)


def solve_levels(target, delta, *, beta, parties, coordinates, epochs, most=40):
    def epsilon(levels):
        return planned_epsilon(PoissonBinomialEvent(levels, beta, parties, coordinates), epochs, delta)

    return solve.solve_levels(target, epsilon, most)


def solve_epochs(target, delta, event, unit="party-record"):
    return solve.solve_epochs(target, lambda epochs: planned_epsilon(event, epochs, delta, unit))


def price(levels, beta, parties, coordinates, uses, delta=DELTA, unit="party-record"):
    one = poisson_binomial_curve(levels, beta, parties, ORDERS, unit)
    return rdp_epsilon(ORDERS, compose_rdp([(compose_rdp([(one, coordinates)]), uses)]), delta).epsilon


def near(*arguments, **settings):
    return pytest.approx(price(*arguments, **settings), rel=1e-11, abs=0)


@pytest.mark.parametrize(("unit", "same", "uses"), [("party-record", "party-record", 7), ("record", "record", 7)])
def test_plan_of_one_record(unit, same, uses):
    event = PoissonBinomialEvent(levels=8, beta=0.1, **SETTING)
    assert planned_epsilon(event, 7, DELTA, unit, records=50) == near(8, 0.1, **SETTING, uses=uses, unit=same)


def test_plan_of_a_party():
    event = PoissonBinomialEvent(levels=8, beta=0.1, **SETTING)
    assert planned_epsilon(event, 7, DELTA, "party", records=50) == near(8, 0.1, **SETTING, uses=350)
    assert planned_epsilon(event, 7, DELTA, "party (paper)", records=50) == near(8, 0.1, **SETTING, uses=7)
    assert planned_epsilon(event, 0, DELTA, "party", records=50) == 0.0


POISSON = [PoissonBinomialEvent(levels=2, beta=0.05, parties=n, coordinates=16) for n in (2, 3, 5)]
GAUSSIAN = [GaussianEvent(sigma=1.0, sensitivity=1.0, parties=n) for n in (1, 3)]
UNITS_OF_ONE = ("party-record", "record", "record (paper)")


@pytest.mark.parametrize("unit", UNITS_OF_ONE)
@pytest.mark.parametrize(
    "events",
    [POISSON, GAUSSIAN, [GaussianEvent(1.0, 1.0, 3), POISSON[1]], [GaussianEvent(2.0, 1.0, 3), POISSON[2]]],
    ids=["sums", "uploads", "curves that cross", "other curves"],
)
def test_the_worst_is_no_less_than_any_mixture(events, unit):
    """All ways to spread six releases over the events, one of which may come near."""
    first, second, third = (*events, events[0])[:3]
    worst = worst_epsilon(events, 6, 60, DELTA, unit)
    for i in range(7):
        for j in range(7 - i):
            uses = {first: i}
            uses[second] = uses.get(second, 0) + j
            uses[third] = uses.get(third, 0) + 6 - i - j
            assert composed_epsilon(uses, DELTA, unit) <= worst * (1 + 1e-12)


@pytest.mark.parametrize("event", [POISSON[0], GAUSSIAN[1], UnknownEvent("Sum")])
@pytest.mark.parametrize("unit", [*UNITS_OF_ONE, "party", "party (paper)"])
def test_the_worst_of_one_event_is_that_event(event, unit):
    for most, total in ((0, 0), (1, 9), (7, 50)):
        assert worst_epsilon([event], most, total, DELTA, unit) == composed_epsilon(
            {event: total if unit == "party" else most}, DELTA, unit
        )
    assert worst_epsilon([], 3, 9, DELTA, unit) == 0.0


@examples(10)
@given(
    st.floats(0.05, 200),
    st.sampled_from([1e-9, 1e-5, 1e-3]),
    st.integers(1, 12),
    st.integers(1, 100),
    st.sampled_from(["party-record", "record"]),
)
def test_largest_beta(target, delta, levels, epochs, unit):
    beta = solve_beta(target, delta, levels=levels, epochs=epochs, unit=unit, **SETTING)
    assert price(levels, beta, **SETTING, uses=epochs, delta=delta, unit=unit) <= target
    if beta < 0.25:
        more = min(0.25, beta * (1 + 2e-6))
        assert price(levels, more, **SETTING, uses=epochs, delta=delta, unit=unit) > target


def test_largest_beta_of_pure_privacy():
    """δ = 0: E D b 2 artanh(2β), solved by hand."""
    beta = solve_beta(3.0, 0.0, levels=2, parties=4, coordinates=3, epochs=5)
    assert beta == pytest.approx(tanh(3.0 / (2 * 5 * 3 * 2)) / 2, rel=2e-6)
    assert 5 * 3 * 2 * 2 * atanh(2 * beta) <= 3.0


def test_largest_beta_of_a_party_is_that_of_as_many_epochs():
    kwargs = {"levels": 4, **SETTING}
    one = solve_beta(8.0, DELTA, epochs=3, unit="party", records=20, **kwargs)
    assert one == solve_beta(8.0, DELTA, epochs=60, **kwargs)
    assert solve_beta(8.0, DELTA, epochs=3, unit="party (paper)", records=20, **kwargs) > 3 * one


def test_a_generous_target_is_met_by_the_largest_beta():
    assert solve_beta(1e6, DELTA, levels=1, epochs=1, **SETTING) == 0.25


@examples(10)
@given(st.floats(0.5, 60), st.floats(0.005, 0.06), st.integers(1, 20))
def test_largest_number_of_levels(target, beta, epochs):
    if price(1, beta, **SETTING, uses=epochs) > target:
        with pytest.raises(ConfigurationError, match="one level"):
            solve_levels(target, DELTA, beta=beta, epochs=epochs, **SETTING)
        return
    levels = solve_levels(target, DELTA, beta=beta, epochs=epochs, **SETTING)
    assert price(levels, beta, **SETTING, uses=epochs) <= target
    assert levels == 40 or price(levels + 1, beta, **SETTING, uses=epochs) > target


@pytest.mark.parametrize("most", [1, 2, 3, 32, 33])
def test_levels_end_where_they_are_told_to(most):
    assert solve_levels(1e9, DELTA, beta=0.1, parties=2, coordinates=1, epochs=1, most=most) == most


@pytest.mark.parametrize("levels", [1, 2, 7, 8, 9])
def test_levels_that_cost_exactly_the_target_meet_it(levels):
    target = price(levels, 0.05, **SETTING, uses=2) * (1 + 1e-11)
    assert solve_levels(target, DELTA, beta=0.05, epochs=2, **SETTING) == levels


@examples(10)
@given(st.floats(0.2, 500), st.floats(0.005, 0.1), st.integers(1, 16))
def test_largest_number_of_epochs(target, beta, levels):
    event = PoissonBinomialEvent(levels, beta, **SETTING)
    if price(levels, beta, **SETTING, uses=1) > target:
        with pytest.raises(ConfigurationError, match="one epoch costs"):
            solve_epochs(target, DELTA, event)
        return
    epochs = solve_epochs(target, DELTA, event)
    assert price(levels, beta, **SETTING, uses=epochs) <= target < price(levels, beta, **SETTING, uses=epochs + 1)


@pytest.mark.parametrize("epochs", [1, 2, 3, 128, 1000])
def test_epochs_that_cost_exactly_the_target_meet_it(epochs):
    target = price(4, 0.02, **SETTING, uses=epochs) * (1 + 1e-11)
    assert solve_epochs(target, DELTA, PoissonBinomialEvent(4, 0.02, **SETTING)) == epochs


def test_epochs_of_gaussian_noise_by_hand():
    """The joint signal √E Δ / σ may be as large as that of one release with ε = 2: E = ⌊(σ μ / Δ)²⌋."""
    mu = 1 / analytic_sigma(2.0, DELTA, 1.0)
    assert solve_epochs(2.0, DELTA, GaussianEvent(sigma=100.0, sensitivity=1.0, parties=3)) == int((100 * mu) ** 2)
    assert solve_epochs(2.0, DELTA, GaussianEvent(sigma=100.0 * sqrt(3), sensitivity=1.0, parties=3), "record") == int(
        (100 * mu) ** 2
    )


@examples(10)
@given(st.floats(1, 50), st.floats(1.05, 4))
def test_a_larger_target_allows_more(target, factor):
    event = PoissonBinomialEvent(2, 0.01, **SETTING)
    assert solve_epochs(target, DELTA, event) <= solve_epochs(target * factor, DELTA, event)
    small, large = (solve_beta(t, DELTA, levels=2, epochs=5, **SETTING) for t in (target, target * factor))
    assert small <= large


GOOD: dict[str, Any] = {"levels": 4, "epochs": 1, **SETTING}


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: solve_beta(0.0, DELTA, **GOOD), "target_epsilon must be .*; got 0.0"),
        (lambda: solve_beta(inf, DELTA, **GOOD), "target_epsilon must be .*; got inf"),
        (lambda: solve_beta(nan, DELTA, **GOOD), "target_epsilon must be .*; got nan"),
        (lambda: solve_beta(1e-9, 0.0, **GOOD), "no beta of 1e-06"),
        (lambda: solve_beta(1.0, 2.0, **GOOD), "delta must be .*; got 2.0"),
        (lambda: solve_beta(1.0, DELTA, **{**GOOD, "levels": 0}), "levels must be .*; got 0"),
        (lambda: solve_beta(1.0, DELTA, **GOOD, unit="sample"), "unit 'sample' is unknown"),
        (lambda: solve_beta(1.0, DELTA, **GOOD, records=0), "records must be .*; got 0"),
        (lambda: solve_levels(-1.0, DELTA, beta=0.1, epochs=1, **SETTING), "target_epsilon must be .*; got -1.0"),
        (lambda: solve_levels(0.1, DELTA, beta=0.25, epochs=9, **SETTING), "one level already"),
        (lambda: solve_levels(1.0, DELTA, beta=0.1, epochs=1, most=0, **SETTING), "most must be .*; got 0"),
        (lambda: solve_levels(1.0, DELTA, beta=0.3, epochs=1, **SETTING), "beta must be .*; got 0.3"),
        (lambda: solve_epochs(1.0, DELTA, UnknownEvent("Sum")), "one epoch costs epsilon inf"),
        (lambda: solve_epochs(1.0, 1.0, UnknownEvent("Sum")), "one epoch costs epsilon inf|1,000,000,000"),
        (lambda: solve_epochs(1.0, DELTA, PoissonBinomialEvent(4, 0.0, **SETTING)), "1,000,000,000 epochs"),
        (lambda: worst_epsilon([GAUSSIAN[0]], 1, 1, 2.0), "delta must be .*; got 2.0"),
        (lambda: worst_epsilon([POISSON[0]], 1, 1, DELTA, "sample"), "unit 'sample' is unknown"),
        (lambda: worst_epsilon(POISSON, -1, 1, DELTA), "count of releases must be .*; got -1"),
        (
            lambda: solve_epochs(0.0, DELTA, PoissonBinomialEvent(4, 0.1, **SETTING)),
            "target_epsilon must be .*; got 0.0",
        ),
        (
            lambda: planned_epsilon(PoissonBinomialEvent(4, 0.1, **SETTING), HALF, DELTA),
            "count of releases must be .*; got 1.5",
        ),
        (
            lambda: planned_epsilon(PoissonBinomialEvent(4, 0.1, **SETTING), 1, DELTA, records=NAN),
            "records must be .*; got nan",
        ),
    ],
)
def test_what_cannot_be_met_says_so(call, said):
    with pytest.raises(ConfigurationError, match=said):
        call()
