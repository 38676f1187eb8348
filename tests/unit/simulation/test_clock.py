"""Virtual time against arithmetic by hand."""

import pytest
import torch

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.simulation.clock import VirtualClock, injected
from lightning_vfl.simulation.faults import RoundOutcome
from lightning_vfl.types import Roster
from lightning_vfl.wire import Leg


def leg(to="server", share=1.0, elements=(1000, 3000), bits=32):
    return Leg("x", to, torch.tensor(elements), bits, torch.zeros(len(elements)), delay_share=share)


def test_a_message_takes_its_bits_over_the_bandwidth_and_the_latency():
    clock = VirtualClock(bandwidth=1e6, latency=0.01)
    assert clock.transfer(leg()).tolist() == [0.032 + 0.01, 0.096 + 0.01]
    assert clock.transfer(leg(bits=11, elements=(3, 0))).tolist() == [5 * 8 / 1e6 + 0.01, 0.01]  # 33 bits: 5 bytes


def test_computing_takes_flops_over_the_own_speed():
    clock = VirtualClock(speed=1e9, server_speed=2e9, speed_of={1: 1e8})
    assert clock.computing(torch.tensor([1e9, 1e9, 3e9])).tolist() == [1.0, 10.0, 3.0]
    assert clock.serving(1e9) == 0.5


def test_the_default_network_is_that_of_fedvs():
    assert VirtualClock().transfer(leg(elements=(300_000_000 // 32,))).tolist() == [1.0]


def test_time_only_moves_forward():
    clock = VirtualClock()
    clock.advance(1.5)
    clock.advance_to(1.0)
    assert clock.seconds == 1.5
    clock.advance_to(2.0)
    assert clock.seconds == 2.0


def test_a_leg_states_its_share_of_the_injected_delay():
    roster = Roster.singles(2)
    nothing = RoundOutcome.nothing(roster)
    delay, peers = torch.tensor([1.0, 2.0]).double(), torch.tensor([3.0, 4.0]).double()
    outcome = RoundOutcome(delay, peers, *list(vars(nothing).values())[2:])
    assert injected(leg(), outcome).tolist() == [1.0, 2.0]
    assert injected(leg("peers", share=0.25), outcome).tolist() == [0.75, 1.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bandwidth": 0}, "bandwidth of the clock must be .* above 0; got 0"),
        ({"speed": -1}, "speed of the clock must be .* above 0; got -1"),
        ({"speed_of": {2: 0.0}}, r"speed_of\[2\] of the clock must be .* above 0; got 0.0"),
        ({"latency": -0.1}, "latency of the clock must be .* at least 0; got -0.1"),
        ({"latency": float("nan")}, "latency of the clock must be .* at least 0; got nan"),
    ],
)
def test_bad_settings_name_the_fix(settings, message):
    with pytest.raises(ConfigurationError, match=message):
        VirtualClock(**settings)


def test_the_speed_of_a_stranger_is_refused():
    with pytest.raises(ConfigurationError, match="a party of speed_of must be a whole number from 0 to 1; got 2"):
        VirtualClock(speed_of={2: 1e9}).speeds(2)
