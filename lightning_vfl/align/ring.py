"""What an owner and the other parties of the ring do with a list of points. No files, no network."""

import hmac
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256, shake_256
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.align.group import SIZE, check_key, mask, new_key, raised
from lightning_vfl.align.session import COMPARER, Session
from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lightning_vfl.align.group import Points, Progress


@dataclass(frozen=True)
class Used:
    """A key that a list has been raised to.

    Args:
        party: whose key.
        mark: 64 hexadecimal digits that tell two keys apart, and nothing else about the key.
    """

    party: str
    mark: str


@dataclass(frozen=True, eq=False)
class PointList:
    """The masked points of one party's records.

    Args:
        session: what the parties agree upon.
        owner: whose records.
        used: the keys that the points were raised to, in this order.
        points: (n, K, 32) uint8, for every place of the list one point for each of K keys of a record.
    """

    session: Session
    owner: str
    used: tuple[Used, ...]
    points: "Points"

    @cached_property
    def receiver(self) -> str:
        """The party that has to raise the list next, or the comparer."""
        ring = self.session.ring_from(self.owner)
        return ring[len(self.used)] if len(self.used) < len(ring) else COMPARER

    def refuse_wrong_order(self) -> None:
        """Accept a list whose keys are those of the owner and the parties behind it, each once.

        Raises:
            ConfigurationError: for a key that is used twice, and for another order.
        """
        parties = [used.party for used in self.used]
        if twice := next((party for party in parties if parties.count(party) > 1), None):
            raise ConfigurationError(
                f"the list of {self.owner} has been raised to the key of {twice} twice; begin a new session"
            )
        if parties != [*self.session.ring_from(self.owner)[: len(parties)]] or not parties:
            raise ConfigurationError(
                f"the list of {self.owner} has the keys of {', '.join(parties) or 'nobody'}; the order of the ring is "
                f"{', '.join(self.session.ring_from(self.owner))}"
            )


@dataclass(frozen=True)
class Secret:
    """What a party never shows: its key, and the order of its list.

    Args:
        session: what the parties agree upon.
        party: whose secret.
        records: how many records the party has.
        places: the length of its list, with random points behind the records.
        key: a number below the order of the group, 32 bytes.
        seed: 32 random bytes, from which the order and the random points follow.

    Guarantee: the list of a secret and the same records is always the same, so that a step can be repeated.
    """

    session: Session
    party: str
    records: int
    places: int
    key: bytes = field(repr=False)
    seed: bytes = field(repr=False)

    @classmethod
    def make(
        cls,
        session: Session,
        party: str,
        records: int,
        pad_to: int | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> "Secret":
        """A new secret.

        Args:
            session: what the parties agree upon.
            party: whose secret.
            records: how many records the party has.
            pad_to: the length of the list; None: as many as there are records.
            entropy: the source of random bytes; another one than the default is for tests alone.

        Raises:
            ConfigurationError: for a party that is not of the session, and more records than ``pad_to``.
        """
        session.number(party)
        if pad_to is not None and pad_to < records:
            raise ConfigurationError(f"--pad-to {pad_to} is less than the {records} records; give a larger number")
        return cls(session, party, records, pad_to or records, new_key(entropy), entropy(SIZE))

    def __post_init__(self) -> None:
        check_key(self.key)
        if len(self.seed) != SIZE or not 0 < self.records <= self.places:
            raise ValueError("the secret is not one that this version has written")

    @cached_property
    def used(self) -> Used:
        """The mark of the key."""
        mark = hmac.new(self.key, f"mark of {self.party} in {self.session.digest}".encode(), sha256)
        return Used(self.party, mark.hexdigest())

    @cached_property
    def order(self) -> "NDArray[np.int64]":
        """(places,) the record at each place of the list; numbers from ``records`` are random points.

        A uniformly random order: the ranks of 64-bit words, of which two are equal with a probability below n² / 2⁶⁵.
        """
        words = np.frombuffer(shake_256(b"order" + self.seed).digest(8 * self.places), "<u8")
        return np.argsort(words, kind="stable").astype(np.int64)

    def uniform(self, place: int) -> bytes:
        """64 uniform bytes for the random point of a number."""
        return shake_256(b"points" + self.seed + place.to_bytes(8, "big")).digest(64)


def masked(secret: Secret, messages: Sequence[tuple[bytes | None, ...]], tell: "Progress | None" = None) -> PointList:
    """A party's list of its own records, in an order that only the party knows.

    A record that lacks one of the keys, and a place behind the records, has a random point, which nobody can tell from
    others.

    Args:
        secret: of this party.
        messages: for each record the message of each key, see ``messages_of``.
        tell: is told of progress.

    Raises:
        ConfigurationError: for another number of records or keys than those of the secret.
    """
    keys = len(secret.session.keys)
    if len(messages) != secret.records or any(len(row) != keys for row in messages):
        raise ConfigurationError(
            f"{secret.party} has made its key for {secret.records} records with {keys} keys, the table has "
            f"{len(messages)}; begin again in a new folder"
        )
    none = (None,) * keys
    flat: list[bytes | None] = []
    for record in secret.order.tolist():
        flat += messages[record] if record < secret.records else none
    points = mask(flat, secret.uniform, secret.key, secret.session.tag, tell)
    return PointList(secret.session, secret.party, (secret.used,), points.reshape(secret.places, keys, SIZE))


def passed(secret: Secret, given: PointList, tell: "Progress | None" = None) -> PointList:
    """The list of another party, raised to this party's key; places stay the same.

    Raises:
        ConfigurationError: for a list of another session, and one that is not this party's turn.
        NoPoint: for bytes that are no point, and for the identity.
    """
    if given.session != secret.session:
        raise ConfigurationError(
            f"the list of {given.owner} is of another session: {secret.session.difference(given.session)}"
        )
    given.refuse_wrong_order()
    if any(used.party == secret.party for used in given.used):
        raise ConfigurationError(
            f"the list of {given.owner} has the key of {secret.party} already; a key is used once on a list"
        )
    if given.receiver != secret.party:
        raise ConfigurationError(f"the list of {given.owner} is for {given.receiver}, not for {secret.party}")
    return replace(given, used=(*given.used, secret.used), points=raised(given.points, secret.key, tell))
