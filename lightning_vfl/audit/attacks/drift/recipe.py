"""What the recipe says of the parties' optimiser."""

import torch

from lightning_vfl.audit.attacks.drift.served import StepRule


def rule_of(optimizer: torch.optim.Optimizer) -> tuple[StepRule, float] | None:
    """The rule of an optimiser with one setting for all parameters, and its rate; None: it is no SGD or Adam."""
    settings = optimizer.param_groups[0]
    kinds = {torch.optim.SGD: "sgd", torch.optim.AdamW: "adamw", torch.optim.Adam: "adam"}
    kind = next((name for of, name in kinds.items() if isinstance(optimizer, of)), None)
    rate = float(settings.get("initial_lr", settings["lr"]))  # a schedule has changed the rate
    decay = float(settings.get("weight_decay", 0.0))
    if kind == "sgd":
        return StepRule("sgd", float(settings["momentum"]), bool(settings["nesterov"]), weight_decay=decay), rate
    if kind == "adamw" or (kind == "adam" and settings.get("decoupled_weight_decay")):
        return StepRule("adamw", betas=tuple(settings["betas"]), eps=float(settings["eps"]), weight_decay=decay), rate
    if kind == "adam":
        return StepRule("adam", betas=tuple(settings["betas"]), eps=float(settings["eps"]), weight_decay=decay), rate
    return None
