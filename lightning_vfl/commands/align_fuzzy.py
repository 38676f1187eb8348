"""``lightning-vfl align`` by keys with typing errors: filters of a party, the comparer's pairs, and a party's table."""

import json
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_vfl.align.files import (
    filters_path,
    names_in,
    read_filters,
    read_links,
    secret_path,
    table_path,
    write_filters,
    write_links,
    write_whole,
)
from lightning_vfl.align.fuzzy import Links, filters_of, linked, order_of, read_key, refuse_unusable
from lightning_vfl.align.session import Reveal, Session
from lightning_vfl.commands.align_tables import TableFile, write_aligned
from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SIMILARITY = "similarity"


def check_fuzzy(session: Session, pad_to: int | None) -> None:
    """Refuse settings that filters do not have.

    Raises:
        ConfigurationError: naming the setting.
    """
    if len(session.parties) != 2:
        raise ConfigurationError(f"--fuzzy links two parties; got {len(session.parties)}")
    if len(session.keys) != 1:
        raise ConfigurationError("--fuzzy compares one key of several columns; join them with + (first+last+born)")
    if session.reveal is not Reveal.INTERSECTION:
        raise ConfigurationError("--fuzzy tells the pairs that were found; leave out --reveal")
    if pad_to is not None:
        raise ConfigurationError("--fuzzy does not hide how many records there are; leave out --pad-to")


def mask_fuzzy(folder: Path, session: Session, file: TableFile, key_file: Path) -> Path:
    """Write the filters of a party's table, in an order of their own, and what ``take`` has to know.

    Returns:
        the path of the filters, for the comparer.

    Raises:
        ConfigurationError: for a table or a key that cannot be used, and a folder of an alignment by exact keys.
    """
    if secret_path(folder, file.party).exists():
        raise ConfigurationError(f"{folder} has a key of {file.party} for exact ids; give another --out")
    filters = _filters(session, file, key_file)
    refuse_unusable(filters, file.party)
    told = {"session": session.told(), "key": str(key_file.absolute()), **file.told()}
    write_whole(table_path(folder, file.party), json.dumps(told, ensure_ascii=False).encode(), 0o600)
    return write_filters(folder, session, file.party, filters[order_of(filters)])


def match_fuzzy(folder: Path, threshold: float, tell_parties: bool = True) -> tuple[Links, list[Path]]:
    """The pairs of similar records of two parties; writes a file for each party.

    Raises:
        ConfigurationError: for filters that are missing or of two sessions, and if no pair is similar enough.
    """
    owners = names_in(folder, fuzzy=True)
    sessions, filters = zip(*(read_filters(folder, owner) for owner in owners), strict=True)
    if sessions[0] != sessions[-1]:
        raise ConfigurationError(
            f"the filters of {owners[0]} and {owners[-1]} are of two sessions: "
            f"{sessions[0].difference(sessions[-1])} as with {owners[0]}; both parties need the same settings"
        )
    session = sessions[0]
    if missing := [party for party in session.parties if party not in owners]:
        raise ConfigurationError(f"{filters_path(folder, missing[0])} is not there; {missing[0]} writes it by mask")
    first, second = (filters[owners.index(party)] for party in session.parties)
    links = linked(first, second, threshold)
    if not tell_parties:
        return links, []
    if not len(links.first):
        raise ConfigurationError(
            f"no pair of records is as similar as --threshold {threshold:g}; both parties need one secret and the same "
            "columns in the same order, or lower it"
        )
    swapped = Links(links.second, links.first, links.similarity)
    told = zip(session.parties, (links, swapped), (first, second), strict=True)
    return links, [write_links(folder, session, party, own, _digest(theirs)) for party, own, theirs in told]


def take_fuzzy(folder: Path, party: str, out: Path, moved: str | None, id_name: str, similarity: bool) -> int:
    """Write a party's aligned table; returns the number of its records.

    Args:
        folder: of the party's files and of the comparer's pairs.
        party: whose table.
        out: the table to write.
        moved: the party's table, if it has moved since mask.
        id_name: the column of the common numbers.
        similarity: whether the table has a column with the similarity of each record, for ``sample_weight``.

    Raises:
        ConfigurationError: for a table that has changed since mask, and files that do not belong together.
    """
    try:
        told = json.loads(table_path(folder, party).read_bytes())
        session = Session.read(told["session"])
        file = TableFile.of(told, party, moved)
        key_file = Path(told["key"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f"{table_path(folder, party)} cannot be used: {error}; run mask again") from None
    filters = _filters(session, file, key_file)
    order = order_of(filters)
    places, similarities = read_links(folder, session, party, _digest(filters[order]))
    keys = file.keys()
    table, ids = file.aligned(order[places], _numbers(len(places)), keys, id_name, as_text=out.suffix == ".csv")
    ids.insert(1, SIMILARITY, similarities, allow_duplicates=True)
    if similarity:
        if SIMILARITY in table:
            raise ConfigurationError(f"{file.path} has a column '{SIMILARITY}' of its own; rename it")
        table.insert(1, SIMILARITY, similarities)
    write_aligned(table, ids, out)
    return len(table)


def is_fuzzy(folder: Path, party: str | None = None) -> bool:
    """Whether a folder has filters for the comparer, or a party's files of an alignment by filters."""
    return bool(names_in(folder, fuzzy=True)) if party is None else table_path(folder, party).exists()


def _filters(session: Session, file: TableFile, key_file: Path) -> "NDArray[np.uint8]":
    (columns,) = file.texts(file.keys())
    return filters_of(columns, session, read_key(key_file))


def _digest(filters: "NDArray[np.uint8]") -> str:
    return sha256(filters.tobytes()).hexdigest()


def _numbers(count: int) -> "NDArray[np.int64]":
    import numpy as np

    return np.arange(count)
