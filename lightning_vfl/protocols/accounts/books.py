"""The privacy spent by a training: the accountant, and the ledger on the disk that the accountant agrees with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.accountant import PrivacyAccountant
from lightning_vfl.privacy.digits import rounded_up
from lightning_vfl.privacy.events import UNITS, PrivacyEvent
from lightning_vfl.privacy.ledger import PrivacyLedger
from lightning_vfl.privacy.loss_distribution import Figure


@dataclass
class PrivacyBooks:
    """The privacy that training has spent.

    While a fit runs, every charge is also written to the ledger, a file beside the run. A resumed run takes its figures
    from the ledger: these also count the rounds after the checkpoint.

    Args:
        delta: δ of the figures.
        unit: the unit of privacy of the logged figure.
        accountant: the accountant; None before the first fit, and if the aggregator does not account for privacy.
        ledger: the open ledger; None: there is none yet, or it was not found, or another process writes it.
    """

    delta: float = 1e-5
    unit: str = "party-record"
    accountant: PrivacyAccountant | None = None
    ledger: PrivacyLedger | None = None
    _known: dict[str, Any] | None = None  # the checkpoint's reference to its ledger
    _near: Path | None = None  # the file of the loaded checkpoint
    _resumed: bool = False  # whether the counts came from a checkpoint

    def open(self, records: int, folder: Path | None, ledger: str = "auto") -> None:
        """Open the account of N records; an open account of N records keeps its charges.

        The method finds and reads the ledger of the run, and gives the accountant the charges in the ledger. A run
        without a ledger gets a new one in ``folder`` (None: it gets none).

        Args:
            records: N.
            folder: the folder of the run.
            ledger: ``auto``, ``lost``, or the path of a ledger to continue; see ``VFLModule``.

        Raises:
            ConfigurationError: if the ledger that a checkpoint names is not found, unless ``lost``; if the ledger has
                fewer charges than the checkpoint, or belongs to other records; if it cannot be read or written.
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
                    "the checkpoint, or set privacy_ledger: lost to count only the charges in the checkpoint"
                )
            self.ledger, self._known, self._resumed = None, None, True
        if folder is not None:
            self.ledger = PrivacyLedger.begin(folder, self.accountant, whole=not self._resumed)
            self._known = self._reference()

    def spend(self, number: int, event: PrivacyEvent, record_ids: Tensor) -> None:
        """Charge a round, also in the ledger; returns when the charge is on the disk."""
        if self.accountant is None:
            return
        self.accountant.spend(event, record_ids)
        if self.ledger is not None and len(record_ids):
            self.ledger.charge(number, event, record_ids)

    def epsilon(self) -> float:
        """ε of the chosen unit, rounded up as ``rounded_up`` says, for the log; 0 without an accountant."""
        return 0.0 if self.accountant is None else rounded_up(self.accountant.epsilon(self.delta, self.unit))

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
            return "none found; rounds after the checkpoint are not charged" if lost else "none; this fit kept no file"
        if not self.ledger.whole:
            return f"{self.ledger.path}; it began at a checkpoint without one: rounds after that are not charged"
        return str(self.ledger.path)

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        return {} if self.accountant is None else {**self.accountant.state_dict(), "ledger": self._known}

    def load(self, state: dict[str, Any], near: Path | None = None) -> None:
        """Restore a checkpoint; take the charges of its ledger if it is found; ``near``: the checkpoint's file."""
        self.accountant = PrivacyAccountant(state["records"]) if state else None
        self.ledger, self._known, self._near, self._resumed = None, state.get("ledger"), near, bool(state)
        if self.accountant is None:
            return
        self.accountant.load_state_dict(state)
        if (path := self._find()) is not None:
            self._take(*PrivacyLedger.read(path))

    def follow(self, state: dict[str, Any]) -> None:
        """Take the counts of another process of the fit; that process writes the ledger."""
        self.load({**state, "ledger": None})

    def _take(self, ledger: PrivacyLedger, accountant: PrivacyAccountant) -> None:
        """Take the charges of the ledger, which must not be fewer than the charges known so far."""
        known = self.accountant
        if known is None or (self._known is not None and ledger.run != self._known["run"]):
            raise ConfigurationError(
                f"the privacy ledger {ledger.path} belongs to another run; give the file of this run"
            )
        if ledger.records != known.records:
            raise ConfigurationError(
                f"the privacy ledger {ledger.path} is for {ledger.records:,} records, but this run has "
                f"{known.records:,}; give the ledger of a run with these records"
            )
        if not accountant.covers(known):
            raise ConfigurationError(
                f"the privacy ledger {ledger.path} has fewer charges than the checkpoint, so lines are missing; "
                "restore the file from a copy"
            )
        self.accountant, self.ledger = accountant, ledger
        self._known = self._reference()

    def _find(self) -> Path | None:
        """The known ledger: at its old path, or in the checkpoint's folder or one of the two folders above it."""
        if self._known is None:
            return None
        name = PrivacyLedger.name(self._known["run"])
        beside = [] if self._near is None else [folder / name for folder in list(self._near.absolute().parents)[:3]]
        return next((place for place in (Path(self._known["path"]), *beside) if place.is_file()), None)

    def _reference(self) -> dict[str, Any] | None:
        """The reference to the ledger in a checkpoint."""
        return None if self.ledger is None else {"run": self.ledger.run, "path": str(self.ledger.path)}
