"""The record of a run says what the run has measured, and the record of a resumed run is that of the whole run."""

import json
from functools import partial
from importlib.metadata import version

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.metrics import confusion_matrix
from torch import nn

from lightning_vfl.aggregators import PoissonBinomial
from lightning_vfl.callbacks import PartyDropout, RunRecord
from lightning_vfl.networks import MLP
from lightning_vfl.privacy import PrivacyAccountant
from tests.subjects import Blobs, Values, YesNo, split, trainer


def fit(folder, data=Blobs, ckpt_path=None, callbacks=(), **settings):
    module = split()
    folder.mkdir(exist_ok=True)
    t = trainer(folder, callbacks=[RunRecord(), PartyDropout(0.4, 0.4), *callbacks], **settings)
    t.fit(module, datamodule=data(batch_size=10), ckpt_path=ckpt_path)
    return module, t


def read(folder, name="fit"):
    return json.loads((folder / f"record-{name}.json").read_text())


def predictions(module, data, name):
    data.setup("test" if name == "test" else "fit")
    records = data.records(name)
    with torch.no_grad():
        return module.eval()(records.rows(torch.arange(len(records)))), records.labels


def test_the_record_says_what_the_run_has_measured(tmp_path):
    module, t = fit(tmp_path)
    record = read(tmp_path)
    assert record["traffic"] == {kind: n.tolist() for kind, n in module.books.meter.state_dict().items()}
    sent = [row for row in record["history"] if row["metric"] == "val/accuracy"]
    assert [row["step"] for row in sent] == [6, 12]
    assert sent[-1]["value"] == float(t.callback_metrics["val/accuracy"])
    assert sent[-1]["bytes"] == sum(map(sum, record["traffic"].values()))
    learned, per_round = record["attendance"]["learned"], 10 * 5 * 4
    assert record["attendance"]["rounds"] == 12 > min(learned)
    for party, count in enumerate(record["traffic"]["up/embeddings"]):  # the last batch of an epoch has 4 records
        assert count <= learned[party] * per_round < count + 2 * 6 * 5 * 4 + 1
    given, labels = predictions(module, Blobs(), "val")
    assert record["outcomes"]["confusion"] == confusion_matrix(labels, given.argmax(1)).tolist()
    assert dict(record["summary"])["training rounds"] == "12"
    assert record["environment"]["torch"] == version("torch")  # as pip names it, without its build


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
@pytest.mark.parametrize("data", [YesNo, Values])
def test_the_test_is_recorded_beside_the_fit_of_its_checkpoint(tmp_path, data):
    saver = ModelCheckpoint(tmp_path / "a" / "checkpoints")
    module, _ = fit(tmp_path / "a", data, callbacks=[saver], enable_checkpointing=True, max_epochs=1)
    t = trainer(tmp_path / "b", callbacks=[RunRecord()])
    t.test(module, datamodule=data(batch_size=10), ckpt_path=saver.best_model_path, verbose=False)
    outcomes = read(tmp_path / "a", "test")["outcomes"]
    given, labels = predictions(module, data(), "test")
    if data is Values:
        assert np.allclose(outcomes["pairs"], np.stack([labels, given], 1), atol=1e-6)
        return
    assert outcomes["confusion"] == confusion_matrix(labels, given > 0.5).tolist()
    bins = [np.histogram(given[labels == y], 200, (0, 1))[0] for y in (0, 1)]
    assert np.abs(np.cumsum(bins, 1) - np.cumsum(outcomes["scores"], 1)).max() <= 1  # at the border of two bins
    assert (tmp_path / "b" / "record-test.json").exists() is False


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_the_record_of_a_resumed_run_is_that_of_the_whole_run(tmp_path):
    save = partial(ModelCheckpoint, filename="{step}", every_n_train_steps=4, save_top_k=-1, monitor=None)
    fit(tmp_path / "a", callbacks=[save(tmp_path / "a" / "checkpoints")], enable_checkpointing=True, max_epochs=3)
    whole = read(tmp_path / "a")
    again = tmp_path / "b"
    fit(again, ckpt_path=tmp_path / "a" / "checkpoints" / "step=16.ckpt", max_epochs=3)
    resumed = read(again)
    for key in ("history", "traffic", "attendance", "outcomes"):
        assert resumed[key] == whole[key], key


def test_no_record_is_written_where_nobody_asked_for_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    t = trainer(tmp_path, callbacks=[RunRecord(enabled=False)], max_epochs=1)
    t.fit(split(), datamodule=Blobs(batch_size=10))
    fit(tmp_path, max_epochs=1)  # the current folder, and no logger
    assert list(tmp_path.iterdir()) == []


def test_a_fit_that_goes_on_records_the_epsilon_that_takes_no_time(tmp_path, monkeypatch):
    """ε by loss distributions takes seconds after thousands of rounds, so it is made at the end alone."""
    made, told = [], []
    tightest, write = PrivacyAccountant.tightest, RunRecord._write

    def counted(self, *args):
        made.append(len(told))
        return tightest(self, *args)

    def recorded(self, *args):
        write(self, *args)
        told.append(dict(read(tmp_path)["summary"]))

    monkeypatch.setattr(PrivacyAccountant, "tightest", counted)
    monkeypatch.setattr(RunRecord, "_write", recorded)
    monkeypatch.setattr("lightning_vfl.callbacks.run_record._PAUSE", 0.0)
    module = split(PoissonBinomial(levels=2, beta=0.05, draws="seeded"), bottom=partial(MLP, output_activation=nn.Tanh))
    t = trainer(tmp_path, callbacks=[RunRecord()], max_epochs=2)
    t.fit(module, datamodule=Blobs(batch_size=27))
    assert set(made) == {len(told) - 1} != {0}
    name = next(name for name in told[0] if name.startswith("privacy ε of a party-record"))
    early, last = (float(one[name].split()[0].replace(",", "")) for one in (told[-2], told[-1]))
    assert early > last > 0
