"""The order of batches: a pure function of seeds and sizes, independent of model parameters."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.aggregators.coded.blocks import PADDING, Blocks
from lightning_vfl.checks import within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import Name, permutation, stream
from lightning_vfl.types import Event

if TYPE_CHECKING:
    from numpy.typing import NDArray

Planned = tuple["NDArray[np.int64]", Event | None]
Plan = list[Planned]


class Schedule(ABC):
    """The records of every round and their order, equal in every process.

    ``epoch(e)`` yields the batches of one epoch: the joint batch's record positions and, in asynchronous protocols, the
    event. Positions (B,) are records that all parties use together; positions (B, M + 1) have a column for every
    participant. ``steps`` is equal for all epochs of a fit. A schedule with state (an event queue that continues across
    epochs) plans from the start of the current epoch, moves with ``advance``, and has a state of plain numbers. It may
    plan lazily, so that only batches that are used are planned.
    """

    steps: int

    @property
    def pass_batches(self) -> float:
        """Mini-batches of one party's pass over its records: those of an epoch that has every record once, else N / B.

        Default: ``steps``.
        """
        return self.steps

    @property
    def whole_passes(self) -> bool:
        """Whether it is known that every epoch has every record exactly once; default: False."""
        return False

    @property
    def same_every_epoch(self) -> bool:
        """Whether every epoch has the same batches in the same order; default: False."""
        return False

    def repeated(self) -> "Schedule":
        """A schedule whose every epoch is epoch 0 of this schedule; default: there is none.

        Raises:
            ConfigurationError: if an epoch depends on earlier epochs.
        """
        raise ConfigurationError(
            f"overfit_batches needs the same batches in every epoch, but epochs of {type(self).__name__} differ; use "
            "limit_train_batches instead"
        )

    @abstractmethod
    def epoch(self, epoch: int) -> Iterable[Planned]:
        """The batches of this epoch, in order."""

    def rest(self, epoch: int, played: int) -> Iterable[Planned]:
        """The batches of this epoch after the first ``played``; default: of ``epoch``, without those."""
        return islice(self.epoch(epoch), played, None)

    def advance(self, played: int) -> None:
        """Move to the start of the next epoch, after ``played`` batches of this one; default: there is no state."""
        return

    def state_dict(self) -> dict[str, Any]:
        """The state at the start of the current epoch."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state."""
        return


def refuse_larger(batch_size: int, records: int) -> None:
    """Accept batches that are not larger than the data.

    Raises:
        ConfigurationError: for larger ones.
    """
    within("batch_size", batch_size, 1, records, whole=True, advice=f"there are {records} training records")


class Events(Schedule, ABC):
    """Asynchronous events, whose state continues from epoch to epoch."""

    _now: Any = None  # the state at the start of the current epoch; None: nothing has been planned

    @abstractmethod
    def _start(self) -> Any:
        """The state at the start of the epoch."""

    @abstractmethod
    def _events(self, count: int) -> Iterator[tuple["NDArray[np.int64]", Event, Any]]:
        """The records of the next events, and each event with the state after it (up to date only after the last)."""

    def epoch(self, epoch: int) -> Iterator[Planned]:
        """Plan each event when the iterator reaches it, so a trace need not be longer than the training."""
        return ((ids, event) for ids, event, _ in self._events(self.steps))

    def advance(self, played: int) -> None:
        for _, _, state in self._events(played):
            self._now = state


class Repeated(Schedule):
    """Epoch 0 of another schedule in every epoch; for ``overfit_batches``.

    Args:
        schedule: without state.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.steps = schedule.steps

    @property
    def pass_batches(self) -> float:
        return self.schedule.pass_batches

    @property
    def same_every_epoch(self) -> bool:
        return True

    def epoch(self, epoch: int) -> Iterable[Planned]:
        return self.schedule.epoch(0)


class InOrder(Schedule):
    """Every record once, in order of position; for evaluation and prediction.

    Examples:
        >>> [ids.tolist() for ids, _ in InOrder(5, 2).epoch(0)]
        [[0, 1], [2, 3], [4]]
    """

    def __init__(self, records: int, batch_size: int) -> None:
        self.records = records
        self.batch_size = batch_size
        self.steps = -(-records // batch_size)

    @property
    def same_every_epoch(self) -> bool:
        return True

    def epoch(self, epoch: int) -> Iterator[Planned]:
        for start in range(0, self.records, self.batch_size):
            yield np.arange(start, min(start + self.batch_size, self.records), dtype=np.int64), None


class Aligned(Schedule):
    """Every record once an epoch, with the K records of a coded row in one batch: cheap batches for coded aggregators.

    A batch has ⌈batch_size / K⌉ coded rows with all their records, so up to K - 1 records more than ``batch_size``. The
    order depends only on (seed, epoch); ``blocks`` decides which records share a coded row.

    Args:
        blocks: the arrangement of records in coded rows.
        batch_size: rows of a joint batch, rounded up to whole coded rows.
        seed: seeds the order.
        drop_last: leave out the last, smaller batch of every epoch.

    Raises:
        ConfigurationError: if a batch would be larger than the data.

    Examples:
        >>> from lightning_vfl.aggregators.coded.blocks import Blocks
        >>> plan = Aligned(Blocks(5, 2), 3, seed=0).epoch(0)
        >>> sorted(len(ids) for ids, _ in plan), sorted(int(i) for ids, _ in plan for i in ids)
        ([1, 4], [0, 1, 2, 3, 4])
    """

    def __init__(self, blocks: Blocks, batch_size: int, seed: int, drop_last: bool = False) -> None:
        refuse_larger(batch_size, blocks.records)
        self.blocks = blocks
        self.rows = -(-batch_size // blocks.count)
        self.seed = seed
        self.drop_last = drop_last
        self.steps = max(1, blocks.rows // self.rows) if drop_last else -(-blocks.rows // self.rows)

    @property
    def pass_batches(self) -> float:
        return self.blocks.rows / self.rows if self.drop_last else self.steps

    def repeated(self) -> Repeated:
        return Repeated(self)

    def epoch(self, epoch: int) -> Plan:
        order = permutation(self.blocks.rows, self.seed, "order", "fit", epoch)
        table = self.blocks.at(0, self.blocks.rows).numpy()
        plan: Plan = []
        for start in range(0, self.steps * self.rows, self.rows):
            ids = table[order[start : start + self.rows]].reshape(-1)
            plan.append((ids[ids != PADDING], None))
        return plan


class Passes(Schedule, ABC):
    """Every record once an epoch, in an order that depends only on (seed, epoch).

    Args:
        records: N.
        batch_size: rows of a joint batch.
        seed: seeds the order.
        drop_last: leave out the last, smaller batch of every epoch.

    Raises:
        ConfigurationError: if a batch would be larger than the data.
    """

    def __init__(self, records: int, batch_size: int, seed: int, drop_last: bool = False) -> None:
        refuse_larger(batch_size, records)
        self.records = records
        self.batch_size = batch_size
        self.seed = seed
        self.drop_last = drop_last
        self.steps = records // batch_size if drop_last else -(-records // batch_size)

    @property
    def pass_batches(self) -> float:
        return self.steps if self.whole_passes else self.records / self.batch_size

    @property
    def whole_passes(self) -> bool:
        return not self.drop_last or self.records % self.batch_size == 0

    def repeated(self) -> Repeated:
        return Repeated(self)


class Shuffled(Passes):
    """Every record once an epoch, in a uniformly random order.

    Examples:
        >>> plan = Shuffled(5, 2, seed=0).epoch(0)
        >>> sorted(int(i) for ids, _ in plan for i in ids)
        [0, 1, 2, 3, 4]
    """

    def epoch(self, epoch: int) -> Plan:
        order = permutation(self.records, self.seed, "order", "fit", epoch)
        starts = range(0, self.steps * self.batch_size, self.batch_size)
        return [(order[start : start + self.batch_size], None) for start in starts]


class Phases(Schedule):
    """Decoupled training: every guest has its own order of its own records, and hosts use records that were sent.

    Guests go through permutations of their records, one after the other. Every batch therefore has B rows for every
    participant, and an epoch is a pass of the guest with most records. The owner goes through the records that all
    guests hold.

    Args:
        records: N.
        present: (N, M), which guest holds which record; None: all guests hold all records, as in ``Shuffled``.
        batch_size: B, rows of a batch.
        seed: seeds the orders.
        parties: M, the guests.
        phase_of: the phase of an epoch; "owner" if the owner learns, any other text if guests or hosts learn.
        communicates: whether the guests send in an epoch; like ``phase_of``, a pure function.
        drop_last: leave out the last batch of every epoch, in which the guest with most records begins again.

    Shapes: ids (B, M + 1), column m for guest m and column M for the hosts; in phase "owner" (B,), or (L,) if all
        guests hold only L < B records in common.
    Guarantee: a guest's column has only records that it holds, and all of them before one is repeated. An epoch has all
        records of the guest with most records (except with ``drop_last``). In the first epoch that communicates, the
        hosts' column has B different records that guests have used in that epoch up to that batch. Later it goes
        through permutations of the records that guests have used in earlier epochs that communicated. The order depends
        only on (seed, epoch).
    Not guaranteed: different records in a batch in which one permutation ends and the next begins. Before an epoch has
        communicated, the hosts' column has no meaning (it repeats the column of guest 0).

    Raises:
        ConfigurationError: for a guest without records, for a batch larger than a guest's records, and if no record is
            held by all guests.

    Examples:
        >>> present = np.array([[True, True], [True, False], [False, True], [True, False]])
        >>> plan = Phases(4, present, 2, 0, 2, lambda e: "owner" if e else "representation", lambda e: True)
        >>> [ids.shape for ids, _ in plan.epoch(0)], [ids.tolist() for ids, _ in plan.epoch(1)]
        ([(2, 3), (2, 3)], [[0], [0]])
    """

    def __init__(
        self,
        records: int,
        present: "NDArray[np.bool_] | None",
        batch_size: int,
        seed: int,
        parties: int,
        phase_of: Callable[[int], str],
        communicates: Callable[[int], bool],
        drop_last: bool = False,
    ) -> None:
        self.records = records
        self.batch_size = batch_size
        self.seed = seed
        self.phase_of = phase_of
        self.communicates = communicates
        self._alike = Shuffled(records, batch_size, seed, drop_last) if present is None else None
        if present is None:
            present = np.ones((records, parties), dtype=np.bool_)
        self._held = [np.flatnonzero(present[:, m]) for m in range(parties)]
        self._common = np.flatnonzero(present.all(1))
        self._owned = int(present.any(1).sum())
        self._refuse_few()
        self._longest = max(map(len, self._held))
        self.steps = self._longest // batch_size if drop_last else -(-self._longest // batch_size)

    @property
    def pass_batches(self) -> float:
        return self._longest / self.batch_size if self._alike is None else self._alike.pass_batches

    def repeated(self) -> Schedule:
        return super().repeated() if self._alike is None else self._alike.repeated()

    def epoch(self, epoch: int) -> Plan:
        if self._alike is not None:
            return self._alike.epoch(epoch)
        if self.phase_of(epoch) == "owner":
            rows = self.steps * min(self.batch_size, len(self._common))
            ids = _passes(self._common, rows, self.seed, "order", "fit", epoch, "owner")
        else:
            guests = self._guests(epoch)
            ids = np.column_stack([guests, self._hosts(epoch, guests)])
        return [(batch, None) for batch in np.split(ids, self.steps)]

    def _guests(self, epoch: int) -> "NDArray[np.int64]":
        """(steps · B, M), the records of each guest in this epoch."""
        rows = self.steps * self.batch_size
        orders = [_passes(held, rows, self.seed, "order", "fit", epoch, m) for m, held in enumerate(self._held)]
        return np.column_stack(orders)

    def _hosts(self, epoch: int, guests: "NDArray[np.int64]") -> "NDArray[np.int64]":
        """(steps · B,), the records of the hosts in this epoch."""
        names: tuple[Name, ...] = ("order", "fit", epoch, "hosts")
        if len(earlier := self._sent_before(epoch)):
            return _passes(earlier, len(guests), self.seed, *names)
        if not self.communicates(epoch):
            return guests[:, 0]
        sent = np.zeros(self.records, dtype=np.bool_)
        draws = []
        for step, batch in enumerate(np.split(guests, self.steps)):
            sent[batch] = True
            draws.append(_drawn(np.flatnonzero(sent), self.batch_size, self.seed, *names, step))
        return np.concatenate(draws)

    def _sent_before(self, epoch: int) -> "NDArray[np.int64]":
        """The records that guests have used in earlier epochs that communicated."""
        sent = np.zeros(self.records, dtype=np.bool_)
        for earlier in filter(self.communicates, range(epoch)):
            sent[self._guests(earlier)] = True
            if sent.sum() == self._owned:  # usually after one epoch
                break
        return np.flatnonzero(sent)

    def _refuse_few(self) -> None:
        fewest, party = min((len(held), m) for m, held in enumerate(self._held))
        if not fewest:
            raise ConfigurationError(
                f"party {party} holds no training record; assign it records or leave the party out"
            )
        if not len(self._common):
            raise ConfigurationError(
                f"none of the {self.records} training records is held by all {len(self._held)} parties, but the owner "
                "trains on such records; give the parties some records in common"
            )
        advice = f"party {party} holds {fewest} training records"
        within("batch_size", self.batch_size, 1, fewest, whole=True, advice=advice)


def _passes(pool: "NDArray[np.int64]", length: int, seed: int, *names: Name) -> "NDArray[np.int64]":
    """The first ``length`` elements of successive permutations of the pool; a pass's number is its last stream name."""
    passes = range(-(-length // len(pool)))
    return np.concatenate([pool[permutation(len(pool), seed, *names, number)] for number in passes])[:length]


def _drawn(pool: "NDArray[np.int64]", count: int, seed: int, *names: Name) -> "NDArray[np.int64]":
    """The first ``count`` elements of a permutation of the pool; not sorting the others takes a tenth of the time."""
    words = stream(seed, *names).random_raw(len(pool))
    first = np.sort(np.argpartition(words, count - 1)[:count])
    return pool[first[np.argsort(words[first], kind="stable")]]
