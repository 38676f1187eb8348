"""Party dropout: in some rounds some passive parties are away."""

from dataclasses import replace
from math import floor

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.simulation.draws import uniforms
from lightning_vfl.simulation.faults import FaultModel, RoundOutcome
from lightning_vfl.simulation.faults import probability as checked
from lightning_vfl.types import Roster


class RandomAbsence(FaultModel):
    """With some probability a round has dropouts: a proportion of the passive parties, at least one, is away.

    Requests 2t and 2t + 1 belong to the same round t, and the same parties are away for both. An absent party still
    counts as one that receives: it was not asked, nothing was lost on the way to it.

    Guarantee: the active party is never away. max(1, proportion · passive parties, halves rounded up) are, if any.

    Args:
        probability: that a round has dropouts.
        proportion: of the passive parties that are then away.
        announced: True: they are known to be away and not called. False: they are called and silent.

    Raises:
        ConfigurationError: for numbers outside [0, 1].

    Example:
        >>> model = RandomAbsence(probability=1.0, proportion=0.5)
        >>> int((~model.sample(0, Roster.singles(4), seed=0).announced).sum())
        2

    References:
        Qiu, Pan et al., "vFedSec", section 5.1 (drop-out simulation; there 0.3 and 0.4 by 0.1).
    """

    def __init__(self, probability: float, proportion: float, announced: bool = True) -> None:
        self.probability = checked("probability", probability)
        self.proportion = checked("proportion", proportion)
        self.announced = announced

    @property
    def silent(self) -> bool:
        return not self.announced and self.probability > 0

    @property
    def tells_hosts_apart(self) -> bool:
        return False

    def sample(self, request: int, roster: Roster, seed: int) -> RoundOutcome:
        number = request // 2
        nothing = RoundOutcome.nothing(roster)
        if uniforms(seed, number, 1, "round")[0] >= self.probability:
            return nothing
        passive = np.array([m for m in range(roster.parties) if m != roster.active], dtype=np.int64)
        away = max(1, floor(self.proportion * len(passive) + 0.5 + 1e-9))  # 0.29 · 50 is a little less than 14.5
        lots = uniforms(seed, number, roster.parties, "who")[passive]
        there = torch.ones(roster.parties, dtype=torch.bool)
        there[passive[np.argsort(lots, kind="stable")[:away]]] = False
        return replace(nothing, announced=there) if self.announced else replace(nothing, sends=there)

    def hosts(self, request: int, roster: Roster, seed: int) -> Tensor:
        return RoundOutcome.nothing(roster).hosts
