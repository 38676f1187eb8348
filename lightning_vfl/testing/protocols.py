"""The laws of protocols (``lightning_vfl.VFLModule``), for a protocol of your own."""

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor

from lightning_vfl.callbacks import FaultInjector
from lightning_vfl.datamodules import Arrays, VerticalDataModule
from lightning_vfl.datamodules.records.normalise import StandardiseViews
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.module import VFLModule
from lightning_vfl.simulation.faults import FaultModel, RoundOutcome
from lightning_vfl.testing.law import Law, checked, laws_of, require, require_close, require_same_bits, same
from lightning_vfl.types import Roster

BATCH, SILENT = 10, 1  # rows of a batch; the party that is away in the law about absence


class _Away(FaultModel):
    """One party is away from the beginning, and everybody knows."""

    def sample(self, request: int, roster: Roster, seed: int) -> RoundOutcome:
        there = roster.everybody
        there[SILENT] = False
        return replace(RoundOutcome.nothing(roster), announced=there)


class _Saver(Callback):
    """Takes a checkpoint after a number of training steps; ``content`` has its bytes."""

    content: bytes = b""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == self.step and not self.content:
            self.content = _checkpoint(trainer)


def _checkpoint(trainer: Trainer) -> bytes:
    with TemporaryDirectory() as folder:
        trainer.save_checkpoint(path := Path(folder) / "one.ckpt")
        return path.read_bytes()


@dataclass(frozen=True)
class Fitted:
    """A protocol after a fit, and its trainer."""

    module: VFLModule
    trainer: Trainer

    def state(self) -> dict[str, Any]:
        """What a resumed fit must have in common with an uninterrupted fit."""
        module = self.module
        trainer = self.trainer
        return {
            "parameters and buffers": module.state_dict(),
            "the optimiser's state": [optimizer.state_dict() for optimizer in trainer.optimizers],
            "the counts of rounds": dict(module.books.rounds),
            "the counts of bytes": module.books.meter.state_dict(),
            "the progress": module.standing(),
            "the memory": {} if module.memory is None else module.memory.state(),
            "the number of steps": trainer.global_step,
        }


@dataclass(frozen=True)
class Subject:
    """A protocol under test.

    Args:
        make: makes a new, unfitted module with the same initial settings each time.
        data: makes the data.
        epochs: of a fit.
    """

    make: Callable[[], VFLModule]
    data: Callable[[], VerticalDataModule]
    epochs: int

    def unfitted(self) -> VFLModule:
        """A module with its initial weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = self.make()
            module.build_for(self.data())
        return module

    def fit(self, checkpoint: bytes = b"", *callbacks: Callback) -> Fitted:
        """A fit from the same initial weights, or from a checkpoint."""
        module = self.unfitted()
        with _quiet(), torch.random.fork_rng(devices=[]), TemporaryDirectory() as folder:
            trainer = Trainer(
                accelerator="cpu",
                logger=False,
                enable_checkpointing=False,
                enable_progress_bar=False,
                enable_model_summary=False,
                num_sanity_val_steps=0,
                default_root_dir=folder,
                max_epochs=self.epochs,
                callbacks=list(callbacks),
            )
            path = Path(folder) / "resumed.ckpt"
            path.write_bytes(checkpoint)
            trainer.fit(module, datamodule=self.data(), ckpt_path=path if checkpoint else None)
        return Fitted(module, trainer)

    @cached_property
    def saved(self) -> _Saver:
        """The checkpoint of ``whole`` after four steps, in the middle of an epoch."""
        return _Saver(4)

    @cached_property
    def whole(self) -> Fitted:
        """An uninterrupted fit."""
        return self.fit(b"", self.saved)

    def predictions(self, module: VFLModule, rows: slice = slice(None)) -> Tensor:
        """Predictions for test records."""
        data = self.data()
        data.setup("test")
        records = data.records("test")
        features = records.rows(torch.arange(len(records))[rows])
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            output: Tensor = deepcopy(module).eval()(features)
        return output


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Lightning's notices, which say nothing about the protocol."""
    logger = logging.getLogger("lightning.pytorch")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def protocol_laws(
    make: Callable[[], VFLModule], data: Callable[[], VerticalDataModule] | None = None, epochs: int = 2
) -> tuple[Law, ...]:
    """The laws that ``check_protocol`` checks, by short fits on 54 records, one object each.

    Args:
        make: makes a new module; torch's generator is seeded before each call.
        data: makes the data; None: 3 classes, 3 parties, 54 training records in batches of 10.
        epochs: of a fit, at least 2; a fit needs more than 4 steps.
    """
    return laws_of(make(), Subject(make, data or _three_corners, epochs), LAWS)


check_protocol = checked(protocol_laws)
"""Check all laws of a protocol; the arguments are those of ``protocol_laws``."""


def _three_corners() -> VerticalDataModule:
    """90 points of 8 numbers around three corners of a cube, held by three parties."""
    generator = torch.Generator().manual_seed(7)
    corner = torch.arange(90) % 3
    points = (torch.randn(3, 8, generator=generator) * 2)[corner] + torch.randn(90, 8, generator=generator)
    arrays = {"first": points[:, :3], "second": points[:, 3:6], "third": points[:, 6:]}
    # made-up records: aggregators that account for privacy take them
    scaled = StandardiseViews(public=True)
    return Arrays(arrays, corner, normaliser=scaled, val_share=0.2, test_share=0.2, batch_size=BATCH)


# ---- the laws


def a_fit_changes_the_networks(subject: Subject) -> None:
    """Bottoms and top are trained, and stay finite."""
    initial = dict(subject.unfitted().named_parameters())
    fitted = dict(subject.whole.module.named_parameters())
    changed = [name for name, parameter in fitted.items() if not torch.equal(parameter, initial[name])]
    infinite = [name for name, parameter in fitted.items() if not torch.isfinite(parameter).all()]
    require(not infinite, f"after {subject.epochs} epochs these parameters are not finite: {', '.join(infinite)}")
    for owner in ("bottoms", "top"):
        learnt = any(name.startswith(f"{owner}.") for name in changed)
        require(learnt, f"after {subject.epochs} epochs no parameter of {owner} has changed")


def a_fit_keeps_no_graph(subject: Subject) -> None:
    """After a fit, no attribute of the module has a tensor with a graph: it would keep the memory of a whole step."""
    kept = sorted(name for name, value in vars(subject.whole.module).items() if _has_graph(value))
    require(not kept, f"the attributes {', '.join(kept)} keep tensors with a graph; keep their detach()")


def _has_graph(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_graph, value.values()))
    if isinstance(value, list | tuple | set):
        return any(map(_has_graph, value))
    return isinstance(value, Tensor) and value.grad_fn is not None


def predictions_fit_the_task(subject: Subject) -> None:
    """One finite prediction for each record: (B, C) shares of classes that sum to 1, or (B,)."""
    module = subject.whole.module
    classes = subject.data().num_classes
    predictions = subject.predictions(module)
    data = subject.data()
    data.setup("test")
    form = (len(data.records("test")), *((classes,) if classes is not None and classes > 2 else ()))
    shape = tuple(predictions.shape)
    require(shape == form, f"the predictions have shape {shape} instead of {form}")
    require(bool(torch.isfinite(predictions).all()), "predictions are not finite")
    if predictions.dim() == 2:
        sums = predictions.sum(1)
        require_close(sums, torch.ones(len(sums)), 0.0, 1e-4, "the sums of a record's class probabilities")


def a_prediction_does_not_depend_on_other_records(subject: Subject) -> None:
    """A record has the same prediction alone and among others, to 1e-5."""
    module = subject.whole.module
    together = subject.predictions(module)
    alone = torch.cat([subject.predictions(module, slice(i, i + 1)) for i in (0, 1, 2)])
    require_close(alone, together[:3], 1e-5, 1e-5, "predictions of single records against those among others")


def the_same_fit_gives_the_same_bits(subject: Subject) -> None:
    """A fit is a function of settings, data and seed."""
    _require_equal(subject.fit().state(), subject.whole.state(), "a second fit from the same seed")


def a_resumed_fit_is_the_uninterrupted_fit(subject: Subject) -> None:
    """A fit that resumes a checkpoint of step 4 ends with the bits of the uninterrupted fit."""
    expected = subject.whole.state()
    require(bool(subject.saved.content), f"a fit of {subject.epochs} epochs has fewer than 4 steps; give more epochs")
    _require_equal(subject.fit(subject.saved.content).state(), expected, "a fit that resumes after step 4")


def _require_equal(got: Mapping[str, Any], expected: Mapping[str, Any], what: str) -> None:
    different = [name for name in expected if not same(got[name], expected[name])]
    require(not different, f"{what} differs in {', '.join(different)}")


def every_step_is_counted(subject: Subject) -> None:
    """Rounds are counted, and a fit that learns sends bytes and takes virtual time."""
    module = subject.whole.module
    trainer = subject.whole.trainer
    rounds = module.books.training_rounds
    require(rounds == trainer.global_step, f"{rounds} rounds are counted in {trainer.global_step} steps")
    sent = int(module.books.meter.total("up").sum())
    require(sent > 0, f"{sent} bytes are counted in {rounds} rounds; call enter_round, or books.enter")
    require(module.clock.seconds > 0, f"{module.clock.seconds:g} virtual seconds pass in {rounds} rounds")


def _of_training(state: dict[str, Any]) -> dict[str, Any]:
    """The state without the counts of rounds and bytes, which count those of evaluation too."""
    kept = {name: value for name, value in state.items() if name not in ("the counts of rounds", "the counts of bytes")}
    progress = {name: value for name, value in state["the progress"].items() if not name.startswith("comm/")}
    return kept | {"the progress": progress}


def evaluation_changes_nothing(subject: Subject) -> None:
    """A test after a fit leaves parameters, optimiser state and training counts as they were."""
    fitted = subject.fit()
    before = _of_training(deepcopy(fitted.state()))
    seconds = fitted.module.clock.seconds
    with _quiet():
        fitted.trainer.test(fitted.module, datamodule=subject.data(), verbose=False)
    _require_equal(_of_training(fitted.state()), before, "a model after a test")
    trained = fitted.module.books.training_rounds
    require(trained == before["the number of steps"], f"a test changes the count of training rounds to {trained}")
    require(fitted.module.clock.seconds == seconds, "virtual time passes in a test")


def a_party_that_sends_nothing_learns_nothing(subject: Subject) -> None:
    """Faults are refused before training, or a party that is away in all rounds sends less and keeps every bit.

    It may still send in a phase that is documented as one without faults.
    """
    batches: list[int] = []
    count = LambdaCallback(on_train_batch_start=lambda trainer, module, batch, number: batches.append(number))
    try:
        fitted = subject.fit(b"", FaultInjector(_Away()), count)
    except ConfigurationError as error:
        require(not batches, f"a fit with faults ends in round {len(batches)}: {error}")
        return
    sent, usual = (int(fit.module.books.meter.total("up")[SILENT]) for fit in (fitted, subject.whole))
    what = f"{sent} bytes are counted as sent by party {SILENT}, which is away in all rounds; {usual} if it is there"
    require(sent == 0 or sent < usual, what)
    initial = dict(subject.unfitted().bottoms.parties[SILENT].named_parameters())
    for name, parameter in fitted.module.bottoms.parties[SILENT].named_parameters():
        require_same_bits(parameter.detach(), initial[name].detach(), f"'{name}' of party {SILENT}, which sent nothing")


def a_checkpoint_restores_the_predictions(subject: Subject) -> None:
    """A new module that loads a checkpoint predicts the same bits."""
    fitted = subject.whole
    with _quiet():
        content = torch.load(io.BytesIO(_checkpoint(fitted.trainer)), weights_only=True)
        module = subject.unfitted()
        module.on_load_checkpoint(content)
        module.load_state_dict(content["state_dict"])
    expected = subject.predictions(fitted.module)
    require_same_bits(subject.predictions(module), expected, "predictions of the loaded module")


LAWS = (
    a_fit_changes_the_networks,
    a_fit_keeps_no_graph,
    predictions_fit_the_task,
    a_prediction_does_not_depend_on_other_records,
    the_same_fit_gives_the_same_bits,
    a_resumed_fit_is_the_uninterrupted_fit,
    every_step_is_counted,
    evaluation_changes_nothing,
    a_party_that_sends_nothing_learns_nothing,
    a_checkpoint_restores_the_predictions,
)
