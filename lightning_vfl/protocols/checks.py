"""Checks of several moments of a run: of loaders, losses, batches, data, and the parts of a checkpoint."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from itertools import zip_longest
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import BatchSizeFinder, Callback, LearningRateFinder
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, SingleDeviceStrategy
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.tuner.lr_finder import _LRCallback
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.trained.fitted import Fitted
from lightning_vfl.types import Event, VerticalBatch


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


def scales_losses(trainer: Trainer) -> bool:
    """Whether the precision of a training scales losses, and leaves out steps whose gradients are infinite."""
    return getattr(trainer.precision_plugin, "scaler", None) is not None


def refuse_scaler(trainer: Trainer, why: str) -> None:
    """Refuse a precision that scales losses.

    Raises:
        ConfigurationError: with the reason ``why``.
    """
    if scales_losses(trainer):
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
