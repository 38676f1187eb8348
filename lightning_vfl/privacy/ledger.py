"""The privacy ledger of a run or of a party: a line for each release, flushed to the disk before the uploads are made.

A checkpoint counts the releases up to the time at which it was saved. A run that is killed later has released more: the
server has read the rounds after the checkpoint, and a resumed run releases the same records again. The ledger counts
these rounds too.
"""

import json
import os
import secrets
import zlib
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.accountant import PrivacyAccountant, as_array
from lightning_vfl.privacy.events import PrivacyEvent, restored
from lightning_vfl.privacy.known_records import KnownRecords
from lightning_vfl.trained.id_hashes import of_text, text_of
from lightning_vfl.whole_files import whole_file

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

VERSION = 2


class Sum(NamedTuple):
    """A sum of embeddings, as a line of a ledger has it.

    Args:
        parties: over which it is.
        records: (n,) the hashes of its records.
        trained: the rounds of training that had begun.
    """

    parties: tuple[int, ...]
    records: "NDArray[np.int64]"
    trained: int


@dataclass
class PrivacyLedger:
    r"""An append-only file of releases: ``privacy-RUN.jsonl``, or the file of a party's ``seat.yaml``.

    The first line names the run. Every other line is JSON too, and one of five:

    - a charge: the round's number, its stage if that is not training, the event as plain values, the positions of the
      records, and how often each of them is charged if that is not once. Positions are sorted; their differences are
      stored as unsigned 64-bit little-endian integers, compressed by zlib, in base64;
    - ``named``: the hashes of further records' ids, which get the next positions, as little-endian integers in base64;
    - ``clear``: the hashes of records whose embeddings were sent as they are, to which no figure applies;
    - ``summed``: parties, a network, the hashes of records whose embeddings were summed over these parties, the stage,
      and how many rounds of training had begun;
    - ``left_out``: a network in a round of which the party was left out, with the round and its stage.

    Shapes: ``record_ids`` (B,) integers, positions in the N protected records.
    Units: a line of 64 of 1,000 records takes about 300 bytes.
    Guarantee: when ``charge`` returns, its line is on the disk (``fsync``). A process that is killed while it writes
        leaves an incomplete last line; no upload of that round was made, and ``resume`` removes the line. When
        ``charge`` fails, for example on a full disk, the file is as before. A second process that appends to the same
        file is refused before the uploads of its round, and the first one goes on.
    Not guaranteed: protection against a person who edits or deletes the file, or against a file system that loses data
        after ``fsync``.

    Args:
        path: the file.
        run: identifies the run; checkpoints of the run keep it.
        records: N.
        whole: the file has every round of the run. False: it began at a checkpoint whose own ledger is unknown.
        size: bytes of the file.
        after: the run of the ledger that this one replaces; "": it replaces none.
        known: the records by the hashes of their ids.
        trained: (n,) bool, n ≤ N, the records that training has released.
        clear: hashes of the records that were sent in the clear.
        sums: by network, in the order of the lines.
        left_out: by network, the rounds in which the party was left out.

    Raises:
        ConfigurationError: for a file that cannot be read or written, and for a damaged file.

    Examples:
        >>> from tempfile import mkdtemp
        >>> from lightning_vfl.privacy.events import GaussianEvent
        >>> ledger = PrivacyLedger.begin(Path(mkdtemp()), PrivacyAccountant(10))
        >>> ledger.charge(0, GaussianEvent(sigma=2.0, sensitivity=1.0, parties=3), np.array([7, 3]))
        >>> ledger, accountant = PrivacyLedger.read(ledger.path)
        >>> f"{accountant.epsilon(delta=1e-5):.2f}"
        '1.99'
    """

    path: Path
    run: str
    records: int
    whole: bool
    size: int
    after: str = ""
    known: KnownRecords = field(default_factory=lambda: KnownRecords(secrets.token_hex(16)), compare=False, repr=False)
    trained: "NDArray[np.bool_]" = field(default_factory=lambda: np.zeros(0, bool), compare=False, repr=False)
    clear: "NDArray[np.int64]" = field(default_factory=lambda: np.zeros(0, np.int64), compare=False, repr=False)
    sums: "dict[str, list[Sum]]" = field(default_factory=dict, compare=False, repr=False)
    left_out: Counter[str] = field(default_factory=Counter, compare=False, repr=False)

    @staticmethod
    def file_name(run: str) -> str:
        """The file name of a run's ledger."""
        return f"privacy-{run}.jsonl"

    @classmethod
    def begin(
        cls,
        place: Path,
        accountant: PrivacyAccountant,
        whole: bool = True,
        known: KnownRecords | None = None,
        after: str = "",
    ) -> "PrivacyLedger":
        """Create a new ledger; its first lines charge what the accountant has counted so far.

        Args:
            place: the folder, or the file if its name ends in ``.jsonl``.
            accountant: of the N records.
            whole: see the class.
            known: the ids of the N records; None: N is 0, or they are named later.
            after: see the class.
        """
        run = secrets.token_hex(8)
        named = place.suffix == ".jsonl"
        path = place.absolute() if named else place.absolute() / cls.file_name(run)
        known = known or KnownRecords(run * 2)
        head = {"privacy_ledger": VERSION, "run": run, "records": accountant.records, "whole": whole, "key": known.key}
        if after:
            head["after"] = after
        names: list[dict[str, Any]] = [{"named": text_of(known.hashes)}] if len(known) else []
        text = b"".join(map(_line, (head, *names, *_carried(accountant))))
        try:
            with whole_file(path, 0o600) as file:  # a kill must not leave a first line that cannot be read
                file.write(text)
        except OSError as error:
            remedy = "give the trainer a logger or a default_root_dir whose folder can be written"
            if named:
                remedy = "make its folder writable"
            raise ConfigurationError(
                f"the privacy ledger {path} cannot be created ({error.strerror}); {remedy}"
            ) from error
        return cls(path, run, accountant.records, whole, len(text), after, known)

    @classmethod
    def read(cls, path: Path) -> tuple["PrivacyLedger", PrivacyAccountant]:
        """The ledger, and an accountant that has counted all complete lines of the file; the file is not changed."""
        try:
            *lines, _ = path.read_bytes().split(b"\n")  # text after the last line break is an incomplete line
        except OSError as error:
            raise ConfigurationError(f"the privacy ledger {path} cannot be read ({error.strerror})") from error
        accountant = PrivacyAccountant(0)
        trained = np.zeros(0, bool)
        clear = [np.zeros(0, np.int64)]
        sums: dict[str, list[Sum]] = {}
        left_out = Counter[str]()
        number = 1
        version = VERSION
        try:
            head = json.loads(lines[0])
            version = head["privacy_ledger"]
            run = str(head["run"])
            after = str(head.get("after", ""))
            whole = bool(head["whole"])
            known = KnownRecords(str(head["key"]))
            accountant.grow(int(head["records"]))
            for line in lines[1:]:
                number += 1
                entry: dict[str, Any] = json.loads(line)
                match entry:
                    case {"named": hashes}:
                        known.add(of_text(hashes))
                        accountant.grow(max(accountant.records, len(known)))
                    case {"clear": hashes}:
                        clear.append(of_text(hashes))
                    case {"summed": parties, "network": str(network), "records": hashes}:
                        one = Sum(tuple(map(int, parties)), of_text(hashes), int(entry["trained"]))
                        sums.setdefault(network, []).append(one)
                    case {"left_out": str(network)}:
                        left_out[network] += 1
                    case {"event": plain, "ids": ids}:
                        positions = _unpacked(ids)
                        accountant.spend(restored(plain), positions, int(entry.get("times", 1)))
                        if "stage" not in entry:
                            trained = np.pad(trained, (0, accountant.records - len(trained)))
                            trained[positions] = True
                    case _:
                        raise ValueError("not a line of a ledger")
        except (LookupError, ValueError, TypeError, zlib.error) as error:
            if version == VERSION:
                raise ConfigurationError(
                    f"line {number} of the privacy ledger {path} is damaged; restore the file from a copy"
                ) from error
        if version != VERSION:
            raise ConfigurationError(
                f"the privacy ledger {path} has version {version}, but this toolkit reads {VERSION}; use the version "
                "of lightning_vfl that wrote it"
            )
        size = sum(len(line) + 1 for line in lines)
        sent = np.unique(np.concatenate(clear))
        return cls(path, run, accountant.records, whole, size, after, known, trained, sent, sums, left_out), accountant

    @classmethod
    def resume(cls, path: Path) -> tuple["PrivacyLedger", PrivacyAccountant]:
        """As ``read``, and make the file ready for appending: an incomplete last line is removed."""
        ledger, accountant = cls.read(path)
        try:
            with _locked(path) as file:
                os.lseek(file, ledger.size, os.SEEK_SET)
                if b"\n" in os.read(file, os.fstat(file).st_size):
                    raise _changed_meanwhile(path)  # a charge since the file was read, which must stay
                os.ftruncate(file, ledger.size)
        except OSError as error:
            raise ConfigurationError(
                f"the privacy ledger {path} cannot be written ({error.strerror}); make the file writable"
            ) from error
        return ledger, accountant

    def charge(
        self, number: int, event: PrivacyEvent, record_ids: "Tensor | NDArray[np.int64]", stage: str = ""
    ) -> None:
        """Append the release of these records in a round, and wait until it is on the disk; ``stage``: "" is training.

        Args:
            number: of the round in its stage.
            event: the release.
            record_ids: (B,) positions.
            stage: of the round, if it does not train.
        """
        entry: dict[str, Any] = {"round": number}
        if stage:
            entry["stage"] = stage
        self._write(entry | {"event": event.plain(), "ids": _packed(as_array(record_ids))})

    def name(self, hashes: "NDArray[np.int64]") -> None:
        """Append the hashes of further records, and wait until they are on the disk."""
        self._write({"named": text_of(hashes)})
        self.records = max(self.records, len(self.known) + len(hashes))

    def note_clear(self, hashes: "NDArray[np.int64]") -> None:
        """Append the hashes of records that are sent in the clear, and wait until they are on the disk."""
        self._write({"clear": text_of(hashes)})

    def note_sum(self, network: str, summed: Sum, stage: str) -> None:
        """Append a sum of embeddings of a network, and wait until it is on the disk."""
        when = {"stage": stage, "trained": summed.trained}
        self._write({"summed": list(summed.parties), "network": network, **when, "records": text_of(summed.records)})

    def note_left_out(self, network: str, number: int, stage: str) -> None:
        """Append that the party is left out of a round, and wait until it is on the disk."""
        self._write({"left_out": network, "round": number, "stage": stage})

    def _write(self, entry: dict[str, Any]) -> None:
        line = _line(entry)
        try:
            with _locked(self.path) as file:
                if os.fstat(file).st_size != self.size:
                    raise _changed_meanwhile(self.path)
                _append(file, line)
        except OSError as error:
            raise ConfigurationError(
                f"the privacy ledger {self.path} cannot be written ({error.strerror}), so no more records are "
                "released; make room on the disk or put the file back, and resume from the last checkpoint"
            ) from error
        self.size += len(line)


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def _carried(accountant: PrivacyAccountant) -> Iterator[dict[str, Any]]:
    """The accountant's counts as charges without a round: one for each event and count."""
    for event, counts in accountant.counts.items():
        for times in np.unique(counts[counts > 0]).tolist():
            yield {"event": event.plain(), "times": times, "ids": _packed(np.flatnonzero(counts == times))}


def _packed(ids: "NDArray[Any]") -> str:
    steps = np.diff(np.sort(ids.astype(np.int64)), prepend=0).astype("<u8")
    return b64encode(zlib.compress(steps.tobytes(), 1)).decode("ascii")  # level 1: a fifth of the time, 3 % more bytes


def _unpacked(text: str) -> "NDArray[np.int64]":
    steps = np.frombuffer(zlib.decompress(b64decode(text, validate=True)), "<u8")
    return np.cumsum(steps.astype(np.int64))


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """The number of the open file, which no other process appends to or cuts meanwhile."""
    file = os.open(path, os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0))
    try:
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def _append(file: int, text: bytes) -> None:
    """Append a text and wait until it is on the disk; after an error the file is as before."""
    before = os.fstat(file).st_size
    written = 0
    try:
        while written < len(text):
            written += os.write(file, text[written:])
        os.fsync(file)
    except BaseException:
        if os.fstat(file).st_size == before + written:  # and no other process has appended without a lock
            os.ftruncate(file, before)  # a later line would be glued to the part that was written
        raise


def _changed_meanwhile(path: Path) -> ConfigurationError:
    """The error for a ledger that two runs use at a time."""
    return ConfigurationError(
        f"the privacy ledger {path} was changed by another process during this run; let one run on a ledger end before "
        "the next one begins"
    )


def is_unused(path: Path) -> bool:
    """Whether a file is a privacy ledger without a charge or a sum; notes of evaluations in the clear are none."""
    if path.suffix != ".jsonl":
        return False
    try:
        head, *entries = [json.loads(line) for line in path.read_bytes().splitlines()]
    except (OSError, ValueError):
        return False
    return "privacy_ledger" in head and not any("event" in entry or "summed" in entry for entry in entries)
