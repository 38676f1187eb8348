"""The order of events when nobody waits: whoever comes first is served first."""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.rounds.plan import RoundCosts
from lightning_vfl.schedules.batches import Planned, Schedule
from lightning_vfl.schedules.own_orders import OwnOrders
from lightning_vfl.simulation.faults import Faults
from lightning_vfl.types import Event, RecordSource, Roster

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(order=True)
class _Turn:
    """A party on its way to the server; of equal arrivals, fewer events and then the lower number come first."""

    arrival: float
    request: int
    party: int
    start: float


@dataclass(frozen=True)
class _Queue:
    """Where the events stand: how many there were, when the server is free, and who is on the way."""

    number: int
    free: float
    turns: tuple[_Turn, ...]

    def state(self) -> dict[str, Any]:
        turns = [[turn.arrival, turn.request, turn.party, turn.start] for turn in self.turns]
        return {"number": self.number, "free": self.free, "turns": turns}

    @classmethod
    def of(cls, state: dict[str, Any]) -> "_Queue":
        return cls(state["number"], state["free"], tuple(_Turn(*turn) for turn in state["turns"]))


class FirstComeFirstServed(Schedule):
    """Asynchronous events in the order in which the parties' messages reach the server, one queue for a whole fit.

    The k-th event of a party takes the next B records of the party's own order (all it has, if those are fewer): it
    computes, is delayed, uploads, is served when the server is free, downloads and computes its gradients; then it
    begins its next event. An epoch is M⌊N/B⌋ events of all parties together, so fast parties have more of them than
    slow ones. A party that is away, cut off, or comes while the server is down spends the time until its arrival and
    begins its next event; such an event refreshes nobody.

    The queue runs on from epoch to epoch; its state at the start of an epoch is plain numbers.

    Args:
        records: what is trained on; a party's order is one of the records that it holds.
        batch_size: B.
        roster: who takes part.
        costs: of one event: those of a round with B rows.
        faults: what goes wrong; request 2k of a party is the upload of its k-th event, request 2c + 1 of the server is
            its c-th event of all.
        seed: names the parties' orders.
        begin: virtual seconds at which everybody begins.
        first: the number of everybody's first event; earlier ones have been in a fit before.
        number: how many events there have been before.

    Raises:
        ConfigurationError: if a batch would be larger than the data, or a party holds nothing.
    """

    def __init__(
        self,
        records: RecordSource,
        batch_size: int,
        roster: Roster,
        costs: RoundCosts,
        faults: Faults,
        seed: int,
        begin: float = 0.0,
        first: int = 0,
        number: int = 0,
    ) -> None:
        if batch_size > len(records):
            raise ConfigurationError(
                f"batch_size {batch_size} exceeds the {len(records)} training records; lower it to at most "
                f"{len(records)}"
            )
        self.batch_size = batch_size
        self.roster = roster
        self.faults = faults
        self.seed = seed
        self._orders = OwnOrders([_held_by(party, records) for party in range(roster.parties)], batch_size, seed)
        self.steps = sum(self._orders.batches)
        self._compute = (costs.forward + sum(costs.encoding)).tolist()
        self._upload = torch.stack(costs.sending).sum(0).tolist()
        self._download = costs.answering.tolist()
        self._finish = costs.backward.tolist()
        self._service = costs.server
        self._begin = begin, first, number
        self._now: _Queue | None = None

    @property
    def pass_batches(self) -> int:
        return max(1, self.steps // self.roster.parties)

    def epoch(self, epoch: int) -> Iterator[Planned]:
        """Plans an event when it is asked for: a trace need not be longer than the training."""
        return ((ids, event) for ids, event, _ in self._events(self.steps))

    def advance(self, played: int) -> None:
        for _, _, queue in self._events(played):
            self._now = queue

    def state_dict(self) -> dict[str, Any]:
        return self._start().state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._now = _Queue.of(state)

    def _start(self) -> _Queue:
        """The queue at the start of the epoch."""
        if self._now is None:
            begin, first, number = self._begin
            turns = sorted(self._turn(party, first, begin) for party in range(self.roster.parties))
            self._now = _Queue(number, begin, tuple(turns))
        return self._now

    def _events(self, count: int) -> Iterator[tuple["NDArray[np.int64]", Event, _Queue]]:
        """The next events, and the queue after each of them (worked out only if that is the last one)."""
        queue = self._start()
        turns, free = list(queue.turns), queue.free
        heapify(turns)
        for number in range(queue.number, queue.number + count):
            turn = heappop(turns)
            event, free = self._serve(turn, number, free)
            heappush(turns, self._next(turn, event))
            last = number == queue.number + count - 1
            after = _Queue(number + 1, free, tuple(sorted(turns))) if last else queue
            yield self._orders.batch(turn.party, turn.request), event, after

    def _serve(self, turn: _Turn, number: int, free: float) -> tuple[Event, float]:
        """A party's event, and when the server is free again."""
        if not self._comes(turn.party, turn.request, number):
            return Event(number, turn.party, turn.request, turn.start, turn.arrival, ()), free
        free = max(turn.arrival, free) + self._service
        return Event(number, turn.party, turn.request, turn.start, free, (turn.party,)), free

    def _comes(self, party: int, request: int, number: int) -> bool:
        """Whether the party's message reaches a server that is there to answer."""
        outcome = self.faults.at(2 * request, self.roster)
        server = self.faults.hosts_at(2 * number + 1, self.roster)[0]
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


def _held_by(party: int, records: RecordSource) -> "NDArray[np.int64]":
    """The positions of a party's records."""
    if records.present is None:
        return np.arange(len(records), dtype=np.int64)
    held = records.present[:, party].nonzero().flatten().numpy()
    if not len(held):
        raise ConfigurationError(f"party {party} holds no training record; give it some or leave the party out")
    return held
