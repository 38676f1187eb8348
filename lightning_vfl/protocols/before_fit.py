"""What is checked before a fit, at three moments: of data and trainer, of settings, and of optimisers and loaders."""

from collections.abc import Callable, Mapping
from math import inf, prod
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    Callback,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
)
from lightning.pytorch.tuner.lr_finder import _LRCallback
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor, nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.objectives import Binary
from lightning_vfl.protocols.accounts.charging import open_privacy
from lightning_vfl.protocols.checks import (
    callbacks_of,
    note_large_labels,
    note_rounded_features,
    refuse_accumulation,
    refuse_bare_batches,
    refuse_other_data,
    refuse_other_dtypes,
    refuse_other_records,
    refuse_reloading,
    refuse_scaler,
    refuse_several_processes,
    refuse_several_steps,
    refuse_trainer,
    refuse_unused_optimizer,
    repeat_batches,
    training_labels,
    warn_unused_hooks,
    warn_unused_rate,
)
from lightning_vfl.protocols.groups.invertible import Exposure, refuse_readable, refuse_solvable
from lightning_vfl.protocols.loading import use_whole_checkpoints
from lightning_vfl.protocols.logs import say_columns
from lightning_vfl.protocols.message_rounds import MessageRounds
from lightning_vfl.protocols.model import SplitModel
from lightning_vfl.support import Part, refuse_unsupported, unsupported_by
from lightning_vfl.types import Stage

Given = dict[str, dict[str, Any]]  # by optimiser or schedule, as "optimizer SGD": a group's settings
_NO_SETTINGS = {"params", "name", "initial_lr", "base_lrs", "_last_lr", "foreach", "fused", "capturable"}
"""Entries of the states of optimisers and schedules that repeat a setting, or that change no result."""


def check_setup(module: MessageRounds, stage: str) -> None:
    """Refuse data and a trainer that do not suit the model; give the trainer complete checkpoints.

    Raises:
        ConfigurationError: before anything runs.
    """
    trainer = module.trainer
    if module.datamodule is not None and module.hparams["party_shapes"] is not None:
        refuse_other_data(module.hparams, module.datamodule)
    refuse_trainer(trainer, module._compiler_ctx is not None)
    use_whole_checkpoints(trainer)
    refuse_bare_batches(trainer, stage)
    if stage == "fit":
        refuse_accumulation(trainer)
        repeat_batches(trainer)
    refuse_searches(module)


def check_settings(module: MessageRounds) -> None:
    """Refuse settings of a fit that cannot be combined; give the objective the labels that it needs.

    Raises:
        ConfigurationError: before the parties are set up.
    """
    trainer = module.trainer
    joint = module.joint
    module.optimizers_given = settings_of_fit(trainer, module.optimizers_given)
    given = {Part.FAULTS: bool(module.faults.models), Part.PROCESSES: joint}
    refuse_unsupported(type(module), [part for part, is_given in given.items() if is_given])
    if Part.WAITING not in unsupported_by(type(module)):
        module.check_calls()
    if module.roster.shared:
        refuse_scaler(trainer, "updates of groups cannot be summed while their gradients are scaled")
        refuse_readable(module.aggregator, module.roster, module.allow_invertible_updates)
    if module.local_update is not None:
        refuse_scaler(trainer, "local steps cannot be made while gradients are scaled")
        refuse_several_processes(joint, "local updates are not averaged over processes; use devices: 1")
    compresses = joint and module.compresses
    refuse_several_processes(compresses, "what compressors leave out is kept in one process; use devices: 1")
    module.clock.speeds(module.roster.parties)
    module.faults.check(module.roster)
    if module.faults.models:
        refuse_scaler(trainer, "a gradient scaler fails in a round that is given up, which has no gradients")
    _give_labels(module)
    note_rounded_features(trainer, module.datamodule, module.bottoms)
    refuse_other_dtypes(module.bottoms, module.datamodule)


def _give_labels(module: MessageRounds) -> None:
    """Give the objective the labels of all training records, if it uses them and this process may know them."""
    objective = module.objective
    data = module.datamodule
    if module.labels_here:
        who = objective.needs_labels
        if who is not None or (objective.may_use_labels and data is not None):
            objective.take_labels(training_labels(data, who or "the objective"))
        note_large_labels(objective, data)
    elif module.scores_here and objective.may_use_labels:
        raise ConfigurationError(
            f"{objective.identity} uses the labels of all training records, which between processes party "
            f"{module.roster.active} alone has; use standardise: false, or numbers as class_weights"
        )


def check_data(module: MessageRounds) -> None:
    """Refuse records of validation that callbacks cannot choose by; open the privacy account of the training records.

    Raises:
        ConfigurationError: before the first round.
    """
    if module.scores_here:
        check_validation(module)
    open_privacy(module, module.datamodule)
    say_columns(module)


def check_start(module: Any) -> None:
    """Refuse unsuitable optimisers and loaders; store the number of mini-batches of a pass, known from here on.

    Raises:
        ConfigurationError: before the first round.
    """
    trainer = module.trainer
    roster = module.roster
    books = module.books
    for optimizer in trainer.optimizers:
        refuse_several_steps(optimizer)
    used = "optimizer" in module.used
    warn_unused_rate(trainer, module._rate, used)
    given = {"optimizer": module._optimizer, "lr_scheduler": module._lr_scheduler}
    given["optimizer_of"] = module._optimizer_of or None
    refuse_unused_optimizer(type(module).__name__, given, used)
    if not module.joint:  # DDP calls forward
        warn_unused_hooks(module)
    repeat_last_loss(trainer)
    loader = trainer.train_dataloader
    refuse_other_records(module.preparation.sources.get(Stage.FIT), loader, type(module.aggregator).__name__)
    refuse_reloading(trainer, loader)
    schedule = getattr(loader, "schedule", None)
    steps = trainer.num_training_batches
    if schedule is None:
        books.pass_batches = steps
        books.epoch_batches = int(steps) if steps < inf else 1  # each round may have the same records
    else:
        books.pass_batches = schedule.pass_batches
        books.epoch_batches = schedule.steps
    for group in () if module.allow_invertible_updates else roster.shared:
        refuse_solvable(_exposure_of(module, group, schedule))
    if not 0 <= trainer.max_steps < steps:
        module.refuse_unit(module.privacy.unit)


def settings_of_fit(trainer: Trainer, resumed: Given) -> Given:
    """What optimisers and schedules of a fit were given, before a checkpoint's state takes the place of it.

    torch and Lightning restore the settings of a checkpoint with its state, so others that a resumed fit is given have
    no effect.

    Args:
        trainer: of a fit that begins, with optimisers that have made no step.
        resumed: the settings of the fit that the checkpoint is of; empty: it does not say.

    Returns:
        The settings that have an effect, as plain values for the next checkpoint.

    Raises:
        ConfigurationError: if the fit has another optimiser or schedule than the checkpoint.
    """
    given: Given = {}
    for number, optimizer in enumerate(trainer.optimizers):
        for place, group in enumerate(optimizer.param_groups):
            name = group.get("name", f"group {place}" if place else "")
            given[_named("optimizer", optimizer, number, name)] = _plain(group)
    for number, config in enumerate(trainer.lr_scheduler_configs):
        given[_named("lr_scheduler", config.scheduler, number, "")] = _plain(config.scheduler.state_dict())
    regrouped = any(isinstance(callback, BaseFinetuning) for callback in callbacks_of(trainer))  # by the callback
    if trainer.ckpt_path is None or not resumed or regrouped:
        return given
    if given.keys() != resumed.keys():
        raise ConfigurationError(
            f"the checkpoint is of a fit with {_listed(resumed)}, and this fit has {_listed(given)}, which cannot "
            "continue from that state; give the same, or begin a new fit with the weights of load_from_checkpoint"
        )
    ignored = [
        f"{setting} {value} of {name} (kept: {resumed[name][setting]})"
        for name, settings in given.items()
        for setting, value in settings.items()
        if resumed[name].get(setting, value) != value
    ]
    if ignored:
        rank_zero_warn(
            f"the resumed fit keeps the settings of its checkpoint, so these have no effect: {', '.join(ignored)}; for "
            "other settings begin a new fit with the weights of load_from_checkpoint"
        )
    return resumed


def _named(kind: str, part: object, number: int, group: str) -> str:
    return " ".join(filter(None, (kind, type(part).__name__, str(number) if number else "", group)))


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that a checkpoint keeps without pickled objects."""
    settings = {name: list(value) if isinstance(value, tuple) else value for name, value in state.items()}
    return {
        name: value
        for name, value in settings.items()
        if name not in _NO_SETTINGS
        and all(isinstance(one, bool | int | float | str) for one in (value if isinstance(value, list) else [value]))
    }


def _listed(given: Given) -> str:
    return ", ".join(given) or "no optimiser"


def _exposure_of(module: MessageRounds, group: tuple[int, ...], schedule: Any) -> Exposure:
    """What the updates of a group disclose in this training; without a datamodule, the batches are unknown."""
    trainer = module.trainer
    steps_left = trainer.estimated_stepping_batches - trainer.global_step  # this sets up the loaders too
    member = group[0]  # all members have the same bottom and the same columns
    held = 0
    batches: list[int] = []
    if module.datamodule is not None and schedule is not None:
        records = module.datamodule.records("train")
        held = len(records) if records.present is None else int(records.present[:, list(group)].any(1).sum())
        not_held = len(records) - held  # they may all be in one batch
        sizes = [len(ids) for ids, _ in schedule.epoch(0)]
        batches = [max(0, size - not_held) for size in sizes[: int(trainer.num_training_batches)]]
    return Exposure(
        group,
        module.embedding_widths[member],
        sum(parameter.numel() for parameter in module.bottoms.parties[member].parameters()),
        prod(module.hparams["party_shapes"][member]),
        held,
        batches,
        module.books.rounds.get(Stage.FIT, 0) + steps_left,
    )


# ---- checks of Lightning's own callbacks


def refuse_callbacks(module: SplitModel) -> None:
    """Refuse callbacks that cannot train this protocol; its networks are built, and no round has run.

    Raises:
        ConfigurationError: naming the callback and what to use instead.
    """
    if module._trainer is None:
        return
    refuse_accumulation(module.trainer)
    for callback in callbacks_of(module.trainer):
        if isinstance(callback, GradientAccumulationScheduler) and {*callback.scheduling.values()} != {1}:
            raise ConfigurationError(
                "GradientAccumulationScheduler sets accumulate_grad_batches to "
                f"{max(callback.scheduling.values())}, but one optimiser step would "
                "combine rounds with different parties; raise batch_size instead"
            )
        if isinstance(callback, ModelPruning):
            raise ConfigurationError(
                "ModelPruning compares the weights of different parties, which no party may see; prune each network "
                "in the function that makes it (bottom=, top=)"
            )
        if isinstance(callback, StochasticWeightAveraging) and any(
            isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules()
        ):
            raise ConfigurationError(
                "StochasticWeightAveraging would run an additional epoch for the statistics of batch norm, in which no "
                "round trains; use layers without batch norm, or EMAWeightAveraging"
            )
        if module.roster.shared:
            _refuse_search(callback, "the parties that share a bottom are checked")
        if module.memory is not None:
            _refuse_search(callback, f"{type(module).__name__} has made its table of embeddings")
    refuse_searches(module)


def check_validation(module: SplitModel) -> None:
    """Refuse callbacks that choose by a score of validation which the data do not define.

    Raises:
        ConfigurationError: naming the callback and its score, if there are no validation records, or if they are all of
            one class and the score compares two.
    """
    data = module.datamodule
    records = getattr(data, "_records", None)  # a datamodule of the user's own may have no such records
    if not records:
        return
    _check_last_batch(module, len(records["train"]) if "train" in records else 0)
    val = records.get("val")
    labels = val.labels_at(torch.arange(len(val))) if val is not None and module.labels_here else None
    one_class = isinstance(module.objective, Binary) and labels is not None and len(labels.unique()) == 1
    if val is not None and labels is not None and one_class:
        classes = data.class_names or range(2)
        rank_zero_info(
            f"the {len(val)} validation records are all of class {classes[int(labels[0])]}: val/auroc and "
            "val/average_precision are not defined (nan)"
        )
    for callback in callbacks_of(module.trainer):
        score = getattr(callback, "monitor", None) or ""
        if not isinstance(callback, EarlyStopping | ModelCheckpoint) or not score.startswith("val/"):
            continue
        if val is None:
            raise ConfigurationError(
                f"{type(callback).__name__} chooses by {score}, and there are no validation records; give a val_share "
                "above 0, or let it monitor train/loss"
            )
        if one_class and score in ("val/auroc", "val/average_precision"):
            raise ConfigurationError(
                f"{type(callback).__name__} chooses by {score}, which is not defined: the {len(val)} validation "
                "records are all of one class; use another split or seed, or let it monitor val/loss"
            )


def _check_last_batch(module: SplitModel, records: int) -> None:
    """Refuse a last batch of one record, from which batch norm of features (B, width) has no variance."""
    data = module.datamodule
    size = data.batch_size
    alone = module.trainer.world_size == 1
    if not alone or data.drop_last or not records or records % size != (1 if size > 1 else 0):
        return
    layers = (layer for network in (*module.bottoms.parties, module.top) for layer in network.modules())
    if any(isinstance(layer, nn.BatchNorm1d) for layer in layers):
        raise ConfigurationError(
            f"{records} training records in batches of {size} leave a last batch of one record, for which batch norm "
            f"has no variance; give {'a larger' if size == 1 else 'drop_last: true, or another'} batch_size"
        )


def refuse_searches(module: SplitModel) -> None:
    """Refuse searches of a learning rate or a batch size for aggregators that must be set up or must account.

    Raises:
        ConfigurationError: naming the aggregator.
    """
    aggregator = module.aggregator
    if aggregator.setup is not None or aggregator.accounting is not None:
        for callback in callbacks_of(module.trainer):
            _refuse_search(callback, f"the parties are set up for {type(aggregator).__name__}")
    if module.has_rates and any(isinstance(callback, LearningRateFinder) for callback in callbacks_of(module.trainer)):
        raise ConfigurationError(
            "LearningRateFinder finds one rate for all, and optimizer_of has rates too; leave out lr of optimizer_of"
        )


def repeat_last_loss(trainer: Trainer) -> None:
    """Let a search of a learning rate take the last known loss for a round that was given up, which has none."""
    for callback in callbacks_of(trainer):
        if isinstance(callback, _LRCallback):
            callback.best_loss = inf  # Lightning takes that of the first step, which may be a round without a loss
            callback.on_train_batch_end = _repeating(callback.on_train_batch_end)  # type: ignore[method-assign]


def _repeating(end: Callable[..., None]) -> Callable[..., None]:
    """The end of a batch in a search, in which the loss of a round that was given up is that of the round before."""
    last: dict[str, Tensor] = {}

    def on_train_batch_end(trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if not outputs["loss"].isnan():
            last.update(outputs)
        end(trainer, module, last, batch, batch_idx)

    return on_train_batch_end


def _refuse_search(callback: Callback, done: str) -> None:
    if isinstance(callback, LearningRateFinder | BatchSizeFinder):
        raise ConfigurationError(
            f"{type(callback).__name__} runs rounds before {done}; leave the callback out and compare values in a study"
        )
