"""The order of events when nobody waits: whoever comes first is served first."""

from dataclasses import dataclass
from functools import lru_cache
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

import torch

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.planning import RoundCosts
from lightning_vfl.schedules import Plan, Schedule
from lightning_vfl.simulation.faults import Faults
from lightning_vfl.streams import permutation
from lightning_vfl.types import Event, Roster

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(order=True)
class _Turn:
    """A party on its way to the server; of equal arrivals, fewer events and then the lower number come first."""

    arrival: float
    request: int
    party: int
    start: float


class FirstComeFirstServed(Schedule):
    """Asynchronous events in the order in which the parties' messages reach the server, one queue for a whole fit.

    The k-th event of a party takes the next B records of the party's own order: it computes, is delayed, uploads, is
    served when the server is free, downloads and computes its gradients; then it begins its next event. An epoch is
    M⌊N/B⌋ events of all parties together, so fast parties have more of them than slow ones. A party that is away, cut
    off, or comes while the server is down spends the time until its arrival and begins its next event; such an event
    refreshes nobody.

    The queue runs on from epoch to epoch; its state at the start of an epoch is plain numbers.

    Args:
        records: N.
        batch_size: B.
        roster: who takes part.
        costs: of one event: those of a round with B rows.
        faults: what goes wrong; request 2k of a party is the upload of its k-th event.
        seed: names the parties' orders.

    Raises:
        ConfigurationError: if a batch would be larger than the data.
    """

    def __init__(
        self, records: int, batch_size: int, roster: Roster, costs: RoundCosts, faults: Faults, seed: int
    ) -> None:
        if batch_size > records:
            raise ConfigurationError(
                f"batch_size {batch_size} exceeds the {records} training records; lower it to at most {records}"
            )
        self.records = records
        self.batch_size = batch_size
        self.roster = roster
        self.faults = faults
        self.seed = seed
        self.batches = records // batch_size
        self.steps = roster.parties * self.batches
        self._compute = (costs.forward + sum(costs.encoding)).tolist()
        self._upload = torch.stack(costs.sending).sum(0).tolist()
        self._download = costs.answering.tolist()
        self._finish = costs.backward.tolist()
        self._service = costs.server
        self._order = lru_cache(maxsize=2 * roster.parties)(self._shuffled)
        self._now = _Queue(0, 0.0, [self._turn(party, 0, 0.0) for party in range(roster.parties)])
        self._planned: tuple[_Queue, Plan, _Queue] | None = None

    @property
    def pass_batches(self) -> int:
        return self.batches

    def epoch(self, epoch: int) -> Plan:
        return self._plan()[0]

    def advance(self) -> None:
        self._now = self._plan()[1]

    def state_dict(self) -> dict[str, Any]:
        return self._now.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._now = _Queue.of(state)

    def _plan(self) -> tuple[Plan, "_Queue"]:
        """The events of the current epoch, and the queue after them."""
        if self._planned is None or self._planned[0] is not self._now:
            turns = [_Turn(turn.arrival, turn.request, turn.party, turn.start) for turn in self._now.turns]
            number, free = self._now.number, self._now.free
            heapify(turns)
            plan: Plan = []
            for _ in range(self.steps):
                turn = heappop(turns)
                event, free = self._serve(turn, number, free)
                plan.append((self._batch(turn.party, turn.request), event))
                heappush(turns, self._next(turn, event))
                number += 1
            self._planned = self._now, plan, _Queue(number, free, sorted(turns))
        return self._planned[1], self._planned[2]

    def _serve(self, turn: _Turn, number: int, free: float) -> tuple[Event, float]:
        """A party's event, and when the server is free again."""
        if not self._comes(turn.party, turn.request, number):
            return Event(number, turn.party, turn.request, turn.start, turn.arrival, ()), free
        free = max(turn.arrival, free) + self._service
        return Event(number, turn.party, turn.request, turn.start, free, (turn.party,)), free

    def _comes(self, party: int, request: int, number: int) -> bool:
        """Whether the party's message reaches a server that is there to answer."""
        outcome = self.faults.at(2 * request, self.roster)
        server = self.faults.at(2 * number + 1, self.roster).hosts[0]
        return bool(outcome.announced[party] & outcome.sends[party] & outcome.links[party, 0] & server)

    def _next(self, turn: _Turn, event: Event) -> _Turn:
        start = event.end
        if event.refresh:
            slowdown = float(self.faults.at(2 * turn.request + 1, self.roster).slowdown[turn.party])
            start += self._download[turn.party] + self._finish[turn.party] * slowdown
        return self._turn(turn.party, turn.request + 1, start)

    def _turn(self, party: int, request: int, start: float) -> _Turn:
        outcome = self.faults.at(2 * request, self.roster)
        computing = self._compute[party] * float(outcome.slowdown[party])
        arrival = start + computing + float(outcome.delay[party]) + self._upload[party]
        return _Turn(arrival, request, party, start)

    def _batch(self, party: int, request: int) -> "NDArray[np.int64]":
        turn, place = divmod(request, self.batches)
        return self._order(party, turn)[place * self.batch_size : (place + 1) * self.batch_size]

    def _shuffled(self, party: int, turn: int) -> "NDArray[np.int64]":
        return permutation(self.records, self.seed, "order", "fit", "party", party, turn)


@dataclass(frozen=True)
class _Queue:
    """Where the events stand: how many there were, when the server is free, and who is on the way."""

    number: int
    free: float
    turns: list[_Turn]

    def state(self) -> dict[str, Any]:
        turns = [[turn.arrival, turn.request, turn.party, turn.start] for turn in self.turns]
        return {"number": self.number, "free": self.free, "turns": turns}

    @classmethod
    def of(cls, state: dict[str, Any]) -> "_Queue":
        return cls(state["number"], state["free"], [_Turn(*turn) for turn in state["turns"]])
