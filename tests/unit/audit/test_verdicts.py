"""What the findings of one report say together: leaks with few false alarms, and safety only by attacks with power."""

from dataclasses import replace
from itertools import combinations
from math import nan

import numpy as np
import pytest

from lightning_vfl.audit.case import largest_area
from lightning_vfl.audit.scores import Score, auc, r_squared, share
from lightning_vfl.audit.verdicts import LEAK, MARGIN, NO_MORE, NOT_SHOWN, RISK, Finding, adjusted, by_attack, judged


def p_of(score: Score, most: float) -> float:
    assert score.p is not None
    return score.p(most)


def finding(score: Score, name: str = "attack", reference: float | None = None) -> Finding:
    known = score.chance if reference is None else reference
    p = p_of(score, known + MARGIN)
    return Finding(
        name, "server", "", score.measure, score.success, score.low, score.high, score.chance, None, None, "", p=p
    )


def area(p: float | None, success: float = 0.5, name: str = "attack") -> Finding:
    return Finding(name, "server", "", "AUC", success, success - 0.03, success + 0.03, 0.5, None, None, "", p=p)


def closed_test(p_values: list[float]) -> list[bool]:
    """The closure of Bonferroni's test, by all subsets: which hypotheses are rejected."""
    every = range(len(p_values))
    subsets = [subset for size in every for subset in combinations(every, size + 1)]
    return [
        all(min(p_values[j] for j in subset) <= RISK / len(subset) for subset in subsets if i in subset) for i in every
    ]


def test_attacks_of_one_report_are_corrected_as_the_closure_of_bonferroni() -> None:
    draw = np.random.default_rng(0)
    for _ in range(200):
        p_values = list(draw.random(6) ** 4 / 4)
        assert [p <= RISK for p in adjusted(p_values)] == closed_test(p_values)


def null_scores(draw: np.random.Generator, regressions: int = 2) -> list[Score]:
    """The scores of attacks that guess at random."""
    positive = draw.random(150) < 0.3
    areas = [auc(draw.standard_normal(150), positive) for _ in range(4)]
    shares = [share(int(draw.binomial(120, 0.25)), 120, 0.25) for _ in range(3)]
    truth = draw.standard_normal((60, 2))
    return [*areas, *shares, *(r_squared(0.05 * draw.standard_normal((60, 2)), truth) for _ in range(regressions))]


@pytest.mark.parametrize("most", [1.0, 0.99 + MARGIN])
def test_a_success_that_nothing_can_exceed_is_no_leak(most: float) -> None:
    values, positive = np.arange(40.0), np.arange(40) >= 25
    for score in (auc(values, positive), auc(-values, positive), share(40, 40, 0.5)):
        assert p_of(score, most) == 1.0


def test_few_reports_of_attacks_that_guess_at_random_name_a_leak() -> None:
    draw = np.random.default_rng(1)
    reports = 200
    without_margin = 0
    with_margin = 0
    for report in range(reports):
        scores = null_scores(draw, regressions=2 if report % 8 == 0 else 0)  # these take a hundred times as long
        with_margin += any(one.verdict == LEAK for one in judged([finding(score) for score in scores]))
        without_margin += any(p <= RISK for p in adjusted([p_of(score, score.chance) for score in scores]))
    assert with_margin <= RISK * reports
    assert without_margin <= RISK * reports


def test_small_leaks_are_found_by_enough_records() -> None:
    draw = np.random.default_rng(2)
    positive = draw.random(4000) < 0.3
    score = auc(draw.standard_normal(4000) - 0.3 * positive, positive)  # the order is reversed, which tells as much
    found, *others = judged([finding(score), *(finding(one) for one in null_scores(draw))])
    assert found.verdict == LEAK
    assert NOT_SHOWN in {one.verdict.partition(":")[0] for one in others}


@pytest.mark.parametrize(
    ("protected", "twin", "verdict"),
    [
        (area(0.4, 0.51), area(1e-9, 0.99), NO_MORE),
        (area(0.4, 0.51), area(0.3, 0.53), f"{NOT_SHOWN}: the attack reaches only 0.530 without protection"),
        (area(0.4, 0.51), area(1e-9, 0.56), f"{NOT_SHOWN}: the interval reaches 0.530, as without protection"),
        (
            area(0.4, 0.53),
            area(1e-9, 0.99),
            f"{NOT_SHOWN}: it is above 0.500, and too few records are scored to call this a leak",
        ),
        (replace(area(0.4, 0.53), without=0.52), area(1e-9, 0.99), NO_MORE),
        (replace(area(0.4, 0.51), without=nan), area(1e-9, 0.99), NO_MORE),
        (area(0.4, 0.51), None, f"{NOT_SHOWN}: no such attack on an unprotected twin; use lightning-vfl audit"),
        (area(1e-9, 0.8), area(0.3, 0.53), LEAK),
        (area(None, nan), area(None, nan), "not measured"),
    ],
)
def test_safety_is_shown_by_an_attack_with_power_alone(protected: Finding, twin: Finding, verdict: str) -> None:
    twins = None if twin is None else by_attack(judged([twin]))
    (found,) = judged([protected], twins)
    assert found.verdict == verdict


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (0.5, 0.0), (2.0, 0.01), (12.0, 1e-5), (1000.0, 0.0)])
def test_the_area_that_epsilon_allows_is_that_of_the_region_of_private_tests(epsilon: float, delta: float) -> None:
    false = np.linspace(0, 1, 200_001)
    with np.errstate(over="ignore", invalid="ignore"):
        steep = np.where(false > 0, np.exp(epsilon) * false, 0.0) + delta
    hits = np.minimum(np.minimum(steep, 1 - np.exp(-epsilon) * (1 - delta - false)), 1.0)
    assert largest_area(epsilon, delta) == pytest.approx(np.trapezoid(hits, false), abs=1e-5)


def test_a_verdict_that_an_attack_has_given_itself_stays() -> None:
    said = replace(area(None, 0.5), verdict="nothing to attack: no gradient is sent")
    assert judged([said])[0].verdict == said.verdict


def test_p_values_of_few_records_do_not_pass_those_of_all_orders() -> None:
    positive = np.array([True] * 3 + [False] * 3)
    assert p_of(auc(positive.astype(float), positive), 0.5) == pytest.approx(2 / 20)  # of 20 orders, two are as extreme
    assert p_of(share(3, 3, 0.5), 0.5) == pytest.approx(2 / 8)
