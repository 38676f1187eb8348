"""Resumed equals uninterrupted: weights, optimiser, schedule, books, logged values, to the bit."""

import random
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    EarlyStopping,
    LearningRateFinder,
    LearningRateMonitor,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger

from lightning_vfl import AsyncVFL, SplitVFL
from lightning_vfl.aggregators import Max, Mean
from lightning_vfl.callbacks import Crashes, LearningCurve, PartyDropout, Stragglers
from lightning_vfl.datamodules import RandomColumns
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Stale
from lightning_vfl.waiting import Deadline
from tests.further import further
from tests.integration.processes import in_one_and_in_two
from tests.subjects import Blobs, dropping, same, split, trainer

pytestmark = pytest.mark.filterwarnings(
    "ignore:Be aware that when using `ckpt_path`"
)  # the saver is left out on purpose

EPOCHS, STEPS = 3, 6  # 54 training records in batches of 10
KILLS = (1, further(5), 6, 7, further(9), 17)  # about the first and last steps of an epoch, and within
SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
RATE = partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)


def module():
    torch.manual_seed(0)
    return split(Max(), dropout=True, optimizer=SGD, lr_scheduler=RATE)


def unreliable(**settings):
    """Late parties, dropouts and crashes; the latest embeddings stand in for the missing."""
    settings = {"dropout": True, "optimizer": SGD, "lr_scheduler": RATE} | settings
    return split(Mean(), waiting=Deadline(0.15), missing=Stale(), **settings)


def asynchronous():
    torch.manual_seed(0)
    return AsyncVFL(Mean(), bottom=dropping, width=5, seed=0, noise=0.1, optimizer=SGD, lr_scheduler=RATE)


def injectors():
    return [Stragglers(), PartyDropout(0.3, 0.3, announced=False), Crashes("guests", 0.2, 0.5)]


class Curve(LearningCurve):
    """The points of the curve; none is drawn."""

    def on_fit_end(self, trainer, pl_module):
        return


def fit(folder, ckpt_path=None, make=module, faults=(), **settings):
    one = make()
    curve = Curve()
    saver = ModelCheckpoint(
        dirpath=folder, filename="{step}", every_n_train_steps=1, save_top_k=-1, save_on_train_epoch_end=False
    )
    settings.setdefault("callbacks", [curve, *faults, saver] if ckpt_path is None else [curve, *faults])
    saves = any(isinstance(callback, ModelCheckpoint) for callback in settings["callbacks"])
    settings.setdefault("max_epochs", EPOCHS)
    t = trainer(folder, enable_checkpointing=saves, **settings)
    t.fit(one, datamodule=Blobs(batch_size=10), ckpt_path=ckpt_path)
    return one, t, curve


def everything(one, t, curve):
    return {
        "weights": one.state_dict(),
        "optimizer": t.optimizers[0].state_dict(),
        "rate": t.lr_scheduler_configs[0].scheduler.state_dict(),
        "rounds": one.books.rounds,
        "bytes": one.books.meter.state_dict(),
        "standing": one.standing(),
        "given up": one.books.given_up,
        "memory": one.memory.state() if one.memory is not None else {},
        # train/loss is of the latest logging step, which may lie before the kill
        "metrics": {k: float(v) for k, v in t.callback_metrics.items() if k != "train/loss"},
        "step": t.global_step,
        "curve": curve.points,
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, everything(*fit(folder))


@pytest.mark.parametrize("step", KILLS)
def test_a_run_killed_after_any_step_resumes_to_the_same_bits(whole, tmp_path, told, step):
    folder, expected = whole
    resumed = everything(*fit(tmp_path, ckpt_path=folder / f"step={step}.ckpt"))
    differ = {k for k in expected if not same(expected[k], resumed[k])}
    if step % STEPS == 0:  # saved between the last round and the validation: Lightning goes on with the next epoch
        assert resumed["rounds"]["fit"] == expected["rounds"]["fit"]
        assert differ == {"curve", "rounds"}
    else:
        assert differ == set()
    assert not [line for line in told if "keeps seed" in line]  # it is the seed of the checkpoint


@pytest.mark.parametrize(
    ("make", "steps", "kills"),
    [(unreliable, STEPS, (4, 15)), (asynchronous, 15, (7, 29))],
    ids=["SplitVFL", "AsyncVFL"],
)
def test_a_run_under_faults_resumes_to_the_same_bits(tmp_path, told, make, steps, kills):
    """Virtual time, bytes, the table of latest embeddings, the queue of events and the faults themselves go on.

    Another seed has no effect on a resumed fit, and that is told.
    """
    first = tmp_path / "first"
    first.mkdir()
    expected = everything(*fit(first, make=make, faults=injectors(), max_epochs=2 if steps > STEPS else EPOCHS))
    assert expected["standing"]["clock/virtual_seconds"] > 0.5
    assert expected["memory"]["rows"].any()
    for step in kills:
        epochs = 2 if steps > STEPS else EPOCHS
        path = first / f"step={step}.ckpt"
        again = partial(make, seed=5) if step == 15 else make
        told.clear()
        resumed = everything(*fit(tmp_path, path, make=again, faults=injectors(), max_epochs=epochs))
        assert {k for k in expected if not same(expected[k], resumed[k])} == set()
        lines = [line for line in told if "keeps seed" in line]
        assert len(lines) == (step == 15)
        assert step != 15 or lines[0].startswith(
            "the resumed fit keeps seed 0 of the checkpoint, and seed 5 has no effect"
        )


class Drawing(Callback):
    """Draws from the three global generators at the beginning and the end of a batch, and before its step."""

    def __init__(self):
        self.drawn = {}

    def _draw(self, trainer, module, hook):
        numbers = torch.rand((), device=module.device).item(), np.random.random(), random.random()
        self.drawn[trainer.global_step, hook] = numbers

    def on_train_batch_start(self, trainer, module, *_):
        self._draw(trainer, module, "start")

    def on_before_optimizer_step(self, trainer, module, *_):
        self._draw(trainer, module, "step")

    def on_train_batch_end(self, trainer, module, *_):
        self._draw(trainer, module, "end")


def drawn_in(folder, devices, ckpt_path=None):
    """What a fit draws. One that is resumed has drawn other numbers before it."""
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(0 if ckpt_path is None else 1)
    drawing, one = Drawing(), module()
    saver = ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1, save_on_train_epoch_end=False)
    t = trainer(
        folder,
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        max_epochs=EPOCHS,
        callbacks=[drawing, saver] if ckpt_path is None else [drawing],
        enable_checkpointing=ckpt_path is None,
    )
    t.fit(one, datamodule=Blobs(batch_size=10 // devices), ckpt_path=ckpt_path)
    return t.global_rank, drawing.drawn


def draw_again(folder, devices):
    rank, expected = drawn_in(folder, devices)
    assert len(expected) == 3 * EPOCHS * STEPS
    for step in (1, STEPS - 1, STEPS + 1):
        _, found = drawn_in(folder / "again", devices, folder / f"step={step}.ckpt")
        done = {key for key in expected if key[0] < step or key == (step, "end")}
        assert found == {key: expected[key] for key in expected.keys() - done}, step
    (folder / f"{rank}.txt").write_text(str(sorted(expected.items())))


@pytest.mark.processes
def test_a_callback_draws_after_a_resume_what_it_would_have_drawn(tmp_path):
    """The two processes of a fit draw different numbers, each its own again."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir(), two.mkdir()
    in_one_and_in_two(draw_again, one, two)
    assert (one / "0.txt").exists()
    assert (two / "0.txt").read_text() != (two / "1.txt").read_text()


class Saving(Callback):
    """Saves a checkpoint when a fit ends with an error, as OnExceptionCheckpoint does."""

    def __init__(self, path):
        self.path = path

    def on_exception(self, trainer, module, exception):
        trainer.save_checkpoint(self.path)


class Interrupt(Callback):
    """Ends a fit in a hook of a batch: after it is fetched, and before its step or after it."""

    def __init__(self, hook, step):
        setattr(self, hook, lambda trainer, *_: self._end(trainer, step))

    def _end(self, trainer, step):
        if trainer.global_step == step:
            raise RuntimeError("interrupted")


BEFORE = "on_train_batch_start"


@pytest.mark.parametrize(
    ("make", "hook", "step"),
    [further(module, BEFORE, 8), (module, BEFORE, 6), (asynchronous, BEFORE, 7), (module, "on_train_batch_end", 8)],
)
def test_an_interruption_between_a_batch_and_its_step_loses_nothing(whole, tmp_path, make, hook, step):
    expected = whole[1] if make is module else everything(*fit(tmp_path, make=make))
    saver = Saving(tmp_path / "interrupted.ckpt")
    with pytest.raises(RuntimeError, match="interrupted"):
        fit(tmp_path, make=make, callbacks=[Curve(), saver, Interrupt(hook, step)])
    resumed = everything(*fit(tmp_path, tmp_path / "interrupted.ckpt", make=make, callbacks=[Curve()]))
    assert {key for key in expected if not same(expected[key], resumed[key])} <= {"curve"}


def test_a_checkpoint_from_within_a_round_says_that_its_bits_differ(tmp_path):
    saver = Saving(tmp_path / "interrupted.ckpt")
    with pytest.warns(UserWarning, match="saved within round 9"), pytest.raises(RuntimeError, match="interrupted"):
        fit(tmp_path, callbacks=[Curve(), saver, Interrupt("on_before_backward", 8)])
    one, t, _ = fit(tmp_path, tmp_path / "interrupted.ckpt", callbacks=[Curve()])
    assert (t.global_step, one.books.rounds["fit"]) == (EPOCHS * STEPS, EPOCHS * STEPS + 1)


def test_the_memory_is_left_out_of_checkpoints_that_are_not_resumed(tmp_path):
    saver = ModelCheckpoint(dirpath=tmp_path, filename="light", save_weights_only=True)
    fit(tmp_path, make=asynchronous, callbacks=[saver], max_epochs=1)
    assert "memory" not in torch.load(tmp_path / "light.ckpt", weights_only=True)["lightning_vfl"]


def test_the_books_would_show_a_lost_round(whole):
    _, expected = whole
    assert expected["rounds"]["fit"] == EPOCHS * STEPS == expected["step"]
    assert int(expected["bytes"]["up/embeddings"].sum()) == EPOCHS * 54 * 3 * 5 * 4
    assert len(expected["curve"]["val/accuracy"]) == EPOCHS


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_the_first_validation_of_a_resumed_fit_has_the_digits_of_the_third(tmp_path, precision):
    expected = everything(*fit(tmp_path, precision=precision))
    resumed = everything(*fit(tmp_path / "again", tmp_path / f"step={2 * STEPS + 2}.ckpt", precision=precision))
    assert same(resumed, expected)


class OneCycle(SplitVFL):
    """Its schedule needs the number of steps, for which Lightning makes the training loader early."""

    def configure_optimizers(self):
        optimizer = SGD(self.parameters())
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class ByRecords(OneCycle):
    """It also makes loaders of its own: one for the number of batches, and one to pass over all training records."""

    def configure_optimizers(self):
        data = self.trainer.datamodule
        assert len(data.train_dataloader()) == STEPS
        assert sum(len(batch.record_ids) for batch in data.train_dataloader()) == 54
        return super().configure_optimizers()


@pytest.mark.parametrize("protocol", [OneCycle, ByRecords])
def test_a_loader_that_is_made_early_goes_on_with_the_batch_of_the_checkpoint(tmp_path, protocol):
    make = partial(protocol, Mean(), bottom=dropping, width=5, seed=0)
    torch.manual_seed(0)
    whole = fit(tmp_path, make=make)[0].state_dict()
    for step in (1, STEPS - 1, STEPS, STEPS + 2):
        again = fit(tmp_path / "again", tmp_path / f"step={step}.ckpt", make=make)[0]
        assert same(again.state_dict(), whole), step


def test_resume_with_epochs_cut_short(tmp_path):
    """limit_train_batches ends epochs early; the next epoch still starts at its own beginning."""
    first = tmp_path / "first"
    first.mkdir()
    one, t, curve = fit(first, limit_train_batches=4)
    resumed = fit(tmp_path, ckpt_path=first / "step=6.ckpt", limit_train_batches=4)
    assert same(everything(one, t, curve), everything(*resumed))


class Short(SplitVFL):
    """It leaves out the rest of every second epoch, as Lightning lets a hook do."""

    def on_train_batch_start(self, batch, batch_idx):
        return -1 if batch_idx == 4 and self.current_epoch % 2 == 0 else None


def test_resume_after_an_epoch_that_a_hook_has_cut_short(tmp_path):
    """Lightning counts the batch that was left out, and takes such a checkpoint for one of another moment."""
    make = partial(Short, Mean(), bottom=dropping, width=5, seed=0, optimizer=SGD)
    torch.manual_seed(0)
    whole = fit(tmp_path, make=make)[0]
    for step in (3, 5, 9, 12):
        again = fit(tmp_path / "again", tmp_path / f"step={step}.ckpt", make=make)[0]
        assert same(again.state_dict(), whole.state_dict()), step
        assert again.standing() == whole.standing()


class Epochs(Callback):
    """The epochs that begin and end, and the steps before."""

    def __init__(self):
        self.seen = []

    def on_train_epoch_start(self, trainer, module):
        self.seen.append(("start", trainer.current_epoch, trainer.global_step))

    def on_train_epoch_end(self, trainer, module):
        self.seen.append(("end", trainer.current_epoch, trainer.global_step))


@pytest.mark.parametrize("ends", [{}, {"max_steps": EPOCHS * STEPS, "max_epochs": -1}], ids=["epochs", "steps"])
@pytest.mark.parametrize("last", [True, False], ids=["the end of an epoch", "its validation"])
def test_resume_from_a_checkpoint_at(tmp_path, last, ends):
    saver = ModelCheckpoint(dirpath=tmp_path, filename="{epoch}", save_top_k=-1, save_on_train_epoch_end=last)
    expected = Epochs()
    one, t, _ = fit(tmp_path, callbacks=[expected, saver], **ends)
    for epoch in (0, 1):
        found = Epochs()
        again, u, _ = fit(tmp_path, ckpt_path=tmp_path / f"epoch={epoch}.ckpt", callbacks=[found], **ends)
        assert same(one.state_dict(), again.state_dict())
        assert found.seen == expected.seen[-len(found.seen) :]
        assert len(found.seen) == len(expected.seen) - 2 * epoch - 1 - last
        for stage in ("fit", "validation"):  # Lightning repeats its sanity check
            assert one.books.rounds[stage] == again.books.rounds[stage]
        assert t.callback_metrics.keys() == u.callback_metrics.keys()


PLATEAU = partial(torch.optim.lr_scheduler.ReduceLROnPlateau, factor=0.5, patience=0, threshold=0.5)


class ByStep(SplitVFL):
    """The rate follows the loss of every second step."""

    def configure_optimizers(self):
        optimizer = SGD(self.parameters())
        schedule = {"scheduler": PLATEAU(optimizer), "interval": "step", "frequency": 2, "monitor": "train/loss"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


@pytest.mark.parametrize("ends", [{"max_epochs": 5}, {"max_steps": 4 * STEPS + 4, "max_epochs": -1}], ids=str)
@pytest.mark.parametrize(
    ("save", "by_step"), [("steps", False), ("steps", True), ("validation", False), ("epoch", False)]
)
def test_the_rate_of_a_resumed_fit_follows_the_scores(tmp_path, save, ends, by_step):
    """After the last step of an epoch, whose validation is not repeated, the rate has no score, and that is told."""
    saver = ModelCheckpoint(
        tmp_path,
        "{step}",
        save_top_k=-1,
        every_n_train_steps=3 if save == "steps" else None,
        save_on_train_epoch_end=save == "epoch",
    )

    def fitted(ckpt_path=None):
        torch.manual_seed(0)
        settings = {} if by_step else {"optimizer": SGD, "lr_scheduler": PLATEAU}
        one = (ByStep if by_step else SplitVFL)(Mean(), bottom=dropping, width=5, seed=0, **settings)
        stops = EarlyStopping("val/loss", patience=9)
        callbacks = [Curve(), stops, *([saver] if ckpt_path is None else [])]
        one, t, _ = fit(tmp_path, ckpt_path, make=lambda: one, callbacks=callbacks, **ends)
        return {
            "weights": one.state_dict(),
            "rate": t.optimizers[0].param_groups[0]["lr"],
            "schedule": t.lr_scheduler_configs[0].scheduler.state_dict(),
            "stops": stops.state_dict(),
        }

    whole = fitted()
    assert whole["rate"] <= 0.05 / 4
    within = (3, STEPS, 2 * STEPS + 3, 4 * STEPS)  # and at the ends of an early and of the last whole epoch
    for step in within if save == "steps" else range(STEPS, 4 * STEPS, STEPS):
        path = tmp_path / f"step={step}.ckpt"
        if by_step and step % STEPS == 0:
            assert same(fitted(path)["weights"], whole["weights"]), step
        elif save == "steps" and step % STEPS == 0:
            with pytest.warns(UserWarning, match="ReduceLROnPlateau goes on without a score of this epoch"):
                fitted(path)
        else:
            assert same(fitted(path), whole), step


def test_another_batch_size_in_the_middle_of_an_epoch_is_refused(whole, tmp_path):
    folder, _ = whole
    with pytest.raises(ConfigurationError, match="resume with the same batch_size"):
        trainer(tmp_path, max_epochs=EPOCHS).fit(
            module(), datamodule=Blobs(batch_size=5), ckpt_path=folder / "step=7.ckpt"
        )


@pytest.mark.parametrize(
    ("data", "message"),
    [(Blobs(batch_size=10, seed=1), "give the same seed"), (Blobs(RandomColumns(3)), "give the same partitioner")],
)
def test_other_data_are_refused(whole, tmp_path, data, message):
    folder, _ = whole
    with pytest.raises(ConfigurationError, match=message):
        trainer(tmp_path).test(module(), datamodule=data, ckpt_path=folder / "step=7.ckpt", verbose=False)


@pytest.mark.parametrize(
    ("optimizer", "schedule", "told"),
    [
        (SGD, RATE, []),
        (partial(SGD, lr=0.5), RATE, ["lr 0.5 of optimizer SGD (kept: 0.05)"]),
        (partial(SGD, nesterov=True), RATE, ["nesterov True of optimizer SGD (kept: False)"]),
        (SGD, partial(RATE, gamma=0.9), ["gamma 0.9 of lr_scheduler ExponentialLR (kept: 0.5)"]),
        (partial(SGD, lr=0.5), partial(RATE, gamma=0.9), ["lr 0.5 of", "gamma 0.9 of"]),
    ],
)
def test_settings_that_a_resumed_fit_does_not_take_are_told(whole, tmp_path, optimizer, schedule, told):
    folder, expected = whole
    again = split(Max(), dropout=True, optimizer=optimizer, lr_scheduler=schedule)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        u = trainer(tmp_path, max_epochs=EPOCHS)
        u.fit(again, datamodule=Blobs(batch_size=10), ckpt_path=folder / "step=7.ckpt")
    line = "".join(str(one.message) for one in warned if "have no effect" in str(one.message))
    assert bool(line) == bool(told)
    assert all(words in line for words in told)
    assert same(again.state_dict(), expected["weights"])  # those of the checkpoint have an effect, as it is told
    assert u.optimizers[0].param_groups[0]["lr"] == expected["optimizer"]["param_groups"][0]["lr"]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"optimizer": torch.optim.Adam, "lr_scheduler": RATE},
            "of a fit with optimizer SGD, lr_scheduler Exponential",
        ),
        ({"optimizer": SGD}, "and this fit has optimizer SGD, which cannot continue"),
        ({"optimizer": SGD, "lr_scheduler": partial(torch.optim.lr_scheduler.StepLR, step_size=1)}, "StepLR, which"),
        (
            {"optimizer": SGD, "lr_scheduler": RATE, "optimizer_of": {0: {"lr": 0.1}}},
            "SGD party 0, optimizer SGD others",
        ),
    ],
)
def test_another_optimiser_or_schedule_is_refused(whole, tmp_path, settings, line):
    again = split(Max(), dropout=True, **settings)
    with pytest.raises(ConfigurationError, match=line):
        trainer(tmp_path, max_epochs=EPOCHS).fit(
            again, datamodule=Blobs(batch_size=10), ckpt_path=whole[0] / "step=7.ckpt"
        )


class Thawed(BaseFinetuning):
    """The bottoms learn from the second epoch on, in a group of the optimiser that the callback adds."""

    def freeze_before_training(self, pl_module):
        self.freeze(pl_module.bottoms, train_bn=False)

    def finetune_function(self, pl_module, epoch, optimizer):
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.bottoms, optimizer)


class Warm(SplitVFL):
    def configure_optimizers(self):
        return SGD([parameter for parameter in self.parameters() if parameter.requires_grad])


def normalised(columns, width):
    return torch.nn.Sequential(torch.nn.Linear(columns[0], width), torch.nn.BatchNorm1d(width))


@pytest.mark.parametrize("step", [STEPS - 2, STEPS, STEPS + 2, 2 * STEPS])
def test_what_a_callback_has_set_free_learns_after_a_resume(step, tmp_path, monkeypatch):
    """After the last step of an epoch (STEPS), Lightning would not call the hook in which the callback acts."""

    def fitted(ckpt_path=None):
        torch.manual_seed(0)
        module, data = Warm(Mean(), bottom=normalised, width=5, seed=0), Blobs(batch_size=10)
        module.build_for(data)
        saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1, save_on_train_epoch_end=False)
        t = trainer(tmp_path, max_epochs=EPOCHS, callbacks=[Thawed(), saver], enable_checkpointing=True)
        t.fit(module, datamodule=data, ckpt_path=ckpt_path)
        return {"weights": module.state_dict(), "optimizer": t.optimizers[0].state_dict()}

    whole = fitted()
    assert len(whole["optimizer"]["param_groups"]) == 2
    told = []
    monkeypatch.setattr("lightning_vfl.protocols.loading.rank_zero_info", told.append)
    assert same(fitted(tmp_path / f"step={step}.ckpt"), whole)
    assert len(told) == (step > STEPS)


@pytest.mark.parametrize("schedule", [None, RATE])
@pytest.mark.parametrize("saving", ["step", "epoch"])
def test_a_resumed_fit_averages_the_same_weights(tmp_path, schedule, saving):
    """Averages begin with the second epoch of four, and the rate of the averaged epochs is that of the callback."""
    each = {"every_n_train_steps": 1, "save_on_train_epoch_end": False} if saving == "step" else {}
    saver = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, **each)

    def fitted(ckpt_path=None):
        make = partial(split, dropout=True, optimizer=SGD, lr_scheduler=schedule)
        callbacks = [StochasticWeightAveraging(0.02, swa_epoch_start=2, annealing_epochs=3)]
        callbacks += [saver] if ckpt_path is None else []
        one, t, _ = fit(tmp_path / "again", ckpt_path, make=make, callbacks=callbacks, max_epochs=4)
        rates = [config.scheduler.state_dict() for config in t.lr_scheduler_configs]
        return {"weights": one.state_dict(), "optimizer": t.optimizers[0].state_dict(), "rates": rates}

    expected = fitted()
    within = {step for end in (STEPS, 2 * STEPS, 3 * STEPS) for step in (end - 1, end, end + 1)} | {1, STEPS + 3}
    steps = range(STEPS, 4 * STEPS, STEPS) if saving == "epoch" else sorted(within)
    for step in steps:
        assert same(fitted(tmp_path / f"step={step}.ckpt"), expected), step


@pytest.mark.parametrize(
    "search", [partial(LearningRateFinder, num_training_steps=20), partial(BatchSizeFinder, max_trials=2)]
)
def test_a_search_in_a_resumed_fit_is_refused(whole, tmp_path, search):
    """Lightning restores the state of before the search, and with it forgets the checkpoint."""
    with pytest.raises(ConfigurationError, match=f"{search.func.__name__} restores the state of before its search"):
        fit(tmp_path, ckpt_path=whole[0] / "step=7.ckpt", callbacks=[Curve(), search()])
    data = Blobs(batch_size=10)
    one, t, _ = fit(tmp_path, callbacks=[Curve(), search()], max_epochs=1)
    t.test(one, datamodule=data, ckpt_path=whole[0] / "step=7.ckpt", verbose=False)
    t.fit_loop.max_epochs = 2
    t.fit(one.train(), datamodule=data)  # not of the checkpoint that was tested
    assert t.current_epoch == 2


def test_a_fit_that_is_resumed_twice_still_tells_what_the_first_was_given(whole, tmp_path):
    given = {"optimizer": partial(SGD, lr=0.5), "lr_scheduler": RATE}
    saver = ModelCheckpoint(dirpath=tmp_path, filename="second", save_last=False)
    for ckpt in (whole[0] / "step=7.ckpt", tmp_path / "second.ckpt"):
        with pytest.warns(UserWarning, match=r"lr 0.5 of optimizer SGD \(kept: 0.05\)"):
            trainer(tmp_path, max_epochs=EPOCHS - 1, enable_checkpointing=True, callbacks=[saver]).fit(
                split(Max(), dropout=True, **given), datamodule=Blobs(batch_size=10), ckpt_path=ckpt
            )


def test_a_resumed_log_continues(tmp_path, whole):
    folder, _ = whole
    logger = CSVLogger(str(tmp_path))
    fit(tmp_path, ckpt_path=folder / "step=7.ckpt", logger=logger, callbacks=[LearningRateMonitor()])
    rows = logger.experiment.metrics_file_path
    text = Path(rows).read_text()
    assert "train/loss_epoch" in text
    assert "val/accuracy" in text


def test_queues_go_on_from_the_end_of_an_epoch(tmp_path):
    """The checkpoint that a fit writes by default is of the end of an epoch, after the validation."""
    first = tmp_path / "first"
    saver = ModelCheckpoint(dirpath=first, filename="{epoch}", save_top_k=-1)
    one = fit(first, make=asynchronous, faults=injectors(), callbacks=[*injectors(), saver])[0]
    for epoch in (0, 1):
        again = fit(tmp_path, first / f"epoch={epoch}.ckpt", make=asynchronous, callbacks=injectors())[0]
        assert one.standing() == again.standing()
        assert same(one.state_dict(), again.state_dict())
