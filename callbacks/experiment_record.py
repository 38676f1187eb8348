"""A complete record of a run in W&B, TensorBoard, MLflow and Comet: settings, progress, summary and figures."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

from lightning_vfl.protocols import VFLModule

from .learning_curve import LearningCurve, draw
from .logger_records import LoggerRecord, WandbRecord, records_of
from .run_summary import LEARNING_RATE, summary_lines
from .train_metrics import validates_fit


class ExperimentRecord(Callback):
    """Gives each of these loggers the whole recipe, a table of the summary, and the learning curve as an image.

    Weights & Biases draws training and validation metrics against virtual seconds, and ``by_bytes/val/...`` against the
    bytes sent by all parties. Other loggers (CSV) are left alone. Metrics are logged by the protocol, checkpoints by
    the logger itself: ``log_model`` of W&B and MLflow.

    Args:
        figures: False: no images.
    """

    def __init__(self, figures: bool = True) -> None:
        self.figures = figures
        self.recipe: Mapping[str, Any] | None = None  # the command line sets it
        self.curve = LearningCurve()
        self._begun: set[int] = set()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Refuse, before a fit, a run that its logger cannot go on with."""
        if stage == TrainerFn.FITTING:
            for record, module in self._records(trainer, pl_module):
                record.refuse_resuming(module.hparams_initial)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for record, module in self._records(trainer, pl_module):
            if id(record.logger) not in self._begun:  # a second fit of the same run
                self._begun.add(id(record.logger))
                record.settings(self.recipe_of(trainer, module))
                record.begin(["train/loss", "train/loss_epoch", "val/loss", *map(str, module.val.metrics)])

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Store the rate that replaces the optimiser's, which ``LearningRateFinder`` has chosen by now."""
        for record, module in self._records(trainer, pl_module):
            if module.lr is not None:
                record.settings({LEARNING_RATE: module.lr})

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.curve.on_train_epoch_end(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.curve.on_validation_end(trainer, pl_module)
        if validates_fit(trainer):
            metrics = trainer.callback_metrics.items()
            values = {f"by_bytes/{k}": float(v) for k, v in metrics if k.startswith("val/")}
            for record, module in self._records(trainer, pl_module):
                if isinstance(record, WandbRecord):
                    spent = {"comm/up_bytes": module.standing()["comm/up_bytes"]}
                    record.logger.log_metrics(values | spent, step=trainer.global_step)
        if trainer.state.fn == TrainerFn.VALIDATING:
            self._summarise(trainer, pl_module, "validate", ("val/",))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._summarise(trainer, pl_module, "fit", ("train/", "val/"))
        records = self._records(trainer, pl_module)
        if not (self.figures and self.curve.points and records):
            return
        with TemporaryDirectory() as folder:
            path = Path(folder) / "learning_curve.png"
            draw(self.curve.points, path)
            for record, _ in records:
                record.figure("learning curve", path)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._summarise(trainer, pl_module, "test", ("test/",))

    def state_dict(self) -> dict[str, Any]:
        return self.curve.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.curve.load_state_dict(state_dict)

    def recipe_of(self, trainer: Trainer, module: VFLModule) -> dict[str, Any]:
        """All settings of the run: the recipe of the command line, or what the objects of Python say of themselves."""
        faults = [str(model) for model in module.faults.models]
        if self.recipe is not None:
            return {**self.recipe, "faults": faults}
        data = module.datamodule
        settings = {} if data is None else {"class_path": _path(data), "batch_size": data.batch_size}
        said = {} if data is None else {name: _plain(value) for name, value in data.state_dict().items()}
        return {
            "model": {"class_path": _path(module), "parts": module.parts(), "settings": dict(module.hparams)},
            "data": settings | said,
            "trainer": {
                "max_epochs": trainer.max_epochs,
                "max_steps": trainer.max_steps,
                "precision": str(trainer.precision),
                "strategy": type(trainer.strategy).__name__,
                "accelerator": type(trainer.accelerator).__name__,
                "devices": trainer.num_devices,
                "callbacks": [type(callback).__name__ for callback in trainer.callbacks],  # type: ignore[attr-defined]
            },
            "faults": faults,
        }

    def _summarise(self, trainer: Trainer, module: LightningModule, stage: str, prefixes: tuple[str, ...]) -> None:
        for record, protocol in self._records(trainer, module):
            record.table(f"summary of {stage}", list(summary_lines(trainer, protocol, prefixes)))

    def _records(self, trainer: Trainer, module: LightningModule) -> list[tuple[LoggerRecord, VFLModule]]:
        """The records of the loggers and the protocol; empty in all processes but the first, and for other modules."""
        if not trainer.is_global_zero or not isinstance(module, VFLModule):
            return []
        return [(record, module) for record in records_of(trainer.loggers)]


def _path(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _plain(value: Any) -> Any:
    """A value that every logger can store."""
    return value if isinstance(value, bool | int | float | str | None) else str(value)
