"""What is checked before a fit, at three moments: of data and trainer, of settings, and of optimisers and loaders."""

from collections.abc import Callable, Mapping
from functools import partial
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
from torch.optim import Optimizer

from lightning_vfl.errors import ConfigurationError, reason
from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.networks.modes import evaluating
from lightning_vfl.objectives import Binary, Objective, Regression
from lightning_vfl.protocols.accounts.charging import open_privacy
from lightning_vfl.protocols.build import several
from lightning_vfl.protocols.checks import (
    callbacks_of,
    needed_data,
    refuse_accumulation,
    refuse_other_records,
    refuse_scaler,
    refuse_several_processes,
    refuse_trainer,
    searches_rate,
)
from lightning_vfl.protocols.columns_told import MANY
from lightning_vfl.protocols.groups.invertible import Exposure, refuse_readable, refuse_solvable
from lightning_vfl.protocols.loading import averages_since_checkpoint, use_whole_checkpoints
from lightning_vfl.protocols.message_rounds import MessageRounds
from lightning_vfl.protocols.model import SplitModel
from lightning_vfl.protocols.place import Elsewhere
from lightning_vfl.real_labels import moments_of
from lightning_vfl.support import Part, refuse_unsupported, unsupported_by
from lightning_vfl.types import Parties, Stage, VerticalBatch

SOME = 10_000  # records whose labels are looked at; those of long tables are on a disk
FAR = 10.0  # labels with a larger mean, or this many times larger or smaller than 1, are told of
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
    if any(map(averages_since_checkpoint, callbacks_of(trainer))):  # the callback has taken the schedule's place
        given |= {name: settings for name, settings in resumed.items() if name.startswith("lr_scheduler")}
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
    settings = {}
    for name, value in state.items():
        several = isinstance(value, list | tuple)
        numbers = list(value) if several else [value]
        if name not in _NO_SETTINGS and all(isinstance(one, bool | int | float | str) for one in numbers):
            settings[name] = numbers if several else value
    return settings


def _listed(given: Given) -> str:
    return ", ".join(given) or "no optimiser"


def _exposure_of(module: MessageRounds, group: Parties, schedule: Any) -> Exposure:
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
        module.books.training_rounds + steps_left,
    )


# ---- data, trainer, optimisers and loaders


def say_columns(module: SplitModel) -> None:
    """Log the line before a fit whose uploads are hidden, and in every process of a federation."""
    traits = module.wire.traits
    if module.place is None and (traits.visible or traits.equivalent):
        return
    epochs = module.trainer.max_epochs
    told = module.columns_told(epochs if epochs is not None and epochs > 0 else MANY)
    line = None if told is None else told.line(module.joiner)
    if line is not None:
        rank_zero_info(line)


def refuse_other_data(built: Any, data: Any) -> None:
    """Refuse data whose shapes, classes or groups differ from those that the networks were built for.

    Args:
        built: the hyperparameters of the module.
        data: the datamodule.

    Raises:
        ConfigurationError: naming both values.
    """
    shapes = [list(shape) for shape in built["party_shapes"]]
    given = [list(shape) for shape in data.party_shapes]
    if shapes != given:
        raise ConfigurationError(
            f"the model was built for parties of shapes {built['party_shapes']} but the data have {given}; "
            "use the partitioner that it was trained with"
        )
    if built["num_classes"] != data.num_classes:
        raise ConfigurationError(
            f"the model was built for num_classes = {built['num_classes']} but the data have {data.num_classes}; "
            "give the same num_classes with party_shapes"
        )
    groups = built["party_groups"], several(getattr(data, "party_groups", None))
    if groups[0] != groups[1]:
        there, here = (f"groups {own}" if own else "no groups of several parties" for own in groups)
        raise ConfigurationError(
            f"the model was built for {there} but the data have {here}; use the partitioner that it was trained with"
        )


def refuse_reloading(trainer: Trainer, loader: Any) -> None:
    """Refuse to make the loader again in a fit, for protocols whose epochs depend on earlier epochs.

    Raises:
        ConfigurationError: naming the setting.
    """
    schedule, every = getattr(loader, "schedule", None), trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]  # set in Trainer.__init__
    if every and schedule is not None and schedule.state_dict():
        raise ConfigurationError(
            f"reload_dataloaders_every_n_epochs is {every}, but the events of {type(schedule).__name__} "
            "continue from epoch to epoch; set it to 0"
        )


def repeat_batches(trainer: Trainer) -> None:
    """Give a fit with ``overfit_batches`` loaders with the same batches in every epoch, wherever it has loaders from.

    Lightning would replace the sampler, which only a ``DataLoader`` has. The loader of a datamodule knows the setting.
    """
    source = trainer.fit_loop._data_source
    every = trainer.overfit_batches  # type: ignore[attr-defined]  # set in Trainer.__init__
    if every and "dataloader" not in vars(source):
        source.dataloader = partial(_all_repeated, source.dataloader)  # type: ignore[method-assign]


def _all_repeated(give: Callable[[], Any]) -> Any:
    """The given loaders; those of the toolkit have the first epoch in every epoch.

    Raises:
        ConfigurationError: if an epoch depends on earlier epochs.
    """
    return _repeated(give())


def _repeated(loaders: Any) -> Any:
    if isinstance(loaders, dict):
        return {name: _repeated(loader) for name, loader in loaders.items()}
    if isinstance(loaders, list | tuple):
        return [_repeated(loader) for loader in loaders]
    return loaders.repeated() if hasattr(loaders, "repeated") and not loaders.schedule.same_every_epoch else loaders


def refuse_bare_batches(trainer: Trainer, stage: str) -> None:
    """Refuse a list of batches in place of a loader, which Lightning would take for several loaders.

    Raises:
        ConfigurationError: naming the loader to use.
    """
    loops: dict[str, Any] = {"fit": trainer.fit_loop, "test": trainer.test_loop, "predict": trainer.predict_loop}
    sources = [loops.get(stage, trainer.validate_loop)._data_source]
    sources += [trainer.fit_loop.epoch_loop.val_loop._data_source] if stage == "fit" else []
    for given in (source.instance for source in sources):
        if isinstance(given, list | tuple) and any(isinstance(one, VerticalBatch) for one in (given, *given)):
            raise ConfigurationError(
                "a list of batches was given as a loader, which Lightning takes for several loaders; give "
                "DataLoader(batches, batch_size=None)"
            )


def refuse_several_steps(optimizer: Optimizer) -> None:
    """Refuse an optimiser that evaluates the loss several times in one step.

    Raises:
        ConfigurationError: for LBFGS.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigurationError(
            "LBFGS computes several rounds in one step and moves all parties together; use a first-order optimiser"
        )


def refuse_unused_optimizer(protocol: str, given: Mapping[str, Any], used: bool) -> None:
    """Refuse settings of optimisers that were given to a protocol whose own ``configure_optimizers`` makes others.

    Raises:
        ConfigurationError: naming what was given.
    """
    if not used and (unused := [name for name, value in given.items() if value is not None]):
        raise ConfigurationError(
            f"{protocol} was given {' and '.join(unused)}, but its own configure_optimizers makes others; leave one out"
        )


def warn_unused_rate(trainer: Trainer, rate: float | None, used: bool) -> None:
    """Warn of a rate in ``self.lr``, where a search puts it, that an own ``configure_optimizers`` does not use."""
    if rate is None or used or searches_rate(trainer):
        return
    rates = [float(group.get("initial_lr", group["lr"])) for own in trainer.optimizers for group in own.param_groups]
    if float(rate) not in rates:
        rank_zero_warn(
            f"the learning rate {rate:g} in self.lr, where a search puts it, is not used: the own configure_optimizers "
            f"trains at {rates[0]:g}; use self.lr there if it is not None"
        )


def warn_unused_hooks(module: nn.Module) -> None:
    """Warn of forward hooks of a whole protocol, which wait for a call of ``forward``; a step makes none."""
    if module._forward_hooks or module._forward_pre_hooks:
        name = type(module).__name__
        rank_zero_warn(
            f"forward hooks of {name}, such as WandbLogger.watch sets with log='parameters' or 'all', do not run in "
            f"training, because a step calls the networks and not forward of {name}: watch a network, as in "
            "watch(module.top, log='all')"
        )


def training_labels(data: Any, who: str) -> Tensor:
    """The labels of all training records, for a part of the objective.

    Raises:
        ConfigurationError: if there is no datamodule, or its training records have no labels.
    """
    records = needed_data(data, f"{who} must know the labels of the training records").records("train")
    if records.labels is None:
        raise ConfigurationError(f"{who} needs training records with labels; leave it out, or give numbers")
    labels: Tensor = records.labels
    return labels


def note_large_labels(objective: Objective, data: Any) -> None:
    """Warn of real labels that are far from 0 or of another size than 1, which networks learn slowly."""
    if not isinstance(objective, Regression) or objective.standardise or data is None:
        return
    records = data.records("train")
    labels = records.labels_at(torch.arange(min(len(records), SOME)))
    if labels is None or not len(labels):
        return
    mean, deviation = (float(value[0]) for value in moments_of(labels))
    if abs(mean) > FAR or not 1 / FAR < deviation < FAR:
        rank_zero_warn(
            f"the labels have mean {mean:.3g} and standard deviation {deviation:.3g}, and a network that begins near 0 "
            "learns them slowly; objective: Regression with standardise: true trains on standardised labels"
        )


def note_rounded_features(trainer: Trainer, data: Any, bottoms: PartyBank) -> None:
    """Warn of whole numbers, such as codes, that the precision of the training rounds to other whole numbers.

    Args:
        trainer: its precision converts features; mixed ones do so where a layer such as ``Linear`` reads them.
        data: the datamodule.
        bottoms: of the parties.
    """
    kind, _, whole_model = str(trainer.precision).partition("-")
    half = {"bf16": torch.bfloat16, "16": torch.float16}.get(kind) if whole_model in ("true", "mixed") else None
    if half is None or data is None:
        return
    records = data.records("train")
    rows = records.rows(torch.arange(min(len(records), SOME)))
    told = []
    for name, features, bottom in zip(data.party_names, rows, bottoms.parties, strict=True):
        embedded = whole_model == "mixed" and any(isinstance(layer, nn.Embedding) for layer in bottom.modules())
        if embedded or not features.is_floating_point():  # no precision converts whole numbers
            continue
        columns = features.reshape(len(features), -1).float()
        whole = (columns == columns.round()).all(0)
        changed = int((whole & (columns.to(half).float() != columns).any(0)).sum())
        told += [f"{changed} of party '{name}'"] if changed else []
    if told:
        rank_zero_warn(
            f"precision {trainer.precision} rounds columns of whole numbers, such as codes and counts: "
            f"{', '.join(told)}; use precision 32-true, or give codes as whole numbers to a bottom with an embedding"
        )


def refuse_other_dtypes(bottoms: PartyBank, data: Any) -> None:
    """Refuse a bottom that does not take the whole numbers or truths of its party.

    Raises:
        ConfigurationError: with what to change.
    """
    if data is None or len(data.records("train")) == 0:
        return
    rows = data.records("train").rows(torch.arange(min(2, len(data.records("train")))))
    for name, bottom, features in zip(data.party_names, bottoms.parties, rows, strict=True):
        if features.is_floating_point() or isinstance(bottom, Elsewhere):
            continue
        device = next((parameter.device for parameter in bottom.parameters()), features.device)
        with evaluating(bottom), torch.no_grad():
            try:
                bottom(features.to(device))
            except (RuntimeError, ValueError, IndexError, TypeError) as error:
                raise ConfigurationError(
                    f"the bottom of party {name} does not take its features, which are {features.dtype}: "
                    f"{reason(error)}; begin its forward with x.float() or an embedding, or give real numbers"
                ) from error


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
