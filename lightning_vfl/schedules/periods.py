"""The order of events of active parties that work in periods of different lengths: by the ends of the periods."""

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple

from lightning_vfl.schedules.batches import Events
from lightning_vfl.schedules.own_orders import OwnOrders
from lightning_vfl.types import Event

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Seconds = Callable[[int, int, "NDArray[np.int64]"], float]


class _Turn(NamedTuple):
    """A period that has begun; of equal ends, the lower party number comes first.

    Times are fractions, so that two periods of one party end exactly when one period of a party at half speed ends.
    """

    end: Fraction
    party: int
    request: int
    number: int
    start: Fraction


class _Standing(NamedTuple):
    """The state of the periods: the number of the next event, the periods in progress, and the waiting parties."""

    number: int
    turns: tuple[_Turn, ...]
    ended: tuple[_Turn, ...]


class Periods(Events):
    """Periods of several active parties, each with its own records, in the order of their ends.

    An active party begins its next period when its period ends; with ``together``, when the periods of all parties have
    ended. An event is the END of a period. Events are numbered in the order in which their periods BEGIN, because the
    faults of a period follow from its number before its end is known. An epoch has Σ⌊N_l / B⌋ events; the periods
    continue from epoch to epoch.

    ``Event.request`` counts a party's own periods. ``Event.refresh`` names the parties that begin their next period
    with this event.

    Args:
        shares: active party -> positions (N_l,) of the records whose labels it holds.
        batch_size: B; a party with fewer labels uses all of them in a batch.
        seed: seeds the parties' orders.
        seconds: (event number, party, the batch's positions) -> the duration of the period; a pure function.
        together: all parties begin their periods together, after the slowest has ended.
        begin: virtual seconds at which all parties begin.
        number: the number of events that have begun in earlier fits.
        first: the number of every party's first period.

    Guarantee: every label is in one batch of a pass of its holder (except the last N_l mod B of a pass). Ends never
        decrease. Of equal ends, the lower party number comes first.

    Examples:
        >>> import numpy as np
        >>> plan = Periods({0: np.arange(4), 1: np.arange(4, 8)}, 2, 0, lambda number, party, ids: 1.0 + 2 * party)
        >>> [(event.party, event.start, event.end) for _, event in plan.epoch(0)]
        [(0, 0.0, 1.0), (0, 1.0, 2.0), (0, 2.0, 3.0), (1, 0.0, 3.0)]
    """

    def __init__(
        self,
        shares: "Mapping[int, NDArray[np.int64]]",
        batch_size: int,
        seed: int,
        seconds: Seconds,
        together: bool = False,
        begin: float = 0.0,
        number: int = 0,
        first: int = 0,
    ) -> None:
        self.parties = tuple(sorted(shares))
        self.together = together
        self._orders = OwnOrders([shares[party] for party in self.parties], batch_size, seed)
        self._place = {party: place for place, party in enumerate(self.parties)}
        self._seconds = seconds
        self._begin = begin, number, first
        self.steps = sum(self._orders.batches)

    def state_dict(self) -> dict[str, Any]:
        standing = self._start()
        plain = {name: [_plain(turn) for turn in getattr(standing, name)] for name in ("turns", "ended")}
        return {"number": standing.number, **plain}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        turns, ended = (tuple(map(_turn, state[name])) for name in ("turns", "ended"))
        self._now = _Standing(state["number"], turns, ended)

    def _start(self) -> _Standing:
        if self._now is None:
            begin, number, first = self._begin
            turns = tuple(self._turn(party, first, number + i, Fraction(begin)) for i, party in enumerate(self.parties))
            self._now = _Standing(number + len(turns), tuple(sorted(turns)), ())
        standing: _Standing = self._now
        return standing

    def _events(self, count: int) -> "Iterator[tuple[NDArray[np.int64], Event, _Standing]]":
        standing = self._start()
        turns = list(standing.turns)
        ended = list(standing.ended)
        number = standing.number
        heapify(turns)
        for left in range(count - 1, -1, -1):
            turn = heappop(turns)
            ended.append(turn)
            ready = () if self.together and turns else tuple(sorted(one.party for one in ended))
            yielded = Event(turn.number, turn.party, turn.request, float(turn.start), float(turn.end), ready)
            if ready:
                for one in sorted(ended, key=lambda one: one.party):
                    heappush(turns, self._turn(one.party, one.request + 1, number, turn.end))
                    number += 1
                ended.clear()
            after = standing if left else _Standing(number, tuple(sorted(turns)), tuple(ended))
            yield self._batch(turn.party, turn.request), yielded, after

    def _turn(self, party: int, request: int, number: int, start: Fraction) -> _Turn:
        seconds = self._seconds(number, party, self._batch(party, request))
        return _Turn(start + Fraction(seconds), party, request, number, start)

    def _batch(self, party: int, request: int) -> "NDArray[np.int64]":
        return self._orders.batch(self._place[party], request)


def _plain(turn: _Turn) -> list[Any]:
    """A turn as plain values, whose fractions are texts."""
    return [str(turn.end), turn.party, turn.request, turn.number, str(turn.start)]


def _turn(plain: list[Any]) -> _Turn:
    end, party, request, number, start = plain
    return _Turn(Fraction(end), party, request, number, Fraction(start))
