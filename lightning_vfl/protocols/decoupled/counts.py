"""The counts of decoupled training."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from lightning_vfl.simulation.meter import CommunicationMeter


@dataclass
class DecoupledCounts:
    """The counts of DecoupledVFL.

    Args:
        settings: the settings that a resumed fit must share with the checkpoint.
        iterations: iterations of guests and hosts.
        communications: communication rounds, in which guests should send.
        collected: whether the hosts' encodings have been collected.
        host_meter: bytes that the hosts send.
        own_seconds: (M + H,), the seconds in which each guest and host has computed and sent.
        begun: the virtual time at which the training began.
    """

    settings: dict[str, int | str] = field(default_factory=dict)
    iterations: int = 0
    communications: int = 0
    collected: bool = False
    host_meter: CommunicationMeter = field(default_factory=lambda: CommunicationMeter(0))
    own_seconds: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    begun: float = 0.0
