"""The steps of an alignment on a folder of files. Each can be repeated: it then writes the same files again.

What a party sends is named after the party that needs it: ``bank.for-shop.points`` is the list of ``bank`` that
``shop`` raises next. ``bank.key`` is secret and stays where it was made.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_vfl.align.files import (
    list_path,
    names_in,
    read_list,
    read_rows,
    read_secret,
    secret_path,
    write_list,
    write_rows,
    write_secret,
)
from lightning_vfl.align.group import NoPoint, check_installed
from lightning_vfl.align.matching import Rows, empty, matched
from lightning_vfl.align.ring import PointList, Secret, masked, passed
from lightning_vfl.align.session import COMPARER, Session
from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lightning_vfl.align.group import Progress

Messages = Sequence[tuple[bytes | None, ...]]
Bar = Callable[[str, int], AbstractContextManager["Progress"]]  # a progress bar: title, and how many points


@dataclass(frozen=True)
class Passed:
    """What a party has raised.

    Args:
        written: path of a list -> the party that needs it next.
        awaited: owner of a list that has not come -> the party that sends it.
    """

    written: Mapping[Path, str]
    awaited: Mapping[str, str]


def mask_list(
    folder: Path,
    session: Session,
    party: str,
    messages: Messages,
    table: Mapping[str, Any],
    bar: Bar,
    pad_to: int | None = None,
) -> tuple[Path, PointList]:
    """Make a party's secret and its masked list; returns the list's path, and the list.

    Args:
        folder: of the files.
        session: what the parties agree upon.
        party: whose list.
        messages: see ``messages_of``.
        table: what ``take`` has to know of the table.
        bar: shows progress.
        pad_to: the length of the list; None: as many as there are records.

    Raises:
        ConfigurationError: if the folder has a secret of the party that was made for other records or settings: a key
            masks one list and no other.
    """
    check_installed()
    fingerprint = digest_of(messages)
    about = {**table, "sha256": fingerprint}
    kept = read_secret(folder, party)
    if kept is None:
        secret = Secret.make(session, party, len(messages), pad_to)
        write_secret(folder, secret, about)
    else:
        secret, before = kept
        again = f"a key masks one list; give another --out, or remove {secret_path(folder, party)} and all lists"
        if secret.session != session:
            raise ConfigurationError(
                f"{folder} has a key of {party} of another session: {session.difference(secret.session)}; {again}"
            )
        if before.get("sha256") != fingerprint or secret.places != (pad_to or len(messages)):
            raise ConfigurationError(f"{folder} has a key of {party} for other records or another --pad-to; {again}")
        if before != about:
            write_secret(folder, secret, about)
    with bar(f"mask {party}", secret.places * len(session.keys)) as tell:
        made = masked(secret, messages, tell)
    return write_list(folder, made), made


def pass_lists(folder: Path, party: str, bar: Bar) -> Passed:
    """Raise all lists that are there for a party to its key.

    Raises:
        ConfigurationError: for a party without a secret, and for lists that this party must not raise.
    """
    secret, _ = _secret(folder, party)
    written: dict[Path, str] = {}
    awaited: dict[str, str] = {}
    for owner in secret.session.parties:
        if owner == party:
            continue
        given = read_list(folder, owner, party)
        if given is None:
            ring = secret.session.ring_from(owner)
            awaited[owner] = ring[ring.index(party) - 1]
            continue
        done = replace(given, used=(*given.used, secret.used))
        path = list_path(folder, owner, done.receiver)
        if not _is_there(folder, done):
            with bar(f"raise {owner}", given.points.shape[0] * given.points.shape[1]) as tell:
                try:
                    write_list(folder, passed(secret, given, tell))
                except NoPoint as error:
                    raise ConfigurationError(f"the list of {owner}: {error}; ask for the list again") from None
        written[path] = done.receiver
    return Passed(written, awaited)


def _is_there(folder: Path, wanted: PointList) -> bool:
    """Whether the list has been written before; the keys decide its content."""
    try:
        kept = read_list(folder, wanted.owner, wanted.receiver)
    except ConfigurationError:  # what was written is damaged
        return False
    same = kept is not None and (kept.session, kept.used) == (wanted.session, wanted.used)
    return same and kept is not None and kept.points.shape == wanted.points.shape


def match_lists(folder: Path) -> tuple[dict[str, Rows], dict[str, int]]:
    """Compare the lists of all parties: which place of each is which common row, and the length of each.

    Args:
        folder: of the lists.

    Raises:
        ConfigurationError: for lists that are missing or do not belong together.
    """
    check_installed()
    owners = names_in(folder)
    if not owners:
        raise ConfigurationError(
            f"{folder} has no list for the comparer (*.for-{COMPARER}.points); the last party of each ring writes one "
            "with lightning-vfl align pass"
        )
    lists = [one for owner in owners if (one := read_list(folder, owner, COMPARER)) is not None]
    return matched(lists), {one.owner: len(one.points) for one in lists}


def tell_parties(folder: Path, found: Mapping[str, Rows]) -> list[Path]:
    """Write for each party which of its places are which common row, as ``match_lists`` has found them; the files.

    Raises:
        ConfigurationError: if a party has no record in common.
    """
    if (line := empty(found)) is not None:
        raise ConfigurationError(line)
    return [write_rows(folder, told) for told in found.values()]


def take_rows(folder: Path, party: str) -> tuple[Secret, dict[str, Any], Rows]:
    """A party's secret, what ``mask`` was told of its table, and what the comparer tells it.

    Raises:
        ConfigurationError: if one of them is missing or they do not belong together.
    """
    secret, table = _secret(folder, party)
    return secret, table, read_rows(folder, secret)


def records_at(secret: Secret, told: Rows) -> "tuple[NDArray[np.int64], NDArray[np.int64]]":
    """(n,) the records of a party that are in common, and their row numbers, ascending.

    Raises:
        ConfigurationError: for rows at places with random points, which no honest comparer finds.
    """
    records = secret.order[told.places]
    rows = told.rows
    own = records < secret.records
    if not own.all() and told.session.label_party != secret.party:
        raise ConfigurationError(
            f"the comparer says that other parties have {int((~own).sum())} random points of {secret.party}; compare "
            "the lists again"
        )
    return records[own], rows[own]


def digest_of(messages: Messages) -> str:
    """SHA-256 of all messages in the order of the table; it never leaves the party."""
    total = sha256()
    for row in messages:
        for message in row:
            total.update(b"\0" if message is None else b"\1" + len(message).to_bytes(8, "big") + message)
    return total.hexdigest()


def _secret(folder: Path, party: str) -> tuple[Secret, dict[str, Any]]:
    check_installed()
    found = read_secret(folder, party)
    if found is None:
        raise ConfigurationError(
            f"{secret_path(folder, party)} is not there; run lightning-vfl align mask --party {party} first, and give "
            "its --out as --in"
        )
    return found
