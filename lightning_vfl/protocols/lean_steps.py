"""Training steps without the calls of Lightning that find nothing to do.

Lightning asks every callback, the module, the strategy, the precision plugin and the profiler at about twenty places
of a step. On two cores this takes 0.3 ms, as long as the arithmetic of a small model. Here the hooks that somebody
implements are looked up once, and only they are called, in Lightning's order. Trainer, callbacks, loggers, progress and
checkpoints are Lightning's. A test compares every call, logged value and checkpoint with those of Lightning's own loop.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import lightning
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loops.fetchers import _PrefetchDataFetcher
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.profilers import PassThroughProfiler
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.optim import Optimizer

from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    from lightning_vfl.types import VerticalBatch

_TRIED = ("2.6.",)  # the versions of Lightning whose order of calls is copied here; others run their own loop
_OWN_STEP = "optimizer_step", "optimizer_zero_grad", "backward"  # a module that implements one takes Lightning's steps
_AROUND, _TRANSFER = ("on_before_batch_transfer", "on_after_batch_transfer"), "transfer_batch_to_device"


def use_lean_steps(trainer: Trainer) -> None:
    """Let the training epochs of a trainer take lean steps, if nothing needs Lightning's own: see ``is_plain``."""
    use_own_steps(trainer)
    if is_plain(trainer):
        loop = trainer.fit_loop.epoch_loop
        loop.advance = LeanSteps(trainer, loop).advance  # type: ignore[method-assign]


def use_own_steps(trainer: Trainer) -> None:
    """Give a trainer Lightning's own steps back."""
    trainer.fit_loop.epoch_loop.__dict__.pop("advance", None)


def is_plain(trainer: Trainer) -> bool:
    """Whether lean steps do what Lightning's own do.

    They do on one device in its default precision, without a profiler, with a version of Lightning that was tried, and
    if the module implements no hook in place of the backward pass or the optimiser's step.
    """
    module = trainer.lightning_module
    return (
        lightning.__version__.startswith(_TRIED)
        and type(trainer.fit_loop.epoch_loop) is _TrainingEpochLoop
        and type(trainer.fit_loop._data_fetcher) is _PrefetchDataFetcher
        and type(trainer.strategy) is SingleDeviceStrategy
        and type(trainer.precision_plugin) is Precision
        and type(trainer.profiler) is PassThroughProfiler  # type: ignore[attr-defined]  # set in Trainer.__init__
        and trainer.strategy.model is module
        and trainer.accumulate_grad_batches == 1
        and module.automatic_optimization
        and not any(is_overridden(name, module) for name in _OWN_STEP)
    )


@final
class LeanSteps:
    """The steps of one fit; ``advance`` stands in for that of Lightning's epoch loop.

    Args:
        trainer: for which ``is_plain`` holds.
        loop: its epoch loop.
    """

    def __init__(self, trainer: Trainer, loop: _TrainingEpochLoop) -> None:
        self._trainer, self._loop, self._module = trainer, loop, trainer.lightning_module
        self._callbacks: list[Callback] = []
        self._hooks: dict[str, list[Callable[..., Any]]] = {}  # by name, of the callbacks that implement it
        self._implemented: dict[str, bool] = {}  # by name, whether the module does
        self._data: Any = getattr(trainer, "datamodule", None)
        others = [is_overridden(name, one) for name in _AROUND for one in (self._module, self._data) if one is not None]
        self._moved_by_data = (  # and by nobody else
            self._data is not None
            and is_overridden(_TRANSFER, self._data)
            and not is_overridden(_TRANSFER, self._module)
            and not any(others)
        )

    def advance(self, data_fetcher: Any) -> None:
        """One training batch, as ``_TrainingEpochLoop.advance`` of Lightning runs it."""
        loop = self._loop
        interrupted = loop.restarting  # by a checkpoint in the middle of an epoch
        if interrupted or self._trainer.lightning_module is not self._module:  # or this fit has ended with an error
            _TrainingEpochLoop.advance(loop, data_fetcher)
            return
        loop.val_loop.restarting = False
        batch, _, _ = next(data_fetcher)
        index, progress, connector = loop.batch_idx + 1, loop.batch_progress, self._trainer._logger_connector
        progress.is_last_batch = data_fetcher.done
        batch = self._moved(batch)
        progress.increment_ready()
        connector.on_batch_start(batch)
        self._tell("on_train_batch_start", batch, index)
        ends = self._ask("on_train_batch_start", batch, index) == -1
        output = None
        if ends:
            progress.increment_by(0, is_last_batch=True)
        else:
            progress.increment_started()
            output = {"loss": self._optimize(batch, index)}
        progress.increment_processed()
        if self._trainer.lr_scheduler_configs:
            loop.update_lr_schedulers("step", update_plateau_schedulers=False)
            if loop._num_ready_batches_reached():
                loop.update_lr_schedulers("epoch", update_plateau_schedulers=False)
        if ends:
            raise StopIteration
        self._tell("on_train_batch_end", output, batch, index)
        self._ask("on_train_batch_end", output, batch, index)
        connector.on_batch_end()
        progress.increment_completed()
        connector.update_train_step_metrics()

    def _moved(self, batch: "VerticalBatch") -> "VerticalBatch":
        strategy = self._trainer.strategy
        if self._moved_by_data:
            moved: VerticalBatch = self._data.transfer_batch_to_device(batch, strategy.root_device, 0)
            return moved
        moved = self._module._on_before_batch_transfer(batch, dataloader_idx=0)
        moved = strategy.batch_to_device(moved, dataloader_idx=0)
        return moved

    def _optimize(self, batch: "VerticalBatch", index: int) -> Tensor:
        """Run the step of the module, the backward pass and the optimiser; returns the loss."""
        optimizer, losses = self._trainer.optimizers[0], list[Tensor]()
        counts = self._loop.automatic_optimization.optim_progress.optimizer

        def closure() -> Tensor:
            with torch.enable_grad():
                loss: Tensor = self._call("training_step", batch, index)
                losses.append(loss.detach().clone())
                counts.zero_grad.increment_ready()
                self._tell("on_before_zero_grad", optimizer)
                self._ask("on_before_zero_grad", optimizer)
                counts.zero_grad.increment_started()
                optimizer.zero_grad()
                counts.zero_grad.increment_completed()
                self._tell("on_before_backward", loss)
                self._ask("on_before_backward", loss)
                loss.backward()  # type: ignore[no-untyped-call]  # torch's
                self._tell("on_after_backward")
                self._ask("on_after_backward")
            self._before_step(optimizer)
            return losses[-1]

        counts.step.increment_ready()
        optimizer.step(closure=closure)  # type: ignore[arg-type]  # torch's annotation wants a float
        counts.step.increment_completed()
        if not losses:
            raise ConfigurationError(
                f"the step of {type(optimizer).__name__} does not call the closure that it is given, so no round has "
                "run; begin step(closure) with: loss = closure()"
            )
        return losses[-1]

    def _before_step(self, optimizer: Optimizer) -> None:
        trainer = self._trainer
        self._tell("on_before_optimizer_step", optimizer)
        self._ask("on_before_optimizer_step", optimizer)
        clip, algorithm = trainer.gradient_clip_val, trainer.gradient_clip_algorithm
        self._call("configure_gradient_clipping", optimizer, gradient_clip_val=clip, gradient_clip_algorithm=algorithm)

    # ---- hooks

    def _tell(self, name: str, *values: Any) -> None:
        """Call the callbacks that implement a hook."""
        callbacks: list[Callback] = self._trainer.callbacks  # type: ignore[attr-defined]  # set in Trainer.__init__
        if self._callbacks != callbacks:
            self._callbacks, self._hooks = list(callbacks), {}
        hooks = self._hooks.get(name)
        if hooks is None:
            hooks = self._hooks[name] = [getattr(one, name) for one in callbacks if is_overridden(name, one)]
        if not hooks:
            return
        module = self._module
        before, module._current_fx_name = module._current_fx_name, name
        for hook in hooks:
            hook(self._trainer, module, *values)
        module._current_fx_name = before

    def _ask(self, name: str, *values: Any, **settings: Any) -> Any:
        """Call a hook of the module, if it implements it."""
        if name not in self._implemented:
            self._implemented[name] = is_overridden(name, self._module)
        return self._call(name, *values, **settings) if self._implemented[name] else None

    def _call(self, name: str, *values: Any, **settings: Any) -> Any:
        module = self._module
        before, module._current_fx_name = module._current_fx_name, name
        answer = getattr(module, name)(*values, **settings)
        module._current_fx_name = before
        return answer
