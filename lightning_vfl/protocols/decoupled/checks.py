"""Checks before decoupled training, and a warning after it."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor, nn

from lightning_vfl.errors import ConfigurationError, reason
from lightning_vfl.local_objectives import Call, LocalObjective
from lightning_vfl.protocols.decoupled.replay import Register
from lightning_vfl.types import RecordSource

Shape = tuple[int, ...]


def refuse_short(trainer: Trainer, first: int, sum_of: str) -> None:
    """Refuse a fit that ends before the owner's phase, which begins after ``first`` epochs, the ``sum_of`` settings.

    Raises:
        ConfigurationError: naming the smallest sufficient number of epochs.
    """
    last = trainer.max_epochs
    if last is not None and 0 <= last <= first and not trainer.fast_dev_run:  # type: ignore[attr-defined]  # set in Trainer.__init__
        raise ConfigurationError(
            f"max_epochs must be at least {first + 1}, because the owner's phase begins after {first} epochs "
            f"({sum_of}); got {last}"
        )


def hold_plateaus(trainer: Trainer, phase: str) -> None:
    """Let schedules that monitor a metric wait for the owner's phase: until then it is that of an untrained owner."""
    for schedule in trainer.lr_scheduler_configs:
        if schedule.reduce_on_plateau:
            schedule.interval = "epoch" if phase == "owner" else "not before the owner's phase"


def refuse_other_settings(trained: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse to resume from a checkpoint with other settings.

    Raises:
        ConfigurationError: naming the first setting that differs.
    """
    for name, there in trained.items():
        if there != own[name]:
            raise ConfigurationError(
                f"the checkpoint was trained with {name} {there}, but this model has {own[name]}; resume with {there}"
            )


def refuse_register(register: Register, records: RecordSource) -> None:
    """Refuse to replace lost messages by the last message, if guests hold different records.

    Raises:
        ConfigurationError: with the other kind.
    """
    if register == "message" and records.present is not None:
        raise ConfigurationError(
            "register: message replaces rows by position, which is wrong if guests hold different records; use "
            "register: record"
        )


def checked_partner(objective: LocalObjective, partner: object) -> nn.Module:
    """The partner network that an objective has made.

    Raises:
        ConfigurationError: if it is no network.
    """
    if not isinstance(partner, nn.Module):
        raise ConfigurationError(
            f"partner of {type(objective).__name__} must return a network; got {partner!r}; return torch.nn.Identity() "
            "if the objective needs none"
        )
    return partner


def try_objective(
    objective: LocalObjective, encode: Call, partner: Call, members: int, shape: Shape, width: int
) -> None:
    """Compute the losses of two records of zeros at each member, with and without weights; nothing is drawn or learnt.

    Raises:
        ConfigurationError: for losses and embeddings that no participant could learn from, naming the objective.
    """
    who = f"losses of {type(objective).__name__}"
    x = torch.zeros(members, 2, *shape)
    for weight in (None, torch.ones(members, 2)):
        try:
            with torch.enable_grad(), torch.random.fork_rng(devices=[]):
                told = objective.losses(encode, partner, x, weight, lambda: torch.Generator(x.device).manual_seed(0))
        except ConfigurationError:
            raise
        except Exception as error:
            with_it = "" if weight is None else " with weights (n, B) of the rows"
            raise ConfigurationError(f"{who} cannot take records {(*x.shape,)}{with_it}: {reason(error)}") from error
        losses, h = told if isinstance(told, tuple) and len(told) == 2 else (told, None)
        forms = [f"{(*part.shape,)}" if isinstance(part, Tensor) else repr(part) for part in (losses, h)]
        wanted = [f"{(members,)}", f"{(members, 2, width)}"]
        if forms != wanted:
            raise ConfigurationError(
                f"{who} must return a loss for each of {members} participants, {wanted[0]}, and their embeddings, "
                f"{wanted[1]}; got {' and '.join(forms)}"
            )
        if not losses.requires_grad:
            raise ConfigurationError(f"{who} returns losses without a graph, so nobody would learn; do not detach them")
        if h is None or h.requires_grad:
            raise ConfigurationError(f"{who} returns embeddings with a graph; return h.detach()")


def warn_untrained(trainer: Trainer) -> None:
    """Warn of a fit that ended before the owner's first step."""
    if not trainer.fast_dev_run:  # type: ignore[attr-defined]  # set in Trainer.__init__
        rank_zero_warn(
            "the training ended before the owner's phase, so the classifier is untrained; resume from the checkpoint, "
            "or raise trainer.max_epochs"
        )


def refuse_early_stopping(trainer: Trainer) -> None:
    """Refuse early stopping that counts the epochs in which the owner learns nothing.

    Raises:
        ConfigurationError: showing how to wrap the callback.
    """
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__
    if any(type(callback) is EarlyStopping for callback in callbacks):
        raise ConfigurationError(
            "EarlyStopping would count the epochs in which the owner does not learn; wrap it: class_path "
            "DuringPhase, init_args: {phase: owner, callback: {class_path: EarlyStopping, ...}}"
        )
