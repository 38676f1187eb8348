"""A hook of an author's own, without ``super()``, changes nothing that the toolkit does at the same moment."""

import inspect
import warnings

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.core.hooks import CheckpointHooks, DataHooks, ModelHooks

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.callbacks import PrivacyBudget
from lightning_vfl.datamodules import Standardise
from tests.golden import data as records
from tests.golden.build import arguments, faults_of, found, merged
from tests.golden.cases import Case, cases
from tests.golden.digest import digest, everything
from tests.golden.train import BATCH, SEED, Lines
from tests.subjects import Blobs, trainer

GAUSSIAN = {"class_path": "GaussianGradients", "init_args": {"clip": 1.0, "sigma": 2.0, "draws": "seeded"}}
CASES = {
    "labels": Case(("protocol/mean",), {"bottom.hidden": [5], "downlink": GAUSSIAN}, rounds=8, cut=5),
    **{name: cases()[name] for name in ("pbm, unreliable", "vfedsec, protected", "vafl, noise", "dvfl", "cvfl, stale")},
}
STEPS = "training_step", "validation_step", "test_step", "predict_step"  # abstract, or the author's to replace
NOT_HOOKS = "configure_optimizers", "configure_sharded_model", *STEPS
HOOKS = sorted(
    {name for base in (ModelHooks, DataHooks, CheckpointHooks) for name in vars(base) if not name.startswith("_")}
    | {name for name in vars(LightningModule) if name.startswith(("configure_", "on_", "optimizer_", "lr_scheduler_"))}
    | {"backward"}
)
HOOKS = [name for name in HOOKS if name not in NOT_HOOKS and inspect.isfunction(getattr(LightningModule, name))]


def own(name):
    """A hook as Lightning documents it: it does what Lightning's own class does, and nothing of the toolkit."""

    def hook(self, *args, **settings):
        return getattr(LightningModule, name)(self, *args, **settings)

    return hook


def fit(case, hooks, folder, steps, ckpt_path=None):
    """What a training leaves behind, and its checkpoint; ``hooks``: the names of the author's own hooks."""
    config = merged(case.recipes, case.settings)
    spec, budget = config["model"], [PrivacyBudget(160.0)] if "protocol/pbm" in case.recipes else []
    base = found(spec["class_path"])
    torch.manual_seed(SEED)
    cls = type(base.__name__, (base,), {name: own(name) for name in hooks})
    module, lines = cls(**arguments(spec["init_args"]), seed=SEED), Lines()
    t = Trainer(
        accelerator="cpu", max_steps=steps, logger=lines, log_every_n_steps=3, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, default_root_dir=folder, gradient_clip_val=0.5,
        callbacks=[*faults_of(config), *budget],
    )  # fmt: skip
    data = getattr(records, case.data)(normaliser=Standardise(public=True), batch_size=BATCH)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        t.fit(module, datamodule=data, ckpt_path=ckpt_path)
        t.save_checkpoint(folder / f"{steps}.ckpt")
    kept = torch.load(folder / f"{steps}.ckpt", weights_only=True)
    ledger = [sorted(path.read_text().splitlines()) for path in folder.rglob("*ledger*")]
    return (
        everything(module, t, lines.lines),
        digest(kept["state_dict"]),
        sorted(kept),
        ledger,
        module.privacy.epsilon(),
    )


def left_behind(case, hooks, folder):
    folder.mkdir()
    return [
        fit(case, hooks, folder, case.cut),
        fit(case, hooks, folder, case.rounds, folder / f"{case.cut}.ckpt"),
    ]


@pytest.mark.parametrize("name", CASES)
def test_hooks_without_super_change_nothing(name, tmp_path):
    case = CASES[name]
    assert left_behind(case, HOOKS, tmp_path / "own") == left_behind(case, (), tmp_path / "plain")


@pytest.mark.slow
@pytest.mark.parametrize("hook", HOOKS)
def test_each_hook_alone_changes_nothing(hook, tmp_path):
    case = CASES["pbm, unreliable"]
    assert left_behind(case, [hook], tmp_path / "own") == left_behind(case, (), tmp_path / "plain")


def test_the_list_of_hooks_is_lightnings():
    assert {"on_train_batch_start", "on_fit_start", "on_save_checkpoint", "configure_model", "setup"} <= {*HOOKS}


def test_an_authors_hook_runs_after_the_toolkits_once_with_and_without_super(tmp_path):
    calls = []

    class Mixin:
        def on_fit_start(self):
            calls.append(("mixin", self.clock is not None, self.faults is not None))
            super().on_fit_start()

    class First(Mixin, SplitVFL):
        def on_train_start(self):
            calls.append(("first", self.books.epoch_batches))
            super().on_train_start()

    class Second(First):
        def on_train_start(self):
            super().on_train_start()
            calls.append(("second", self.books.epoch_batches))

    module, t = Second(Mean(), width=5, seed=0), trainer(tmp_path)
    t.fit(module, datamodule=Blobs(batch_size=9))
    assert calls == [("mixin", True, True), ("first", 6), ("second", 6)]
    assert len(t.optimizers[0]._optimizer_step_post_hooks) == 1  # the toolkit's part of on_train_start ran once


def test_super_in_an_authors_hook_gives_the_answer_of_the_toolkits_part(tmp_path):
    class Own(SplitVFL):
        def configure_callbacks(self):
            return [*super().configure_callbacks(), Callback()]

    t = trainer(tmp_path)
    t.fit(Own(Mean(), width=5, seed=0), datamodule=Blobs(batch_size=9))
    assert any(type(callback) is Callback for callback in t.callbacks)
