"""What decoupled training refuses before it begins."""

from collections.abc import Mapping
from typing import Any, get_args

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.record_table import TableDtype
from lightning_vfl.protocols.decoupled.replay import Register


def refuse_settings(
    sizes: Mapping[str, int],
    guest_epochs: int,
    replay_epochs: int,
    communicate_every: int,
    register: str,
    table_dtype: str,
) -> None:
    """Refuse settings with which somebody would learn nothing.

    Args:
        sizes: numbers that have to be at least 1, by name.
        guest_epochs: as in ``DecoupledVFL``.
        replay_epochs: as in ``DecoupledVFL``.
        communicate_every: as in ``DecoupledVFL``.
        register: as in ``DecoupledVFL``.
        table_dtype: as in ``DecoupledVFL``.

    Raises:
        ConfigurationError: naming the first of them.
    """
    for name, value in sizes.items():
        if value < 1:
            raise ConfigurationError(f"{name} {value} leaves the owner nothing to learn from; use 1 or more")
    if not 1 <= communicate_every <= guest_epochs:
        raise ConfigurationError(
            f"communicate_every {communicate_every} of guest_epochs {guest_epochs}: the guests would never send; "
            "use at least 1 and at most guest_epochs"
        )
    if register not in get_args(Register) or table_dtype not in get_args(TableDtype):
        raise ConfigurationError(
            f"register {register!r} with table_dtype {table_dtype!r} is not known; use 'record' or 'message', and "
            "'float32' or 'float16'"
        )
    if replay_epochs < 0:
        raise ConfigurationError(f"replay_epochs must be 0 or more; got {replay_epochs}")


def refuse_short(trainer: Trainer, first: int) -> None:
    """Refuse a fit that ends before the owner's phase, which begins after ``first`` epochs.

    Raises:
        ConfigurationError: naming the fewest epochs that are enough.
    """
    last = trainer.max_epochs
    if last is not None and 0 <= last <= first and not trainer.fast_dev_run:  # type: ignore[attr-defined]  # set in Trainer.__init__
        raise ConfigurationError(
            f"max_epochs {last} ends before the owner's phase begins, which is after {first} epochs (guest_epochs "
            f"+ replay_epochs); use trainer.max_epochs {first + 1} or more"
        )


def refuse_other_settings(trained: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse to go on from a checkpoint of other settings.

    Raises:
        ConfigurationError: naming the first that differs.
    """
    for name, there in trained.items():
        if there != own[name]:
            raise ConfigurationError(
                f"the checkpoint was trained with {name} {there}, this model has {own[name]}; resume with the same"
            )


def refuse_early_stopping(trainer: Trainer) -> None:
    """Refuse early stopping that counts the epochs in which the owner learns nothing.

    Raises:
        ConfigurationError: with the way to wrap it.
    """
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__
    if any(type(callback) is EarlyStopping for callback in callbacks):
        raise ConfigurationError(
            "EarlyStopping would count the epochs in which the owner learns nothing; wrap it: class_path "
            "DuringPhase, init_args: {phase: owner, callback: {class_path: EarlyStopping, ...}}"
        )
