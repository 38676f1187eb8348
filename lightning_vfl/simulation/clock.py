"""Virtual time: how long things would have taken, from bytes, FLOPs and delays. Nothing sleeps."""

from collections.abc import Mapping
from math import isfinite

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.simulation.faults import RoundOutcome
from lightning_vfl.wire import Gate, Leg


class VirtualClock:
    """Counts the seconds that a deployment of this speed would have needed.

    Every party has a link of its own to the server (and to each peer) and a processor of its own. A party's message
    arrives after computing, its injected delay, the latency, and its bytes over the bandwidth.

    Units: seconds, float64; bits a second; floating-point operations a second.
    Guarantee: a function of the settings, of planned traffic and work, and of the faults' outcomes. The same recipe and
        seed give the same seconds on any machine.
    Not guaranteed: contention (uploads do not share the server's link), and element-wise work: FLOPs are those of
        matrix products and convolutions, as torch's flop counter counts them.

    Args:
        bandwidth: bits a second of every link; 300 Mbit/s is FedVS section 6.2 (measured between AWS EC2 machines).
        latency: seconds that every message takes besides.
        speed: floating-point operations a second of a party.
        server_speed: those of the server.
        speed_of: party number -> its speed, where it differs.

    Raises:
        ConfigurationError: for settings that are not positive.

    Examples:
        >>> clock = VirtualClock(bandwidth=8e6)
        >>> leg = Leg("embeddings", "server", torch.tensor([250_000]), 32, torch.zeros(1))
        >>> clock.transfer(leg).tolist()
        [1.0]

    References:
        Li, Yao, Liu, "FedVS: Straggler-Resilient and Privacy-Preserving Vertical Federated Learning for Split Models",
        ICML 2023, section 6.2 (delay pattern, bandwidth).
    """

    def __init__(
        self,
        bandwidth: float = 300e6,
        latency: float = 0.0,
        speed: float = 1e10,
        server_speed: float = 1e10,
        speed_of: Mapping[int, float] | None = None,
    ) -> None:
        speeds = {f"speed_of[{party}]": value for party, value in (speed_of or {}).items()}
        for name, value in {"bandwidth": bandwidth, "speed": speed, "server_speed": server_speed, **speeds}.items():
            if not value > 0:
                raise ConfigurationError(f"{name} {value} of the clock is not positive; leave it out or give one > 0")
        if not (latency >= 0 and isfinite(latency)):
            raise ConfigurationError(f"latency {latency} of the clock is no number of seconds; use 0 or more")
        self.bandwidth = bandwidth
        self.latency = latency
        self.speed = speed
        self.server_speed = server_speed
        self.speed_of = dict(speed_of or {})
        self.seconds = 0.0

    def advance(self, seconds: float) -> None:
        """Let this much time pass."""
        self.seconds += seconds

    def advance_to(self, moment: float) -> None:
        """Let time pass until this moment, unless it has passed already."""
        self.seconds = max(self.seconds, moment)

    def speeds(self, parties: int) -> Tensor:
        """(M,) float64 FLOPs a second.

        Raises:
            ConfigurationError: if ``speed_of`` names a party that does not exist.
        """
        strangers = [party for party in self.speed_of if not 0 <= party < parties]
        if strangers:
            raise ConfigurationError(
                f"speed_of names party {strangers[0]}, but the parties are 0 to {parties - 1}; correct its number"
            )
        return torch.tensor([self.speed_of.get(m, self.speed) for m in range(parties)], dtype=torch.float64)

    def computing(self, flops: Tensor) -> Tensor:
        """(M,) seconds that each party's own work of (M,) FLOPs takes, nobody slowed down."""
        return flops.double() / self.speeds(len(flops))

    def serving(self, flops: float) -> float:
        """Seconds that the server's work takes."""
        return flops / self.server_speed

    def transfer(self, leg: Leg) -> Tensor:
        """(M,) seconds that each party's part of a leg is under way; what travels with another leg adds no latency."""
        latency = 0.0 if leg.gate == Gate.PREVIOUS else self.latency
        return leg.bytes.double() * 8 / self.bandwidth + latency


def injected(leg: Leg, outcome: RoundOutcome) -> Tensor:
    """(M,) seconds of injected delay that fall on this leg."""
    delay = outcome.peer_delay if leg.to == "peers" else outcome.delay
    return delay if leg.delay_share == 1.0 else delay * leg.delay_share
