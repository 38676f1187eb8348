"""What decoupled training counts of guests and hosts."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from lightning_vfl.simulation.meter import CommunicationMeter


@dataclass
class DecoupledCounts:
    """What is counted of guests and hosts.

    Args:
        settings: what a fit that goes on has to have in common with the one that it continues.
        iterations: of guests and hosts.
        communications: rounds in which guests were to send.
        collected: whether the hosts' encodings have been collected.
        host_meter: bytes that the hosts send.
        own_seconds: (M + H,) the time that each guest and host has computed and sent.
        begun: the virtual moment at which the training began.
    """

    settings: dict[str, int | str] = field(default_factory=dict)
    iterations: int = 0
    communications: int = 0
    collected: bool = False
    host_meter: CommunicationMeter = field(default_factory=lambda: CommunicationMeter(0))
    own_seconds: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    begun: float = 0.0
