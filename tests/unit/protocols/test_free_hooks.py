"""A hook of an author's own, without ``super()``, changes nothing that the toolkit does at the same moment."""

import inspect
import re
import warnings
from pathlib import Path

import lightning.pytorch
import pytest
import torch
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.core.hooks import CheckpointHooks, DataHooks, ModelHooks

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.callbacks import PrivacyBudget
from lightning_vfl.datamodules import Standardise
from lightning_vfl.errors import ConfigurationError
from tests.further import few, further
from tests.golden import data as records
from tests.golden.build import arguments, faults_of, found, merged
from tests.golden.cases import Case, cases
from tests.golden.digest import digest, everything
from tests.golden.train import BATCH, SEED, Lines
from tests.subjects import Blobs, same, split, trainer

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


OF_DATA = sorted({name for base in LightningDataModule.__mro__ for name in vars(base) if not name.startswith("_")})
SETTINGS = "load_from_checkpoint", "save_hyperparameters", "remove_ignored_hparams"
OF_DATA = [name for name in OF_DATA if name not in SETTINGS and inspect.isfunction(getattr(LightningDataModule, name))]
OF_DATA = [name for name in OF_DATA if not name.endswith("_dataloader")]  # the author's own batches


def own(name, base=LightningModule):
    """A hook as Lightning documents it: it does what Lightning's own class does, and nothing of the toolkit."""

    def hook(self, *args, **settings):
        return getattr(base, name)(self, *args, **settings)

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


@pytest.mark.parametrize("name", few(CASES, "labels", "dvfl", "cvfl, stale"))
def test_hooks_without_super_change_nothing(name, tmp_path):
    case = CASES[name]
    assert left_behind(case, HOOKS, tmp_path / "own") == left_behind(case, (), tmp_path / "plain")


@pytest.mark.slow
@pytest.mark.parametrize("hook", HOOKS)
def test_each_hook_alone_changes_nothing(hook, tmp_path):
    case = CASES["pbm, unreliable"]
    assert left_behind(case, [hook], tmp_path / "own") == left_behind(case, (), tmp_path / "plain")


def evaluated(case, hooks, folder):
    """What a validation and a test leave behind, through the protocol."""
    config = merged(case.recipes, case.settings)
    base = found(config["model"]["class_path"])
    torch.manual_seed(SEED)
    cls = type(base.__name__, (base,), {name: own(name) for name in hooks})
    module = cls(**arguments(config["model"]["init_args"] | {"evaluate": "protocol"}), seed=SEED)
    data = getattr(records, case.data)(normaliser=Standardise(public=True), batch_size=BATCH)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        t = trainer(folder, callbacks=faults_of(config), max_steps=3)
        t.fit(module, datamodule=data)
        scores = [run(module, datamodule=data, verbose=False) for run in (t.validate, t.test)]
    return scores, module.books.state(), module.privacy.epsilon()


@pytest.mark.parametrize("name", ["pbm, unreliable", further("vfedsec, protected")])
def test_hooks_of_an_evaluation_without_super_change_nothing(name, tmp_path):
    assert same(evaluated(CASES[name], HOOKS, tmp_path / "own"), evaluated(CASES[name], (), tmp_path / "plain"))


def test_the_list_of_hooks_is_lightnings():
    """Every hook that Lightning's own code calls by its name is in the list."""
    texts = [path.read_text() for path in Path(lightning.pytorch.__file__).parent.rglob("*.py")]
    calls = [found for text in texts for found in re.findall(r'call_lightning_module_hook\([^()"]*"(\w+)"', text)]
    assert len(set(calls)) > 30
    assert set(calls) <= {*HOOKS, *NOT_HOOKS}


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


# ---- of a data set


def fitted(folder, cls, seed=0, ckpt_path=None):
    module, t, data = split(), trainer(folder, max_steps=4 if ckpt_path is None else 8), cls(batch_size=9, seed=seed)
    t.fit(module, datamodule=data, ckpt_path=ckpt_path)
    t.save_checkpoint(folder / "last.ckpt")
    return module.state_dict(), data


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The weights of a fit without hooks of an author's own."""
    return fitted(tmp_path_factory.mktemp("plain"), Blobs)[0]


@pytest.mark.parametrize("hook", OF_DATA)
def test_a_hook_of_an_own_data_set_without_super_changes_nothing(hook, tmp_path, plain):
    """Above all it resumes no fit with another division of the records."""
    cls = type("Blobs", (Blobs,), {hook: own(hook, LightningDataModule)})
    weights, _ = fitted(tmp_path, cls)
    with pytest.raises(ConfigurationError, match=r"trained on Blobs with seed = 0, these data have 5; give the same"):
        fitted(tmp_path, cls, seed=5, ckpt_path=tmp_path / "last.ckpt")
    assert same(weights, plain)


@pytest.mark.parametrize("calls_super", [False, True])
def test_an_own_data_set_saves_and_loads_a_state_of_its_own(calls_super, tmp_path):
    class Counting(Blobs):
        fits = 0

        def setup(self, stage):
            self.fits += 1

        def state_dict(self):
            return (super().state_dict() if calls_super else {}) | {"fits": self.fits}

        def load_state_dict(self, state_dict):
            if calls_super:
                super().load_state_dict(state_dict)
            self.fits += state_dict["fits"]

    fitted(tmp_path, Counting)
    _, data = fitted(tmp_path, Counting, ckpt_path=tmp_path / "last.ckpt")
    assert data.fits == 2
    assert data.state_dict() == Blobs(batch_size=9).state_dict() | {"fits": 2}
