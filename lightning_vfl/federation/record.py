"""What has happened in a federation, round by round: a file from which a simulation repeats it, bit for bit."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.turns import happened
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.types import Event, Roll, mask_of
from lightning_vfl.whole_files import named

COLUMNS = (
    "round",
    "party",
    "name",
    "called",
    "included",
    "responded",
    "filled",
    "learnt",
    "skipped",
    "seconds",
    "restored",
    "request",
)


@dataclass(frozen=True)
class Served:
    """An asynchronous event of a record.

    Args:
        party: who was served.
        request: the number of the party's own event, which names its batch.
        seconds: that the server has waited for it.
    """

    party: int
    request: int
    seconds: float


class Record:
    """Writes a line for each round and party; every line is on the disk before the next round begins.

    Args:
        path: the CSV file; an existing one is continued.
        names: of the parties.

    Raises:
        ConfigurationError: naming the file, here and in all methods, if it cannot be written.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.path = path
        with named(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", newline="", encoding="utf-8")
        self._lines = csv.writer(self._file)
        self._next = 0  # the number of the round after the last one that was written
        self.restored: dict[int, int] = {}  # parties that have come back, with the round of their checkpoint
        if not self._file.tell():  # a server that was killed before its first round has left an empty file
            self._lines.writerow(COLUMNS)

    def add(self, round: int, plan: RoundPlan, requests: Mapping[int, int] = MappingProxyType({})) -> None:
        """Write what has become of a round.

        Args:
            round: its number.
            plan: what has become of it.
            requests: of an asynchronous event: the number of the party's own event, by party.
        """
        roll = plan.roll
        masks = (roll.called, roll.included, roll.responders, roll.filled, plan.learners)
        for party, name in enumerate(self.names):
            flags = [int(mask[party]) for mask in masks]
            back = self.restored.pop(party, "")
            request = requests.get(party, "")
            self._lines.writerow([round, party, name, *flags, int(plan.skipped), repr(plan.seconds), back, request])
        with named(self.path):
            self._file.flush()
        self._next = round + 1

    def add_event(self, event: Event, seconds: float) -> None:
        """Write an asynchronous event: who was served, with which of its batches."""
        served = Roll.of(mask_of([event.party], len(self.names)))
        self.add(event.number, happened(served, seconds), {event.party: event.request})

    def close(self) -> None:
        """Close the file. Parties that have come back after the last round stand in lines of the round after it."""
        if self.restored and self._next:
            self.add(self._next, happened(Roll.of(mask_of([], len(self.names))), skipped=True))
        with named(self.path):
            self._file.close()


class Replayed:
    """The rounds of a record.

    Args:
        path: the CSV file.

    Raises:
        ConfigurationError: for a file that is no record.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.plans: dict[int, RoundPlan] = {}
        self.events: dict[int, Served] = {}
        self.restored: dict[int, dict[int, int]] = {}  # round -> party -> round of the state that is put back
        try:
            with self.path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            named = {int(row["party"]): row["name"] for row in rows}
            self.names = tuple(named[party] for party in sorted(named))
            self.parties = len(self.names)
            by_round: dict[int, list[dict[str, Any]]] = {}
            for row in rows:
                by_round.setdefault(int(row["round"]), []).append(row)
            for round, lines in by_round.items():
                self._keep(round, lines[-self.parties :])  # a round that a resumed server has repeated counts once
        except (OSError, KeyError, ValueError) as error:
            raise ConfigurationError(f"{path} is not the record of a federation: {error}") from error
        if not self.plans:
            raise ConfigurationError(f"{path} has no rounds")

    @property
    def rounds(self) -> int:
        """How many rounds, or events, there were until the last one that called somebody."""
        called = [number for number, plan in self.plans.items() if plan.roll.called.any()]
        return max(called, default=-1) + 1

    def plan(self, number: int, legs: int) -> RoundPlan:
        """What has become of a round, as the plan of a simulation.

        Raises:
            ConfigurationError: for a round that is not in the record.
        """
        if number not in self.plans:
            raise ConfigurationError(
                f"{self.path} has {self.rounds} rounds, and this recipe goes on: use the recipe of the federation, "
                "with its max_epochs"
            )
        plan = self.plans[number]
        return replace(plan, sent=plan.sent * legs)

    def event(self, number: int) -> Served:
        """An asynchronous event.

        Raises:
            ConfigurationError: for an event that is not in the record.
        """
        if number not in self.events:
            raise ConfigurationError(f"{self.path} has no event {number} of AsyncVFL; use the recipe of the federation")
        return self.events[number]

    def _keep(self, round: int, lines: list[dict[str, Any]]) -> None:
        lines = sorted(lines, key=lambda row: int(row["party"]))

        def flags(name: str) -> Tensor:
            return torch.tensor([row[name] == "1" for row in lines])

        roll = Roll(flags("called"), flags("included"), flags("responded"), flags("filled"))
        skipped = lines[0]["skipped"] == "1"
        seconds = float(lines[0]["seconds"])
        learners = flags("learnt")
        self.plans[round] = RoundPlan(roll, learners, (roll.included,), learners, seconds, skipped)
        for row in lines:
            if row.get("request"):
                self.events[round] = Served(int(row["party"]), int(row["request"]), seconds)
        back = {int(row["party"]): int(row["restored"]) for row in lines if row["restored"]}
        if back:
            self.restored[round] = back
