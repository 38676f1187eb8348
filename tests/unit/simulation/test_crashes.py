import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.simulation import Crashes, crashes
from lightning_vfl.simulation.draws import uniforms
from lightning_vfl.types import Roster

GRID = (0.0, 0.01, 0.05, 0.1, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 0.95, 0.99, 1.0)
PAIRS = list(itertools.product(GRID, GRID))  # 289, with sums of 0, 1, 2 and on both sides of 1


def forwards(draws, down, rejoin):
    """The definition: alive before request 0, moved by the draw of every request."""
    alive, trace = True, []
    for u in draws:
        alive = not u < down if alive else u >= 1 - rejoin
        trace.append(alive)
    return trace


def test_the_chain_is_the_one_simulated_from_request_0():
    parties, requests = 2, 150  # more than two blocks of draws
    roster = Roster.singles(parties)
    draws = [uniforms(5, request, parties, "guests").tolist() for request in range(requests)]
    for down, rejoin in PAIRS:
        model = Crashes("guests", down, rejoin)
        expected = [forwards([u[m] for u in draws], down, rejoin) for m in range(parties)]
        got = [model.sample(request, roster, seed=5).sends.tolist() for request in range(requests)]
        assert [[alive[m] for alive in got] for m in range(parties)] == expected, (down, rejoin)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 300))
def test_any_pair_at_any_request(down, rejoin, request):
    draws = [uniforms(6, t, 1, "hosts", 0)[0] for t in range(request + 1)]
    alive = Crashes("hosts", down, rejoin).sample(request, Roster.singles(1), seed=6).hosts
    assert alive.tolist() == forwards(draws, down, rejoin)[-1:]


@pytest.mark.parametrize(
    ("what", "rejoin", "dead"), [("guests", 1.0, 3 / 13), ("hosts", 0.5, 3 / 8), ("connections", 0.1, 3 / 4)]
)
def test_stationary_share_of_the_dead(what, rejoin, dead):
    """down / (down + rejoin): .231, .375, .75 for DVFL's settings, within five standard errors of a correlated mean."""
    roster, n = Roster(tuple((m,) for m in range(10)), hosts=10), 2000
    field = {"guests": "sends", "hosts": "hosts", "connections": "links"}[what]
    model = Crashes(what, 0.3, rejoin)
    alive = torch.stack([getattr(model.sample(1000 + t, roster, seed=1), field) for t in range(n)]).double()
    correlation = 1 - 0.3 - rejoin  # of neighbouring requests
    error = (dead * (1 - dead) * (1 + correlation) / (1 - correlation) / alive.numel()) ** 0.5
    assert abs(1 - alive.mean() - dead) < 5 * error


@pytest.mark.parametrize(("down", "rejoin"), [(0.3, 0.1), (0.05, 0.02), (0.9, 0.95), (1.0, 0.9), (0.0, 0.1)])
def test_a_late_request_costs_no_more_than_an_early_one(down, rejoin, monkeypatch):
    """Blocks of draws that are looked at, over many seeds, at the end of a block: 4 parties settle within few."""
    looked_at = []
    moves = crashes._moves

    def counted(*args):
        looked_at.append(args)
        return moves(*args)

    monkeypatch.setattr(crashes, "_moves", counted)
    model, roster, seeds = Crashes("guests", down, rejoin), Roster.singles(4), 30
    cost = {}
    for request in (64 * 40 - 1, 64 * 10**4 - 1, 64 * 10**12 - 1):
        looked_at.clear()
        for seed in range(seeds):
            model.sample(request, roster, seed)
        cost[request] = len(looked_at) / seeds
    settling = 1 - abs(1 - down - rejoin)
    assert max(cost.values()) <= 1 + 4 / (64 * settling)  # four independent geometric times, their sum as the bound


def test_never_and_always():
    roster = Roster.singles(3)
    never, always = Crashes("guests", 0.0, 0.0), Crashes("guests", 1.0, 1.0)
    for request in (0, 1, 2, 3, 10**15, 10**15 + 1):
        assert never.sample(request, roster, 0).sends.all()
        assert always.sample(request, roster, 0).sends.tolist() == [request % 2 == 1] * 3
    assert not Crashes("guests", 1.0, 0.0).sample(0, roster, 0).sends.any()
    assert not Crashes("guests", 1.0, 0.0).sample(10**6, roster, 0).sends.any()


def test_what_is_down_and_what_is_not():
    roster = Roster(((0,), (1,), (2,)), hosts=2)
    for request in range(30):
        guests, hosts, links = (
            Crashes(what, 0.5, 0.5).sample(request, roster, 0) for what in ("guests", "hosts", "connections")
        )
        assert torch.equal(guests.sends, guests.receives)
        assert all(outcome.announced.all() for outcome in (guests, hosts, links))
        assert guests.hosts.all()
        assert guests.links.all()
        assert hosts.sends.all()
        assert hosts.links.all()
        assert links.sends.all()
        assert links.hosts.all()
        assert hosts.hosts.shape == (2,)
        assert links.links.shape == (3, 2)


def test_more_hosts_and_guests_change_no_other_trace():
    one, four = Roster(((0,), (1,), (2,))), Roster(((0,), (1,), (2,), (3,), (4,)), hosts=4)
    for request in range(200):
        for what in ("guests", "hosts", "connections"):
            few, many = (Crashes(what, 0.3, 0.4).sample(request, roster, 7) for roster in (one, four))
            assert torch.equal(few.sends, many.sends[:3])
            assert torch.equal(few.hosts, many.hosts[:1])
            assert torch.equal(few.links, many.links[:3, :1])


def test_chains_of_different_hosts_and_links_are_different():
    roster = Roster(((0,), (1,)), hosts=2)
    links = torch.stack([Crashes("connections", 0.5, 0.5).sample(t, roster, 0).links.flatten() for t in range(64)])
    hosts = torch.stack([Crashes("hosts", 0.5, 0.5).sample(t, roster, 0).hosts for t in range(64)])
    chains = [*links.unbind(1), *hosts.unbind(1)]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(chains, 2))


def test_who_is_waited_for_in_vain():
    assert Crashes("guests", 0.1, 0.5).silent
    assert Crashes("connections", 0.1, 0.5).silent
    assert not Crashes("hosts", 0.1, 0.5).silent  # nobody waits for what a host would have sent to itself
    assert not Crashes("guests", 0.0, 0.5).silent


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("servers", 0.1, 0.1), "what must be 'guests', 'hosts' or 'connections'; got 'servers'"),
        (("guests", 1.1, 0.1), "down must be .* got 1.1"),
        (("guests", 0.1, -0.1), "rejoin must be .* got -0.1"),
    ],
)
def test_bad_settings_are_refused(settings, words):
    with pytest.raises(ConfigurationError, match=words):
        Crashes(*settings)
