"""The turns of a round, which all processes count alike, and what has become of it, as the server tells it."""

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightning_vfl.aggregators.clear import InTheClear
from lightning_vfl.federation.hub import At
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.types import Parties, Roll, RoundNames, Stage, Tensors, VerticalBatch, joint_rows, mask_of
from lightning_vfl.wire import Gate, Leg

if TYPE_CHECKING:
    from lightning_vfl.protocols.module import VFLModule
    from lightning_vfl.protocols.split import SplitVFL

CUT = 2**16  # the turn of what crosses the cut of a top, after all other turns of a round
_ORDER = (Stage.SANITY_CHECK, Stage.VALIDATION, Stage.FIT, Stage.TEST, Stage.PREDICT)
ROLES = ("called", "included", "responders", "filled")  # the masks of a ``Roll``, in its order


def at_of(module: "VFLModule", names: RoundNames, batch: int) -> At:
    """Where a round is in the training: ``batch`` is its number in an evaluation, 0 in training."""
    begun = names.round if names.stage == Stage.FIT else module.books.training_rounds
    return At(begun, _ORDER.index(names.stage), batch)


def clear_leg(module: "VFLModule", batch: VerticalBatch) -> Leg:
    """The one leg of an evaluation of embeddings in the clear."""
    wire = InTheClear(module.aggregator)
    return wire.legs(joint_rows(batch).total, module.embedding_widths, (), module.roster)[0]


def turns_of(module: "SplitVFL", batch: VerticalBatch) -> list[Leg]:
    """The legs of the parties that are turns of their own; other legs travel with them."""
    legs = module.costs.legs(module.coded_rows(batch))
    return [leg for leg in legs if leg.gate != Gate.PREVIOUS and leg.to != "parties"]


def happened(roll: Roll, seconds: float = 0.0, skipped: bool = False, sent: Tensors | None = None) -> RoundPlan:
    """What has become of a round, in the form of a plan: who is included has learnt, unless the round is given up.

    Args:
        roll: the role of each party.
        seconds: that the round has taken.
        skipped: it is given up.
        sent: for each leg (M,) bool, the parties whose message has come; None: one leg, of those that are included.
    """
    learners = torch.zeros_like(roll.included) if skipped else roll.included
    return RoundPlan(roll, learners, (roll.included,) if sent is None else sent, learners, seconds, skipped)


def told_plan(plan: RoundPlan) -> dict[str, Any]:
    """A plan for a header."""
    return {
        **{role: numbers(getattr(plan.roll, role)) for role in ROLES},
        "sent": [numbers(leg) for leg in plan.sent],
        "seconds": plan.seconds,
        "skipped": plan.skipped,
    }


def plan_of(told: Mapping[str, Any], m: int) -> RoundPlan:
    """The plan of M parties that ``told_plan`` has made into a header."""
    roll = Roll(*(mask_of(told[role], m) for role in ROLES))
    sent = tuple(mask_of(leg, m) for leg in told["sent"])
    return happened(roll, float(told["seconds"]), told["skipped"], sent)


def numbers(parties: Tensor) -> Parties:
    """The numbers of the parties in a mask (M,) bool."""
    return _numbers(parties.bool().numpy().tobytes())  # a byte for each party


@lru_cache(maxsize=1024)  # a round asks a dozen times, nearly always for the same parties
def _numbers(mask: bytes) -> Parties:
    return tuple(party for party, there in enumerate(mask) if there)
