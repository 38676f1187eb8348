"""Trainings in one process and in two that share every batch: what is kept of them, and what is equal in both."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer

from lightning_vfl import VFLModule
from tests.integration.processes import cases_asked, in_one_and_in_two
from tests.subjects import Blobs, trainer

State = dict[str, Any]


def in_quick_and_slow(cases: Iterable[str], slow: set[str]) -> list[Any]:
    return [pytest.param(case, marks=pytest.mark.slow) if case in slow else case for case in cases]


def fit_and_test(folder: Path, devices: int, module: VFLModule, data: Blobs, **settings: Any) -> Trainer:
    """Train and test in so many processes; the first of them writes the state of the run."""
    t = trainer(folder, devices=devices, strategy="ddp" if devices > 1 else "auto", **settings)
    t.fit(module, datamodule=data)
    fitted = {k: v.double() for k, v in t.callback_metrics.items()}
    tested = {k: torch.as_tensor(v).double() for k, v in t.test(module, datamodule=data, verbose=False)[0].items()}
    if t.is_global_zero:
        state = {
            "weights": module.state_dict(),
            "fit": fitted,
            "test": tested,
            "steps": t.global_step,
            "rounds": module.books.rounds,
            "bytes": module.books.meter.state_dict(),
            "standing": module.standing(),
            "given up": module.books.given_up,
            "agreed": module.preparation.state(),
        }
        torch.save(state, folder / "state.pt")
    return t


def _train_all(train: Callable[[Path, int, str], None], cases: Iterable[str], folder: Path, devices: int) -> None:
    for case in cases:
        (folder / case).mkdir(exist_ok=True)
        train(folder / case, devices, case)


def trained(request: pytest.FixtureRequest, make: Any, cases: Iterable[str], train: Any) -> list[Path]:
    """The folders of the trainings in one process and in two, of the cases that this run of pytest asks for."""
    folders = [make.mktemp(f"devices{devices}") for devices in (1, 2)]
    in_one_and_in_two(partial(_train_all, train, cases_asked(request, cases)), *folders)
    return folders


def with_equal_books(folders: Iterable[Path], case: str) -> tuple[State, State]:
    """The states of a case in one process and in two, whose steps, rounds, bytes and seconds are equal."""
    one, two = (torch.load(folder / case / "state.pt", weights_only=True) for folder in folders)
    for book in ("steps", "rounds", "standing", "given up", "agreed"):
        assert one[book] == two[book], book
    assert one["bytes"].keys() == two["bytes"].keys()
    for kind, count in one["bytes"].items():
        assert torch.equal(two["bytes"][kind], count), kind
    return one, two
