"""What travels with another leg: one message of both sizes, whose time has a closed form."""

import dataclasses

import pytest
import torch

from lightning_vfl.missing import Exclude
from lightning_vfl.networks.flops import Work
from lightning_vfl.rounds.plan import RoundCosts, plan_round
from lightning_vfl.simulation.clock import VirtualClock
from lightning_vfl.simulation.faults import RoundOutcome
from lightning_vfl.simulation.meter import CommunicationMeter
from lightning_vfl.types import Roster
from lightning_vfl.waiting import Deadline, Fastest, Threshold, WaitForAll
from lightning_vfl.wire import Leg

M, ROWS = 4, 10
NOTHING = RoundOutcome.nothing(Roster.singles(M))
LATENCY, FORWARD, BACKWARD, SERVER = 0.25, 10e-3, 20e-3, 5e-3
CLOCK = VirtualClock(bandwidth=8e6, latency=LATENCY, speed=1e6, server_speed=2e6)  # 1 MB/s
SHARES = [1000, 2000, 3000, 4000]  # ms on the wire are thousands of bytes
ZEROS = [500, 4000, 100, 0]


def leg(kind, size, gate, flops=0.0, to="peers", share=1.0):
    size, flops = torch.tensor(size), torch.tensor(flops).double().expand(M)
    return Leg(kind, to, size, 8, flops, gate=gate, delay_share=share)


MODELS = leg("model shares", SHARES, "all", 2000.0, share=0.5)
HIDING = leg("zero shares", ZEROS, "previous", [0.0, 1000.0, 2000.0, 3000.0])
MORE = leg("more", [10, 20, 30, 40], "previous", 500.0)
UPLOADS = leg("products", [100] * M, "rule", 4000.0, to="server")
DOWN = leg("gradients", [0] * M, "rule", to="parties")


def plan(*legs, rule=None, forward=NOTHING, needed=1):
    costs = RoundCosts.of(legs, DOWN, ROWS, [Work(1000, 2000)] * M, Work(400, 600), CLOCK)
    held, slow = torch.ones(M, dtype=torch.bool), torch.zeros(M, dtype=torch.bool)
    return plan_round(costs, rule or WaitForAll(), Exclude(), held, forward, NOTHING, slow, needed)


def outcome(**changes):
    kinds = {"sends": torch.bool, "announced": torch.bool}
    return dataclasses.replace(
        NOTHING, **{k: torch.tensor(v, dtype=kinds.get(k, torch.float64)) for k, v in changes.items()}
    )


def who(mask):
    return mask.nonzero().flatten().tolist()


REST = SERVER + LATENCY + BACKWARD
PRODUCTS = 4e-3 + 0.1e-3 + LATENCY
FOLLOWING = pytest.mark.parametrize("legs", [(MODELS, HIDING, UPLOADS), (MODELS, UPLOADS, HIDING)])


def seconds_of(shares, zeros=(0.0,) * M, work=(0.0,) * M):
    """The first leg alone, in Python: compute, then the bytes of all that is sent together, with one latency."""
    return max(
        FORWARD + 2e-3 + extra + (size + more) * 1e-6 + LATENCY
        for size, more, extra in zip(shares, zeros, work, strict=True)
    )


def test_bytes_and_work_are_added_to_those_of_the_leg_that_it_travels_with():
    alone, together = plan(MODELS, UPLOADS), plan(MODELS, HIDING, UPLOADS)
    assert alone.seconds == pytest.approx(seconds_of(SHARES) + PRODUCTS + REST, rel=1e-12)
    first = seconds_of(SHARES, ZEROS, (0.0, 1e-3, 2e-3, 3e-3))
    assert together.seconds == pytest.approx(first + PRODUCTS + REST, rel=1e-12)
    # for the slowest party, its own bytes count: party 1 sends 6,000 bytes after 1 ms of work, party 3 4,000 after 3 ms
    assert together.seconds - alone.seconds == pytest.approx(3e-3, rel=1e-9)


def test_several_legs_may_travel_with_one():
    zeros = [a + b for a, b in zip(ZEROS, (10, 20, 30, 40), strict=True)]
    first = seconds_of(SHARES, zeros, (0.5e-3, 1.5e-3, 2.5e-3, 3.5e-3))
    assert plan(MODELS, HIDING, MORE, UPLOADS).seconds == pytest.approx(first + PRODUCTS + REST, rel=1e-12)


def test_it_belongs_to_the_leg_before_it_and_to_no_other():
    """With the uploads instead of the shares: their time grows, the shares' does not."""
    alone, last = plan(MODELS, UPLOADS), plan(MODELS, UPLOADS, HIDING)
    uploads = max(4e-3 + f * 1e-3 + (100 + size) * 1e-6 + LATENCY for f, size in enumerate(ZEROS))
    assert last.seconds - alone.seconds == pytest.approx(uploads - PRODUCTS, rel=1e-9)


def test_what_travels_with_another_leg_has_no_latency():
    assert CLOCK.transfer(HIDING).tolist() == pytest.approx([size * 1e-6 for size in ZEROS])
    assert CLOCK.transfer(MODELS).tolist() == pytest.approx([size * 1e-6 + LATENCY for size in SHARES])


@FOLLOWING
def test_an_injected_delay_counts_once(legs):
    """Half of 3 s among the peers falls on party 1, whose leg then is the slowest; what travels with it adds none."""
    with_it = legs[1] is HIDING
    own = 1.5 + FORWARD + 2e-3 + 2e-3 + LATENCY + (1e-3 + 4e-3 if with_it else 0.0)
    before = seconds_of(SHARES, ZEROS, (0.0, 1e-3, 2e-3, 3e-3)) if with_it else seconds_of(SHARES)
    delayed = plan(*legs, forward=outcome(peer_delay=[0.0, 3.0, 0.0, 0.0]))
    assert delayed.seconds - plan(*legs).seconds == pytest.approx(own - before, rel=1e-9)


@FOLLOWING
def test_a_slow_machine_does_the_work_of_both_more_slowly(legs):
    with_it = legs[1] is HIDING
    slow = plan(*legs, forward=outcome(slowdown=[1.0, 1.0, 1.0, 100.0]))
    shares = 100 * (FORWARD + 2e-3 + (3e-3 if with_it else 0.0)) + 4e-3 + LATENCY
    products = 100 * (4e-3 + (0.0 if with_it else 3e-3)) + 0.1e-3 + LATENCY
    assert slow.seconds == pytest.approx(shares + products + REST, rel=1e-9)


@FOLLOWING
@pytest.mark.parametrize("rule", [WaitForAll(60.0), Fastest(2, 60.0), Deadline(60.0), Threshold(60.0)], ids=repr)
def test_the_same_parties_answer_with_and_without_it(legs, rule):
    late = outcome(delay=[0.0, 4.0, 1.0, 2.0], sends=[True, True, False, True])
    without, with_it = plan(MODELS, UPLOADS, rule=rule, forward=late), plan(*legs, rule=rule, forward=late)
    for roll in ("called", "included", "responders", "filled"):
        assert who(getattr(without.roll, roll)) == who(getattr(with_it.roll, roll))
    assert with_it.skipped == without.skipped


@FOLLOWING
def test_it_is_sent_and_metered_by_those_who_send_the_leg_before_it(legs):
    """Party 0 is away, party 2 is silent: neither sends anything; the late party 1 sends all."""
    forward = outcome(announced=[False, True, True, True], sends=[True, True, False, True], delay=[0.0, 50.0, 0.0, 0.0])
    done = plan(*legs, rule=WaitForAll(timeout=9.0), forward=forward)
    assert len(done.sent) == len(legs)
    leader = legs.index(HIDING) - 1
    assert who(done.sent[leader]) == who(done.sent[leader + 1]) == [1, 3]
    meter = CommunicationMeter(M)
    for one, senders in zip(legs, done.sent, strict=True):
        meter.add(one, senders)
    assert meter.total("peer", "zero shares").tolist() == [0, 4000, 0, 0]
    assert meter.total("peer", "model shares").tolist() == [0, 2000, 0, 4000]
    assert meter.total("up", "products").tolist() == [0, 100, 0, 100]


def test_a_timeout_of_the_leader_is_waited_for_once():
    silent = outcome(sends=[True, True, True, False])
    done = plan(MODELS, HIDING, UPLOADS, rule=WaitForAll(timeout=9.0), forward=silent)
    assert who(done.roll.included) == [0, 1, 2]
    assert done.seconds == pytest.approx(9.0 + PRODUCTS + REST, rel=1e-9)
