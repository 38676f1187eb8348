"""The order of asynchronous events where it is not simulated: as uploads arrive, or as a record tells."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

from lightning_vfl.schedules.arrivals import FirstComeFirstServed
from lightning_vfl.schedules.batches import Planned, Schedule
from lightning_vfl.types import Event


@final
class RealEvents(Schedule):
    """Events that are known only when they happen. An epoch has as many as the planned one.

    Where the training stands is in the books of the module: there is no other state.

    Args:
        planned: knows the parties' orders of records, and the number of events of an epoch.
        module: the protocol.
        event: from the number of the next event of the training to the event; it can wait for it.
    """

    def __init__(self, planned: FirstComeFirstServed, module: Any, event: Callable[[int], Event]) -> None:
        self.planned = planned
        self.module = module
        self.event = event
        self.steps = planned.steps

    @property
    def pass_batches(self) -> float:
        return self.planned.pass_batches

    def epoch(self, epoch: int) -> Iterable[Planned]:
        return self.rest(epoch, 0)

    def rest(self, epoch: int, played: int) -> Iterator[Planned]:
        for _ in range(self.steps - played):  # each is asked for when the step before it is over
            event = self.event(self.module.books.training_rounds)
            yield self.planned.batch(event.party, event.request), event
