"""Over whom a party's records have been summed, in the ledger of its seat: all its runs with one network add up."""

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from lightning_vfl.privacy.known_records import KnownRecords
from lightning_vfl.privacy.ledger import PrivacyLedger, Sum
from lightning_vfl.protocols.accounts.charging import joint_ids, names_of
from lightning_vfl.protocols.scores import SPLITS
from lightning_vfl.protocols.subtraction import SummedSets
from lightning_vfl.types import Parties, Stage, VerticalBatch, stage_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Hashes = NDArray[np.int64]

SEAT = "seat"  # stands for the stage: a record is the same one in every stage


class SeatSums:
    """The sums of one network, as the ledger of a seat has them.

    Guarantee: when ``enter`` or ``leave_out`` returns, its line is on the disk. A sum over all parties that the ledger
        has already takes no line, so a training without absences writes every record once. A sum without a party takes
        a line if the ledger has it only from fewer rounds of training: production serves sums over all parties, and
        reads here which records were summed without one, and when.
    Not guaranteed: anything about sums of another network, which begins anew, and about a ledger that was edited.

    Args:
        ledger: of the seat.
        summed: the sums of the module, which become those of the ledger.
        parties: M, of a sum over all parties.
    """

    def __init__(self, ledger: PrivacyLedger, summed: SummedSets, parties: int) -> None:
        self.ledger = ledger
        self.summed = summed
        self.loads = summed.loads
        self.left_out = ledger.left_out[summed.network]
        self._parties = parties
        self._known = KnownRecords(ledger.known.key)
        self._hashes: dict[Stage, Hashes] = {}
        self._latest: dict[Parties, Hashes] = {}  # by parties and position of a record, rounds of training
        summed.drop(SEAT)
        for one in ledger.sums.get(summed.network, ()):
            self._count(one, self._positions(one.records))
        summed.run = ledger.run

    def enter(self, module: Any, stage: Stage, parties: Iterable[int], batch: VerticalBatch) -> None:
        """Note a sum over these parties, for the records of a batch, before it can be computed."""
        members = tuple(sorted(parties))
        if not members:
            return
        hashes = self._of_stage(module, stage)[joint_ids(batch).numpy()]
        positions = self._positions(hashes)
        trained = module.books.training_rounds
        enough = 0 if len(members) == self._parties else trained
        lacking = self._latest_of(members)[positions] < enough
        if lacking.any():
            one = Sum(members, hashes[lacking], trained)
            self.ledger.note_sum(self.summed.network, one, str(stage_of(stage)))
            self._count(one, positions[lacking])

    def leave_out(self, number: int, stage: Stage) -> None:
        """Note a round of which the party was left out."""
        self.ledger.note_left_out(self.summed.network, number, str(stage_of(stage)))
        self.left_out += 1

    def _count(self, one: Sum, positions: "Hashes") -> None:
        latest = self._latest_of(one.parties)
        latest[positions] = np.maximum(latest[positions], one.trained)
        self.summed.enter(SEAT, one.parties, torch.from_numpy(positions))

    def _latest_of(self, parties: Parties) -> "Hashes":
        """By position of a record, the rounds of training before its latest sum over these parties; -1: none."""
        latest = self._latest.get(parties, np.empty(0, np.int64))
        if len(latest) < len(self._known):
            latest = np.pad(latest, (0, len(self._known) - len(latest)), constant_values=-1)
            self._latest[parties] = latest
        return latest

    def _positions(self, hashes: "Hashes") -> "Hashes":
        self._known.add(self._known.unknown(hashes))
        return self._known.positions(hashes)

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
