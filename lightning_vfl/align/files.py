"""The files of an alignment: lists of points, the rows that the comparer tells, and a party's secret.

A list or a file of rows is ``"LVFLPSI" | u8 version | u32 length of the header | header | content | SHA-256``. The
header is a JSON object, and SHA-256 is of everything before it. A file appears complete or not at all.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.align.fuzzy import FILTER_BYTES, Links
from lightning_vfl.align.group import SIZE
from lightning_vfl.align.matching import Rows
from lightning_vfl.align.ring import PointList, Secret, Used
from lightning_vfl.align.session import COMPARER, Session
from lightning_vfl.errors import ConfigurationError, on_one_line
from lightning_vfl.whole_files import cannot_be_written, whole_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAGIC, _VERSION = b"LVFLPSI", 1
_START = Struct("<7sBI")
_LARGEST_HEADER = 2**20
_DIGEST = 32
_POINTS, _FILTERS = ".points", ".filters"


def list_path(folder: Path, owner: str, receiver: str) -> Path:
    """Where the list of an owner is for the party that raises it next, or for the comparer."""
    return folder / f"{owner}.for-{receiver}{_POINTS}"


def rows_path(folder: Path, party: str) -> Path:
    """Where the rows are that the comparer tells a party."""
    return folder / f"{party}.rows"


def secret_path(folder: Path, party: str) -> Path:
    """Where the secret of a party is."""
    return folder / f"{party}.key"


def write_list(folder: Path, given: PointList) -> Path:
    """Write a list for the party that has to raise it next; returns the path."""
    header = {"keys": [[used.party, used.mark] for used in given.used], "places": len(given.points)}
    path = list_path(folder, given.owner, given.receiver)
    _write(path, "points", given.session, given.owner, header, given.points.tobytes())
    return path


def read_list(folder: Path, owner: str, receiver: str) -> PointList | None:
    """The list of an owner for a receiver; None: there is no file.

    Raises:
        ConfigurationError: for a file that is truncated or changed, or is no list of this owner.
    """
    path = list_path(folder, owner, receiver)
    if not path.exists():
        return None
    session, header, content = _read(path, "points", owner)
    keys = len(session.keys)
    with _well_formed(path):
        used = _used(header["keys"])
        places = int(header["places"])
        if places < 1 or len(content) != places * keys * SIZE:
            raise ValueError(f"{places:,} places of {keys} points, but {len(content):,} bytes")
    found = PointList(session, owner, used, np.frombuffer(content, np.uint8).reshape(places, keys, SIZE))
    found.refuse_wrong_order()
    if found.receiver != receiver:
        raise ConfigurationError(f"{path} is for {found.receiver}, not for {receiver}; give files their own names")
    return found


def filters_path(folder: Path, owner: str) -> Path:
    """Where the filters of an owner are for the comparer."""
    return folder / f"{owner}.for-{COMPARER}{_FILTERS}"


def links_path(folder: Path, party: str) -> Path:
    """Where the similar records are that the comparer tells a party."""
    return folder / f"{party}.links"


def table_path(folder: Path, party: str) -> Path:
    """Where a party keeps which table it has made filters of."""
    return folder / f"{party}.table"


def write_filters(folder: Path, session: Session, owner: str, filters: "NDArray[np.uint8]") -> Path:
    """Write filters (n, B) for the comparer; returns the path."""
    _write(filters_path(folder, owner), "filters", session, owner, {"places": len(filters)}, filters.tobytes())
    return filters_path(folder, owner)


def read_filters(folder: Path, owner: str) -> "tuple[Session, NDArray[np.uint8]]":
    """The session and the filters (n, B) of an owner.

    Raises:
        ConfigurationError: for a file that is truncated or changed.
    """
    path = filters_path(folder, owner)
    session, header, content = _read(path, "filters", owner)
    with _well_formed(path):
        places = int(header["places"])
        if places < 1 or len(content) != places * FILTER_BYTES:
            raise ValueError(f"{places:,} filters, but {len(content):,} bytes")
    return session, np.frombuffer(content, np.uint8).reshape(places, FILTER_BYTES)


def write_links(folder: Path, session: Session, party: str, links: Links, of: str) -> Path:
    """Write what the comparer tells a party.

    Args:
        folder: of the file.
        session: what the parties agree upon.
        party: which is told.
        links: ``first`` are places of this party's filters; ``second`` is not written.
        of: the digest of this party's filters.
    """
    content = links.first.astype("<i8").tobytes() + links.similarity.astype("<f8").tobytes()
    _write(links_path(folder, party), "links", session, party, {"of": of, "places": len(links.first)}, content)
    return links_path(folder, party)


def read_links(folder: Path, session: Session, party: str, of: str) -> "tuple[NDArray[np.int64], NDArray[np.float64]]":
    """(n,) the places of a party's filters in the common order, and how similar the other party's are.

    Raises:
        ConfigurationError: if the file is not there, is truncated or changed, or is about other filters.
    """
    path = links_path(folder, party)
    header, content = _told(path, "links", session, party)
    with _well_formed(path):
        count = int(header["places"])
        if len(content) != 16 * count:
            raise ValueError(f"{count:,} places, but {len(content):,} bytes")
        if header["of"] != of:
            raise ValueError(f"it is about other filters of {party}")
    places = np.frombuffer(content[: 8 * count], "<i8").astype(np.int64)
    return places, np.frombuffer(content[8 * count :], "<f8").astype(np.float64)


def write_rows(folder: Path, told: Rows) -> Path:
    """Write what the comparer tells a party; returns the path."""
    header = {"keys": [[used.party, used.mark] for used in told.used], "size": told.size, "places": len(told.places)}
    content = np.stack([told.places, told.rows]).astype("<i8").tobytes()
    _write(rows_path(folder, told.owner), "rows", told.session, told.owner, header, content)
    return rows_path(folder, told.owner)


def read_rows(folder: Path, secret: Secret) -> Rows:
    """What the comparer tells the party of a secret.

    Raises:
        ConfigurationError: if it is not there, is truncated or changed, or is of another session or another key.
    """
    path = rows_path(folder, secret.party)
    header, content = _told(path, "rows", secret.session, secret.party)
    with _well_formed(path):
        used = _used(header["keys"])
        size = int(header["size"])
        if len(content) != 16 * int(header["places"]):
            raise ValueError(f"{header['places']} places, but {len(content):,} bytes")
    if secret.used not in used:
        raise ConfigurationError(f"{path} is of another key of {secret.party}; compare the lists of this key")
    places, rows = np.frombuffer(content, "<i8").reshape(2, -1).astype(np.int64)
    inside = len(places) == 0 or (places.min() >= 0 and places.max() < secret.places and rows.min() >= 0)
    if not inside or len(np.unique(places)) < len(places) or (np.diff(rows) < 1).any():
        raise ConfigurationError(f"{path} names places that the list of {secret.party} does not have, or some twice")
    return Rows(secret.session, secret.party, used, size, places, rows)


def write_secret(folder: Path, secret: Secret, table: Mapping[str, Any]) -> Path:
    """Write a secret to a file that its owner alone may read (mode 0600); returns the path.

    Args:
        folder: of the file.
        secret: of a party.
        table: what ``mask`` has been told of the table.
    """
    said = {
        "lightning-vfl align": _VERSION,
        "session": secret.session.told(),
        "party": secret.party,
        "records": secret.records,
        "places": secret.places,
        "key": secret.key.hex(),
        "seed": secret.seed.hex(),
        "table": dict(table),
    }
    path = secret_path(folder, secret.party)
    write_whole(path, (json.dumps(said, indent=1, ensure_ascii=False) + "\n").encode(), 0o600)
    return path


def read_secret(folder: Path, party: str) -> tuple[Secret, dict[str, Any]] | None:
    """The secret of a party, and what it was told of the table; None: there is no file.

    Raises:
        ConfigurationError: for a file that is not one of these.
    """
    path = secret_path(folder, party)
    if not path.exists():
        return None
    with _well_formed(path):
        said = json.loads(_content(path))
        if not isinstance(said, dict) or said.get("lightning-vfl align") != _VERSION or said["party"] != party:
            raise ValueError(f"it is not a secret of {party} of version {_VERSION}")
        key = bytes.fromhex(said["key"])
        seed = bytes.fromhex(said["seed"])
        numbers = int(said["records"]), int(said["places"])
        return Secret(Session.read(said["session"]), party, *numbers, key, seed), dict(said["table"])


def write_whole(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file that appears complete or not at all; ``mode``: who may read and write it.

    Raises:
        ConfigurationError: naming the path, if it cannot be written.
    """
    try:
        with whole_file(path, mode) as file:
            file.write(content)
    except OSError as error:
        raise cannot_be_written(path, error) from error


def _write(path: Path, kind: str, session: Session, owner: str, more: Mapping[str, Any], content: bytes) -> None:
    said = {"kind": kind, "session": session.told(), "owner": owner, **more}
    header = json.dumps(said).encode()
    whole = _START.pack(_MAGIC, _VERSION, len(header)) + header + content
    write_whole(path, whole + sha256(whole).digest())


def _read(path: Path, kind: str, owner: str) -> tuple[Session, Mapping[str, Any], bytes]:
    whole = _content(path)
    with _well_formed(path):
        if whole[: len(_MAGIC)] != _MAGIC[: len(whole)]:
            raise ValueError("it is not a file of lightning-vfl align")
        if len(whole) < _START.size + _DIGEST or sha256(whole[:-_DIGEST]).digest() != whole[-_DIGEST:]:
            raise ValueError("it is truncated or was changed on the way; its checksum is another one")
        _, version, size = _START.unpack_from(whole)
        end = _START.size + size
        if version != _VERSION or size > _LARGEST_HEADER or end + _DIGEST > len(whole):
            raise ValueError(f"it has version {version}, this package reads {_VERSION}")
        header = json.loads(whole[_START.size : end])
        if not isinstance(header, dict) or header.get("kind") != kind or header.get("owner") != owner:
            raise ValueError(f"it is not the {kind} of {owner}")
        session = Session.read(header["session"])
        session.number(owner)
    return session, header, whole[end:-_DIGEST]


def _told(path: Path, kind: str, session: Session, party: str) -> tuple[Mapping[str, Any], bytes]:
    """The header and the content of what the comparer tells a party of this session."""
    if not path.exists():
        raise ConfigurationError(f"{path} is not there; the comparer writes it: lightning-vfl align match")
    theirs, header, content = _read(path, kind, party)
    if theirs != session:
        raise ConfigurationError(f"{path} is of another session: {session.difference(theirs)}")
    return header, content


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read ({error.strerror}); correct the path") from None


def _used(said: Any) -> tuple[Used, ...]:
    return tuple(Used(str(party), str(mark)) for party, mark in said)


@contextmanager
def _well_formed(path: Path) -> Iterator[None]:
    """Tells everything that is wrong with the content of a file in one line."""
    try:
        yield
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        why = f"no '{error.args[0]}'" if isinstance(error, KeyError) else on_one_line(error)
        raise ConfigurationError(f"{path} cannot be used: {why}; ask for the file again") from None


def names_in(folder: Path, fuzzy: bool = False) -> tuple[str, ...]:
    """The owners of lists for the comparer in a folder, or of filters, sorted."""
    ending = f".for-{COMPARER}{_FILTERS if fuzzy else _POINTS}"
    return tuple(sorted(path.name.removesuffix(ending) for path in folder.glob(f"*{ending}")))
