"""Checkpoints: what a protocol adds to one, and a module that is read without running code that the file names."""

import sys
from argparse import ArgumentError
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any, Self, final

import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging
from lightning.pytorch.core.mixins.hparams_mixin import _given_hyperparameters_context
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from lightning.pytorch.utilities.model_helpers import _restricted_classmethod
from torch import Tensor

from lightning_vfl.errors import ConfigurationError, on_one_line
from lightning_vfl.protocols.build import SHAPES, take_untaken
from lightning_vfl.protocols.checks import (
    OtherParts,
    note_other_seed,
    refuse_other_parts,
    refuse_other_shapes,
    refuse_resumed_search,
    way_out,
)
from lightning_vfl.protocols.early_build import not_built
from lightning_vfl.protocols.trusted_classes import BOOKS as BOOKS
from lightning_vfl.protocols.trusted_classes import checked
from lightning_vfl.simulation.faults import Faults
from lightning_vfl.streams import generator_states, set_generator_states
from lightning_vfl.trained.fitted import Fitted
from lightning_vfl.types import Stage
from lightning_vfl.whole_files import whole_file

SET_UP = (Stage.FIT, Stage.VALIDATION, Stage.TEST, Stage.PREDICT)  # the sanity check runs on validation records
FITTED = "lightning_vfl_fitted"  # key in a checkpoint: what the parties have fitted


def fitted_in(path: Path) -> Fitted | None:
    """What the parties of the checkpoint's model have fitted to their training records.

    Returns:
        None if the model was trained without a datamodule.
    """
    content = torch.load(path, map_location="cpu", weights_only=True)
    return Fitted.of(content[FITTED]) if content.get(FITTED) else None


def rounds_in(path: Path) -> int:
    """The training rounds that a checkpoint has behind it.

    Raises:
        ConfigurationError: for a file that is no checkpoint of this package.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        rounds: int = content[BOOKS]["rounds"].get("fit", 0)
    except (OSError, KeyError, TypeError, ValueError, RuntimeError, UnpicklingError) as error:
        raise ConfigurationError(f"{path} is not a checkpoint of a training ({type(error).__name__})") from error
    return rounds


def position_in(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """The state of the training loader in a checkpoint; empty without a loader of a datamodule."""
    loops = checkpoint.get("loops", {}).get("fit_loop", {}).get("state_dict", {})
    loaders = [state for state in loops.get("combined_loader", []) if "schedule" in state]
    return loaders[0] if len(loaders) == 1 else {}


def hand_out_again(checkpoint: Mapping[str, Any]) -> None:
    """Let a resumed fit get the batch again that was fetched and whose step an interruption has prevented.

    The loader counts a batch when it is handed out, and Lightning counts the batches whose step was made.
    """
    loops = checkpoint.get("loops", {}).get("fit_loop", {})
    if "epoch_loop.batch_progress" not in loops:  # a checkpoint of weights alone
        return
    steps = loops["epoch_loop.automatic_optimization.optim_progress"]["optimizer"]["step"]["current"]["completed"]
    done = max(steps, loops["epoch_loop.batch_progress"]["current"]["processed"])
    for state in loops.get("state_dict", {}).get("combined_loader", []):
        if "schedule" in state and state["offset"] == done + 1:
            state["offset"] = done


def count_no_batch_left_out(checkpoint: Mapping[str, Any]) -> None:
    """Count only batches whose steps were made, and not those at which ``on_train_batch_start`` has ended an epoch.

    Lightning compares these totals to know whether a checkpoint is of the end of a batch.
    """
    progress = checkpoint.get("loops", {}).get("fit_loop", {}).get("epoch_loop.batch_progress")
    if progress is None:
        return
    total, current = progress["total"], progress["current"]
    before = min(total[moment] - current[moment] for moment in total)  # in the epochs that have ended
    total.update({moment: before + count for moment, count in current.items()})


def start_of(module: Any) -> dict[str, Any]:
    """What a resumed fit must find when its training starts: who does not learn, metrics, states of the generators.

    ``parameters`` without gradients and normalisations without running ``moments`` are there by name.
    """
    states = generator_states(module.device)
    metrics = {} if module._trainer is None else module.trainer.callback_metrics
    return {
        "generators": everywhere(states) if module.joint else [states],
        "metrics": {name: value.cpu() for name, value in metrics.items()},
        "parameters": [name for name, parameter in module.named_parameters() if not parameter.requires_grad],
        "moments": [name for name, one in module.named_modules() if getattr(one, "track_running_stats", None) is False],
    }


def start_again(module: Any, start: Mapping[str, Any]) -> None:
    """Start a resumed training as its checkpoint was left: see ``start_of``.

    A callback then draws what it would have drawn without the interruption, and the networks learn that learnt.
    Lightning's ``BaseFinetuning`` freezes networks at the start of every fit, and would leave those frozen that it had
    set free before the checkpoint. What is frozen differently in the resumed fit is told.
    """
    learnt = {name: name not in start["parameters"] for name, _ in module.named_parameters()}
    other = [name for name, parameter in module.named_parameters() if parameter.requires_grad != learnt[name]]
    if other:
        rank_zero_info(
            f"the resumed fit freezes what was frozen in the checkpoint, which is not what is frozen here: {other[0]} "
            f"and {len(other) - 1} others differ; to freeze others, begin a new fit with the weights of "
            "load_from_checkpoint"
        )
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(learnt[name])
    for name, one in module.named_modules():
        if hasattr(one, "track_running_stats"):
            one.track_running_stats = name not in start["moments"]
    module.trainer._logger_connector._callback_metrics.update(start["metrics"])
    if module.global_rank < len(start["generators"]):  # the checkpoint may be of fewer processes
        set_generator_states(start["generators"][module.global_rank], module.device)


def averages_since_checkpoint(callback: Callback) -> bool:
    """Whether a callback of a resumed fit has begun to average weights before the checkpoint."""
    return isinstance(callback, StochasticWeightAveraging) and callback.state_dict()["latest_update_epoch"] >= 0


def continue_loops(trainer: Any) -> None:
    """Let the loops of a resumed training go on as they would have gone on, where Lightning's do not.

    With ``max_steps``, Lightning takes a checkpoint of the end of an epoch for one of its middle: it ends the epoch
    again, and leaves out the next one. A schedule such as ReduceLROnPlateau is stepped after checkpoints are saved:
    Lightning leaves out the step that was due, and the one at the end of the epoch in which a fit is resumed. After a
    checkpoint of the last step of an epoch, Lightning does not call the hooks of the start of the next epoch; and in
    the middle of an epoch, StochasticWeightAveraging, which goes on in such a hook, leaves out its rate.
    """
    epochs = trainer.fit_loop
    batches = epochs.epoch_loop
    epoch_is_over = batches.restarted_on_train_batch_end and batches.batch_progress.is_last_batch
    if epochs.restarted_mid_epoch and epoch_is_over:
        epochs.reset_restart_stage()
    elif epochs.restarted_mid_epoch:
        for callback in filter(averages_since_checkpoint, trainer.callbacks):
            callback.on_train_epoch_start(trainer, trainer.lightning_module)
    if batches.restarted_on_train_batch_end:
        batches.update_lr_schedulers("step", update_plateau_schedulers=True)
        configs = trainer.lr_scheduler_configs
        by_score = [config for config in configs if config.reduce_on_plateau and config.interval == "epoch"]
        if by_score and batches.batch_progress.is_last_batch:
            rank_zero_warn(
                f"the checkpoint is of the last round of an epoch, before its validation, which is not repeated: "
                f"{type(by_score[0].scheduler).__name__} goes on without a score of this epoch, unlike a fit without "
                "the interruption; resume from a checkpoint after the validation"
            )
    ended = epochs.restarted_on_epoch_end or epochs.resumed_on_epoch_end
    if epochs.restarted_on_epoch_end:
        epochs.epoch_progress.increment_completed()
        epochs.reset_restart_stage()
        _Loop.restarting.fset(epochs, False)  # type: ignore[attr-defined]  # of a property
    if ended and batches._num_ready_batches_reached():
        progress = epochs.epoch_progress.current
        progress.completed -= 1  # the step belongs to the epoch that has ended
        batches.update_lr_schedulers("epoch", update_plateau_schedulers=True)
        progress.completed += 1
    epochs._restarting = False  # Lightning steps such a schedule at the end of an epoch that is not restarted


def continue_loader(trainer: Any, position: Mapping[str, Any]) -> None:
    """Let the training loader of a resumed fit go on where that of the checkpoint stood.

    Lightning restores the position in the middle of an epoch alone, and not at all if ``configure_optimizers`` asks for
    the number of steps (``trainer.estimated_stepping_batches``), which makes the loader.
    """
    loaders = [loader for loader in trainer.fit_loop._combined_loader.flattened if hasattr(loader, "schedule")]
    if position and len(loaders) == 1:
        loaders[0].load_state_dict(dict(position))


def everywhere(value: Any) -> list[Any]:
    """The value of every process of a training, by its number."""
    values: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values


def save(module: Any, checkpoint: dict[str, Any], within_round: bool) -> None:
    """Add the counts of a protocol to a checkpoint, and the texts that identify the model's parts.

    Raises:
        NotBuilt: before the networks are built; if an error is the reason to save, this error.
    """
    if not module._built:
        raise sys.exception() or not_built(module, "weights to save")
    hand_out_again(checkpoint)
    count_no_batch_left_out(checkpoint)
    if within_round:
        rank_zero_warn(
            f"the checkpoint is saved within round {module.books.rounds['fit']}, whose messages and charges are "
            "counted: a fit that resumes it repeats the batch as another round, so it has other bits than a fit "
            "without the interruption"
        )
    whole = "optimizer_states" in checkpoint  # for resuming: only these have what is as large as the data
    books = module.books.state()
    loss = books["epoch_loss"]
    if module.joint and isinstance(loss["total"], Tensor):  # each process scales its sum: the mean is the joint sum
        total = loss["total"].to(module.device)
        loss["total"] = module.trainer.strategy.reduce(total, reduce_op="mean").cpu()
    checkpoint[FITTED] = None if module.fitted is None else module.fitted.state()
    checkpoint[BOOKS] = books
    books["seed"] = module.seed
    books["parts"] = module.parts()
    books["preparation"] = module.preparation.state()
    books["privacy"] = module.privacy.state()
    books["lost"] = module._lost
    if untaken := take_untaken(checkpoint.get(module.CHECKPOINT_HYPER_PARAMS_KEY, {}), type(module)):
        books["told"] = untaken
    if whole:
        books["given"] = module.optimizers_given
        books["start"] = module.resumed_start or start_of(module)
        books["memory"] = module._resumed or ({} if module.memory is None else module.memory.state())
        if module.place is not None and module.keys:
            books["secret key"] = module.keys[module.owner].hex()
    if module.wire.traits.subtractable:
        books["summed"] = module.summed.state() if whole else module.summed.named()


def restore(module: Any, checkpoint: dict[str, Any]) -> None:
    """Restore the counts of a checkpoint, if it is of a model with the same parts.

    Raises:
        ConfigurationError: if it is not.
    """
    if module._trainer is not None:
        refuse_resumed_search(module.trainer)
    books = checkpoint[BOOKS]
    module.fitted = Fitted.of(checkpoint[FITTED]) if checkpoint.get(FITTED) else module.fitted
    kept = {**checkpoint.get(module.CHECKPOINT_HYPER_PARAMS_KEY, {}), **books.get("told", {})}
    if module.hparams["party_shapes"] is None:  # the constructor of a subclass does not take them
        module.hparams.update({name: kept.get(name) for name in SHAPES})
    module.configure_model()
    if module.fitted is not None:
        refuse_other_shapes(module.fitted, module.hparams["party_shapes"])
    refuse_other_parts(books["parts"], module.parts(), kept, module.hparams)
    note_other_seed(module._trainer, module.seed, books["seed"])
    module.seed = books["seed"]
    module.faults.reseed(module.seed)
    module.books.load(books)
    module.preparation.forget(*SET_UP)  # the round numbers of the checkpoint may be smaller
    module.preparation.load(books.get("preparation", {}))
    module.summed.load(books.get("summed", {}))
    path = None if module._trainer is None else module.trainer.ckpt_path
    module.privacy.load(books.get("privacy", {}), path)
    module._resumed = books.get("memory", {})
    module.optimizers_given = books.get("given", {})
    module.resumed_start = books.get("start")
    module.position = position_in(checkpoint)
    if module.place is not None and module.keys and "secret key" in books:  # a resumed process draws as it would have
        module.keys[module.owner] = bytes.fromhex(books["secret key"])


class SafelyLoaded(LightningModule):
    """A module whose ``load_from_checkpoint`` builds only trusted classes."""

    seed: int
    faults: Faults

    @_restricted_classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: str | Path | IO[bytes],
        map_location: Any = None,
        hparams_file: str | Path | None = None,
        strict: bool | None = None,
        weights_only: bool | None = None,
        trusted: Sequence[str] = (),
        **kwargs: Any,
    ) -> Self:
        """Load a module as Lightning does, but build only trusted classes.

        Guarantee: a class that the checkpoint names is built only if it is defined in ``lightning_vfl``, is a network,
            metric, optimiser or scheduler of torch or torchmetrics, or is ``trusted``; everything is checked before the
            first import.
        Not guaranteed: anything with ``weights_only=False``, because the file can then run any code.

        Args:
            checkpoint_path: a path, an address or an open file.
            map_location: where tensors go, as in ``torch.load``.
            hparams_file: a YAML file whose hyperparameters are used instead of the checkpoint's.
            strict: whether the names of the weights must equal the module's.
            weights_only: read plain values and tensors only; None: True, for addresses too.
            trusted: further packages, modules or classes that the checkpoint may name: ``["my_project"]``.
            kwargs: parts and settings that replace the checkpoint's.

        Raises:
            ConfigurationError: if the checkpoint names other classes, or was trained with other parts.
        """
        safe = {} if weights_only is None else {"weights_only": weights_only}
        own = tuple(kwargs)
        with (
            checked(checkpoint_path, cls, own, trusted, hparams_file, weights_only) as (file, kept),
            ExitStack() as stack,
        ):
            if hparams_file is None and "_instantiator" in kept:  # the loaded module, saved again, can be loaded again
                given = {**kept, **kwargs}
                stack.enter_context(_given_hyperparameters_context(given, given["_instantiator"]))
            try:
                module = super().load_from_checkpoint(file, map_location, hparams_file, strict, **safe, **kwargs)
            except OtherParts as error:  # Lightning has written the given settings over those of the checkpoint
                raise OtherParts(error.what, way_out(error.part, error.there, kept, kwargs)) from None
            except ArgumentError as error:  # of jsonargparse, which builds the parts
                raise ConfigurationError(
                    f"{cls.__name__} cannot be built from the checkpoint: {on_one_line(error)}; make the "
                    "module yourself, and load its weights with load_state_dict or the trainer's ckpt_path"
                ) from error
        if kwargs.get("seed") is not None:  # the seed of the checkpoint is that of a resumed fit
            module.seed = kwargs["seed"]
            module.faults.reseed(module.seed)
        return module


# ---- checkpoints that a killed process leaves complete


@final
class WholeCheckpoints(CheckpointIO):
    """Writes checkpoints beside their place and renames them; reads and removes them as Lightning does.

    Only their owner may read them (mode 0600).

    Lightning writes a checkpoint into the folder of temporary files and moves it. Between two file systems a move is a
    copy. A process that is killed meanwhile leaves a part of a file, where the checkpoint of before was.

    Raises:
        ConfigurationError: if a file cannot be written; an earlier checkpoint of the same name is as it was.
    """

    def __init__(self) -> None:
        self._usual = TorchCheckpointIO()

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        if storage_options is not None or "://" in str(path):
            self._usual.save_checkpoint(checkpoint, path, storage_options)
            return
        content = BytesIO()  # torch hides the reason if it cannot write to a file
        torch.save(checkpoint, content)
        try:
            with whole_file(Path(path), 0o600) as file:  # positions of records, secrets of downlinks
                file.write(content.getbuffer())
        except OSError as error:
            raise ConfigurationError(
                f"the checkpoint {path} cannot be written ({error.strerror}); make room or choose another folder, and "
                "resume from the last checkpoint"
            ) from error

    def load_checkpoint(self, path: str | Path, *args: Any, **settings: Any) -> dict[str, Any]:
        return self._usual.load_checkpoint(path, *args, **settings)

    def remove_checkpoint(self, path: str | Path) -> None:
        self._usual.remove_checkpoint(path)


def use_whole_checkpoints(trainer: Trainer) -> None:
    """Let a trainer write whole checkpoints, unless its user has chosen another way to write them."""
    if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
        trainer.strategy.checkpoint_io = WholeCheckpoints()
