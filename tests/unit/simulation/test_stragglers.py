from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.simulation import ComputeBound, Constant, Exponential, Stragglers
from lightning_vfl.types import Roster


def slow_ones(model, parties, seed=0):
    return model.stragglers(Roster.singles(parties), seed).nonzero().flatten().tolist()


@given(st.integers(0, 100), st.integers(1, 60), st.integers(0, 9))
@example(29, 100, 0)  # in floating point a little less than 29
def test_the_share_is_rounded_down(percent, parties, seed):
    assert len(slow_ones(Stragglers(percent / 100), parties, seed)) == Fraction(percent, 100) * parties // 1


@given(st.integers(1, 30), st.integers(0, 9))
def test_a_larger_share_only_adds(parties, seed):
    sets = [set(slow_ones(Stragglers(share / 10), parties, seed)) for share in range(11)]
    assert all(few <= many for few, many in pairwise(sets))


def test_every_party_may_be_slow():
    assert {p for seed in range(60) for p in slow_ones(Stragglers(0.3), 4, seed)} == {0, 1, 2, 3}


def test_the_pattern_of_fedvs():
    """Means over 5,000 requests within five standard errors; an exponential's deviation is its mean."""
    roster, n = Roster.singles(6), 5_000
    model = Stragglers(parties=[4, 1, 5])
    outcomes = [model.sample(request, roster, seed=3) for request in range(n)]
    expected = torch.tensor([0.1, 0.3, 0.1, 0.1, 0.2, 0.4], dtype=torch.float64)
    for seconds in ([o.delay for o in outcomes], [o.peer_delay for o in outcomes]):
        assert ((torch.stack(seconds).mean(0) - expected).abs() < 5 * expected / n**0.5).all()
    both = np.stack([np.stack([o.delay, o.peer_delay]) for o in outcomes])
    for m in range(6):
        assert abs(np.corrcoef(both[:, 0, m], both[:, 1, m])[0, 1]) < 5 / n**0.5


def test_defaults_are_half_of_the_parties_with_ranks_in_the_drawn_order():
    roster = Roster.singles(5)
    by_share, model = Stragglers(slow=Constant(0.0, step=1.0), fast=Constant(0.5)), Stragglers()
    delay = by_share.sample(0, roster, seed=1).delay
    assert sorted(delay.tolist()) == [0.5, 0.5, 0.5, 1.0, 2.0]
    assert (delay >= 1.0).tolist() == model.stragglers(roster, seed=1).tolist()
    order = [int((delay == rank).nonzero()) for rank in (1.0, 2.0)]
    named = Stragglers(parties=order)
    assert torch.equal(model.sample(9, roster, 1).delay, named.sample(9, roster, 1).delay)


def test_a_party_may_have_a_delay_of_its_own():
    roster = Roster.singles(4)
    own = {0: ComputeBound(4.0, step=1.0), 3: Constant(7.0, step=1.0)}
    model = Stragglers(fast=Constant(0.0), slow=Constant(0.0, step=1.0), parties=[2, 3, 1], delay_of=own)
    outcome = model.sample(5, roster, seed=0)
    assert outcome.delay.tolist() == outcome.peer_delay.tolist() == [0.0, 3.0, 1.0, 7.0]
    assert outcome.slowdown.tolist() == [4.0, 1.0, 1.0, 1.0]
    assert model.stragglers(roster, 0).tolist() == [False, True, True, True]


def test_nobody_and_everybody():
    roster = Roster.singles(3)
    assert Stragglers(parties=[]).stragglers(roster, 0).sum() == Stragglers(0.0).stragglers(roster, 0).sum() == 0
    everybody = Stragglers(1.0, slow=Constant(0.0, step=1.0)).sample(0, roster, 0).delay
    assert sorted(everybody.tolist()) == [1.0, 2.0, 3.0]


def test_slower_parties_wait_longer_for_the_same_draw():
    """Paired: a longer mean stretches every delay and exchanges none."""
    roster = Roster.singles(3)
    short, long = (Stragglers(0.0, fast=Exponential(mean)).sample(8, roster, 0).delay for mean in (1.0, 2.0))
    assert torch.equal(2.0 * short, long)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"share": 1.5}, "share must be .* from 0 to 1; got 1.5"),
        ({"share": float("nan")}, "share must be .* got nan"),
        ({"parties": [1, 1]}, "each slow party once"),
        ({"parties": [4]}, "must be a whole number from 0 to 3; got 4"),
        ({"delay_of": {-1: Constant(1.0)}}, "must be a whole number from 0 to 3; got -1"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(ConfigurationError, match=words):
        Stragglers(**settings).stragglers(Roster.singles(4), 0)
