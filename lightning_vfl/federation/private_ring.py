"""The server's part of ``alignment: psi``: it relays sealed letters, and compares lists that have the keys of all.

See ``private_alignment`` for the whole.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Condition
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.align.group import SIZE, NoPoint, inverse, raised
from lightning_vfl.align.ids import Step, messages_of
from lightning_vfl.align.matching import common_places, refuse_bad_points
from lightning_vfl.align.ring import Secret, masked
from lightning_vfl.align.session import Session
from lightning_vfl.errors import ConfigurationError, NoOwnTable, printable
from lightning_vfl.federation.frames import pack
from lightning_vfl.federation.hub import Request
from lightning_vfl.federation.long_waits import LongWait
from lightning_vfl.wire.record_ids import as_ids

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lightning_vfl.align.group import Points

    Ids = NDArray[np.generic]

SAY = "psi"  # of all requests of this module
SERVER = -1  # as the sender or the receiver of a letter
OWN = "the server"  # whose list the server's own is


@dataclass(frozen=True)
class Letter:
    """What is relayed from one process to another.

    Args:
        sender: the number of a party, or ``SERVER``.
        receiver: the same.
        what: for example ``list 2 hop 1``.
    """

    sender: int
    receiver: int
    what: str


class PrivateRing:
    """The server's part: it relays letters, compares the lists that have all keys, and tells places of common records.

    Args:
        data: the server's datamodule.
        names: of the parties.
        labels: the party that has the labels; None: the server, which may have a table of its own.
        normalise: how ids are made equal that are written in different ways.
    """

    def __init__(self, data: Any, names: Sequence[str], labels: int | None, normalise: tuple[Step, ...] = ()) -> None:
        self.names = tuple(names)
        self._labels, has_table = labels, labels is None
        self._data, self._has_table = data, has_table
        self._name = "server"
        while self._name in {name.casefold() for name in names}:
            self._name += "_"
        # a name that nobody has used before keeps the points of all federations apart
        self._session = Session(secrets.token_hex(16), (*names, self._name), normalise=normalise)
        self._ids: Ids | None = None  # of the server's table, once it is read
        self._begun = False
        self._processes: dict[int, str] = {}
        self._letters: dict[Letter, list[Tensor]] = {}
        self._lists: dict[int, Points] = {}  # with the keys of all parties
        self._places: list[NDArray[np.int64]] | None = None  # of the common records in each party's list
        self._failed: str | None = None
        self._changed = Condition()

    def answer(self, request: Request) -> bytes | None:
        """The frame that answers a request of the alignment; None for other requests. Runs in the caller's thread."""
        if request.say != SAY:
            return None
        with self._changed:
            try:
                told = self._answer(request)
            except (KeyError, TypeError, ValueError, IndexError) as error:
                told = {}, ()
                self._fail(f"party {self.names[request.party]} cannot be aligned: {error}")
            if self._failed is not None:
                return pack({"outcome": "refused", "why": self._failed})
            return pack({"outcome": "go", **told[0]}, told[1])

    def finish(self, patience: float) -> "Ids":
        """Wait for all lists, and find the common records.

        Args:
            patience: seconds to wait for the lists.

        Returns:
            (n,) the server's own ids of the common records, in the order in which they are numbered; the numbers
            themselves if it has no table.

        Raises:
            ConfigurationError: for lists that cannot be used, without a record in common, and naming parties that send
                nothing.
        """
        end = monotonic() + patience
        try:
            return self._compare(end)
        except Exception as error:
            why = str(error) if isinstance(error, ConfigurationError) else f"the server has ended: {error}"
            with self._changed:
                self._fail(why)
            raise

    def forget(self) -> None:
        """Drop the letters, once all parties know the order of the records."""
        with self._changed:
            self._letters.clear()
            self._lists.clear()

    def _answer(self, request: Request) -> tuple[dict[str, Any], Sequence[Tensor]]:
        header, tensors, party = request.frame.header, request.frame.tensors, request.party
        match header["step"]:
            case "session":
                self._wait(lambda: self._begun)
                done = self._places is not None
                if not done and self._processes.setdefault(party, str(header["process"])) != header["process"]:
                    self._fail(
                        f"party {self.names[party]} was started again while records were aligned; start all processes "
                        "again"
                    )
                return {"session": self._session.told(), "server": self._ids is not None, "done": done}, ()
            case "give":
                self._refuse_letter(party, int(header["to"]), str(header["what"]), len(tensors))
                self._letters[Letter(party, int(header["to"]), str(header["what"]))] = list(tensors)
                self._changed.notify_all()
                return {}, ()
            case "list":
                if len(tensors) != 1:
                    raise ValueError("it has sent no list")
                self._take_list(party, str(header["of"]), tensors[0])
                return {}, ()
            case "fetch":
                wanted = Letter(int(header["of"]), party, str(header["what"]))
                self._wait(lambda: wanted in self._letters)
                return {}, self._letters.get(wanted, ())
            case "places":
                self._wait(lambda: self._places is not None)
                return {}, [] if self._places is None else [torch.from_numpy(self._places[party])]
            case "failed":
                raise ValueError(printable(header["why"]))
            case other:
                raise ValueError(f"there is no step {other}")

    def _refuse_letter(self, party: int, to: int, what: str, tensors: int) -> None:
        """Accept a letter that this party has to give to this receiver, once, so that the letters have a bound."""
        m = len(self.names)
        allowed = {((party + 1) % m, f"list {(party - hop) % m} hop {hop + 1}") for hop in range(m - 1)}
        allowed |= {(other, "order") for other in range(m) if party == self._labels}
        allowed |= {(party + 1, "list server")} if party < m - 1 else {(SERVER, "places of the server")}
        if (to, what) not in allowed or tensors != 1 or Letter(party, to, what) in self._letters:
            raise ValueError(f"it has given '{what}' to {to}, which is not its turn")

    def _take_list(self, party: str | int, owner: str, points: Tensor) -> None:
        number = SERVER if owner == OWN else int(owner)
        expected = (number - 1) % len(self.names) if number != SERVER else len(self.names) - 1
        if party != expected or not -1 <= number < len(self.names):
            raise ValueError(f"the list of {owner} comes from party {expected}")
        if points.dtype != torch.uint8 or points.ndim != 2 or points.shape[1] != SIZE or not len(points):
            raise ValueError(f"points are (n, {SIZE}) bytes, not {points.dtype} {tuple(points.shape)}")
        self._lists[number] = points.numpy()
        self._changed.notify_all()

    def _compare(self, end: float) -> "Ids":
        parties, own = range(len(self.names)), None
        self._ids = _ids_of(self._data) if self._has_table else None
        messages = None if self._ids is None else id_messages(self._ids, self._session, OWN)
        with self._changed:
            self._begun = True
            self._changed.notify_all()
        if self._ids is not None and messages is not None:
            own = Secret.make(self._session, self._name, len(self._ids))
            self._give(0, "list server", tensor_of(masked(own, messages).points[:, 0]))
        expected = [*parties, *([] if own is None else [SERVER])]
        with self._changed:
            self._await(end, lambda: [m for m in expected if m not in self._lists])
            lists = [self._lists[m][:, None] for m in expected]
        if own is not None:
            try:
                lists[-1] = raised(lists[-1], inverse(own.key))
            except NoPoint as error:
                raise ConfigurationError(f"the list of {OWN}: {error}; start all processes again") from None
            if len(lists[-1]) != own.places:
                raise ConfigurationError("the parties have changed the length of the server's list; start again")
        for number, points in zip(expected, lists, strict=True):
            refuse_bad_points(points, OWN if number == SERVER else f"party {self.names[number]}")
        places = common_places(lists)
        if not len(places[0]):
            raise ConfigurationError(
                "the parties have no record in common; check that all tables have the same kind of id, written in the "
                "same form"
            )
        with self._changed:
            self._places = places[: len(self.names)]
            self._changed.notify_all()
        if own is None or self._ids is None:
            return np.arange(len(places[0]))
        return self._ids[own.order[self._unshuffled(places[-1], own.places, end)]]

    def _unshuffled(self, places: "NDArray[np.int64]", length: int, end: float) -> "NDArray[np.int64]":
        """The places in the list that the server has sent, of places in the list that the last party has returned."""
        last = len(self.names) - 1
        self._give(last, "places of the server", torch.from_numpy(places))
        wanted = Letter(last, SERVER, "places of the server")
        with self._changed:
            self._await(end, lambda: [] if wanted in self._letters else [(last + 1) % len(self.names)])
            told = self._letters[wanted][0].numpy()
        known = told.shape == places.shape and told.dtype == np.int64 and len(np.unique(told)) == len(told)
        if not known or told.min() < 0 or told.max() >= length:
            raise ConfigurationError(
                f"party {self.names[last]} has sent places that do not exist; start all processes again"
            )
        return told

    def _give(self, party: int, what: str, content: Tensor) -> None:
        with self._changed:
            self._letters[Letter(SERVER, party, what)] = [content]
            self._changed.notify_all()

    def _fail(self, why: str) -> None:
        self._failed = self._failed or why
        self._changed.notify_all()

    def _wait(self, done: Callable[[], bool]) -> None:
        while not done() and self._failed is None:
            self._changed.wait(timeout=1.0)

    def _await(self, end: float, lacking: Callable[[], list[int]]) -> None:
        """Wait until no list is lacking; lists are named by their owners."""

        def owners() -> str:
            return ", ".join(OWN if m == SERVER else self.names[m] for m in lacking())

        waiting = LongWait(lambda: f"the parties to raise the lists of {owners()}")
        while lacking():
            waiting.look()
            if self._failed is not None:
                raise ConfigurationError(self._failed)
            if monotonic() > end:
                raise ConfigurationError(
                    f"the parties have not raised the lists of {owners()} in time; start all processes again, or raise "
                    "patience.join"
                )
            self._changed.wait(timeout=1.0)


def id_messages(ids: "Ids", session: Session, owner: str) -> list[tuple[bytes | None, ...]]:
    """The messages that are hashed to points; ``owner`` is named in errors."""
    return messages_of([[list(map(str, ids.tolist()))]], session.normalise, owner)


def tensor_of(points: "Points") -> Tensor:
    """Points in memory of their own."""
    return torch.from_numpy(points.copy())


def _ids_of(data: Any) -> "Ids | None":
    try:
        return as_ids(data.own_ids())
    except NoOwnTable:
        return None
