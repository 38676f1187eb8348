"""Checks before a run: data that the model was not built for, unsupported strategies, and wrong loaders."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, Callback, LearningRateFinder
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, SingleDeviceStrategy
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.tuner.lr_finder import _LRCallback
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_vfl.errors import ConfigurationError, reason
from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.networks.modes import evaluating
from lightning_vfl.objectives import Objective, Regression
from lightning_vfl.protocols.build import several
from lightning_vfl.protocols.place import Elsewhere
from lightning_vfl.real_labels import moments_of
from lightning_vfl.trained.fitted import Fitted
from lightning_vfl.types import Event, VerticalBatch

SOME = 10_000  # records whose labels are looked at; those of long tables are on a disk
FAR = 10.0  # labels with a larger mean, or this many times larger or smaller than 1, are told of


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


def refuse_other_shapes(trained: Fitted, shapes: Sequence[Sequence[int]]) -> None:
    """Refuse a checkpoint whose parties have features of other shapes than the parties of the networks.

    Raises:
        ConfigurationError: naming both.
    """
    there = [list(party.shape) for party in trained.parties]
    here = [list(shape) for shape in shapes]
    if there != here:
        raise ConfigurationError(
            f"the checkpoint is of a model for parties of shapes {there}, and the networks were built for {here}; load "
            "the model with load_from_checkpoint, which prepares other records as those that it was trained on"
        )


def refuse_trainer(trainer: Trainer, compiled: bool) -> None:
    """Refuse strategies, compilation and devices that do not work with a round of messages.

    Raises:
        ConfigurationError: naming what to use instead.
    """
    strategy = trainer.strategy
    if isinstance(strategy.launcher, _MultiProcessingLauncher):
        raise ConfigurationError(
            f"strategy ddp_{strategy.launcher._start_method} (ddp_notebook too) trains in other processes and leaves "
            "this one with an untrained model; use strategy: ddp in a script, or devices: 1"
        )
    if not isinstance(strategy, SingleDeviceStrategy | DDPStrategy) or isinstance(strategy, DeepSpeedStrategy):
        raise ConfigurationError(
            f"strategy {type(strategy).__name__} would shard networks that belong to different parties; use strategy: "
            "auto or ddp"
        )
    if strategy.root_device.type == "mps":
        raise ConfigurationError(
            "accelerator mps has no float64 numbers, in which losses are summed and sums are masked; use accelerator: "
            "cpu"
        )
    if compiled:
        raise ConfigurationError(
            "torch.compile cannot trace a protocol through the messages of a round; compile the networks instead: "
            "bottom=lambda shape, width: torch.compile(MLP(shape, width))"
        )


def refuse_accumulation(trainer: Trainer) -> None:
    """Refuse gradient accumulation.

    Raises:
        ConfigurationError: if it is on; called in every epoch, because a callback may change the setting.
    """
    if trainer.accumulate_grad_batches != 1:
        raise ConfigurationError(
            "accumulate_grad_batches must be 1, because one optimiser step would combine rounds with different "
            "parties; raise batch_size instead"
        )


def refuse_several_loaders(stage: str, batches: Any) -> None:
    """Refuse several loaders in one evaluation, whose records would be in one mean.

    Args:
        stage: ``validation`` or ``test``.
        batches: the number of batches of the loader; a list of those of several loaders.

    Raises:
        ConfigurationError: for several loaders.
    """
    if isinstance(batches, list) and len(batches) > 1:
        raise ConfigurationError(
            f"{len(batches)} {stage} loaders were given, but loss and metrics are means over the records of one; "
            f"give one loader, and call trainer.{'test' if stage == 'test' else 'validate'}(...) for each further one"
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


def refuse_scaler(trainer: Trainer, why: str) -> None:
    """Refuse a precision that scales losses.

    Raises:
        ConfigurationError: with the reason ``why``.
    """
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        raise ConfigurationError(f"{why}; use precision bf16-mixed")


def refuse_other_loss(loss: object) -> None:
    """Refuse a loss of a ``Step`` that an optimiser cannot step on.

    Raises:
        ConfigurationError: saying what it is.
    """
    if not isinstance(loss, Tensor) or loss.dim():
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
        raise ConfigurationError(f"the loss of a Step must be a scalar tensor; got {found}; return its mean")
    if not loss.requires_grad:
        raise ConfigurationError(
            "the loss of a Step has no graph, so nobody would learn; compute it without detach or no_grad, or return "
            "Step(None) to give the round up"
        )


def refuse_several_processes(joint: bool, why: str) -> None:
    """Refuse to train in several processes together.

    Raises:
        ConfigurationError: if they are ``joint``, with the reason and the remedy ``why``.
    """
    if joint:
        raise ConfigurationError(why)


def one_optimizer(configure: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """An own ``configure_optimizers`` that is refused in one line if it returns several optimisers."""

    @wraps(configure)
    def checked(module: Any) -> Any:
        made = configure(module)
        listed = made[0] if isinstance(made, tuple) and made and isinstance(made[0], list) else made
        if module.automatic_optimization and isinstance(listed, list | tuple) and len(listed) > 1:
            raise ConfigurationError(
                f"configure_optimizers of {type(module).__name__} returns {len(listed)} optimisers, and a round makes "
                "one step of one optimiser; return one with several parameter groups (each with its own lr), or set "
                "automatic_optimization to False and step by hand in step"
            )
        return made

    return checked


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


def refuse_resumed_search(trainer: Trainer) -> None:
    """Refuse to resume a fit in which a search runs first: it restores the state of before it, and not the checkpoint.

    Raises:
        ConfigurationError: naming the callback, unless the search itself restores that state.
    """
    by_search = Path(str(trainer.ckpt_path)).name.startswith((".lr_find_", ".scale_batch_size_"))
    if by_search or trainer.state.fn != TrainerFn.FITTING:
        return
    for callback in callbacks_of(trainer):
        if isinstance(callback, LearningRateFinder | BatchSizeFinder):
            raise ConfigurationError(
                f"{type(callback).__name__} restores the state of before its search, so that the resumed fit would "
                "begin again; leave the callback out, and give the rate or the size that it has found"
            )


def callbacks_of(trainer: Trainer) -> list[Callback]:
    """The callbacks of a trainer."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__
    return callbacks


def searches_rate(trainer: Trainer) -> bool:
    """Whether a search of a learning rate is running."""
    return any(isinstance(callback, _LRCallback) for callback in callbacks_of(trainer))


def warn_unused_hooks(module: nn.Module) -> None:
    """Warn of forward hooks of a whole protocol, which wait for a call of ``forward``; a step makes none."""
    if module._forward_hooks or module._forward_pre_hooks:
        name = type(module).__name__
        rank_zero_warn(
            f"forward hooks of {name}, such as WandbLogger.watch sets with log='parameters' or 'all', do not run in "
            f"training, because a step calls the networks and not forward of {name}: watch a network, as in "
            "watch(module.top, log='all')"
        )


def refuse_unaccounted(aggregator: str, loaders: Any) -> None:
    """Refuse protected evaluation of records that the privacy account cannot know again.

    Raises:
        ConfigurationError: for a loader that has no records with ids, and several loaders.
    """
    if not (hasattr(loaders, "records") and hasattr(loaders, "schedule")):
        raise ConfigurationError(
            f"{aggregator} accounts for privacy, but the records of this loader have no ids by which they could be "
            "charged; evaluate a VerticalDataModule, or use evaluate: plain"
        )


def refuse_other_records(source: Any, loaders: Any, aggregator: str) -> None:
    """Refuse batches of records that were not set up: the trainer keeps the datamodule of an earlier call.

    Raises:
        ConfigurationError: if a loader has other records than ``source``.
    """
    if source is not None and any(getattr(loader, "records", None) is not source for loader in _listed(loaders)):
        raise ConfigurationError(
            f"the batches have other records than {aggregator} was set up with; give the trainer these data as a "
            "datamodule, not as a loader"
        )


def needed_data(data: Any, who: str) -> Any:
    """The datamodule.

    Raises:
        ConfigurationError: if there is none; ``who`` states what needs the records, and why.
    """
    if data is None:
        raise ConfigurationError(f"{who}; give the trainer a VerticalDataModule instead of a loader")
    return data


def refuse_blocks(source: Any, aggregator: str) -> None:
    """Accept records for a set-up that goes over all of them.

    Raises:
        ConfigurationError: if they are read in blocks.
    """
    if source.blocks is not None:
        raise ConfigurationError(
            f"{aggregator} is set up with all records at once, but these data are read in blocks; use an aggregator "
            "without set-up, or CSVTables"
        )


def refuse_other_batches(batch: Any) -> None:
    """Refuse batches that do not say which party has which features.

    Raises:
        ConfigurationError: if it is not a ``VerticalBatch``.
    """
    if not isinstance(batch, VerticalBatch):
        raise ConfigurationError(
            "a batch must be a VerticalBatch (features of each party, labels, record_ids); got "
            f"{type(batch).__name__}; give the trainer a VerticalDataModule, or a loader "
            "whose collate_fn returns a VerticalBatch"
        )


def needed_event(batch: VerticalBatch, protocol: object) -> Event:
    """The event of a batch from an asynchronous protocol's own schedule.

    Raises:
        ConfigurationError: if the batch is from another schedule.
    """
    if batch.event is None:
        raise ConfigurationError(
            f"{type(protocol).__name__} trains on events of its own schedule, but the batch has none; give the "
            "trainer a VerticalDataModule instead of a loader"
        )
    return batch.event


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


def refuse_other_device(features: Sequence[Tensor], networks: nn.Module) -> None:
    """Refuse features that are not on the device of the networks, which are always built on the CPU.

    Raises:
        ConfigurationError: naming both devices.
    """
    device = next(networks.parameters(), features[0]).device
    if other := [own.device for own in features if own.device != device]:
        raise ConfigurationError(
            f"the features are on {other[0]} and the networks on {device}; move the features, or call "
            f"module.to('{other[0]}')"
        )


def refuse_other_targets(targets: int, data: Any) -> None:
    """Refuse data whose records have another number of labels than the objective.

    Raises:
        ConfigurationError: with an objective that fits the data.
    """
    names = getattr(data, "targets", ())
    if data is None or (len(names) or 1) == targets:
        return
    if not names:
        raise ConfigurationError(f"the objective has {targets} labels, records of the data have one; use another one")
    kind = (
        f"MultiLabel with labels: {len(names)}"
        if data.task == "classification"
        else f"Regression with targets: {len(names)}"
    )
    raise ConfigurationError(f"records have {len(names)} labels ({', '.join(names)}); use objective: {kind}")


class OtherParts(ConfigurationError):
    """A checkpoint of a model with other parts.

    Args:
        what: differs, in words.
        remedy: in words.
        part: the name of the part.
        there: this part in the checkpoint, as a text.
    """

    def __init__(self, what: str, remedy: str, part: str = "", there: str = "") -> None:
        super().__init__(f"{what}; {remedy}")
        self.what = what
        self.part = part
        self.there = there


def refuse_other_parts(
    trained: Mapping[str, str], own: Mapping[str, str], kept: Mapping[str, Any], settings: Mapping[str, Any]
) -> None:
    """Refuse a checkpoint of a model whose parts differ.

    Args:
        trained: the parts of the checkpoint's model, as texts.
        own: the parts of this model.
        kept: the hyperparameters in the checkpoint.
        settings: those of this model.

    Raises:
        OtherParts: naming the first part that differs, and the setting behind it if there is one.
    """
    for name, part in own.items():
        there = trained.get(name, part)  # an old checkpoint may not have this part
        if there != part:
            pairs = zip_longest(there.splitlines(), part.splitlines(), fillvalue="nothing")
            first, own_first = next(pair for pair in pairs if pair[0] != pair[1])  # a network has many lines
            what = (
                f"the checkpoint was trained with another {name} than this model has: {first.strip()} there, "
                f"{own_first.strip()} here"
            )
            raise OtherParts(what, way_out(name, there, kept, settings), name, there)


def way_out(name: str, there: str, kept: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """What to change so that this part is that of the checkpoint."""
    if name == "protocol":
        return (
            f"use the same one (in Python: {there}.load_from_checkpoint(path)), or, if the class has only another name "
            f"now, let its parts() return {{**super().parts(), 'protocol': '{there}'}}"
        )
    numbers = (key for key, value in settings.items() if type(value) in (int, float, bool) and key != "seed")
    other = next((key for key in numbers if kept.get(key, settings[key]) != settings[key]), None)
    if other is not None:
        return f"{other} is {kept[other]} there and {settings[other]} here: use the same {other}"
    return f"use the same one (in Python: load_from_checkpoint(path, {name}=...))"


def note_other_seed(trainer: Trainer | None, given: int, saved: int) -> None:
    """Say that a resumed fit keeps its seed, if another one was given."""
    if given != saved and trainer is not None and trainer.state.fn == TrainerFn.FITTING:
        rank_zero_info(
            f"the resumed fit keeps seed {saved} of the checkpoint, and seed {given} has no effect; for another seed "
            "train anew, without ckpt_path"
        )


def _listed(loaders: Any) -> Sequence[Any]:
    return loaders if isinstance(loaders, list | tuple) else [loaders]
