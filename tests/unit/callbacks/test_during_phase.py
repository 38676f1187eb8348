"""Callbacks in one phase of a module that trains in three: epochs 0 and 1, epoch 2, and the rest."""

import pytest
import torch
import yaml
from jsonargparse import ArgumentParser
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel

from lightning_vfl.callbacks import DuringPhase, FaultInjector, LearningCurve
from lightning_vfl.commands.recipes import with_full_paths
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.simulation import Stragglers
from tests.subjects import trainer

ACCURACY = (0.9, 0.8, 0.7, 0.1, 0.3, 0.2, 0.25, 0.1)  # best before the owner begins; then best in epoch 4


class Phased(BoringModel):
    phases = ("representation", "replay", "owner")

    @property
    def phase(self):
        return self.phases[(self.current_epoch > 1) + (self.current_epoch > 2)]

    def validation_step(self, batch, batch_idx):
        self.log("val/accuracy", ACCURACY[self.current_epoch])


class LateMetric(Phased):
    """Nothing is known of the owner before it begins."""

    def validation_step(self, batch, batch_idx):
        if self.phase == "owner":
            super().validation_step(batch, batch_idx)


class Witness(Callback):
    """Writes down every hook and the epoch that it was called in."""

    def __init__(self):
        self.seen = []


def writing(hook):
    def write(self, trainer, pl_module, *args, **kwargs):
        self.seen.append((hook, trainer.current_epoch))

    return write


for name in vars(Callback):
    if name.startswith("on_") or name in ("setup", "teardown"):
        setattr(Witness, name, writing(name))


def fit(folder, *callbacks, module=None, ckpt_path=None, **settings):
    settings = {"max_epochs": 8, "limit_train_batches": 2, "limit_val_batches": 1, **settings}
    t = trainer(folder, callbacks=list(callbacks), **settings)
    t.fit(module or Phased(), ckpt_path=ckpt_path)
    return t


def test_the_callback_sees_its_phase_and_what_happens_once_a_run(tmp_path):
    whole, part = Witness(), Witness()
    t = fit(tmp_path, whole, DuringPhase("replay", part), max_epochs=5)
    assert part.seen == [
        ("setup", 0), ("on_fit_start", 0), ("on_train_start", 0),
        ("on_train_epoch_start", 2),
        *[
            (hook, 2)
            for _ in range(2)
            for hook in (
                "on_train_batch_start", "on_before_zero_grad", "on_before_backward", "on_after_backward",
                "on_before_optimizer_step", "on_train_batch_end",
            )
        ],
        ("on_validation_start", 2), ("on_validation_epoch_start", 2), ("on_validation_batch_start", 2),
        ("on_validation_batch_end", 2), ("on_validation_epoch_end", 2), ("on_validation_end", 2),
        ("on_train_epoch_end", 2),
        ("on_train_end", 5), ("on_fit_end", 5), ("teardown", 5),
    ]  # fmt: skip
    assert [entry for entry in whole.seen if entry[1] == 2] == [entry for entry in part.seen if entry[1] == 2]
    whole.seen, part.seen = [], []
    t.test(t.model, verbose=False)  # it has come to the owner's phase
    assert {hook for hook, _ in whole.seen} - {hook for hook, _ in part.seen} >= {
        "on_test_start",
        "on_test_batch_end",
    }
    assert [hook for hook, _ in part.seen] == ["setup", "teardown"]


def test_an_exception_reaches_the_callback_in_every_phase(tmp_path):
    class Broken(Phased):
        def training_step(self, batch, batch_idx):
            raise ZeroDivisionError

    witness = Witness()
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path, DuringPhase("owner", witness), module=Broken())
    assert ("on_exception", 0) in witness.seen


@pytest.mark.parametrize("at_train_end", [None, True, False])
@pytest.mark.parametrize("module", [Phased, LateMetric])
def test_patience_is_the_owners(tmp_path, module, at_train_end):
    """Without the wrapper, 0.9 in epoch 0 were the best and patience gone in epoch 2. Lightning asks at either end."""
    stopping = EarlyStopping("val/accuracy", mode="max", patience=2, check_on_train_epoch_end=at_train_end)
    t = fit(tmp_path, DuringPhase("owner", stopping), module=module())
    assert (stopping.best_score, stopping.wait_count, stopping.stopped_epoch) == (pytest.approx(0.3), 2, 6)
    assert t.current_epoch == 7


def test_patience_goes_on_where_a_checkpoint_left_it(tmp_path):
    def callbacks():
        stoppers = [EarlyStopping("val/accuracy", mode="max", patience=2) for _ in range(2)]
        wrapped = DuringPhase("owner", stoppers[0]), DuringPhase("replay", stoppers[1])
        return *wrapped, DuringPhase("owner", LearningCurve(str(tmp_path / "curve.png")))

    fit(tmp_path, *callbacks(), max_epochs=6).save_checkpoint(tmp_path / "six.ckpt")
    again = callbacks()
    states = torch.load(tmp_path / "six.ckpt", weights_only=True)["callbacks"]
    assert states.keys() == {callback.state_key for callback in again}
    assert len(states) == 3
    assert fit(tmp_path, *again, ckpt_path=tmp_path / "six.ckpt").current_epoch == 7
    assert again[0].callback.best_score == pytest.approx(0.3)


def test_checkpoints_are_saved_in_the_phase_alone(tmp_path):
    best = ModelCheckpoint(tmp_path, "{epoch}", monitor="val/accuracy", mode="max")
    fit(tmp_path, DuringPhase("owner", best))
    assert [path.name for path in tmp_path.glob("*.ckpt")] == ["epoch=4.ckpt"]
    assert best.best_model_path == str(tmp_path / "epoch=4.ckpt")


def test_what_ends_a_run_sees_the_phases_points(tmp_path):
    curve = LearningCurve(str(tmp_path / "curve.png"))
    fit(tmp_path, DuringPhase("representation", curve))
    assert [epoch for epoch, _ in curve.points["val/accuracy"]] == [1, 2]
    assert (tmp_path / "curve.png").exists()


@pytest.mark.parametrize(
    ("phase", "module", "fix"),
    [
        ("owner", BoringModel(), "BoringModel does not train in phases; list EarlyStopping without DuringPhase"),
        ("hosts", Phased(), "Phased has no phase 'hosts'; choose one of representation, replay, owner"),
    ],
)
def test_a_module_without_the_phase_is_refused_before_training(tmp_path, phase, module, fix):
    with pytest.raises(ConfigurationError, match=fix):
        fit(tmp_path, DuringPhase(phase, EarlyStopping("val/accuracy")), module=module)


def test_what_no_phase_would_reach_is_refused():
    with pytest.raises(ConfigurationError, match="FaultInjector acts once a run"):
        DuringPhase("owner", FaultInjector(Stragglers()))
    DuringPhase("owner", LearningRateMonitor())


def test_a_recipe_says_it_with_short_names():
    text = """
        callbacks:
          - class_path: DuringPhase
            init_args:
              phase: owner
              callback:
                class_path: EarlyStopping
                init_args: {monitor: val/accuracy, mode: max, patience: 7}
    """
    parser = ArgumentParser()
    parser.add_argument("--callbacks", type=list[Callback])
    (during,) = parser.instantiate_classes(parser.parse_object(with_full_paths(yaml.safe_load(text)))).callbacks
    assert type(during) is DuringPhase
    assert (during.phase, type(during.callback), during.callback.patience) == ("owner", EarlyStopping, 7)
