"""What is measured on the training records is right, and the training knows nothing of it."""

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.demos.boring_classes import BoringModel
from sklearn import metrics as sk
from torch import nn
from torch.utils.data import DataLoader

from lightning_vfl import AsyncVFL
from lightning_vfl.aggregators import MaskedSum, Mean, Sum
from lightning_vfl.callbacks import PartyDropout, RunHistory, Stragglers, TrainMetrics, VirtualTimeLimit
from lightning_vfl.callbacks import train_metrics as room
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.waiting import Ignore
from tests.subjects import Blobs, Values, YesNo, dropping, same, split, trainer


class Modes(Callback):
    """Keeps one layer out of training mode, and writes down who is in it at every round."""

    def __init__(self):
        self.seen = []

    def on_train_start(self, trainer, pl_module):
        pl_module.bottoms.parties[1].eval()

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.seen.append([part.training for part in pl_module.modules()])


def partly_held():
    data = Blobs(batch_size=10)
    data.partly_held = True
    return data


def asynchronous():
    torch.manual_seed(0)
    return AsyncVFL(Mean(), width=5, bottom=dropping, seed=0)


SUBJECTS = {
    "dropout, a norm and faults": (
        lambda: split(dropout=True, norm=nn.BatchNorm1d),
        lambda: Blobs(batch_size=10),
        lambda: [PartyDropout(0.5, 0.3)],
    ),
    "protected evaluation": (
        lambda: split(MaskedSum(), dropout=True, evaluate="protocol"),
        lambda: Blobs(batch_size=10),
        list,
    ),
    "partly held": (lambda: split(dropout=True), partly_held, list),
    "asynchronous": (asynchronous, lambda: Blobs(batch_size=10), lambda: [Stragglers()]),
}


def everything(folder, subject, more):
    """Whatever a fit leaves behind, and who was in which mode when."""
    module, data, callbacks = (make() for make in SUBJECTS[subject])
    modes, history = Modes(), RunHistory()
    t = trainer(folder, callbacks=[history, modes, *callbacks, *more], log_every_n_steps=1)
    t.fit(module, datamodule=data)
    t.save_checkpoint(folder / "x.ckpt")
    state = torch.load(folder / "x.ckpt", weights_only=True)
    kept = {name: state[name] for name in ("state_dict", "optimizer_states", "lightning_vfl")}
    kept["lightning_vfl"]["start"]["metrics"].pop("train/accuracy", None)
    told = [row for row in history.rows() if row["metric"] != "train/accuracy"]
    return kept | {"told": told, "random": torch.get_rng_state(), "modes": modes.seen}, history


@pytest.mark.parametrize("subject", SUBJECTS)
def test_weights_books_modes_and_random_numbers_are_the_same_without_it(subject, tmp_path):
    without, _ = everything(tmp_path, subject, [])
    measured, history = everything(tmp_path, subject, [TrainMetrics()])
    assert len({True, False} & set(measured["modes"][-1])) == 2
    for name, kept in without.items():
        assert same(measured[name], kept), name
    assert [row["metric"] for row in history.rows()].count("train/accuracy") == 2


class Shown(Callback):
    """Writes down in which rounds there is a value of the training records."""

    def __init__(self):
        self.seen = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.seen.append("train/accuracy" in trainer.callback_metrics)


def test_a_resumed_fit_has_a_value_in_its_own_epoch_alone(tmp_path):
    def fitted(folder, epochs, path=None):
        shown = Shown()
        t = trainer(tmp_path / folder, max_epochs=epochs, callbacks=[TrainMetrics(every_n_epochs=2), shown])
        t.fit(split(), datamodule=Blobs(batch_size=10), ckpt_path=path, weights_only=True)
        t.save_checkpoint(tmp_path / f"{folder}.ckpt")
        return shown.seen

    whole = fitted("whole", 3)
    first = fitted("first", 2)
    assert first + fitted("second", 3, tmp_path / "first.ckpt") == whole
    assert not any(whole)


def scores(module, records, parties):
    """Labels, and the top's output by hand: record by record, the mean of the embeddings that there are."""
    module.eval()
    outputs = []
    with torch.no_grad():
        for record in range(len(records)):
            features = records.rows(torch.tensor([record]))
            held = [m for m in parties if records.present is None or records.present[record, m]]
            mean = sum(module.bottoms.parties[m](features[m]) for m in held) / len(held)
            outputs.append(module.top(mean)[0])
    return records.labels.numpy(), torch.stack(outputs).double()


def fitted(folder, data, *callbacks, **settings):
    module = split(dropout=True, **settings)
    t = trainer(folder, callbacks=[TrainMetrics(), *callbacks])
    t.fit(module, datamodule=data)
    told = {name: float(value) for name, value in t.callback_metrics.items() if name.startswith("train/")}
    assert {name.replace("val/", "train/") for name in module.val.metrics} <= told.keys()
    return module, data.records("train"), told


def test_two_classes_by_hand(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "ROWS", 7)  # several batches, the last one smaller
    module, records, told = fitted(tmp_path, YesNo(batch_size=10))
    labels, logits = scores(module, records, range(3))
    shares = logits[:, 0].sigmoid().numpy()
    assert told["train/accuracy"] == pytest.approx(sk.accuracy_score(labels, shares > 0.5), abs=1e-6)
    assert told["train/auroc"] == pytest.approx(sk.roc_auc_score(labels, shares), abs=1e-6)
    assert told["train/average_precision"] == pytest.approx(sk.average_precision_score(labels, shares), abs=1e-6)


def test_real_values_by_hand(tmp_path):
    module, records, told = fitted(tmp_path, Values(batch_size=10))
    labels, values = scores(module, records, range(3))
    assert told["train/mse"] == pytest.approx(sk.mean_squared_error(labels, module.objective.predict(values)), rel=1e-5)
    assert told["train/r2"] == pytest.approx(sk.r2_score(labels, module.objective.predict(values)), rel=1e-5)


def test_records_that_not_everybody_holds_by_hand(tmp_path):
    module, records, told = fitted(tmp_path, partly_held())
    labels, logits = scores(module, records, range(3))
    assert told["train/accuracy"] == pytest.approx(sk.accuracy_score(labels, logits.argmax(1)), abs=1e-6)


def test_who_is_never_called_is_not_measured(tmp_path):
    data = Values(batch_size=10)
    module, records, told = fitted(tmp_path, data, Stragglers(parties=[0]), waiting=Ignore())
    assert module.books.left_out == (0,)
    labels, values = scores(module, records, [1, 2])
    assert told["train/mse"] == pytest.approx(sk.mean_squared_error(labels, module.objective.predict(values)), rel=1e-5)


def test_only_every_second_epoch_has_a_value_and_costs_anything(tmp_path, monkeypatch):
    calls, history = [], RunHistory()
    measure = room.measure
    monkeypatch.setattr(room, "measure", lambda *parts: calls.append(1) or measure(*parts))
    t = trainer(tmp_path, max_epochs=5, callbacks=[history, TrainMetrics(every_n_epochs=2)])
    t.fit(split(), datamodule=Blobs(batch_size=10))  # 6 rounds an epoch
    assert [row["step"] for row in history.rows() if row["metric"] == "train/accuracy"] == [12, 24]
    assert len(calls) == 2
    assert "train/accuracy" not in t.callback_metrics  # the fifth epoch has none


def test_an_epoch_that_was_cut_short_is_not_measured(tmp_path):
    history = RunHistory()
    t = trainer(tmp_path, max_epochs=3, callbacks=[history, TrainMetrics(), VirtualTimeLimit(1e-9)])
    t.fit(split(), datamodule=Blobs(batch_size=10))
    assert t.global_step == 1
    assert "train/accuracy" not in {row["metric"] for row in history.rows()}


@pytest.mark.parametrize("number", [0, -1, 1.5, None])
def test_a_number_that_measures_nothing_is_refused(number):
    with pytest.raises(ConfigurationError, match=r"every_n_epochs must be a whole number, 1 or more"):
        TrainMetrics(every_n_epochs=number)


def test_several_processes_and_other_modules_are_refused():
    with pytest.raises(ConfigurationError, match=r"got 2; use devices: 1, or leave it out"):
        TrainMetrics().setup(SimpleNamespace(world_size=2), split(), "fit")
    with pytest.raises(ConfigurationError, match="TrainMetrics works only with a VFLModule; got BoringModel"):
        TrainMetrics().setup(SimpleNamespace(world_size=1), BoringModel(), "fit")


def test_a_loader_that_does_not_know_its_records_is_refused(tmp_path):
    data, module = Blobs(batch_size=10), split(Sum())
    data.setup("fit")
    module.build_for(data)
    loader = DataLoader([0], batch_size=None)
    with pytest.raises(ConfigurationError, match="give the trainer a VerticalDataModule instead of a loader"):
        trainer(tmp_path, callbacks=[TrainMetrics()], num_sanity_val_steps=0).fit(module, loader, loader)
