"""Virtual time: seconds computed from bytes, FLOPs and delays. The program itself does not wait."""

from collections.abc import Mapping
from math import inf

import torch
from torch import Tensor

from lightning_vfl.checks import within
from lightning_vfl.rebuildable import Rebuildable
from lightning_vfl.simulation.faults import RoundOutcome
from lightning_vfl.wire import Gate, Leg


class VirtualClock(Rebuildable):
    """Counts the seconds that a deployment with these speeds would need.

    Every party has its own link to the server (and to each peer) and its own processor. The time until a party's
    message arrives is the sum of computing, the injected delay, the latency, and its bytes divided by the bandwidth.

    Units: seconds, float64; bits a second; floating-point operations a second.
    Guarantee: a function of the settings, of planned traffic and work, and of the faults' outcomes. The same recipe and
        seed give the same seconds on any machine.
    Not guaranteed: contention is not modelled (uploads do not share the server's link). Element-wise work is not
        counted: FLOPs are those of matrix products and convolutions, as torch's flop counter counts them.

    Args:
        bandwidth: bits a second of every link; 300 Mbit/s is FedVS section 6.2 (measured between AWS EC2 machines).
        latency: additional seconds of every message.
        speed: floating-point operations a second of a party.
        server_speed: floating-point operations a second of the server.
        speed_of: party number -> speed, for parties with another speed.

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
            within(f"{name} of the clock", value, above=0, most=inf, advice="or leave it out")
        within("latency of the clock", latency, 0)
        self.bandwidth = bandwidth
        self.latency = latency
        self.speed = speed
        self.server_speed = server_speed
        self.speed_of = dict(speed_of or {})
        self.seconds = 0.0

    def advance(self, seconds: float) -> None:
        """Advance the clock by ``seconds``."""
        self.seconds += seconds

    def advance_to(self, moment: float) -> None:
        """Advance the clock to ``moment``, unless it is already later."""
        self.seconds = max(self.seconds, moment)

    def speeds(self, parties: int) -> Tensor:
        """(M,) float64 FLOPs a second.

        Raises:
            ConfigurationError: if ``speed_of`` names a party that does not exist.
        """
        for party in self.speed_of:
            within("a party of speed_of", party, 0, parties - 1, whole=True)
        return torch.tensor([self.speed_of.get(m, self.speed) for m in range(parties)], dtype=torch.float64)

    def computing(self, flops: Tensor) -> Tensor:
        """(M,) seconds of each party's work of (M,) FLOPs, without slowdowns."""
        return flops.double() / self.speeds(len(flops))

    def taken_by(self, leg: Leg) -> float:
        """Seconds until all parties have made and sent their parts of a leg, without slowdowns."""
        return float((self.computing(leg.flops) + self.transfer(leg)).max())

    def serving(self, flops: float) -> float:
        """Seconds of the server's work."""
        return flops / self.server_speed

    def transfer(self, leg: Leg) -> Tensor:
        """(M,) seconds of transfer of each party's part of a leg; a leg sent with another leg adds no latency."""
        latency = 0.0 if leg.gate == Gate.PREVIOUS else self.latency
        return leg.bytes.double() * 8 / self.bandwidth + latency


def injected(leg: Leg, outcome: RoundOutcome) -> Tensor:
    """(M,) seconds of injected delay on this leg."""
    delay = outcome.peer_delay if leg.to == "peers" else outcome.delay
    return delay if leg.delay_share == 1.0 else delay * leg.delay_share
