"""The privacy spent by a training: the accountant, and the ledger on the disk that the accountant agrees with."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.accountant import PrivacyAccountant
from lightning_vfl.privacy.digits import rounded_up
from lightning_vfl.privacy.events import UNITS, PrivacyEvent
from lightning_vfl.privacy.known_records import KnownRecords
from lightning_vfl.privacy.ledger import PrivacyLedger
from lightning_vfl.privacy.loss_distribution import Figure

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Hashes = NDArray[np.int64]
    Ids = Sequence[object] | NDArray[np.generic]


@dataclass(frozen=True)
class SeatLedger:
    """The ledger of a party's data, which all its fits, evaluations and predictions continue.

    Args:
        path: the file.
        after: begin a new ledger in place of the one of this run, once; "": continue the one that is there.
    """

    path: Path
    after: str = ""


@dataclass
class PrivacyBooks:
    """The privacy that the releases of records have spent: those of training, and of evaluations by the protocol.

    Every charge is also written to the ledger, a file beside the run or, for a party of a federation, beside its
    ``seat.yaml``. A resumed run takes its figures from the ledger: these also count the rounds after the checkpoint.

    Args:
        delta: δ of the figures.
        unit: the unit of privacy of the logged figure.
        target: the largest ε of that unit and δ; None: there is no budget.
        seat: the ledger of a party's data; None: every run has its own.
        accountant: the accountant; None before the first stage that releases, and if the aggregator does not account.
        ledger: the open ledger; None: there is none yet, or it was not found, or another process writes it.
        known: the account's records by the hashes of their ids.
        trained: (n,) bool, n ≤ N, the records that training has released.
        clear: hashes of the records that were sent in the clear.
        places: by stage, (n,) the positions in the account of the records of the stage.
        shown: the latest figure of the log, for those who watch the process; None: there is none.
    """

    delta: float = 1e-5
    unit: str = "party-record"
    target: float | None = None
    seat: SeatLedger | None = None
    accountant: PrivacyAccountant | None = None
    ledger: PrivacyLedger | None = None
    known: KnownRecords = field(default_factory=lambda: KnownRecords(token_hex(16)))
    trained: "NDArray[np.bool_]" = field(default_factory=lambda: np.zeros(0, bool))
    clear: "Hashes" = field(default_factory=lambda: np.zeros(0, np.int64))
    places: dict[str, Tensor] = field(default_factory=dict)
    shown: float | None = None
    _known: dict[str, Any] | None = None  # the checkpoint's reference to its ledger
    _near: Path | None = None  # the file of the loaded checkpoint
    _resumed: bool = False  # whether the counts came from a checkpoint
    _read_only: bool = False  # whether the ledger was read with a checkpoint, and is not open for writing
    _beside: "PrivacyBooks | None" = None  # holds the ledger of the seat for notes, while nothing is charged

    def open(
        self, ids: "Ids", folder: Path | None, ledger: str = "auto", trains: bool = True, names: bool = True
    ) -> str | None:
        """Open the account for these records, and give those that it does not know places of their own.

        The method finds and reads the ledger of the seat or the run, and gives the accountant the charges in the
        ledger. A run without a ledger gets a new one in ``folder`` (None: it gets none).

        Args:
            ids: (n,) the ids of the records of a stage.
            folder: the folder of the run.
            ledger: ``auto``, ``lost``, or the path of a ledger to continue; see ``VFLModule``.
            trains: they are the training records of a fit: a ledger that is named and knows none of them is refused.
            names: give unknown records places; False: they are not charged.

        Returns:
            What the ledger of a seat knows of the records, in words; None: there is no seat, or nothing to say.

        Raises:
            ConfigurationError: if the ledger that a checkpoint names is not found, unless ``lost``; if the ledger has
                fewer charges than the checkpoint, or belongs to other records; if it cannot be read or written.
        """
        named = self.seat is not None or ledger not in ("auto", "lost")
        if self.accountant is None or (trains and not named and self._are_others(ids)):
            self._start_over()
        self._find_charges(ledger)
        self._read_only = False
        if self.accountant is None:
            raise RuntimeError("the account was not opened")
        if trains and named and self._are_others(ids) and self._charged():
            path = self.ledger.path if self.ledger is not None else ledger
            raise ConfigurationError(
                f"the privacy ledger {path} knows none of the {len(ids):,} training records, but "
                f"{self.accountant.records:,} others: it is of another table; give each table a ledger of its own "
                + ("(ledger: in seat.yaml)" if self.seat is not None else "(privacy_ledger)")
            )
        if self.ledger is None and (folder is not None or self.seat is not None):
            place, after = (folder, "") if self.seat is None else (self.seat.path, self.seat.after)
            whole = not self._resumed or self.seat is not None
            self.ledger = PrivacyLedger.begin(place or Path(), self.accountant, whole, self.known, after)
            self.known = self.ledger.known
            self._known = self._reference()
        words = self._in_words(ids) if self.seat is not None else None
        if names:
            self._name(ids)
        return words

    def notes(self, run: str) -> PrivacyLedger | None:
        """The ledger of the seat, open for lines that charge nothing; None: there is no seat.

        Args:
            run: of the ledger that a checkpoint names; "": it names none.

        Raises:
            ConfigurationError: as ``open``, for a ledger that is missing, belongs to another run or is damaged.
        """
        if self.seat is None:
            return None
        if self.ledger is not None and not self._read_only:
            return self.ledger
        if self._beside is None:
            beside = PrivacyBooks(seat=self.seat)
            beside._start_over()
            beside._known = {"run": run, "path": str(self.seat.path)} if run else None
            beside.open([], None, trains=False, names=False)
            self._beside = beside
        return self._beside.ledger

    def rows(self, ids: "Ids") -> Tensor:
        """(n,) the positions in the account of records for which it was opened."""
        return torch.from_numpy(self.known.positions(self.known.hashed(ids)))

    def spend(self, number: int, event: PrivacyEvent, record_ids: Tensor, stage: str = "") -> None:
        """Charge a round, also in the ledger; returns when the charge is on the disk.

        Args:
            number: of the round in its stage.
            event: the release.
            record_ids: (B,) positions in the account.
            stage: of the round; "": training.
        """
        if self.accountant is None:
            return
        self.accountant.spend(event, record_ids)
        if not stage:
            self._note_trained(record_ids.cpu().numpy())
        if self.ledger is not None and len(record_ids):
            self.ledger.charge(number, event, record_ids, stage)

    def refuse_above(self, events: Iterable[PrivacyEvent], record_ids: Tensor, what: str) -> None:
        """Refuse a release of these records by the worst of some events, if it could exceed the budget.

        Args:
            events: that a round may be.
            record_ids: (B,) positions in the account, once for each release.
            what: releases them, for the error.

        Raises:
            ConfigurationError: naming the budget and what is spent.
        """
        if self.target is None or self.accountant is None:
            return
        worst = max((self.accountant.reserve(e, record_ids, self.delta, self.unit) for e in events), default=0.0)
        if worst > self.target:
            raise ConfigurationError(
                f"the budget of ε = {self.target:g} of a {self.unit} at δ = {self.delta:g} has no room for {what}: "
                f"{self.epsilon():.4g} is spent, and it could make that {worst:.4g}; leave it out, or raise the budget"
            )

    def send_in_the_clear(self, ids: "Ids", what: str) -> None:
        """Note records whose embeddings are sent as they are, in the ledger too, before they are sent.

        Raises:
            ConfigurationError: if there is a budget, and training has released some of them.
        """
        if self.accountant is None:
            return
        hashes = self.known.hashed(ids)
        new = np.setdiff1d(hashes, self.clear)
        if self.target is not None and (trained := int(self._among_trained(hashes).sum())):
            raise ConfigurationError(
                f"{what} would send the embeddings of {trained:,} training records in the clear, an ε of infinity for "
                f"these, above the budget of {self.target:g}; use evaluate: protocol, or leave these records out"
            )
        if len(new):
            if self.ledger is not None and self._read_only:
                self._take(*PrivacyLedger.resume(self.ledger.path))
                self._read_only = False
            if self.ledger is not None:
                self.ledger.note_clear(new)
            self.clear = np.union1d(self.clear, new)

    def refuse_disclosed(self, ids: "Ids") -> None:
        """Refuse a training under a budget with records that were sent in the clear before.

        Raises:
            ConfigurationError: naming their number.
        """
        if self.target is None or not len(self.clear):
            return
        if count := int(np.isin(self.known.hashed(ids), self.clear).sum()):
            raise ConfigurationError(
                f"{count:,} training records were sent in the clear before, so their ε is infinite and no budget holds "
                "for them; leave these records out, or give no budget"
            )

    def in_the_clear(self) -> str | None:
        """What was sent in the clear, as a text for the summary; None: nothing of which the account knows."""
        if not len(self.clear):
            return None
        trained = int(self._among_trained(self.clear).sum())
        return (
            f"the embeddings of {len(self.clear):,} records were sent as they are, {trained:,} of them training "
            "records; no ε is claimed for these, because it is infinite"
        )

    def epsilon(self) -> float:
        """ε of the chosen unit, rounded up as ``rounded_up`` says, for the log; 0 without an accountant."""
        if self.accountant is None:
            return 0.0
        self.shown = rounded_up(self.accountant.epsilon(self.delta, self.unit))
        return self.shown

    def figures(self) -> dict[str, float]:
        """ε by unit, as the accountant has it."""
        return {} if self.accountant is None else {unit: self.accountant.epsilon(self.delta, unit) for unit in UNITS}

    def tightest(self) -> dict[str, Figure]:
        """The smallest known ε by unit, and its account."""
        return {} if self.accountant is None else {unit: self.accountant.tightest(self.delta, unit) for unit in UNITS}

    def coverage(self) -> str | None:
        """The rounds that the figures count, as a text for the summary; None without an accountant."""
        if self.accountant is None:
            return None
        if self.ledger is None:
            lost = self._known is not None or self._resumed
            return "none found; rounds after the checkpoint are not charged" if lost else "none; this run kept no file"
        if not self.ledger.whole:
            return f"{self.ledger.path}; it began at a checkpoint without one: rounds after that are not charged"
        return str(self.ledger.path)

    # ---- checkpoints

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        if self.accountant is None:
            return {}
        names = {"key": self.known.key, "hashes": torch.from_numpy(self.known.hashes.copy())}
        seen = {"trained": torch.from_numpy(self.trained.copy()), "clear": torch.from_numpy(self.clear.copy())}
        return {**self.accountant.state_dict(), "ledger": self._known, "names": names, **seen}

    def load(self, state: dict[str, Any], near: str | Path | None = None) -> None:
        """Restore a checkpoint; take the charges of its ledger if it is found; ``near``: the checkpoint's file."""
        self._start_over()
        self._beside = None
        self._known = state.get("ledger")
        self._near = None if near is None else Path(near)
        self._resumed = bool(state)
        if not state:
            self.accountant = None
            return
        self.accountant = PrivacyAccountant(state["records"])
        self.accountant.load_state_dict(state)
        self.known = KnownRecords(state["names"]["key"], state["names"]["hashes"].cpu().numpy())
        self.trained = state["trained"].cpu().numpy()
        self.clear = state["clear"].cpu().numpy()
        if (path := self._find()) is not None:
            self._take(*PrivacyLedger.read(path))
            self._read_only = True

    def follow(self, state: dict[str, Any]) -> None:
        """Take the counts of another process of the fit; that process writes the ledger."""
        self.load({**state, "ledger": None})

    # ---- inside

    def _start_over(self) -> None:
        """An account without records and without charges."""
        self.accountant = PrivacyAccountant(0)
        self.ledger = None
        self._known = None
        self._resumed = False
        self.known = KnownRecords(token_hex(16))
        self.trained = np.zeros(0, bool)
        self.clear = np.zeros(0, np.int64)
        self.places = {}

    def _find_charges(self, ledger: str) -> None:
        """Take the charges of the ledger that is to be continued.

        Raises:
            ConfigurationError: as ``open``.
        """
        if self.seat is not None and self.seat.path.exists():
            found = PrivacyLedger.resume(self.seat.path.absolute())
            if self.seat.after and found[0].run == self.seat.after:
                self._replace(found[0])
            elif self.seat.after not in ("", found[0].after):
                raise ConfigurationError(
                    f"the privacy ledger {self.seat.path} has the run {found[0].run}, not {self.seat.after}; give the "
                    "word for a new ledger the run of the ledger that ends"
                )
            else:
                self._take(*found)
            return
        if self.seat is not None and self.seat.after:
            if self._known is None or self._known["run"] != self.seat.after:
                raise ConfigurationError(
                    f"there is no privacy ledger {self.seat.path} to end; leave out --new_ledger_after"
                )
            self._start_over()  # the file is lost, and the user says so
            return
        named = self.seat is None and ledger not in ("auto", "lost")
        if (path := Path(ledger) if named else self._find()) is not None:
            self._take(*PrivacyLedger.resume(path.absolute()))
            return
        if self._known is not None:
            if ledger != "lost":
                raise ConfigurationError(
                    f"the privacy ledger {PrivacyLedger.file_name(self._known['run'])} is missing, so the rounds that "
                    f"were released after the checkpoint cannot be charged; put it back to {self._known['path']} or "
                    f"beside the checkpoint, or {self._way_out()}"
                )
            self.ledger = None
            self._known = None
            self._resumed = True

    def _way_out(self) -> str:
        if self.seat is None or self._known is None:
            return "set privacy_ledger: lost to count only the charges in the checkpoint"
        return f"begin a new one with --new_ledger_after {self._known['run']}"

    def _replace(self, ended: PrivacyLedger) -> None:
        """End the ledger of a seat: its file is renamed, and the account begins anew."""
        kept = ended.path.with_name(f"{ended.path.stem}-{ended.run}.jsonl")
        ended.path.rename(kept)
        self._start_over()

    def _take(self, ledger: PrivacyLedger, accountant: PrivacyAccountant) -> None:
        """Take the charges of the ledger, which must not be fewer than the charges known so far."""
        known = self.accountant
        run = None if self._known is None else self._known["run"]
        if known is None or run not in (None, ledger.run, ledger.after):
            raise ConfigurationError(
                f"the privacy ledger {ledger.path} belongs to another run; give the file of this run"
            )
        if run != ledger.after and not accountant.covers(known):
            raise ConfigurationError(
                f"the privacy ledger {ledger.path} has fewer charges than the checkpoint, so lines are missing; "
                "restore the file from a copy"
            )
        self.accountant = accountant
        self.ledger = ledger
        self.known = ledger.known
        self.trained = ledger.trained
        self.clear = ledger.clear
        self._known = self._reference()

    def _name(self, ids: "Ids") -> None:
        """Give unknown records places in the account."""
        new = self.known.unknown(self.known.hashed(ids))
        if self.accountant is None or not len(new):
            return
        if self.ledger is not None:
            self.ledger.name(new)
        self.known.add(new)
        self.accountant.grow(len(self.known))

    def _are_others(self, ids: "Ids") -> bool:
        """Whether none of these records is in the account, which has some."""
        return len(self.known) > 0 and bool((self.known.positions(self.known.hashed(ids)) < 0).all())

    def _charged(self) -> bool:
        return self.accountant is not None and bool(self.accountant.state_dict()["events"])

    def _among_trained(self, hashes: "Hashes") -> "NDArray[np.bool_]":
        positions = self.known.positions(hashes)
        inside = (positions >= 0) & (positions < len(self.trained))
        return inside & self.trained[np.where(inside, positions, 0)] if len(self.trained) else inside

    def _note_trained(self, positions: "Hashes") -> None:
        if self.accountant is not None and len(self.trained) < self.accountant.records:
            self.trained = np.pad(self.trained, (0, self.accountant.records - len(self.trained)))
        self.trained[positions] = True

    def _in_words(self, ids: "Ids") -> str:
        """What the ledger knows of these records."""
        known = int((self.known.positions(self.known.hashed(ids)) >= 0).sum())
        spent = f"ε = {self.epsilon():.4g} of a {self.unit} at δ = {self.delta:g} is spent"
        run = "" if self.ledger is None else f" (run {self.ledger.run})"
        return f"privacy ledger {self._where()}{run}: knows {known:,} of these {len(ids):,} records; {spent}"

    def _where(self) -> Path | str:
        return "of this run" if self.ledger is None else self.ledger.path

    def _find(self) -> Path | None:
        """The known ledger: at its old path, or in the checkpoint's folder or one of the two folders above it."""
        if self._known is None or self.seat is not None:
            return None
        name = PrivacyLedger.file_name(self._known["run"])
        places = [Path(self._known["path"])]
        if self._near is not None:
            places += [folder / name for folder in list(self._near.absolute().parents)[:3]]
        return next((place for place in places if place.is_file()), None)

    def _reference(self) -> dict[str, Any] | None:
        """The reference to the ledger in a checkpoint."""
        return None if self.ledger is None else {"run": self.ledger.run, "path": str(self.ledger.path)}
