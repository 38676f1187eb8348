"""Over whom a party's records have been summed, in the ledger of its seat: all its runs with one network add up."""

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lightning_vfl.privacy.known_records import KnownRecords
from lightning_vfl.privacy.ledger import PrivacyLedger
from lightning_vfl.protocols.accounts.charging import joint_ids, names_of
from lightning_vfl.protocols.preparation import stage_of
from lightning_vfl.protocols.scores import SPLITS
from lightning_vfl.protocols.subtraction import SummedSets
from lightning_vfl.types import Stage, VerticalBatch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Hashes = NDArray[np.int64]

SEAT = "seat"  # stands for the stage: a record is the same one in every stage


class SeatSums:
    """The sums of one network, as the ledger of a seat has them.

    Guarantee: when ``enter`` or ``leave_out`` returns, its line is on the disk. A sum that the ledger has already takes
        no line, so a training without absences writes every record once.
    Not guaranteed: anything about sums of another network, which begins anew, and about a ledger that was edited.

    Args:
        ledger: of the seat.
        summed: the sums of the module, which become those of the ledger.
    """

    def __init__(self, ledger: PrivacyLedger, summed: SummedSets) -> None:
        self.summed = summed
        self.loads = summed.loads
        self.left_out = ledger.left_out[summed.network]
        self._known = KnownRecords(ledger.known.key)
        self._hashes: dict[Stage, Hashes] = {}
        summed.drop(SEAT)
        for parties, hashes in ledger.sums.get(summed.network, ()):
            self._count(parties, hashes)
        summed.run = ledger.run

    def enter(
        self, ledger: PrivacyLedger, module: Any, stage: Stage, parties: Iterable[int], batch: VerticalBatch
    ) -> None:
        """Note a sum over these parties, for the records of a batch, before it can be computed."""
        self._note(ledger, tuple(sorted(parties)), self._of_stage(module, stage)[joint_ids(batch).numpy()])

    def leave_out(self, ledger: PrivacyLedger, number: int, stage: Stage) -> None:
        """Note a round of which the party was left out."""
        ledger.note_left_out(self.summed.network, number, str(stage_of(stage)))
        self.left_out += 1

    def _note(self, ledger: PrivacyLedger, parties: tuple[int, ...], hashes: "Hashes") -> None:
        self._known.add(self._known.unknown(hashes))
        lacking = self.summed.lacks(SEAT, parties, torch.from_numpy(self._known.positions(hashes)))
        if parties and lacking.any():
            ledger.note_sum(self.summed.network, parties, hashes[lacking])
            self._count(parties, hashes[lacking])

    def _count(self, parties: tuple[int, ...], hashes: "Hashes") -> None:
        self._known.add(self._known.unknown(hashes))
        self.summed.enter(SEAT, parties, torch.from_numpy(self._known.positions(hashes)))

    def _of_stage(self, module: Any, stage: Stage) -> "Hashes":
        """(n,) the hashes of the records of a stage."""
        stage = stage_of(stage)
        if stage not in self._hashes:
            self._hashes[stage] = self._known.hashed(
                names_of(module.datamodule.records({Stage.FIT: "train", **SPLITS}[stage]))
            )
        return self._hashes[stage]


def network_of(bottom: nn.Module) -> str:
    """A name of a network: a hash of its weights, which are those of its start when this is first asked."""
    content = hashlib.sha256()
    for name, value in sorted(bottom.state_dict().items()):
        content.update(name.encode())
        content.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return content.hexdigest()[:32]
