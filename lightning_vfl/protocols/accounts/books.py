"""What a training has cost its records in privacy: the accountant, and the ledger on the disk that it follows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.accountant import PrivacyAccountant
from lightning_vfl.privacy.events import UNITS, PrivacyEvent
from lightning_vfl.privacy.ledger import PrivacyLedger


@dataclass
class PrivacyBooks:
    """What training has cost its records in privacy.

    While a fit runs, every charge is also in the ledger, a file beside the run. The figures of a resumed run are those
    of the ledger: they have the rounds behind the checkpoint too.

    Args:
        delta: δ that figures are told for.
        unit: what is protected in the figure that is logged.
        accountant: from the first fit on, where the aggregator accounts.
        ledger: the open ledger; None: there is none yet, or it was not found, or this process does not write it.
    """

    delta: float = 1e-5
    unit: str = "party-record"
    accountant: PrivacyAccountant | None = None
    ledger: PrivacyLedger | None = None
    _known: dict[str, Any] | None = None  # what a checkpoint says of its ledger
    _near: Path | None = None  # the checkpoint that was loaded
    _resumed: bool = False  # the counts came from a checkpoint

    def open(self, records: int, folder: Path | None, ledger: str = "auto") -> None:
        """Account for N records; what has been spent on as many stays spent.

        The ledger of the run is found and read, and the accountant has what the ledger says; a run without one gets a
        new ledger in ``folder`` (None: it gets none).

        Args:
            records: N.
            folder: of the run.
            ledger: ``auto``, ``lost``, or the path of a ledger to go on with; see ``VFLModule``.

        Raises:
            ConfigurationError: if the ledger that a checkpoint names is not found, unless ``lost``; if it has charged
                less than the checkpoint, or is of other records; if it cannot be read or written.
        """
        if self.accountant is None or self.accountant.records != records:
            self.accountant, self.ledger, self._known, self._resumed = PrivacyAccountant(records), None, None, False
        path = Path(ledger) if ledger not in ("auto", "lost") else self._find()
        if path is not None:
            self._take(*PrivacyLedger.resume(path.absolute()))
            return
        if self._known is not None:
            if ledger != "lost":
                raise ConfigurationError(
                    f"the privacy ledger {PrivacyLedger.name(self._known['run'])} is missing, so the rounds that were "
                    f"released after the checkpoint cannot be charged; put it back to {self._known['path']} or beside "
                    "the checkpoint, or set privacy_ledger: lost to charge only what the checkpoint knows"
                )
            self.ledger, self._known, self._resumed = None, None, True
        if folder is not None:
            self.ledger = PrivacyLedger.begin(folder, self.accountant, whole=not self._resumed)
            self._known = self._reference()

    def spend(self, number: int, event: PrivacyEvent, record_ids: Tensor) -> None:
        """Charge a round, in the ledger too; returns when the charge is on the disk."""
        if self.accountant is None:
            return
        self.accountant.spend(event, record_ids)
        if self.ledger is not None and len(record_ids):
            self.ledger.charge(number, event, record_ids)

    def epsilon(self) -> float:
        """ε of the chosen unit; 0 where nothing is accounted for."""
        return 0.0 if self.accountant is None else self.accountant.epsilon(self.delta, self.unit)

    def figures(self) -> dict[str, float]:
        """ε by unit."""
        return {} if self.accountant is None else {unit: self.accountant.epsilon(self.delta, unit) for unit in UNITS}

    def coverage(self) -> str | None:
        """Which rounds the figures count, in words for the summary; None: nothing is accounted for."""
        if self.accountant is None:
            return None
        if self.ledger is None:
            lost = self._known is not None or self._resumed
            return "none found; rounds behind the checkpoint are not charged" if lost else "none; this fit kept no file"
        if not self.ledger.whole:
            return f"{self.ledger.path}; it began at a checkpoint without one: rounds behind that are not charged"
        return str(self.ledger.path)

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {} if self.accountant is None else {**self.accountant.state_dict(), "ledger": self._known}

    def load(self, state: dict[str, Any], near: Path | None = None) -> None:
        """Go on from a checkpoint, with what its ledger says if that is found; ``near``: the checkpoint's file."""
        self.accountant = PrivacyAccountant(state["records"]) if state else None
        self.ledger, self._known, self._near, self._resumed = None, state.get("ledger"), near, bool(state)
        if self.accountant is None:
            return
        self.accountant.load_state_dict(state)
        if (path := self._find()) is not None:
            self._take(*PrivacyLedger.read(path))

    def follow(self, state: dict[str, Any]) -> None:
        """Count what another process of the fit counts, and leave the ledger to that process."""
        self.load({**state, "ledger": None})

    def _take(self, ledger: PrivacyLedger, accountant: PrivacyAccountant) -> None:
        """Count what the ledger has, which cannot be less than what is known."""
        known = self.accountant
        if known is None or (self._known is not None and ledger.run != self._known["run"]):
            raise ConfigurationError(f"the privacy ledger {ledger.path} is of another run; give the file of this run")
        if ledger.records != known.records:
            raise ConfigurationError(
                f"the privacy ledger {ledger.path} is of {ledger.records:,} records, this run has {known.records:,}; "
                "give the ledger of a run on these records"
            )
        if not accountant.covers(known):
            raise ConfigurationError(
                f"the privacy ledger {ledger.path} has charged less than the checkpoint, so lines of it are missing; "
                "restore the file from a copy"
            )
        self.accountant, self.ledger = accountant, ledger
        self._known = self._reference()

    def _find(self) -> Path | None:
        """The ledger that is known, where it was, or else in the checkpoint's folder or one of the two above it."""
        if self._known is None:
            return None
        name = PrivacyLedger.name(self._known["run"])
        beside = [] if self._near is None else [folder / name for folder in list(self._near.absolute().parents)[:3]]
        return next((place for place in (Path(self._known["path"]), *beside) if place.is_file()), None)

    def _reference(self) -> dict[str, Any] | None:
        """How a checkpoint names the ledger."""
        return None if self.ledger is None else {"run": self.ledger.run, "path": str(self.ledger.path)}
