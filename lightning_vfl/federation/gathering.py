"""What parties tell the server before the training: their threads wait for each other, the server for all of them."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Condition
from time import monotonic
from typing import Any

from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.frames import pack
from lightning_vfl.federation.hub import Request
from lightning_vfl.federation.long_waits import LongWait

Told = tuple[Mapping[str, Any], Sequence[Tensor]]  # the fields and the tensors of an answer


def refusal(why: str) -> bytes:
    """The frame that refuses a party."""
    return pack({"outcome": "refused", "why": why})


class Gathering:
    """Whether all parties have told what they have to tell, and what has gone wrong.

    Guarantee: once something has gone wrong, nobody waits, and everybody is refused with the same line. When all is
        told, a request of a party that comes back is refused alone.

    Args:
        names: of the parties.

    Attributes:
        failed: the line; None: nothing has gone wrong.
        over: whether all is told.
        changed: the lock of what has been told.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.failed: str | None = None
        self.over = False
        self.changed = Condition()

    def away(self, told: Collection[int]) -> str:
        """The names of the parties that have not told something."""
        return ", ".join(name for number, name in enumerate(self.names) if number not in told)

    def fail(self, why: str) -> None:
        """From now on, everybody is refused."""
        with self.changed:
            self.failed = self.failed or why
            self.changed.notify_all()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """An error of the server in this block ends the parties too."""
        try:
            yield
        except Exception as error:
            self.fail(str(error) if isinstance(error, ConfigurationError) else f"the server has ended: {error}")
            raise

    def answer(self, request: Request, handle: Callable[[Request], Told]) -> bytes:
        """The answer to a request of a party, in its thread: what ``handle`` says, which may wait for other parties.

        An error of ``handle`` ends the others too, unless all is told.
        """
        with self.changed:
            why: str | None = None
            try:
                header, tensors = handle(request)
            except ConfigurationError as error:
                why = str(error)
            except (KeyError, TypeError, ValueError, IndexError) as error:
                why = f"party {self.names[request.party]} cannot be aligned: {error}"
            if why is not None and not self.over:
                self.fail(why)
            self.changed.notify_all()
            refused = self.failed or why
            return pack({"outcome": "go", **header}, tensors) if refused is None else refusal(refused)

    def wait(self, done: Callable[[], bool]) -> None:
        """Wait in the thread of a party, until this is done or something has gone wrong."""
        self.changed.notify_all()  # others may wait for what this party has told
        while not done() and self.failed is None:
            self.changed.wait(timeout=1.0)

    def wait_for_all(self, lacking: Callable[[], str], seconds: float, what: str, late: str) -> None:
        """Wait in the server's thread.

        Args:
            lacking: who or what is awaited; empty: all is there.
            seconds: how long to wait.
            what: the rest of a line about a long wait.
            late: the rest of the error.

        Raises:
            ConfigurationError: if something has gone wrong, and after so many seconds; the parties are told too.
        """
        end = monotonic() + seconds
        waiting = LongWait(lambda: f"{lacking()} {what}")
        with self.changed:
            self.changed.notify_all()  # parties may wait for what the server has found
            while self.failed is None:
                if not lacking():
                    return
                waiting.look()
                if monotonic() > end:
                    self.fail(f"{lacking()} {late}")
                else:
                    self.changed.wait(timeout=min(1.0, seconds))
            raise ConfigurationError(self.failed)
