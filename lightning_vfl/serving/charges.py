"""What the answers of a party cost: a charge for each record, in the ledger of its seat, before an answer is sent."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.charter import Budget
from lightning_vfl.privacy.accountant import PrivacyAccountant, composed_epsilon
from lightning_vfl.privacy.events import PrivacyEvent
from lightning_vfl.privacy.ledger import PrivacyLedger

if TYPE_CHECKING:
    from numpy.typing import NDArray

STAGE = "production"  # of the lines in the ledger


class Charges:
    """Charges the records of answers to the ledger that the fits and evaluations of the seat charge too.

    Guarantee: when ``charge`` returns, the charge of every record that is not withheld is on the disk. So the ledger
        has at least the answers that were sent, whenever the process is killed. With a budget, no record that is
        answered for passes it, training included.
    Not guaranteed: as ``PrivacyLedger``; a fit beside this process ends one of the two, because the file has changed.

    Args:
        path: the ledger; a new one begins if there is none.
        event: the release of one record.
        budget: of each record; None: there is none, and charges are only counted.

    Raises:
        ConfigurationError: for a ledger that cannot be read or written or knows records by their places alone, and a
            budget that is spent or has no room for one answer.
    """

    def __init__(self, path: Path, event: PrivacyEvent, budget: Budget | None) -> None:
        if path.exists():
            self._ledger, self._accountant = PrivacyLedger.resume(path)
        else:
            self._accountant = PrivacyAccountant(0)
            self._ledger = PrivacyLedger.begin(path, self._accountant)
        if self._accountant.records != len(self._ledger.known):
            raise ConfigurationError(
                f"the ledger {path} has records without ids, which may be those of the table; resume its fit once, "
                "which adds their ids"
            )
        self._event = event
        self._budget = budget
        self._number = 0
        if budget is None:
            return
        if (self.left or 0.0) <= 0:
            raise ConfigurationError(f"the budget of ε = {budget.epsilon:g} in seat.yaml is spent in {path}; raise it")
        once = composed_epsilon({event: 1}, budget.delta)  # what it imports takes seconds: now, not at the first answer
        if once > budget.epsilon:
            raise ConfigurationError(
                f"one answer for a record costs ε = {once:.4g}, above the budget of {budget.epsilon:g} in seat.yaml; "
                "raise it, or train with more noise"
            )

    @property
    def left(self) -> float | None:
        """How much ε the record with the highest cost has left; None: there is no budget."""
        if self._budget is None:
            return None
        return self._budget.epsilon - self._accountant.epsilon(self._budget.delta)

    def charge(self, ids: "NDArray[Any]") -> "NDArray[np.bool_]":
        """Charge these records, each once; (B,) bool, those that are withheld and not charged.

        Args:
            ids: (B,) different ids.

        Raises:
            ConfigurationError: if the ledger cannot be written, or was changed by another process.
        """
        hashes = self._ledger.known.hashed(ids)
        withheld = np.zeros(len(ids), np.bool_)
        if self._budget is not None:
            withheld |= np.isin(hashes, self._ledger.clear)  # sent as they are before: an infinite ε
        new = self._ledger.known.unknown(hashes[~withheld])
        if len(new):
            self._ledger.name(new)
            self._ledger.known.add(new)
            self._accountant.grow(len(self._ledger.known))
        positions = self._ledger.known.positions(hashes)
        if not self._has_room(positions[~withheld]):
            for row in np.flatnonzero(~withheld):
                withheld[row] = not self._has_room(positions[[row]])
        charged = positions[~withheld]
        if len(charged):
            self._accountant.spend(self._event, charged)
            self._ledger.charge(self._number, self._event, charged, STAGE)
            self._number += 1
        return withheld

    def _has_room(self, positions: "NDArray[np.int64]") -> bool:
        if self._budget is None or not len(positions):
            return True
        after = self._accountant.reserve(self._event, positions, self._budget.delta)
        return after <= self._budget.epsilon
