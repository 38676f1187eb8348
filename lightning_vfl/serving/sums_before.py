"""Which records of a party have been summed without a party: a sum with all parties would show what was missing."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.trained.id_hashes import hashed_ids, of_text

if TYPE_CHECKING:
    from numpy.typing import NDArray


class SumsBefore:
    """The sums of one network in the ledger of a seat, as its runs write them.

    Guarantee: a sum whose line is on the disk when ``withheld`` is called counts.
    Not guaranteed: anything about sums that the ledger does not have, as those of another host or those that follow,
        and about records that a training without ids has noted by their places. A sum of an earlier round does not
        count: it differs from a served one by the embedding of the missing party, and by how far training has moved
        the embeddings of all the others since.

    Args:
        ledger: the file of the seat; it need not exist yet.
        network: its name, from the manifest of the half.
        parties: M, of a whole sum.
        since: rounds of training; a sum counts if at least as many had begun before it.

    Raises:
        ConfigurationError: for a ledger that cannot be read, is damaged or was replaced.
    """

    def __init__(self, ledger: Path, network: str, parties: int, since: int) -> None:
        self.ledger = ledger
        self._since = since
        self._network = network
        self._parties = parties
        self._file = 0  # its number in the file system
        self._size = 0  # bytes of the lines that have been read
        self._key = ""
        self._apart = np.zeros(0, np.int64)  # hashes of records
        self._read_on()

    def __len__(self) -> int:
        return len(self._apart)

    def withheld(self, ids: "NDArray[Any]") -> "NDArray[np.bool_]":
        """(B,) bool, the records that have been summed without a party."""
        self._read_on()
        if not len(self._apart):
            return np.zeros(len(ids), np.bool_)
        return np.isin(hashed_ids(self._key, ids), self._apart)

    def _read_on(self) -> None:
        """Count the lines that were appended since the last time."""
        try:
            about = self.ledger.stat()
            text = self._appended(about.st_size)
        except FileNotFoundError:
            if self._size:
                raise self._refused("is gone") from None
            return
        except OSError as error:
            raise self._refused(f"cannot be read ({error.strerror})") from None
        if self._size and (about.st_ino != self._file or about.st_size < self._size):
            raise self._refused("was replaced")
        self._file = about.st_ino
        whole = text[: text.rfind(b"\n") + 1]  # a line that is being written does not count
        try:
            self._count([json.loads(line) for line in whole.splitlines()])
        except (LookupError, ValueError, TypeError, AttributeError):
            raise self._refused("is damaged") from None
        self._size += len(whole)

    def _appended(self, size: int) -> bytes:
        """The text behind the lines that have been read, in a file of this size."""
        if size == self._size:
            return b""
        with self.ledger.open("rb") as file:
            file.seek(self._size)
            return file.read()

    def _count(self, entries: "list[dict[str, Any]]") -> None:
        if entries and not self._size:
            head = entries[0]
            self._key = str(head["key"])
        short = [of_text(one["records"]) for one in entries if self._is_short(one)]
        if short:
            self._apart = np.unique(np.concatenate([self._apart, *short]))

    def _is_short(self, entry: "dict[str, Any]") -> bool:
        """Whether a line is a sum of this network that lacks a party, of embeddings like those that are served."""
        if entry.get("network") != self._network or "summed" not in entry:
            return False
        return len({*entry["summed"]}) < self._parties and entry["trained"] >= self._since

    def _refused(self, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"the ledger {self.ledger} {what}, so sums without a party are not known; restore it and start again"
        )
