"""The record of a run: a small file in the run's folder from which ``lightning-vfl report`` makes a page."""

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from lightning_vfl.protocols import VFLModule
from lightning_vfl.protocols.run_folder import run_folder
from lightning_vfl.types import VerticalBatch
from lightning_vfl.whole_files import whole_path

from .history import RunHistory
from .run_summary import summary_lines
from .train_metrics import validates_fit

FIT, TEST = "record-fit.json", "record-test.json"
_PAUSE = 5.0  # seconds between two records of a fit that is going on
SCORE_BINS = 200  # of probabilities between 0 and 1
MOST_PAIRS = 2000  # pairs of labels and predicted values that are kept
_PACKAGES = ("lightning-vfl", "lightning", "torch", "numpy")


class Outcomes:
    """What an evaluation has predicted, in a size that does not depend on the number of records.

    Args:
        classes: C; None for real-valued labels.

    Kept are, for several classes, the records (C, C) by label and predicted class; for two classes also the records by
    label and probability in ``SCORE_BINS`` equal bins; for real-valued labels, the first ``MOST_PAIRS`` pairs.
    """

    def __init__(self, classes: int | None) -> None:
        self.classes = classes
        self.confusion = np.zeros((classes or 0, classes or 0), np.int64)
        self.scores = np.zeros((2, SCORE_BINS), np.int64)
        self.pairs: list[tuple[float, float]] = []

    def add(self, predicted: Tensor, labels: Tensor) -> None:
        """Count a batch: predictions (B,) or (B, C), labels (B,)."""
        given = predicted.detach().float().cpu()
        truth = labels.detach().cpu()
        if self.classes is None:
            room = MOST_PAIRS - len(self.pairs)
            if room > 0 and given.dim() == 1 and truth.dim() == 1:
                self.pairs += list(zip(truth[:room].tolist(), given[:room].tolist(), strict=True))
            return
        if truth.dim() != 1:
            return
        decided = (given >= 0.5).long() if given.dim() == 1 else given.argmax(1)
        places = truth.long() * self.classes + decided
        self.confusion += torch.bincount(places, minlength=self.classes**2).reshape(self.classes, -1).numpy()
        if given.dim() == 1:
            bins = (given * SCORE_BINS).long().clamp(0, SCORE_BINS - 1) + truth.long() * SCORE_BINS
            self.scores += torch.bincount(bins, minlength=2 * SCORE_BINS).reshape(2, -1).numpy()

    def state(self) -> dict[str, Any]:
        """Plain lists; empty if nothing was counted."""
        if self.classes is None:
            return {"pairs": [list(pair) for pair in self.pairs]} if self.pairs else {}
        if not self.confusion.any():
            return {}
        scores = {"scores": self.scores.tolist()} if self.scores.any() else {}
        return {"confusion": self.confusion.tolist(), **scores}


class RunRecord(Callback):
    """Writes what a run has measured: ``record-fit.json`` and ``record-test.json`` in the folder of the run.

    A record has the lines of the summary, every metric with the rounds, virtual seconds and bytes at its time, the
    bytes of each party by kind, the rounds that each party has learned from, outcomes of the last evaluation, and the
    versions of the software. The record of a test of a checkpoint is written beside the record of its fit, if the
    checkpoint is in the folder of that fit. It is written for the report and read by nothing else.

    Guarantee: a file is replaced as a whole. During a fit it is replaced after an epoch or a validation, at most every
        five seconds, so a killed run has a record. Until the end of the fit, its ε are Rényi figures, which take no
        time and are never below the others. Checkpoints contain what has been recorded, so the record of a resumed fit
        is that of the whole fit.
        A run without a logger and without ``default_root_dir`` writes no record.
    Not guaranteed: with several processes, outcomes are those of the first process's records.

    Args:
        enabled: False: write no record.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled
        self.history = RunHistory()
        self._rounds = 0
        self._learned: list[int] = []  # by party, the rounds from which it has learned
        self._outcomes: dict[str, Outcomes] = {}
        self._written = -_PAUSE

    def state_dict(self) -> dict[str, Any]:
        """Points and counts so far; empty without a record, so that the checkpoint has no entry."""
        if not self._rounds:
            return {}
        return {"history": self.history.state_dict(), "attendance": self._attendance()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.history.load_state_dict(state_dict["history"])
        self._rounds = state_dict["attendance"]["rounds"]
        self._learned = list(state_dict["attendance"]["learned"])

    def _attendance(self) -> dict[str, Any]:
        return {"rounds": self._rounds, "learned": self._learned}

    # ---- a fit

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not (self.enabled and isinstance(pl_module, VFLModule)):
            return
        if len(self._learned) != pl_module.roster.parties:
            self._rounds = 0
            self._learned = [0] * pl_module.roster.parties
        self._written = -_PAUSE
        self.history.on_train_start(trainer, pl_module)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if self._records(pl_module):
            self._rounds += 1
            learners: Any = pl_module.learners
            for party in range(len(self._learned)) if learners is None else learners:
                self._learned[party] += 1

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if self._records(pl_module):
            self.history.on_train_batch_end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._records(pl_module):
            self.history.on_train_epoch_end(trainer, pl_module)
            self._write_fit(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._records(pl_module) and validates_fit(trainer):
            self.history.on_validation_end(trainer, pl_module)
            self._write_fit(trainer, pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._written = -_PAUSE
        self._write_fit(trainer, pl_module, ended=True)

    def _write_fit(self, trainer: Trainer, module: LightningModule, ended: bool = False) -> None:
        if not self._records(module) or monotonic() - self._written < _PAUSE:
            return
        self._written = monotonic()
        if folder := _own_folder(trainer):
            self._write(trainer, module, folder / FIT, "val", ("train/", "val/"), ended)

    # ---- an evaluation

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(pl_module, "val")

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin(pl_module, "test")

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        self._count("val", outputs, batch)

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *_: Any
    ) -> None:
        self._count("test", outputs, batch)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = _folder_of(trainer.ckpt_path) or _own_folder(trainer)
        if self._records(pl_module) and folder is not None:
            self._write(trainer, pl_module, folder / TEST, "test", ("test/",))

    def _begin(self, module: LightningModule, split: str) -> None:
        if self._records(module):
            self._outcomes[split] = Outcomes(module.hparams["num_classes"])

    def _count(self, split: str, outputs: Any, batch: Any) -> None:
        counted = self._outcomes.get(split)
        if counted is None or not isinstance(outputs, Tensor) or not isinstance(batch, VerticalBatch):
            return
        if batch.labels is not None and len(outputs):
            counted.add(outputs, batch.labels)

    # ---- the file

    def _records(self, module: LightningModule) -> Any:
        return self.enabled and isinstance(module, VFLModule)

    def _write(
        self,
        trainer: Trainer,
        module: LightningModule,
        path: Path,
        split: str,
        prefixes: tuple[str, ...],
        ended: bool = True,
    ) -> None:
        if not (trainer.is_global_zero and isinstance(module, VFLModule)):
            return
        outcomes = self._outcomes.get(split)
        names = getattr(module.datamodule, "class_names", ())
        meter = module.books.meter.state_dict()
        record = {
            "summary": [list(line) for line in summary_lines(trainer, module, prefixes, tightest=ended)],
            "history": self.history.rows(),
            "traffic": {kind: count.tolist() for kind, count in meter.items()},
            "attendance": self._attendance(),
            "given_up": module.books.given_up,
            "outcomes": {}
            if outcomes is None
            else {"split": split, "names": [str(name) for name in names], **outcomes.state()},
            "metrics": {
                name: float(value) for name, value in trainer.callback_metrics.items() if name.startswith(prefixes)
            },
            "checkpoint": str(trainer.ckpt_path or getattr(trainer.checkpoint_callback, "best_model_path", "")),
            "environment": environment(trainer),
        }
        with whole_path(path) as whole:
            whole.write_text(json.dumps(record), encoding="utf-8")


def environment(trainer: Trainer) -> dict[str, str]:
    """Versions and machine of a run."""
    device = torch.cuda.get_device_name() if trainer.strategy.root_device.type == "cuda" else "CPU"
    return {
        "Python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "device": f"{device}, {trainer.world_size} process{'es' if trainer.world_size > 1 else ''}",
        "precision": str(trainer.precision),
    }


def _own_folder(trainer: Trainer) -> Path | None:
    """The folder of a run; None: it is a trial run, has no folder of its own, or a remote one."""
    if trainer.fast_dev_run:  # type: ignore[attr-defined]  # set in Trainer.__init__
        return None
    folder = run_folder(trainer)
    if "://" in folder or (not trainer.loggers and Path(folder).resolve() == Path.cwd()):
        return None
    return Path(folder)


def _folder_of(checkpoint: Any) -> Path | None:
    """The folder of the fit that has written a checkpoint; None: there is none with a record."""
    if checkpoint is None:
        return None
    path = Path(checkpoint).resolve()
    return next((folder for folder in list(path.parents)[:2] if (folder / FIT).is_file()), None)
