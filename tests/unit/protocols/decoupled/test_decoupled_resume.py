"""Decoupled training resumed from any step of any phase equals the uninterrupted run, to the bit."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lightning_vfl.callbacks import Crashes, Stragglers
from lightning_vfl.datamodules import LimitedOverlap
from lightning_vfl.local_objectives import BarlowTwins
from tests.further import further
from tests.subjects import Blobs, dropping, same
from tests.unit.protocols.decoupled.decoupled_by_hand import STEPS, B, Run, decoupled, fit

pytestmark = pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")

# epochs: 0 guests alone, 1 guests send, 2 guests alone, 3 guests send, 4 replay, 5 and 6 owner
PHASES = {"guest_epochs": 4, "communicate_every": 2, "replay_epochs": 1}
EPOCHS = 7
TRAININGS: dict[str, dict[str, Any]] = {
    "faults": {},
    "no faults": {"faultless": True},
    "messages": {"register": "message", "standardise": True},
    "half precision, hosts rest": {"table_dtype": "float16", "host_every": 2},
    "few in common": {"aligned": 24},
    "drawing": {
        "bottom": dropping,
        "host": dropping,
        "guest_objective": BarlowTwins((4, 6)),
        "host_objective": BarlowTwins((5,)),
    },
}


def train(folder: Path, name: str, ckpt_path: Path | None = None) -> Run:
    settings = {**PHASES, **TRAININGS[name]}
    aligned, faultless = settings.pop("aligned", None), settings.pop("faultless", False)
    data = Blobs(None if aligned is None else LimitedOverlap(aligned=aligned), batch_size=B)
    kinds = () if faultless else (("connections", 0.4, 0.3), ("hosts", 0.3, 0.4), ("guests", 0.3, 0.4))
    callbacks: list[Any] = [Crashes(*kind) for kind in kinds] + [Stragglers()] * (not faultless)
    if ckpt_path is None:
        every: dict[str, Any] = {"every_n_train_steps": 1, "save_top_k": -1, "save_on_train_epoch_end": False}
        callbacks.append(ModelCheckpoint(folder, "{step}", **every))
    module = decoupled(seed=0 if ckpt_path is None else 1, **settings)
    saves: dict[str, Any] = {"callbacks": callbacks, "enable_checkpointing": ckpt_path is None}
    return fit(folder, module, data, ckpt_path=ckpt_path, max_epochs=EPOCHS, **saves)


def everything(run: Run) -> dict[str, Any]:
    module, t = run.module, run.trainer
    return {
        "weights": module.state_dict(),
        "optimizer": t.optimizers[0].state_dict(),
        "rounds": module.books.rounds["fit"],
        "bytes": module.books.meter.state_dict(),
        "hosts' bytes": module.counts.host_meter.state_dict(),
        "standing": module.standing(),
        "seconds": module.clock.seconds,
        "given up": module.books.given_up,
        "mini-batches": module.books.mini_batches,
        "communications": module.counts.communications,
        "requests": module.requests_made(),
        "collected": module.counts.collected,
        "memory": None if module.memory is None else module.memory.state(),
        # the others' losses are of logging steps that may lie before the kill
        "metrics": {k: float(v) for k, v in t.callback_metrics.items() if k == "train/loss_epoch" or "train" not in k},
        "step": t.global_step,
    }


@cache
def whole(name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    own = folder / name.replace(" ", "_")
    run = train(own, name)
    expected = everything(run)
    assert expected["rounds"] == expected["step"] == len(run.batches)
    return own, expected


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    yield tmp_path_factory.mktemp("whole")
    whole.cache_clear()


def resumes(folder: Path, elsewhere: Path, name: str, step: int) -> None:
    kept, expected = whole(name, folder)
    resumed = everything(train(elsewhere, name, kept / f"step={step}.ckpt"))
    assert {k for k in expected if not same(expected[k], resumed[k])} == set()
    assert resumed["rounds"] > step


# at the end of an epoch in which guests are alone, and in epochs in which they send, of replay, and of the owner
QUICK = [
    ("faults", STEPS),
    ("faults", 4 * STEPS + 1),
    ("messages", 3 * STEPS + 2),
    further("half precision, hosts rest", 4 * STEPS),
]


@pytest.mark.parametrize(("name", "step"), QUICK)
def test_resumed_equals_uninterrupted(folder, tmp_path, name, step):
    resumes(folder, tmp_path, name, step)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAININGS)
def test_resumed_from_every_step_equals_uninterrupted(folder, tmp_path, name):
    for step in range(1, whole(name, folder)[1]["step"]):
        resumes(folder, tmp_path, name, step)


def test_the_run_that_is_resumed_has_met_everything(folder):
    _, books = whole("faults", folder)
    assert len(books["memory"]["rows"]) == 3  # hosts were told apart
    assert books["communications"] == 2 * STEPS
    assert books["collected"]
    assert books["hosts' bytes"]["up/final encodings"].tolist() == [54 * 5 * 4] * 3  # once
    assert books["bytes"]["up/final embeddings"].tolist() == [3 * 54 * 4 * 4] * 3
    _, books = whole("messages", folder)
    assert any(register is not None for host in books["memory"]["registers"] for register in host)


@pytest.mark.parametrize("step", [5 * STEPS - 1, 5 * STEPS, 5 * STEPS + 1])
def test_the_collection_is_metered_once_around_the_owners_beginning(folder, tmp_path, step):
    kept, _ = whole("faults", folder)
    there = torch.load(kept / f"step={step}.ckpt", weights_only=True)["lightning_vfl"]
    assert there["collected"] == ("up/final embeddings" in there["meter"]) == (step > 5 * STEPS)


@pytest.mark.slow
def test_a_fit_that_is_resumed_by_the_same_module_goes_back(folder, tmp_path):
    """Its buffers, meters and clock were further on."""
    kept, expected = whole("faults", folder)
    run = train(tmp_path / "again", "faults")
    t = run.trainer.__class__(
        accelerator="cpu", max_epochs=EPOCHS, logger=False, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False, callbacks=[c for c in run.trainer.callbacks if isinstance(c, Crashes | Stragglers)],
    )  # fmt: skip
    t.fit(run.module, datamodule=run.data, ckpt_path=kept / "step=2.ckpt")
    resumed = everything(Run(run.module, t, run.data, {}, []))
    assert {k for k in expected if not same(expected[k], resumed[k])} == set()


def test_a_checkpoint_that_is_not_resumed_holds_no_buffers(tmp_path):
    run = fit(tmp_path, decoupled(guest_epochs=1), limit_val_batches=0)
    run.trainer.save_checkpoint(tmp_path / "light.ckpt", weights_only=True)
    run.trainer.save_checkpoint(tmp_path / "whole.ckpt")
    light, heavy = (torch.load(tmp_path / f"{n}.ckpt", weights_only=True)["lightning_vfl"] for n in ("light", "whole"))
    assert "memory" not in light
    assert light["collected"]
    assert torch.equal(heavy["memory"]["rows"][0], run.module.replay.read(torch.arange(54))[0])


def test_a_checkpoint_is_no_larger_than_its_parts(tmp_path):
    """Parameters that lie side by side in memory are each written once; so are the tables."""
    sizes = {}
    for hosts in (2, 6):
        module = decoupled(hosts=hosts, host_width=60, guest_epochs=1)
        run = fit(tmp_path, module, limit_val_batches=0)
        run.trainer.save_checkpoint(tmp_path / "it.ckpt")
        numbers = sum(p.numel() for p in module.parameters())
        sizes[hosts] = (tmp_path / "it.ckpt").stat().st_size - 3 * 4 * numbers - module.replay.table_bytes
    assert 0 < sizes[6] - sizes[2] < 4 * (11 + 2) * 2500  # headers of tensors: a parameter and two of its optimiser
