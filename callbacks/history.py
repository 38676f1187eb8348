"""The history of a run's metrics, with the rounds, time and bytes at each value."""

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_vfl.protocols import VFLModule

from .injector import protocol
from .train_metrics import is_due, validates_fit

_WAYS = ("up", "down", "peer")


class RunHistory(Callback):
    """Stores every metric with the rounds, passes, virtual seconds and bytes that training had used at that point.

    Stored are ``train/loss`` at every logging step, validation metrics at the end of every validation, metrics of an
    epoch at its end, and test metrics at the end of a test. The points are part of the checkpoint, so the history of a
    resumed run is complete.

    Guarantee: one value for each metric and step; values are stored in float64.
    """

    def __init__(self) -> None:
        self.points: dict[tuple[int, str], tuple[float, dict[str, float]]] = {}
        self._given_up = 0

    def rows(self) -> list[dict[str, Any]]:
        """One row for each step and metric, in the order of steps: ``step``, progress, ``metric``, ``value``."""
        ordered = sorted(self.points.items())
        return [{"step": step, **spent, "metric": name, "value": value} for (step, name), (value, spent) in ordered]

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._given_up = protocol(self, pl_module).books.given_up

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        given_up = protocol(self, pl_module).books.given_up
        learnt, self._given_up = given_up == self._given_up, given_up  # after a given-up round, the logged loss is old
        if learnt and is_due(trainer.global_step, trainer.log_every_n_steps):  # type: ignore[attr-defined]  # set in Trainer.__init__
            self._add(trainer, pl_module, lambda name: name == "train/loss")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if validates_fit(trainer):
            self._add(trainer, pl_module, lambda name: name.startswith("val/"))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_last_batch:  # after a shortened epoch, the logged loss is that of the epoch before
            told_elsewhere = ("train/loss", "val/", "test/", "comm/", "clock/", "progress/")
            self._add(
                trainer, pl_module, lambda name: name == "train/loss_epoch" or not name.startswith(told_elsewhere)
            )

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._add(trainer, pl_module, lambda name: name.startswith("test/"))

    def state_dict(self) -> dict[str, Any]:
        return {"points": dict(self.points)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.points = dict(state_dict["points"])

    def _add(self, trainer: Trainer, module: LightningModule, wanted: Callable[[str], bool]) -> None:
        if not isinstance(module, VFLModule):
            return
        standing = module.standing()
        sent = {f"{way}_bytes": standing[f"comm/{way}_bytes"] for way in _WAYS}
        spent = {
            "passes": standing["progress/passes"],
            "virtual_seconds": standing["clock/virtual_seconds"],
            "bytes": sum(sent.values()),
            **sent,
        }
        for name, value in trainer.callback_metrics.items():
            if wanted(name):
                self.points[trainer.global_step, name] = (value.double().item(), spent)
