"""The turns of a round, which all processes count alike."""

from typing import TYPE_CHECKING

from lightning_vfl.aggregators.clear import InTheClear
from lightning_vfl.federation.hub import At
from lightning_vfl.types import RoundNames, Stage, VerticalBatch, joint_rows
from lightning_vfl.wire import Gate, Leg

if TYPE_CHECKING:
    from lightning_vfl.protocols.module import VFLModule
    from lightning_vfl.protocols.split import SplitVFL

CUT = 2**16  # the turn of what crosses the cut of a top, after all other turns of a round
_ORDER = (Stage.SANITY_CHECK, Stage.VALIDATION, Stage.FIT, Stage.TEST, Stage.PREDICT)


def at_of(module: "VFLModule", names: RoundNames, batch: int) -> At:
    """Where a round is in the training: ``batch`` is its number in an evaluation, 0 in training."""
    begun = names.round if names.stage == Stage.FIT else module.books.rounds.get(str(Stage.FIT), 0)
    return At(begun, _ORDER.index(names.stage), batch)


def clear_leg(module: "VFLModule", batch: VerticalBatch) -> Leg:
    """The one leg of an evaluation of embeddings in the clear."""
    wire = InTheClear(module.aggregator)
    return wire.legs(joint_rows(batch).total, module.embedding_widths, (), module.roster)[0]


def turns_of(module: "SplitVFL", batch: VerticalBatch) -> list[Leg]:
    """The legs of the parties that are turns of their own; other legs travel with them."""
    legs = module.costs.legs(module.coded_rows(batch))
    return [leg for leg in legs if leg.gate != Gate.PREVIOUS and leg.to != "parties"]
