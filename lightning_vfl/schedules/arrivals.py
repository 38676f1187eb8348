"""The order of asynchronous events: the server serves parties in the order of their arrival."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.rounds.plan import RoundCosts
from lightning_vfl.schedules.batches import Events, refuse_larger
from lightning_vfl.schedules.own_orders import OwnOrders
from lightning_vfl.simulation.faults import Faults
from lightning_vfl.types import Event, RecordSource, Roster

if TYPE_CHECKING:
    from numpy.typing import NDArray


class _Turn(NamedTuple):
    """A party's next arrival at the server; of equal arrivals, fewer events come first, then the lower number."""

    arrival: float
    request: int
    party: int
    start: float


class _Queue(NamedTuple):
    """The state of the queue: the number of events, the time when the server is free, and the next arrivals."""

    number: int
    free: float
    turns: tuple[_Turn, ...]


class FirstComeFirstServed(Events):
    """Asynchronous events in the order in which the parties' messages reach the server; one queue for a whole fit.

    The k-th event of a party uses the next B records of the party's own order (all its records, if it has fewer). The
    party computes, is delayed, uploads, is served when the server is free, downloads and computes its gradients. Then
    it begins its next event. An epoch has M⌊N/B⌋ events of all parties together, so fast parties have more events than
    slow parties. If a party is absent or disconnected, or arrives while the server is down, its event takes the time
    until the arrival and updates no embedding; then the party begins its next event.

    The queue continues from epoch to epoch; its state at the start of an epoch is plain numbers.

    Args:
        records: the training records; a party's order contains the records that it holds.
        batch_size: B.
        roster: the parties.
        costs: the costs of one event, which are those of a round with B rows.
        faults: the faults; request 2k of a party is the upload of its k-th event, request 2c + 1 of the server is
            the c-th event of all parties.
        seed: seeds the parties' orders.
        begin: virtual seconds at which all parties begin.
        first: the number of every party's first event; an earlier fit has used the smaller numbers.
        number: the number of events in earlier fits.

    Raises:
        ConfigurationError: if a batch would be larger than the data, or a party holds no record.
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
        refuse_larger(batch_size, len(records))
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

    @property
    def pass_batches(self) -> float:
        return self._orders.pass_batches

    def batch(self, party: int, request: int) -> "NDArray[np.int64]":
        """The records (B,) of a party's event ``request``."""
        return self._orders.batch(party, request)

    def rows(self, party: int) -> int:
        """The number of records of each event of a party."""
        return self._orders.rows(party)

    def state_dict(self) -> dict[str, Any]:
        queue = self._start()
        return queue._asdict() | {"turns": [list(turn) for turn in queue.turns]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._now = _Queue(state["number"], state["free"], tuple(_Turn(*turn) for turn in state["turns"]))

    def _start(self) -> _Queue:
        if self._now is None:
            begin, first, number = self._begin
            turns = sorted(self._turn(party, first, begin) for party in range(self.roster.parties))
            self._now = _Queue(number, begin, tuple(turns))
        queue: _Queue = self._now
        return queue

    def _events(self, count: int) -> Iterator[tuple["NDArray[np.int64]", Event, _Queue]]:
        queue = self._start()
        turns = list(queue.turns)
        free = queue.free
        heapify(turns)
        for number in range(queue.number, queue.number + count):
            turn = heappop(turns)
            event, free = self._serve(turn, number, free)
            heappush(turns, self._next(turn, event))
            last = number == queue.number + count - 1
            after = _Queue(number + 1, free, tuple(sorted(turns))) if last else queue
            yield self.batch(turn.party, turn.request), event, after

    def _serve(self, turn: _Turn, number: int, free: float) -> tuple[Event, float]:
        """A party's event, and the time when the server is free again."""
        if not self._comes(turn.party, turn.request, number):
            return Event(number, turn.party, turn.request, turn.start, turn.arrival, ()), free
        free = max(turn.arrival, free) + self._service
        return Event(number, turn.party, turn.request, turn.start, free, (turn.party,)), free

    def _comes(self, party: int, request: int, number: int) -> bool:
        """Whether the party's message reaches the server and the server is up."""
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
    """The positions of the records that a party holds."""
    if records.present is None:
        return np.arange(len(records), dtype=np.int64)
    held = records.present[:, party].nonzero().flatten().numpy()
    if not len(held):
        raise ConfigurationError(f"party {party} holds no training record; assign it records or leave the party out")
    return held
