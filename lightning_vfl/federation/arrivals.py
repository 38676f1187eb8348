"""The order of asynchronous events where it is not simulated: as uploads arrive, or as a record tells."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

from lightning_vfl.federation.record import Replayed
from lightning_vfl.schedules.arrivals import FirstComeFirstServed
from lightning_vfl.schedules.batches import Planned, Schedule
from lightning_vfl.types import Event, Stage


class RealEvents(Schedule):
    """Events that are known only when they happen. An epoch has as many as the planned one.

    Where the training stands is in the books of the module: there is no other state.

    Args:
        planned: knows the parties' orders of records, and the number of events of an epoch.
        module: the protocol.
    """

    def __init__(self, planned: FirstComeFirstServed, module: Any) -> None:
        self.planned = planned
        self.module = module
        self.steps = planned.steps

    @property
    def pass_batches(self) -> float:
        return self.planned.pass_batches

    def epoch(self, epoch: int) -> Iterable[Planned]:
        return self.rest(epoch, 0)

    def rest(self, epoch: int, played: int) -> Iterator[Planned]:
        for _ in range(self.steps - played):  # each is asked for when the step before it is over
            event = self.event(self.module.books.rounds.get(Stage.FIT, 0))
            yield self.planned.batch(event.party, event.request), event

    @abstractmethod
    def event(self, number: int) -> Event:
        """Event ``number`` of the training, which is the next one."""


@final
class AsTheyCome(RealEvents):
    """The events of a server: ``next_event`` waits for the next upload.

    Args:
        planned: as in ``RealEvents``.
        module: the protocol.
        next_event: from the number of the event to the event.
    """

    def __init__(self, planned: FirstComeFirstServed, module: Any, next_event: Callable[[int], Event]) -> None:
        super().__init__(planned, module)
        self.next_event = next_event

    def event(self, number: int) -> Event:
        return self.next_event(number)


@final
class OwnEvents(RealEvents):
    """The events of one party, which asks for its own next one until it is served.

    Args:
        planned: as in ``RealEvents``.
        module: the protocol.
        party: the number of the party.
    """

    def __init__(self, planned: FirstComeFirstServed, module: Any, party: int) -> None:
        super().__init__(planned, module)
        self.party = party

    def event(self, number: int) -> Event:
        now = self.module.clock.seconds
        return Event(number, self.party, self.module.counts.most_events, now, now, (self.party,))


@final
class Recorded(RealEvents):
    """The events of a record.

    Args:
        planned: as in ``RealEvents``.
        module: the protocol.
        record: of a federation.
    """

    def __init__(self, planned: FirstComeFirstServed, module: Any, record: Replayed) -> None:
        super().__init__(planned, module)
        self.record = record

    def event(self, number: int) -> Event:
        served, now = self.record.event(number), self.module.clock.seconds
        return Event(number, served.party, served.request, now, now + served.seconds, (served.party,))
