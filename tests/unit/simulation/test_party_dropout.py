from fractions import Fraction
from math import floor

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.simulation import PartyDropout
from lightning_vfl.types import Roster


@given(st.integers(0, 100), st.integers(1, 60), st.booleans(), st.integers(0, 10**9))
@example(29, 50, False, 0)  # in floating point a little less than 14.5
def test_how_many_are_away(percent, parties, with_active, request):
    """Halves are rounded up, at least one is away: in exact arithmetic."""
    roster = Roster.singles(parties, active=parties - 1 if with_active else None)
    passive = parties - with_active
    expected = min(passive, max(1, floor(Fraction(percent, 100) * passive + Fraction(1, 2))))
    away = ~PartyDropout(1.0, percent / 100).sample(request, roster, seed=0).announced
    assert int(away.sum()) == expected
    assert not (with_active and away[-1])


@given(st.integers(0, 10**9), st.integers(0, 9), st.booleans())
def test_both_requests_of_a_round_meet_the_same_absences(number, seed, announced):
    roster, model = Roster.singles(7, active=2), PartyDropout(0.5, 0.4, announced)
    forward, backward = (model.sample(2 * number + leg, roster, seed) for leg in (0, 1))
    assert torch.equal(forward.announced, backward.announced)
    assert torch.equal(forward.sends, backward.sends)
    assert forward.receives.all()
    assert backward.receives.all()


def test_announced_and_silent_absences_are_the_same_ones():
    roster = Roster.singles(5)
    announced, silent = PartyDropout(0.5, 0.4), PartyDropout(0.5, 0.4, announced=False)
    assert (announced.silent, silent.silent, PartyDropout(0.0, 0.4, announced=False).silent) == (False, True, False)
    for request in range(40):
        one, other = announced.sample(request, roster, 0), silent.sample(request, roster, 0)
        assert torch.equal(one.announced, other.sends)
        assert one.sends.all()
        assert other.announced.all()


def test_rounds_have_dropouts_with_the_probability_and_nobody_is_preferred():
    """Within five standard errors over 5,000 rounds; vFedSec's setting for 11 parties, one of them active."""
    roster, n = Roster.singles(11, active=0), 5_000
    model = PartyDropout(0.3, 0.1)
    away = torch.stack([~model.sample(2 * t, roster, seed=0).announced for t in range(n)]).double()
    assert abs(away.any(1).double().mean() - 0.3) < 5 * (0.3 * 0.7 / n) ** 0.5
    assert ((away[:, 1:].mean(0) - 0.03).abs() < 5 * (0.03 * 0.97 / n) ** 0.5).all()


def test_extremes():
    roster = Roster.singles(3)
    assert all(PartyDropout(0.0, 1.0).sample(t, roster, 0).announced.all() for t in range(50))
    assert not any(PartyDropout(1.0, 1.0).sample(t, roster, 0).announced.any() for t in range(50))
    alone = Roster.singles(1, active=0)
    assert PartyDropout(1.0, 1.0).sample(0, alone, 0).announced.all()


@pytest.mark.parametrize(("probability", "proportion"), [(1.1, 0.1), (-0.1, 0.1), (0.1, 2.0), (0.1, float("nan"))])
def test_bad_settings_are_refused(probability, proportion):
    with pytest.raises(ConfigurationError, match="must be a number from 0 to 1"):
        PartyDropout(probability, proportion)
