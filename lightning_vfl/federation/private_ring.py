"""The server's part of ``alignment: psi``: it relays sealed letters, and compares lists that have the keys of all.

See ``private_alignment`` for the whole.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
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
from lightning_vfl.federation.gathering import Gathering, Told
from lightning_vfl.federation.hub import Request
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
        gathering: of the parties.
        labels: the party that has the labels; None: the server, which may have a table of its own.
        normalise: how ids are made equal that are written in different ways.
    """

    def __init__(self, data: Any, gathering: Gathering, labels: int | None, normalise: tuple[Step, ...]) -> None:
        self.names = gathering.names
        self._gathering = gathering
        self._data = data
        self._labels = labels
        self._name = "server"
        while self._name in {name.casefold() for name in self.names}:
            self._name += "_"
        # a name that nobody has used before keeps the points of all federations apart
        self._session = Session(secrets.token_hex(16), (*self.names, self._name), normalise=normalise)
        self._ids: Ids | None = None  # of the server's table, once it is read
        self._begun = False
        self._processes: dict[int, str] = {}
        self._letters: dict[Letter, list[Tensor]] = {}
        self._lists: dict[int, Points] = {}  # with the keys of all parties
        self._places: list[NDArray[np.int64]] | None = None  # of the common records in each party's list

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
        ids = _ids_of(self._data) if self._labels is None else None
        messages = None if ids is None else id_messages(ids, self._session, OWN)
        with self._gathering.changed:
            self._ids = ids
            self._begun = True
            self._gathering.changed.notify_all()
        own: Secret | None = None
        expected = [*range(len(self.names))]
        if ids is not None and messages is not None:
            own = Secret.make(self._session, self._name, len(ids))
            self._give(0, "list server", tensor_of(masked(own, messages).points[:, 0]))
            expected.append(SERVER)
        self._await(end, lambda: [number for number in expected if number not in self._lists])
        lists = [self._lists[number][:, None] for number in expected]
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
        with self._gathering.changed:
            self._places = places[: len(self.names)]
            self._gathering.changed.notify_all()
        if own is None or ids is None:
            return np.arange(len(places[0]))
        return ids[own.order[self._unshuffled(places[-1], own.places, end)]]

    def forget(self) -> None:
        """Drop the letters, once all parties know the order of the records."""
        with self._gathering.changed:
            self._letters.clear()
            self._lists.clear()

    def hear(self, request: Request) -> Told:
        """The answer to a request of the alignment, in the thread of the party.

        Raises:
            ValueError: for a request that is not the party's turn; KeyError: for one that lacks a field.
        """
        header = request.frame.header
        tensors = request.frame.tensors
        party = request.party
        match header["step"]:
            case "session":
                self._gathering.wait(lambda: self._begun)
                done = self._places is not None
                if not done and self._processes.setdefault(party, header["process"]) != header["process"]:
                    raise ConfigurationError(
                        f"party {self.names[party]} was started again while records were aligned; start all processes "
                        "again"
                    )
                return {"session": self._session.told(), "server": self._ids is not None, "done": done}, ()
            case "give":
                letter = Letter(party, header["to"], header["what"])
                self._refuse_letter(letter, len(tensors))
                self._letters[letter] = list(tensors)
            case "list":
                if len(tensors) != 1:
                    raise ValueError("it has sent no list")
                self._take_list(party, header["of"], tensors[0])
            case "fetch":
                wanted = Letter(header["of"], party, header["what"])
                self._gathering.wait(lambda: wanted in self._letters)
                return {}, self._letters.get(wanted, ())
            case "places":
                self._gathering.wait(lambda: self._places is not None)
                return {}, [] if self._places is None else [torch.from_numpy(self._places[party])]
            case "failed":
                raise ValueError(printable(header["why"]))
        return {}, ()

    def _refuse_letter(self, letter: Letter, tensors: int) -> None:
        """Accept a letter that this party has to give to this receiver, once, so that the letters have a bound."""
        m = len(self.names)
        party = letter.sender
        allowed = {((party + 1) % m, f"list {(party - hop) % m} hop {hop + 1}") for hop in range(m - 1)}
        allowed |= {(other, "order") for other in range(m) if party == self._labels}
        allowed |= {(party + 1, "list server")} if party < m - 1 else {(SERVER, "places of the server")}
        if (letter.receiver, letter.what) not in allowed or tensors != 1 or letter in self._letters:
            raise ValueError(f"it has given '{letter.what}' to {letter.receiver}, which is not its turn")

    def _take_list(self, party: int, owner: str, points: Tensor) -> None:
        number = SERVER if owner == OWN else int(owner)
        expected = (number - 1) % len(self.names) if number != SERVER else len(self.names) - 1
        if party != expected or not -1 <= number < len(self.names):
            raise ValueError(f"the list of {owner} comes from party {expected}")
        if points.dtype != torch.uint8 or points.ndim != 2 or points.shape[1] != SIZE or not len(points):
            raise ValueError(f"points are (n, {SIZE}) bytes, not {points.dtype} {tuple(points.shape)}")
        self._lists[number] = points.numpy()

    def _unshuffled(self, places: "NDArray[np.int64]", length: int, end: float) -> "NDArray[np.int64]":
        """The places in the list that the server has sent, of places in the list that the last party has returned."""
        last = len(self.names) - 1
        self._give(last, "places of the server", torch.from_numpy(places))
        wanted = Letter(last, SERVER, "places of the server")
        self._await(end, lambda: [] if wanted in self._letters else [0])
        told = self._letters[wanted][0].numpy()
        if told.shape != places.shape or not are_places(told, length):
            raise ConfigurationError(
                f"party {self.names[last]} has sent places that do not exist; start all processes again"
            )
        return told

    def _give(self, party: int, what: str, content: Tensor) -> None:
        with self._gathering.changed:
            self._letters[Letter(SERVER, party, what)] = [content]
            self._gathering.changed.notify_all()

    def _await(self, end: float, lacking: Callable[[], list[int]]) -> None:
        """Wait until no list is lacking; lists are named by their owners."""

        def lists() -> str:
            owners = [OWN if number == SERVER else self.names[number] for number in lacking()]
            return f"the lists of {', '.join(owners)}" if owners else ""

        self._gathering.wait_for_all(
            lists,
            end - monotonic(),
            "to be raised by the parties",
            "have not been raised by the parties in time; start all processes again, or raise patience.join",
        )


def are_places(told: "NDArray[np.generic]", length: int) -> bool:
    """Whether these are different places of a list, at least one."""
    if told.dtype != np.int64 or told.ndim != 1 or not len(told):
        return False
    return int(told.min()) >= 0 and int(told.max()) < length and len(np.unique(told)) == len(told)


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
