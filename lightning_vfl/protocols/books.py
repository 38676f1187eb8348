"""``Books``: all counts of a training. Each count is declared once, and the checkpoint is derived from that."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.rounds.plan import RoundCosts, RoundPlan
from lightning_vfl.simulation.clock import VirtualClock
from lightning_vfl.simulation.meter import CommunicationMeter
from lightning_vfl.types import Parties, Stage
from lightning_vfl.wire import Leg


@dataclass
class EpochLoss:
    """The running mean of one epoch's loss over its rows, float64 on the device of the loss."""

    number: int = 0
    total: Tensor | float = 0.0
    rows: int = 0

    def add(self, loss: Tensor, rows: int) -> None:
        """Add the mean loss of ``rows`` rows."""
        self.total = self.total + loss.double() * rows
        self.rows += rows

    def mean(self) -> Tensor:
        """The mean over all rows so far."""
        return torch.as_tensor(self.total, dtype=torch.float64) / self.rows


RESERVED = ("seed", "parts", "preparation", "privacy", "memory", "summed", "downlink", "told", "lost", "given", "start")
"""Entries that every checkpoint has beside the counts."""


@dataclass(eq=False)
class Books:
    """The counts of a training: round numbers, meter, clock and losses. The checkpoint has every field by its name.

    Args:
        clock: the virtual time.
        own: the counts of one protocol, a dataclass; the checkpoint has its fields beside these.
        meter: bytes by party, direction and kind.
        rounds: the number of rounds that have begun, by stage.
        opened: by stage, the last round that began with at least one party.
        mini_batches: mini-batches of single parties that training has used.
        pass_batches: mini-batches in a party's pass over its records.
        epoch_batches: mini-batches in an epoch, the smaller last one included.
        given_up: rounds in which no network learnt.
        corrected: wrong answers that were detected and corrected, by party.
        epoch_loss: the running loss of the epoch.
        left_out: the parties that training never calls.
        ran: by part, the training rounds in which a part that claims to protect something has run.
    """

    clock: VirtualClock
    own: Any = None
    meter: CommunicationMeter = field(default_factory=lambda: CommunicationMeter(0))
    rounds: dict[str, int] = field(default_factory=dict)
    opened: dict[str, int] = field(default_factory=dict)
    mini_batches: int = 0
    pass_batches: float = 1
    epoch_batches: int = 1
    given_up: int = 0
    corrected: dict[int, int] = field(default_factory=dict)
    epoch_loss: EpochLoss = field(default_factory=EpochLoss)
    left_out: Parties = ()
    ran: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [name for _, name in self._counts()]
        if clash := [name for name in names if names.count(name) > 1 or name in RESERVED]:
            raise ConfigurationError(
                f"{type(self.own).__name__} has a field {min(clash)}, a name that every checkpoint has; rename it"
            )

    # ---- entries

    def begin(self, parties: int) -> None:
        """Start a new meter for M parties."""
        self.meter = CommunicationMeter(parties)

    @property
    def training_rounds(self) -> int:
        """The number of training rounds that have begun."""
        return self.rounds.get(Stage.FIT, 0)

    def next_round(self, stage: Stage) -> int:
        """Count a round that begins; returns its number."""
        number = self.rounds.get(stage, 0)
        self.rounds[str(stage)] = number + 1  # a checkpoint has plain strings
        return number

    def enter(self, plan: RoundPlan, costs: RoundCosts) -> None:
        """Count the traffic of a planned round."""
        for leg, senders in zip(costs.legs, plan.sent, strict=True):
            self.meter.add(leg.among(plan.reached) if leg.to == "peers" else leg, senders)
        if costs.downlink is not None:
            self.meter.add(costs.downlink, plan.answered)
        if not plan.skipped:
            for leg in costs.cut:
                self.meter.add(leg)
        for leg in costs.updates:
            self.meter.add(leg, plan.learners)

    def enter_opening(self, legs: Sequence[Leg], stage: Stage, number: int) -> float:
        """Count the messages between parties at the beginning of a round; absent parties cause no delay.

        Returns:
            The seconds that these messages take.
        """
        self.opened[str(stage)] = number
        taken = 0.0
        for leg in legs:
            named, seconds = _timed(leg, stage, self.clock)
            self.meter.add(named)
            taken += seconds
        return taken

    def enter_part(self, part: str) -> None:
        """Count a training round in which a part has run whose claim the summary prints."""
        self.ran[part] = self.ran.get(part, 0) + 1

    def claimed(self, part: str, claim: str | None) -> str | None:
        """What may be said of a part that claims so much of all rounds, which it may have run in some rounds alone."""
        ran = self.ran.get(part, 0)
        learnt = self.training_rounds - self.given_up
        if claim is None or ran >= learnt:
            return claim
        if not ran:
            return f"none by the {part}, which has run in no round"
        return f"none in {learnt - ran:,} of {learnt:,} rounds, in which the {part} has not run; in the others: {claim}"

    def enter_corrected(self, parties: Sequence[int]) -> None:
        """Count the parties whose wrong answers were corrected in this round, and warn once for each party."""
        for party in parties:
            if party not in self.corrected:
                rank_zero_warn(f"an answer of party {party} was wrong and was corrected; further ones are only counted")
            self.corrected[party] = self.corrected.get(party, 0) + 1

    def standing(self, parties: int) -> dict[str, float]:
        """The progress of the training, in every unit by which runs are compared.

        ``clock/virtual_seconds``; ``comm/up_bytes``, ``comm/down_bytes`` and ``comm/peer_bytes`` of all parties;
        ``progress/passes``: mini-batches contributed by parties / (M · mini-batches of a pass over the data).
        """
        sums = {f"comm/{way}_bytes": float(self.meter.total(way).sum()) for way in ("up", "down", "peer")}
        passes = self.mini_batches / (parties * self.pass_batches)
        return {"clock/virtual_seconds": self.clock.seconds, "progress/passes": passes, **sums}

    # ---- checkpoints

    def state(self) -> dict[str, Any]:
        """The fields for a checkpoint, as plain values and tensors by name."""
        return {name: _plain(getattr(holder, name)) for holder, name in self._counts()}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the fields.

        Raises:
            ConfigurationError: for a field that the checkpoint does not have.
        """
        for holder, name in self._counts():
            if name not in state:
                raise ConfigurationError(f"the checkpoint has no {name}: another version wrote it; train anew")
            setattr(holder, name, _restored(getattr(holder, name), state[name]))

    def _counts(self) -> Iterator[tuple[Any, str]]:
        """The object that has a count, and the name of the count."""
        for holder in (self, self.own):
            for entry in () if holder is None else fields(holder):
                if entry.name != "own":
                    yield holder, entry.name


@lru_cache(maxsize=256)  # a run has few different opening legs
def _timed(leg: Leg, stage: Stage, clock: VirtualClock) -> tuple[Leg, float]:
    """The leg, with the stage in its kind in evaluation, and its seconds."""
    return leg.of_stage(stage), clock.taken_by(leg)


def _plain(value: Any) -> Any:
    """The plain form of a value, for a checkpoint."""
    if isinstance(value, VirtualClock):
        return value.seconds
    if isinstance(value, CommunicationMeter):
        return value.state_dict()
    if isinstance(value, EpochLoss) and isinstance(value.total, Tensor):
        return {**asdict(value), "total": value.total.cpu()}
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, dict):
        return {(key.value if isinstance(key, Enum) else key): _plain(inner) for key, inner in value.items()}
    return list(value) if isinstance(value, tuple) else deepcopy(value)


def _restored(current: Any, plain: Any) -> Any:
    """The value with this plain form; ``current`` has the type of the value."""
    if isinstance(current, VirtualClock):
        current.seconds = plain
        return current
    if isinstance(current, CommunicationMeter):
        current.load_state_dict(plain)
        return current
    if is_dataclass(current) and not isinstance(current, type):
        return type(current)(**plain)
    return tuple(plain) if isinstance(current, tuple) else deepcopy(plain)
