"""What has become of a round, as the server tells it to the parties."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_vfl.federation.calls import numbers
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.types import Roll, mask_of


def told_plan(plan: RoundPlan) -> dict[str, Any]:
    """A plan for a header."""
    roll = plan.roll
    return {
        "called": numbers(roll.called),
        "included": numbers(roll.included),
        "responders": numbers(roll.responders),
        "filled": numbers(roll.filled),
        "sent": [numbers(leg) for leg in plan.sent],
        "seconds": plan.seconds,
        "skipped": plan.skipped,
    }


def plan_of(told: Mapping[str, Any], m: int) -> RoundPlan:
    """The plan of M parties that ``told_plan`` has made into a header; who is included has learnt."""
    roll = Roll(*(mask_of(told[name], m) for name in ("called", "included", "responders", "filled")))
    learners = torch.zeros_like(roll.included) if told["skipped"] else roll.included
    sent = tuple(mask_of(leg, m) for leg in told["sent"])
    return RoundPlan(roll, learners, sent, learners, float(told["seconds"]), bool(told["skipped"]))


def called_plan(called: Tensor) -> RoundPlan:
    """The plan of a round in which all that are called are in."""
    return RoundPlan(Roll.of(called), called, (called,), called, 0.0, False)
