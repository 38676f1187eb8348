"""What a party checks about sums that hide its embeddings: over whom they are, and whether embeddings still change."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.seat_sums import SeatSums, network_of
from lightning_vfl.protocols.subtraction import in_words
from lightning_vfl.types import Stage, VerticalBatch

if TYPE_CHECKING:
    from lightning_vfl.protocols.split import SplitVFL

SHARE = 10  # a tenth of the training records, if neither the recipe nor seat.yaml says more


class SumGuard:
    """One party's memory of the sums of its records. Two sums that differ by one party give its embedding away.

    Guarantee: the party takes part in no sum after which more records than its limit can be computed from the sums that
        it knows of; a sum that it was not called for is taken to be over all others. With the ledger of a seat, these
        are the sums of all fits, resumptions, evaluations and predictions with this network.
    Not guaranteed: anything about sums that the server hides from it, and about gradients that are small but not zero.

    Args:
        party: its number.
    """

    def __init__(self, party: int) -> None:
        self.party = party
        self.limit: int | None = None
        self._told = False
        self._zero_rounds = 0
        self._seat: SeatSums | None = None

    def enter(self, module: "SplitVFL", stage: Stage, summed: Iterable[int], batch: VerticalBatch) -> None:
        """Note a sum over these parties before it can be computed.

        Raises:
            ConfigurationError: if it would give away the embeddings of more records than the limit.
        """
        if not module.wire.traits.subtractable:
            return
        seat = self._seated(module)
        if seat is None:
            module.enter_sum(stage, tuple(summed), batch)
        else:
            seat.enter(module, stage, summed, batch)
        exposed = module.summed.exposed(module.roster)
        words = in_words(exposed)
        if words is None:
            return
        limit = self._limit(module, stage)
        if limit is not None and max(exposed.values()) > limit:
            raise ConfigurationError(
                f"party {self.party} takes part in no more sums, because {words}, and its limit is {limit:,} records; "
                "start again when all parties are there, or raise subtractable_records in seat.yaml"
            )
        if not self._told:
            rank_zero_warn(f"a party was left out of sums of records that it was in before: {words}")
            self._told = True

    def pass_by(self, module: "SplitVFL", stage: Stage, batch: VerticalBatch) -> None:
        """Note a round that the others may have had without this party."""
        if not module.wire.traits.subtractable:
            return
        seat = self._seated(module)
        if seat is not None:
            seat.leave_out(module.books.rounds[str(stage)] - 1, stage)
        self.enter(module, stage, [m for m in range(module.roster.parties) if m != self.party], batch)

    def refuse_zeros(self, module: "SplitVFL", gradients: Sequence[Tensor]) -> None:
        """Refuse an epoch of zero gradients: embeddings would not change, and differences of sums would be exact.

        Raises:
            ConfigurationError: at the last round of an epoch in which all gradients were zero.
        """
        if not module.wire.traits.subtractable:
            return
        changes = any(bool(gradient.any()) for gradient in gradients)
        self._zero_rounds = 0 if changes else self._zero_rounds + 1
        if self._zero_rounds >= max(module.books.epoch_batches, 2):
            raise ConfigurationError(
                f"the server has sent party {self.party} only zero gradients for {self._zero_rounds} rounds, a whole "
                "epoch: embeddings that do not change can be computed from sums over different parties; ask the server "
                "why nothing is learnt"
            )

    def _seated(self, module: "SplitVFL") -> SeatSums | None:
        """The sums in the ledger of the seat; None: this party has none, so checkpoints alone keep them."""
        summed = module.summed
        if not summed.network:
            summed.network = network_of(module.bottoms.parties[self.party])
        ledger = module.privacy.notes(summed.run)
        if ledger is None or module.datamodule is None:
            return None
        if self._seat is None or self._seat.loads != summed.loads:
            self._seat = SeatSums(ledger, summed, module.roster.parties)
            if self._seat.left_out:
                rank_zero_info(f"this party was left out of {self._seat.left_out:,} rounds of this network before")
        self._seat.ledger = ledger  # an evaluation opens it again
        return self._seat

    def _limit(self, module: "SplitVFL", stage: Stage) -> int | None:
        if self.limit is not None or module.allow_embeddings_by_subtraction or module.datamodule is None:
            return self.limit
        trains = stage in (Stage.FIT, Stage.SANITY_CHECK)
        return (len(module.datamodule.records("train")) if trains else module.summed.records()) // SHARE
