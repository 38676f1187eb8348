"""Lean steps against Lightning's own: the same calls in the same order, the same bits, logs and checkpoints."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.networks import Linear
from lightning_vfl.protocols.lean_steps import is_plain
from lightning_vfl.simulation import PartyDropout
from tests.further import further
from tests.subjects import Blobs, same, split, trainer

_HOOKS = [name for name in vars(Callback) if name.startswith("on_") and not name.endswith("_checkpoint")]


def _short(value: Any) -> Any:
    """What a hook was given, comparable between two runs."""
    if isinstance(value, Tensor):
        return value.detach().flatten().tolist()
    if isinstance(value, Mapping):
        return {key: _short(one) for key, one in value.items()}
    return value if isinstance(value, int | float | str) else type(value).__name__


class Heard(Callback):
    """Every hook that is called, with what it was given and the hook's name that the module would log under."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        for name in _HOOKS:
            setattr(self, name, partial(self.hear, name))

    def hear(self, name: str, trainer: Any, module: LightningModule, *values: Any, **settings: Any) -> None:
        counts = trainer.fit_loop.epoch_loop.batch_progress.state_dict()
        shown = [_short(value) for value in (*values, *settings.values())]
        self.calls.append((name, module._current_fx_name, trainer.global_step, counts, shown))


class Listening(SplitVFL):
    """Implements the hooks of a step that the toolkit does not."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.calls: list[Any] = []

    def on_before_zero_grad(self, optimizer: Any) -> None:
        self.calls.append(("zero_grad", self._current_fx_name, [p.grad is None for p in self.parameters()]))

    def on_before_backward(self, loss: Tensor) -> None:
        self.log("own/loss", loss, on_step=True, on_epoch=True, batch_size=1)
        self.calls.append(("before", self._current_fx_name, loss.item()))

    def on_after_backward(self) -> None:
        self.calls.append(("after", self._current_fx_name, [p.grad is None for p in self.parameters()]))

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.calls.append(("end", self._current_fx_name, _short(outputs), batch_idx))


def fitted(folder, lean, make, resume=None, **settings):
    """What a fit leaves: the calls, the weights, the logged values and the last checkpoint."""
    torch.manual_seed(0)
    module, heard, log = make(), Heard(), CSVLogger(folder, "log")
    module.lean_steps = lean
    callbacks = [heard, *(one() for one in settings.pop("more", ()))]
    usual = {"max_epochs": 2, "logger": log, "callbacks": callbacks, "log_every_n_steps": 2, **settings}
    fit = trainer(folder, **usual)
    fit.fit(module, datamodule=Blobs(batch_size=10), ckpt_path=resume)
    fit.save_checkpoint(folder / "end.ckpt")
    kept = torch.load(folder / "end.ckpt", weights_only=False)
    return {
        "calls": heard.calls,
        "own": getattr(module, "calls", None),
        "weights": list(module.parameters()),
        "rows": (folder / "log" / "version_0" / "metrics.csv").read_text(),
        "logged": {name: float(value) for name, value in fit.callback_metrics.items()},
        "loops": kept["loops"],
        "books": kept["lightning_vfl"],
        "optimizer": kept["optimizer_states"],
        "schedulers": kept["lr_schedulers"],
    }


def by_step(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


def plateau(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)


def flaky() -> SplitVFL:
    module = split()
    module.faults.add(PartyDropout(0.3, 0.1))
    return module


CASES: dict[str, tuple[Callable[[], SplitVFL], dict[str, Any]]] = {
    "plain": (split, {}),
    "hooks of one's own": (partial(Listening, Mean(), Linear, Linear, 4), {}),
    "clipping by norm": (split, {"gradient_clip_val": 0.01}),
    "clipping by value": (split, {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}),
    "a schedule": (partial(split, lr_scheduler=by_step), {}),
    "a schedule by the loss": (partial(split, lr_scheduler=plateau), {}),
    "validation within an epoch": (split, {"val_check_interval": 2}),
    "an end in an epoch": (split, {"max_steps": 5}),
    "early stopping": (split, {"more": [partial(EarlyStopping, "val/loss", min_delta=10.0, patience=1)]}),
    "checkpoints": (split, {"more": [partial(ModelCheckpoint, every_n_train_steps=3)], "enable_checkpointing": True}),
    "faults": (flaky, {}),
}


@pytest.mark.parametrize(
    "case", [further(c) if c in ("clipping by value", "a schedule by the loss") else c for c in CASES]
)
def test_the_same_calls_bits_logs_and_checkpoints(case, tmp_path):
    make, settings = CASES[case]
    lean = fitted(tmp_path / "lean", True, make, **settings)
    own = fitted(tmp_path / "own", False, make, **settings)
    assert [call[0] for call in lean["calls"]] == [call[0] for call in own["calls"]]
    assert same(lean, own)
    assert len(lean["calls"]) > 30


@pytest.mark.filterwarnings("ignore:The dirpath has changed")
def test_a_checkpoint_from_the_middle_of_an_epoch_resumes_to_the_same(tmp_path):
    saves = partial(ModelCheckpoint, filename="{step}", every_n_train_steps=4, save_top_k=-1)
    saving: dict[str, Any] = {"more": [saves], "enable_checkpointing": True}
    whole = fitted(tmp_path / "whole", True, split, **saving)
    resume = str(tmp_path / "whole" / "log" / "version_0" / "checkpoints" / "step=4.ckpt")
    lean = fitted(tmp_path / "lean", True, split, resume, **saving)
    own = fitted(tmp_path / "own", False, split, resume, **saving)
    assert same(lean, own)
    assert same(lean["weights"], whole["weights"])


class Asks(Callback):
    """Whether the steps of a fit are lean."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.lean = "advance" in vars(trainer.fit_loop.epoch_loop)

    def on_train_end(self, trainer, pl_module):
        self.plain = is_plain(trainer)


def asked(folder, module, **settings):
    asks = Asks()
    fit = trainer(folder, callbacks=[asks], max_steps=2, **settings)
    fit.fit(module, datamodule=Blobs(batch_size=10))
    assert "advance" not in vars(fit.fit_loop.epoch_loop)
    return asks


def test_steps_are_lean_unless_the_module_asks_for_lightnings_own(tmp_path):
    # fails with a version of Lightning that was not tried: compare its loop with lean_steps, then add it to _TRIED
    assert asked(tmp_path, split()).lean
    module = split()
    module.lean_steps = False
    asks = asked(tmp_path, module)
    assert not asks.lean
    assert asks.plain


class OwnBackward(SplitVFL):
    def backward(self, loss, *arguments, **settings):
        (2 * loss).backward()


class OwnStep(SplitVFL):
    def optimizer_step(self, *arguments, **settings):
        super().optimizer_step(*arguments, **settings)


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (split, {"profiler": "simple"}),
        (split, {"precision": "bf16-mixed"}),
        (split, {"precision": "64-true"}),
        (partial(OwnBackward, Mean()), {}),
        (partial(OwnStep, Mean()), {}),
    ],
)
def test_what_needs_lightnings_own_steps_gets_them(make, settings, tmp_path):
    asks = asked(tmp_path, make(), **settings)
    assert not asks.lean
    assert not asks.plain


class Moving(SplitVFL):
    """Doubles its features before they go to the device."""

    def on_before_batch_transfer(self, batch, dataloader_idx):
        return batch._replace(features=tuple(2 * x for x in batch.features))


@pytest.mark.filterwarnings("ignore:You have overridden")
def test_hooks_around_the_transfer_of_a_batch_are_called(tmp_path):
    weights = []
    for lean in (True, False):
        torch.manual_seed(0)
        module = Moving(Mean(), Linear, Linear, 4)
        module.lean_steps = lean
        assert asked(tmp_path, module).lean == lean
        weights.append(list(module.parameters()))
    assert same(*weights)


def test_a_callback_that_comes_later_is_called(tmp_path):
    class Adds(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            if batch_idx == 1:
                trainer.callbacks.append(later)

    later = Asks()
    trainer(tmp_path, callbacks=[Adds()], max_steps=3).fit(split(), datamodule=Blobs(batch_size=10))
    assert later.lean


def test_a_module_without_lean_steps_can_follow_a_fit_that_failed(tmp_path):
    class Fails(Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            raise ArithmeticError

    fit = trainer(tmp_path, callbacks=[Fails()], max_steps=2)
    with pytest.raises(ArithmeticError):
        fit.fit(split(), datamodule=Blobs(batch_size=10))
    fit.callbacks.clear()
    other = BoringModel()
    before = [p.detach().clone() for p in other.parameters()]
    fit.fit(other)
    assert fit.global_step == 2
    assert not same(before, list(other.parameters()))
