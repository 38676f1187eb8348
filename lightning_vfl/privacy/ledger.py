"""The privacy ledger of a run: one line for each round, flushed to the disk before the round's uploads are made.

A checkpoint counts the releases up to the time at which it was saved. A run that is killed later has released more: the
server has read the rounds after the checkpoint, and a resumed run releases the same records again. The ledger counts
these rounds too.
"""

import json
import os
import secrets
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.accountant import PrivacyAccountant
from lightning_vfl.privacy.events import PrivacyEvent, restored
from lightning_vfl.whole_files import flush_folder

if TYPE_CHECKING:
    from numpy.typing import NDArray

VERSION = 1


@dataclass
class PrivacyLedger:
    r"""An append-only file of releases: ``privacy-RUN.jsonl``.

    The first line names the run. Every other line is one charge in JSON: the round's number, the event as plain
    values, the positions of the records, and how often each of them is charged if that is not once. Positions are
    sorted; their differences are stored as unsigned 64-bit little-endian integers, compressed by zlib, in base64.

    Shapes: ``record_ids`` (B,) integers, positions in the N protected records.
    Units: a line of 64 of 1,000 records takes about 300 bytes.
    Guarantee: when ``charge`` returns, its line is on the disk (``fsync``). A process that is killed while it writes
        leaves an incomplete last line; no upload of that round was made, and ``resume`` removes the line. A second
        process that appends to the same file is detected before the uploads of the round.
    Not guaranteed: protection against a person who edits or deletes the file, or against a file system that loses data
        after ``fsync``.

    Args:
        path: the file.
        run: identifies the run; checkpoints of the run keep it.
        records: N.
        whole: the file has every round of the run. False: it began at a checkpoint whose own ledger is unknown.
        size: bytes of the file.

    Raises:
        ConfigurationError: for a file that cannot be read or written, and for a damaged file.

    Examples:
        >>> from tempfile import mkdtemp
        >>> from lightning_vfl.privacy.events import GaussianEvent
        >>> ledger = PrivacyLedger.begin(Path(mkdtemp()), PrivacyAccountant(10))
        >>> ledger.charge(0, GaussianEvent(sigma=2.0, sensitivity=1.0, parties=3), torch.tensor([7, 3]))
        >>> ledger, accountant = PrivacyLedger.read(ledger.path)
        >>> f"{accountant.epsilon(delta=1e-5):.2f}"
        '1.99'
    """

    path: Path
    run: str
    records: int
    whole: bool
    size: int

    @staticmethod
    def name(run: str) -> str:
        """The file name of a run's ledger."""
        return f"privacy-{run}.jsonl"

    @classmethod
    def begin(cls, folder: Path, accountant: PrivacyAccountant, whole: bool = True) -> "PrivacyLedger":
        """Create the ledger of a new run; its first lines charge what the accountant has counted so far."""
        run = secrets.token_hex(8)
        path = folder.absolute() / cls.name(run)
        head = {"privacy_ledger": VERSION, "run": run, "records": accountant.records, "whole": whole}
        text = b"".join(map(_line, (head, *_carried(accountant))))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            size = _append(path, text, os.O_CREAT | os.O_EXCL)
            flush_folder(folder)
        except OSError as error:
            raise ConfigurationError(
                f"the privacy ledger {path} cannot be created ({error.strerror}); give the trainer a logger or a "
                "default_root_dir whose folder can be written"
            ) from error
        return cls(path, run, accountant.records, whole, size)

    @classmethod
    def read(cls, path: Path) -> tuple["PrivacyLedger", PrivacyAccountant]:
        """The ledger, and an accountant that has counted all complete lines of the file; the file is not changed."""
        try:
            *lines, _ = path.read_bytes().split(b"\n")  # text after the last line break is an incomplete line
        except OSError as error:
            raise ConfigurationError(f"the privacy ledger {path} cannot be read ({error.strerror})") from error
        counts: dict[PrivacyEvent, NDArray[np.int64]] = {}
        number, version = 1, VERSION
        try:
            head = json.loads(lines[0])
            version, run = head["privacy_ledger"], str(head["run"])
            records, whole = int(head["records"]), bool(head["whole"])
            for line in lines[1:]:
                number += 1
                entry = json.loads(line)
                one = counts.setdefault(restored(entry["event"]), np.zeros(records, np.int64))
                np.add.at(one, _unpacked(entry["ids"]), int(entry.get("times", 1)))
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
        accountant = PrivacyAccountant(records)
        if counts:
            accountant.load_state_dict(
                {
                    "records": records,
                    "events": [event.plain() for event in counts],
                    "counts": torch.from_numpy(np.stack(list(counts.values())).astype(np.int32)),
                }
            )
        return cls(path, run, records, whole, sum(len(line) + 1 for line in lines)), accountant

    @classmethod
    def resume(cls, path: Path) -> tuple["PrivacyLedger", PrivacyAccountant]:
        """As ``read``, and make the file ready for appending: an incomplete last line is removed."""
        ledger, accountant = cls.read(path)
        try:
            if path.stat().st_size > ledger.size:
                os.truncate(path, ledger.size)
        except OSError as error:
            raise ConfigurationError(
                f"the privacy ledger {path} cannot be written ({error.strerror}); make the file writable"
            ) from error
        return ledger, accountant

    def charge(self, number: int, event: PrivacyEvent, record_ids: Tensor) -> None:
        """Append the release of these records in training round ``number``, and wait until it is on the disk."""
        ids = record_ids.cpu().numpy()
        line = _line({"round": number, "event": event.plain(), "ids": _packed(ids)})
        try:
            size = _append(self.path, line)
        except OSError as error:
            raise ConfigurationError(
                f"the privacy ledger {self.path} cannot be written ({error.strerror}), so no more records are "
                "released; make room on the disk or put the file back, and resume from the last checkpoint"
            ) from error
        if size != self.size + len(line):
            raise ConfigurationError(
                f"the privacy ledger {self.path} was changed by another process during this fit; let one fit of a run "
                "end before the next one resumes it"
            )
        self.size = size


def _line(entry: dict[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def _carried(accountant: PrivacyAccountant) -> Iterator[dict[str, Any]]:
    """The accountant's counts as charges without a round: one for each event and count."""
    state = accountant.state_dict()
    for event, counts in zip(state["events"], state["counts"].numpy(), strict=True):
        for times in np.unique(counts[counts > 0]).tolist():
            yield {"event": event, "times": times, "ids": _packed(np.flatnonzero(counts == times))}


def _packed(ids: "NDArray[Any]") -> str:
    steps = np.diff(np.sort(ids.astype(np.int64)), prepend=0).astype("<u8")
    return b64encode(zlib.compress(steps.tobytes(), 1)).decode("ascii")  # level 1: a fifth of the time, 3 % more bytes


def _unpacked(text: str) -> "NDArray[np.int64]":
    steps = np.frombuffer(zlib.decompress(b64decode(text, validate=True)), "<u8")
    return np.cumsum(steps.astype(np.int64))


def _append(path: Path, text: bytes, create: int = 0) -> int:
    """Append a text, wait until it is on the disk, and return the new size of the file."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0) | create, 0o600)
    try:
        written = 0
        while written < len(text):
            written += os.write(file, text[written:])
        os.fsync(file)
        return os.fstat(file).st_size
    finally:
        os.close(file)
