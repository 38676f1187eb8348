"""A fit that is killed and resumed, and a plan that promises less than the fit costs: what is charged for releases."""

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import LocalGaussian, PoissonBinomial
from lightning_vfl.callbacks import PrivacyBudget
from lightning_vfl.privacy import PrivacyLedger, composed_epsilon
from lightning_vfl.privacy.events import PoissonBinomialEvent
from tests.attacks.row import Row
from tests.subjects import Blobs, trainer

RECORDS, WIDTH, PARTIES, EVERY = 54, 4, 3, 3
EVENT = PoissonBinomialEvent(4, 0.1, PARTIES, WIDTH)
POINTS = (
    "before the charge",
    "while the charge is written",
    "between charge and uploads",
    "between uploads and decoding",
    "after decoding",
    "after the step",
    "before the checkpoint is saved",
    "after the checkpoint is saved",
)


class Killed(Exception):
    """Stands for SIGKILL: nothing of the toolkit runs after it."""


@dataclass
class Server:
    """An observer that counts how often each record's sums have reached the server, apart from all accounting."""

    seen: Any = field(default_factory=lambda: np.zeros(RECORDS, np.int64))
    rounds: int = 0

    def note(self, record_ids: torch.Tensor) -> None:
        """The uploads of one round have arrived."""
        np.add.at(self.seen, record_ids.numpy(), 1)
        self.rounds += 1


class Kill(Callback):
    """Ends a fit at one point of one round, counted from the start of the process."""

    def __init__(self, point: str, step: int) -> None:
        self.point, self.left = point, step

    def due(self, point: str) -> bool:
        """Whether the fit ends here."""
        return self.left == 0 and point == self.point

    def at(self, point: str) -> None:
        """End the fit if this is the place."""
        if self.due(point):
            raise Killed(point)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.left -= 1
        self.at("before the charge")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.at("after the step")


@contextmanager
def watched(server: Server, kill: Kill | None = None) -> Iterator[None]:
    """Let the server see every round, and the kill come at its point."""
    at = (lambda point: None) if kill is None else kill.at
    charge, write, save = PrivacyLedger.charge, os.write, ModelCheckpoint._save_checkpoint

    def charged(self: PrivacyLedger, *arguments: Any) -> None:
        def torn(file: int, text: bytes) -> int:
            write(file, text[: len(text) // 2])
            raise Killed("while the charge is written")

        torn_now = kill is not None and kill.due("while the charge is written")
        with patch("os.write", torn if torn_now else write):
            charge(self, *arguments)
        at("between charge and uploads")

    def saved(self: ModelCheckpoint, trainer: Any, path: str) -> None:
        if kill is not None and kill.left <= 0 and kill.point == "before the checkpoint is saved":
            raise Killed(kill.point)
        save(self, trainer, path)
        if kill is not None and kill.left <= 0 and kill.point == "after the checkpoint is saved":
            raise Killed(kill.point)

    def decoding(kind: Any) -> Any:
        decode = kind.decode

        def decoded(self: Any, messages: Any, view: Any) -> Any:
            if view.names.stage != "fit":
                return decode(self, messages, view)
            server.note(view.rows.ids)
            at("between uploads and decoding")
            aggregate = decode(self, messages, view)
            at("after decoding")
            return aggregate

        return patch.object(kind, "decode", decoded)

    with (
        decoding(PoissonBinomial),
        decoding(LocalGaussian),
        patch.object(PrivacyLedger, "charge", charged),
        patch.object(ModelCheckpoint, "_save_checkpoint", saved),
    ):
        yield


def bounded(shape: tuple[int, ...], width: int) -> nn.Module:
    """A bottom whose embeddings lie in [-1, 1]."""
    return nn.Sequential(nn.Linear(shape[0], width), nn.Tanh())


def private(aggregator: Any = None, **settings: Any) -> SplitVFL:
    """Three parties under the Poisson binomial mechanism; ``EVENT`` is what a round of everybody costs."""
    settings = {"bottom": bounded, "width": WIDTH, "seed": 0, **settings}
    return SplitVFL(aggregator or PoissonBinomial(levels=4, beta=0.1), **settings)


def fit_killed(
    folder: Path, kills: Iterable[tuple[str, int]], lose: bool = False, budget: float | None = None, **settings: Any
) -> tuple[SplitVFL, Server]:
    """A fit that is killed and resumed from its newest checkpoint again and again, and comes to its end at last.

    A fit that was killed before it had a checkpoint starts again, with the ledger that is there.
    ``lose``: the ledger is deleted before every resume, so that the checkpoint alone says what was released.
    """
    server = Server()
    for kill in [*(Kill(point, step) for point, step in kills), None]:
        newest = max(folder.glob("kept/*.ckpt"), key=lambda path: path.stat().st_mtime_ns, default=None)
        ledger = next(folder.glob("privacy-*.jsonl"), None)
        if lose and ledger is not None:
            ledger.unlink()
        restarted = newest is None and ledger is not None
        module = private(privacy_ledger="lost" if lose else str(ledger) if restarted else "auto")
        saver = ModelCheckpoint(folder / "kept", "{step}", every_n_train_steps=EVERY, save_top_k=-1)
        callbacks = [saver, *([] if kill is None else [kill])]
        callbacks += [] if budget is None else [PrivacyBudget(budget)]
        settings.setdefault("max_epochs", 3)
        t = trainer(folder, callbacks=callbacks, enable_checkpointing=True, limit_val_batches=0, **settings)
        with watched(server, kill):
            try:
                t.fit(module, datamodule=Blobs(batch_size=10), ckpt_path=newest)
            except Killed:
                continue
        if kill is not None:  # the fit has come to its end, by its budget, before the kill
            break
    return module, server


def charged(module: SplitVFL) -> Any:
    """(N,) how often each record has been charged."""
    accountant = module.privacy.accountant
    if accountant is None:
        return np.zeros(RECORDS, np.int64)
    return accountant.state_dict()["counts"].sum(0).numpy()


def true_epsilon(server: Server) -> float:
    """ε of the record that the server has seen most often."""
    return composed_epsilon({EVENT: int(server.seen.max())}, 1e-5)


def killed_rows() -> list[Row]:
    """Kill and resume: releases that the server has seen against releases that are charged."""
    told = {}
    for lose in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            module, server = fit_killed(Path(folder), [("after decoding", 5)] * 4, lose)
            told[lose] = f"{server.seen.sum():,} releases seen, {charged(module).sum():,} charged"
    spent = {}
    for lose in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            kills = [("after decoding", step) for step in (6, *[3] * 7)]
            _, server = fit_killed(Path(folder), kills, lose, budget=30.0, max_epochs=20)
            spent[lose] = f"ε {true_epsilon(server):.1f} spent of a budget of 30"
    sees = "the masked sums of all rounds, also of those after the last checkpoint"
    return [
        Row("kill the fit after each release, resume from the checkpoint", sees, told[True], told[False], "equal"),
        Row("the same, with `PrivacyBudget(30)`", sees, spent[True], spent[False], "ε at most 30"),
    ]


def rows() -> list[Row]:
    """All attacks of this family."""
    return killed_rows()
