"""Requests that come at about the same time are one request to the parties."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lightning_vfl.serving.server_half import Joined

if TYPE_CHECKING:
    from numpy.typing import NDArray

_OPEN = 2  # batches that are asked for at once: more of them share two cores and make every one later


class Full(Exception):
    """So many records wait that no further ones are accepted."""


class _Waiting(NamedTuple):
    ids: "NDArray[Any]"
    done: "asyncio.Future[tuple[Joined, slice]]"


class Batches:
    """Joins waiting requests to batches.

    A batch is asked for at once if no other is open. Else it gathers requests until the open ones are answered, for at
    most ``gather`` seconds.

    Args:
        predict: what predicts a batch.
        gather: seconds.
        size: records of a batch; a larger request is a batch of its own.
        most: records that may wait.
    """

    def __init__(
        self,
        predict: "Callable[[NDArray[Any]], Awaitable[Joined]]",
        gather: float = 0.002,
        size: int = 4096,
        most: int = 50_000,
    ) -> None:
        self._predict = predict
        self._gather = gather
        self._size = size
        self._most = most
        self._queue: deque[_Waiting] = deque()
        self._open: set[asyncio.Task[None]] = set()
        self._gathering: asyncio.Task[None] | None = None
        self.waiting = 0

    async def predict(self, ids: "NDArray[Any]") -> tuple[Joined, slice]:
        """The predictions of a batch, and the place of these records in it.

        Raises:
            Full: if too many records wait.
        """
        if self.waiting + len(ids) > self._most:
            raise Full
        done: asyncio.Future[tuple[Joined, slice]] = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(ids, done))
        self.waiting += len(ids)
        if self._gathering is None:
            self._gathering = asyncio.create_task(self._send())
        return await done

    async def _send(self) -> None:
        """Send what waits, one batch after the other, until nothing waits."""
        try:
            while self._queue:
                if self._open:
                    await asyncio.wait(self._open, timeout=self._gather, return_when=asyncio.FIRST_COMPLETED)
                while len(self._open) >= _OPEN:
                    await asyncio.wait(self._open, return_when=asyncio.FIRST_COMPLETED)
                batch = self._next()
                task = asyncio.create_task(self._run(batch))
                self._open.add(task)
                task.add_done_callback(self._open.discard)
        finally:
            self._gathering = None

    def _next(self) -> list[_Waiting]:
        batch = [self._queue.popleft()]
        rows = len(batch[0].ids)
        while self._queue and rows + len(self._queue[0].ids) <= self._size:
            if self._queue[0].ids.dtype.kind != batch[0].ids.dtype.kind:
                break
            batch.append(self._queue.popleft())
            rows += len(batch[-1].ids)
        self.waiting -= rows
        return batch

    async def _run(self, batch: list[_Waiting]) -> None:
        try:
            joined = await self._predict(np.concatenate([one.ids for one in batch]))
        except Exception as error:  # whatever it is, every caller gets it
            for one in batch:
                with suppress(asyncio.InvalidStateError):  # the caller has gone
                    one.done.set_exception(error)
            return
        start = 0
        for one in batch:
            part = slice(start, start + len(one.ids))
            start = part.stop
            with suppress(asyncio.InvalidStateError):
                one.done.set_result((joined, part))
