"""Cascade training resumed from any END equals the uninterrupted run, to the bit."""

from collections import Counter
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn

from lightning_vfl.aggregators import Concat, MaskedSum, Mean, PoissonBinomial
from lightning_vfl.callbacks import Crashes, PartyDropout, Stragglers
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Stale
from lightning_vfl.networks import MLP
from lightning_vfl.privacy import PrivacyLedger
from lightning_vfl.simulation import Exponential, VirtualClock
from lightning_vfl.waiting import Deadline
from tests.further import further
from tests.subjects import dropping, same, trainer
from tests.unit.protocols.cascade.cascade_by_hand import ADAM, Run, cascade, fit, shared

pytestmark = pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")

EPOCHS, STEPS = 2, 9
SLOW = {"slower": {1: 0.75}, "q": 3.0}
TRAININGS: dict[str, dict[str, Any]] = {
    "async": SLOW,
    "sync": {"variant": "sync", **SLOW},
    "single": {"variant": "single", "alone": 2, "epochs": 6},
    "centralized": {"variant": "centralized"},
    "faults": {
        "aggregator": Concat(),
        "waiting": Deadline(0.3),
        "missing": Stale(),
        "callbacks": (
            partial(Crashes, "connections", 0.1, 0.6),
            partial(Crashes, "hosts", 0.1, 0.6),
            partial(PartyDropout, 0.4, 0.3, announced=False),
            partial(Stragglers, parties=[0, 3], slow=Exponential(1.0)),
        ),
        **SLOW,
    },
    "faults in turns": {
        "variant": "sync",
        "waiting": Deadline(0.3),
        "missing": Stale("float16"),
        "callbacks": (partial(Stragglers, 0.5), partial(Crashes, "connections", 0.1, 0.6)),
    },
    "drawing": {"bottom": dropping, "waiting": Deadline(0.3), "callbacks": (partial(Stragglers, 0.5),), **SLOW},
    "masked": {"aggregator": MaskedSum(insecure_seeded_secrets=True), "evaluate": "plain", **SLOW},
    "draws": {
        "aggregator": PoissonBinomial(levels=16, draws="seeded"),
        "bottom": partial(MLP, hidden=(6,), output_activation=nn.Tanh),
        **SLOW,
    },
}
# other metrics are of logging steps, which may lie before the kill
OF_EPOCHS = ("train/loss_epoch", "train/staleness", "val/", "clock/", "comm/", "progress/")


def train(folder: Path, name: str, ckpt_path: Path | None = None) -> Run:
    settings = dict(TRAININGS[name])
    epochs = settings.pop("epochs", EPOCHS)
    callbacks: list[Any] = [make() for make in settings.pop("callbacks", ())]
    if ckpt_path is None:
        every: dict[str, Any] = {"every_n_train_steps": 1, "save_top_k": -1, "save_on_train_epoch_end": False}
        callbacks.append(ModelCheckpoint(folder, "{step}", **every))
    aggregator = settings.pop("aggregator", Mean())
    seed = 0 if ckpt_path is None else 1  # other weights to begin with
    module = cascade(aggregator, optimizer=ADAM, clock=VirtualClock(latency=0.01), seed=seed, **settings)
    saves: dict[str, Any] = {"callbacks": callbacks, "enable_checkpointing": ckpt_path is None}
    return fit(folder, module, epochs=epochs, ckpt_path=ckpt_path, limit_val_batches=None, **saves)


def everything(run: Run) -> dict[str, Any]:
    module, t = run.module, run.trainer
    return {
        "weights": module.state_dict(),
        "optimizer": t.optimizers[0].state_dict(),
        "rounds": module.books.rounds["fit"],
        "bytes": module.books.meter.state_dict(),
        "standing": module.standing(),
        "seconds": module.clock.seconds,
        "given up": module.books.given_up,
        "mini-batches": module.books.mini_batches,
        "requests": module.requests_made(),
        "memory": module.memory.state(),  # replicas, stale embeddings, late ones
        "versions": (module.counts.version, module.counts.seen),
        "metrics": {k: float(v) for k, v in t.callback_metrics.items() if k.startswith(OF_EPOCHS)},
        "step": t.global_step,
    }


def charged(folder: Path) -> Counter[int]:
    """How often the ledger in this folder has charged each record."""
    counts = [PrivacyLedger.read(path)[1].state_dict()["counts"].sum(0) for path in folder.glob("privacy-*.jsonl")]
    return Counter({i: int(n) for row in counts for i, n in enumerate(row) if n})


@cache
def whole(name: str, folder: Path) -> tuple[Path, Run, dict[str, Any]]:
    own = folder / name.replace(" ", "_")
    run = train(own, name)
    expected = everything(run)
    assert expected["rounds"] == expected["step"] == len(run.events) == EPOCHS * STEPS
    return own, run, expected


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    yield tmp_path_factory.mktemp("whole")
    whole.cache_clear()


def resumes(folder: Path, elsewhere: Path, name: str, step: int) -> None:
    kept, uninterrupted, expected = whole(name, folder)
    before = charged(kept)
    run = train(elsewhere, name, kept / f"step={step}.ckpt")
    resumed = everything(run)
    if run.module.privacy.accountant is not None:  # what others have released from this checkpoint stays charged
        assert charged(kept) - before == Counter(int(i) for ids, _ in run.events for i in ids)
        assert run.module.privacy.accountant.covers(PrivacyLedger.read(*kept.glob("privacy-*.jsonl"))[1])
    assert {k for k in expected if not same(expected[k], resumed[k])} == set()
    if (accountant := uninterrupted.module.privacy.accountant) is not None:  # rounds that are sent again cost again
        again = run.module.privacy.accountant
        assert again is not None
        assert again.covers(accountant)
    assert [event for _, event in run.events] == [event for _, event in uninterrupted.events[step:]]
    # whole epochs since then are logged with the same staleness
    for own, other in zip(reversed(run.logged), reversed(uninterrupted.logged), strict=False):
        assert {k: v for k, v in own.items() if "staleness" in k} == {
            k: v for k, v in other.items() if "staleness" in k
        }


# a test below resumes "faults" in the first epoch
QUICK = [
    *(further("faults", step) for step in (STEPS, STEPS + 1)),
    further("async", STEPS),  # as "faults"
    further("sync", STEPS + 1),  # as "faults in turns"
    ("faults", STEPS + 4),
    ("faults in turns", STEPS + 4),
    ("masked", 8),
    ("draws", 8),
]


@pytest.mark.parametrize(("name", "step"), QUICK)
def test_resumed_equals_uninterrupted(folder, tmp_path, name, step):
    resumes(folder, tmp_path, name, step)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAININGS)
def test_resumed_from_every_step_equals_uninterrupted(folder, tmp_path, name):
    for step in range(1, EPOCHS * STEPS):
        resumes(folder, tmp_path / str(step), name, step)


def test_the_run_that_is_resumed_has_met_everything(folder):
    kept, run, expected = whole("faults", folder)
    assert expected["given up"] > 0  # periods in which the active party was away
    there = [torch.load(path, weights_only=True)["lightning_vfl"]["memory"] for path in kept.glob("step=*.ckpt")]
    assert len(there) == EPOCHS * STEPS
    assert any(messages for memory in there for messages in memory["late"].values())
    assert expected["memory"]["missing"]["rows"].any()
    assert run.module.counts.version < EPOCHS * STEPS - expected["given up"]  # the collaborator was not reached
    tops = [[one["top"] for one in memory["replicas"].values()] for memory in there]
    assert any(not same(one[0], one[1]) for one in tops)
    assert any(memory["missing"]["rows"].any() for memory in there)


def test_a_checkpoint_that_is_not_resumed_holds_no_replicas(tmp_path):
    run = fit(tmp_path, cascade(), epochs=1)
    run.trainer.save_checkpoint(tmp_path / "light.ckpt", weights_only=True)
    run.trainer.save_checkpoint(tmp_path / "whole.ckpt")
    light, heavy = (torch.load(tmp_path / f"{n}.ckpt", weights_only=True) for n in ("light", "whole"))
    assert "memory" not in light["lightning_vfl"]
    assert sorted(heavy["lightning_vfl"]["memory"]["replicas"]) == [0, 1, 2]
    assert set(heavy["state_dict"]) == set(run.module.state_dict())
    assert not any("replica" in name for name in heavy["state_dict"])


@pytest.mark.parametrize("way", ["validated", "connected"])
def test_what_was_never_trained_can_be_saved(tmp_path, way):
    module, t = cascade(), trainer(tmp_path)
    if way == "validated":
        t.validate(module, datamodule=shared(), verbose=False)
    else:
        t.strategy.connect(module)
    t.save_checkpoint(tmp_path / "it.ckpt")
    again = cascade(seed=1)
    again.load_state_dict(torch.load(tmp_path / "it.ckpt", weights_only=True)["state_dict"])
    assert same(again.state_dict(), module.state_dict())


def test_what_was_loaded_can_be_evaluated_and_saved_again(folder, tmp_path):
    kept, _, _ = whole("async", folder)
    module, t = cascade(seed=1, optimizer=ADAM, **SLOW), trainer(tmp_path)
    (scores,) = t.validate(module, datamodule=shared(), ckpt_path=kept / "step=4.ckpt", verbose=False)
    assert scores["val/loss"] > 0
    t.save_checkpoint(tmp_path / "it.ckpt")
    there = torch.load(tmp_path / "it.ckpt", weights_only=True)["lightning_vfl"]["memory"]["replicas"]
    before = torch.load(kept / "step=4.ckpt", weights_only=True)["lightning_vfl"]["memory"]["replicas"]
    assert same(there, before)


def test_a_fit_that_is_resumed_by_the_same_module_goes_back(folder, tmp_path):
    """Its replicas, meters and clock were further on, and answers were on their way."""
    kept, _, expected = whole("faults", folder)
    run = train(tmp_path / "again", "faults")
    callbacks = [c for c in run.trainer.callbacks if isinstance(c, Crashes | PartyDropout | Stragglers)]
    resumed = fit(
        tmp_path,
        run.module,
        shared(),
        epochs=EPOCHS,
        ckpt_path=kept / "step=5.ckpt",
        limit_val_batches=None,
        callbacks=callbacks,
    )
    found = everything(resumed)
    assert {k for k in expected if not same(expected[k], found[k])} == set()


def test_a_fit_after_a_resumed_one_is_what_it_would_have_been_without(folder, tmp_path):
    """Also where nothing was left to do: everybody begins with the networks as they are, events are counted on."""
    kept, before, _ = whole("async", folder)
    uninterrupted = train(tmp_path / "whole", "async").module
    resumed = train(tmp_path, "async", kept / f"step={EPOCHS * STEPS}.ckpt").module
    again = [fit(tmp_path, module, epochs=1) for module in (uninterrupted, resumed)]
    assert [event for _, event in again[0].events] == [event for _, event in again[1].events]
    assert min(event.number for _, event in again[0].events) > max(event.number for _, event in before.events)
    assert same(again[0].parameters(), again[1].parameters())
    assert again[0].logged == again[1].logged
    assert uninterrupted.requests_made() == resumed.requests_made()


# ---- refusals


def test_another_variant_and_other_active_parties_cannot_go_on(tmp_path):
    kept = tmp_path / "single.ckpt"
    fit(tmp_path, cascade(variant="single", alone=2, optimizer=ADAM), epochs=1).trainer.save_checkpoint(kept)
    for settings, message in (
        ({"variant": "sync"}, "trained with variant: single, but this model has sync; resume with the same"),
        (
            {"variant": "single", "alone": 1},
            r"replicas of parties \[2\], but in this run parties \[1\] hold labels; resume",
        ),
    ):
        with pytest.raises(ConfigurationError, match=message):
            fit(tmp_path, cascade(optimizer=ADAM, **settings), epochs=EPOCHS, ckpt_path=kept)
