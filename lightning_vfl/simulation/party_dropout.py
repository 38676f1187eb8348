"""Party dropout: some passive parties are absent from some rounds."""

from dataclasses import replace
from math import floor
from typing import ClassVar

import numpy as np

from lightning_vfl.checks import within
from lightning_vfl.simulation.draws import uniforms
from lightning_vfl.simulation.faults import FaultModel, RoundOutcome
from lightning_vfl.types import Roster


class PartyDropout(FaultModel):
    """With a given probability, a proportion of the passive parties (at least one) is absent from a round.

    Requests 2t and 2t + 1 belong to the same round t, and the same parties are absent from both. ``receives`` stays
    True for an absent party: the server sends it nothing, so no message to it is lost.

    Guarantee: the active party is never absent. In a round with dropouts, max(1, proportion · passive parties) parties
        are absent; halves are rounded up.

    Args:
        probability: the probability that a round has dropouts.
        proportion: the proportion of the passive parties that are then absent.
        announced: True: the server knows the absent parties and does not call them. False: it calls them, and they do
            not answer.

    Raises:
        ConfigurationError: for numbers outside [0, 1].

    Examples:
        >>> model = PartyDropout(probability=1.0, proportion=0.5)
        >>> int((~model.sample(0, Roster.singles(4), seed=0).announced).sum())
        2

    References:
        Qiu, Pan et al., "vFedSec", section 5.1 (drop-out simulation; there 0.3 and 0.4 by 0.1).
    """

    stream_name: ClassVar[str] = "RandomAbsence"
    tells_hosts_apart = False

    def __init__(self, probability: float, proportion: float, announced: bool = True) -> None:
        self.probability = within("probability", probability, 0, 1)
        self.proportion = within("proportion", proportion, 0, 1)
        self.announced = announced

    @property
    def silent(self) -> bool:
        return not self.announced and self.probability > 0

    @property
    def announces(self) -> bool:
        return self.announced and self.probability > 0

    def sample(self, request: int, roster: Roster, seed: int) -> RoundOutcome:
        number = request // 2
        nothing = RoundOutcome.nothing(roster)
        if uniforms(seed, number, 1, "round")[0] >= self.probability:
            return nothing
        passive = np.array([m for m in range(roster.parties) if m != roster.active], dtype=np.int64)
        away = max(1, floor(self.proportion * len(passive) + 0.5 + 1e-9))  # 0.29 · 50 is a little less than 14.5
        lots = uniforms(seed, number, roster.parties, "who")[passive]
        there = roster.everybody
        there[passive[np.argsort(lots, kind="stable")[:away]]] = False
        return replace(nothing, announced=there) if self.announced else replace(nothing, sends=there)
