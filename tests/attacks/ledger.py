"""A fit that is killed and resumed, and a plan that promises less than the fit costs: what is charged for releases."""

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_vfl import CascadeVFL, SplitVFL
from lightning_vfl.aggregators import PoissonBinomial
from lightning_vfl.aggregators.clear import PlainServer
from lightning_vfl.aggregators.secure.masked_wire import MaskedServer
from lightning_vfl.callbacks import PrivacyBudget
from lightning_vfl.commands.planned_cost import planned
from lightning_vfl.datamodules import ContiguousColumns
from lightning_vfl.privacy import PoissonBinomialEvent, PrivacyLedger, composed_epsilon, planned_epsilon
from tests.attacks.row import Row
from tests.integration.processes import in_one_and_in_two
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
        decoding(MaskedServer),
        decoding(PlainServer),
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
        Row("kill the fit after each release, resume from the checkpoint", sees, told[True], told[False], "0 releases"),
        Row("the same, with `PrivacyBudget(30)`", sees, spent[True], spent[False], "ε 0"),
    ]


class Columns(Blobs):
    """Blobs of two columns for each of four parties."""

    def default_partitioner(self) -> ContiguousColumns:
        return ContiguousColumns(self.columns // 2)


class FiveParties(Columns):
    """For CascadeVFL, where a sum is of four."""

    columns = 10


class ThreeParties(Columns):
    """As many as ``Blobs`` has."""

    columns = 6


def mechanism(kind: Any = SplitVFL) -> Any:
    """The mechanism of ``protocol/pbm``: b = 16, β = 1/4, embeddings of 16 numbers."""
    return kind(PoissonBinomial(), bottom=bounded, width=16, seed=0)


def first_plan(module: Any, data: Any, steps: int | None, epochs: int, delta: float = 1e-5) -> float:
    """What was promised before: every record once in an epoch of one process, everybody in every sum."""
    records, everybody = len(data.records("train")), tuple(range(module.roster.parties))
    event = module.aggregator.accounting.event(everybody, module.embedding_widths, module.roster)
    return planned_epsilon(event, epochs if steps is None else ceil(steps / ceil(records / data.batch_size)), delta)


def promises(kind: Any, data: Any, folder: Path, **settings: Any) -> tuple[float, float]:
    """The promise before and now, from parts that are made for it."""
    module, records = mechanism(kind), data()
    now = planned(module, records, trainer(folder, **settings)).epsilon(1e-5, "party-record")
    return first_plan(module, records, settings.get("max_steps"), settings["max_epochs"]), now


def spend(folder: Path, devices: int) -> None:
    """Fourteen rounds with batches of 4 records in each process."""
    strategy = "ddp" if devices > 1 else "auto"
    t = trainer(folder, devices=devices, strategy=strategy, max_epochs=-1, max_steps=14, limit_val_batches=0)
    module = mechanism()
    t.fit(module, datamodule=Columns(batch_size=4))
    if t.is_global_zero:
        (folder / "spent").write_text(repr(module.privacy.epsilon()))


def planned_rows() -> list[Row]:
    """What the plan promises against what the fit of that plan has spent."""
    cases: list[tuple[str, Any, Any, dict[str, Any]]] = [
        (
            "`drop_last`, 50 of 54 records a batch, 10 steps",
            SplitVFL,
            partial(ThreeParties, batch_size=50, drop_last=True),
            {"max_epochs": -1, "max_steps": 10},
        ),
        ("CascadeVFL, 5 parties, 3 epochs", CascadeVFL, partial(FiveParties, batch_size=5), {"max_epochs": 3}),
    ]
    made = []
    for words, kind, data, settings in cases:
        with tempfile.TemporaryDirectory() as folder:
            module = mechanism(kind)
            trainer(folder, limit_val_batches=0, **settings).fit(module, datamodule=data())
            made.append((words, *promises(kind, data, Path(folder), **settings), module.privacy.epsilon()))
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        in_one_and_in_two(spend, Path(one), Path(two))
        settings = {"devices": 2, "strategy": "ddp", "max_epochs": -1, "max_steps": 14}
        told = promises(SplitVFL, partial(Columns, batch_size=4), Path(two), **settings)
        made.append(("two processes, 14 steps", *told, float((Path(two) / "spent").read_text())))
    return [
        Row(
            f"trust the plan of `lightning-vfl privacy`: {words}",
            "the masked sums of the fit",
            f"ε {first:.1f} promised, {spent:.1f} spent",
            f"ε {now:.1f} promised, {spent:.1f} spent",
            "ε 0",
        )
        for words, first, now, spent in made
    ]


def rows() -> list[Row]:
    """All attacks of this family."""
    return killed_rows() + planned_rows()
