"""What the recipe says of the parties' optimiser."""

from collections.abc import Mapping
from typing import Any

import torch

from lightning_vfl.audit.attacks.drift.served import StepRule
from lightning_vfl.protocols.optimizer_groups import SERVER


def rule_of(optimizer: torch.optim.Optimizer, decay: float = 0.0) -> tuple[StepRule, float] | None:
    """The rule and the rate of an optimiser with equal settings for all parties; None: any other optimiser.

    Args:
        optimizer: of the parties.
        decay: λ of a loss that has λ/2 times the square of all parameters, which is left out under ``adamw``.
    """
    groups = [group for group in optimizer.param_groups if group.get("name") != SERVER]
    rules = [_rule_of_group(optimizer, group, decay) for group in groups]
    return rules[0] if rules and all(rule == rules[0] for rule in rules) else None


def _rule_of_group(
    optimizer: torch.optim.Optimizer, settings: Mapping[str, Any], decay: float
) -> tuple[StepRule, float] | None:
    kinds = {torch.optim.SGD: "sgd", torch.optim.AdamW: "adamw", torch.optim.Adam: "adam"}
    kind = next((name for of, name in kinds.items() if isinstance(optimizer, of)), None)
    rate = float(settings.get("initial_lr", settings["lr"]))  # a schedule has changed the rate
    weight_decay = float(settings.get("weight_decay", 0.0))
    all_decay = weight_decay + decay
    if kind == "sgd":
        return StepRule("sgd", float(settings["momentum"]), bool(settings["nesterov"]), weight_decay=all_decay), rate
    if kind == "adamw" or (kind == "adam" and settings.get("decoupled_weight_decay")):
        return StepRule(
            "adamw", betas=tuple(settings["betas"]), eps=float(settings["eps"]), weight_decay=weight_decay
        ), rate
    if kind == "adam":
        return StepRule(
            "adam", betas=tuple(settings["betas"]), eps=float(settings["eps"]), weight_decay=all_decay
        ), rate
    return None
