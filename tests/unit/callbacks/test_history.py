import pytest
import torch

from lightning_vfl.callbacks import PartyDropout, RunHistory, VirtualTimeLimit
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Skip
from tests.subjects import Blobs, split, trainer


def fitted(tmp_path, callbacks, **settings):
    module, data = split(), Blobs(batch_size=10)  # 6 rounds an epoch
    t = trainer(tmp_path, callbacks=callbacks, **settings)
    t.fit(module, datamodule=data)
    return t, module, data


def steps(history, metric):
    return [row["step"] for row in history.rows() if row["metric"] == metric]


def test_a_value_a_metric_and_step_with_what_had_been_spent(tmp_path):
    history = RunHistory()
    t, module, data = fitted(tmp_path, [history], max_epochs=3, log_every_n_steps=4, val_check_interval=3)
    t.test(module, datamodule=data, verbose=False)
    assert steps(history, "val/accuracy") == [3, 6, 9, 12, 15, 18]
    assert steps(history, "train/loss") == [4, 8, 12, 16]
    assert steps(history, "train/loss_epoch") == [6, 12, 18]
    assert steps(history, "test/accuracy") == [18]
    rows = history.rows()
    assert rows[-1]["up_bytes"] == float(module.books.meter.total("up").sum())
    assert all(row["bytes"] == row["up_bytes"] + row["down_bytes"] + row["peer_bytes"] for row in rows)
    assert [row["bytes"] for row in rows] == sorted(row["bytes"] for row in rows)
    assert {"passes", "virtual_seconds"} <= set(rows[0])
    final = next(row["value"] for row in rows if row["metric"] == "test/accuracy")
    assert final == t.callback_metrics["test/accuracy"].double().item()


def test_a_resumed_run_has_the_whole_history(tmp_path):
    whole, first, second = RunHistory(), RunHistory(), RunHistory()
    fitted(tmp_path, [whole], max_epochs=3)
    t, _, _ = fitted(tmp_path, [first], max_epochs=1)
    t.save_checkpoint(tmp_path / "x.ckpt")
    resumed = trainer(tmp_path, callbacks=[second], max_epochs=3)
    resumed.fit(split(), datamodule=Blobs(batch_size=10), ckpt_path=tmp_path / "x.ckpt")
    assert second.rows() == whole.rows()


def test_the_time_limit_ends_within_an_epoch_and_validates_once_more(tmp_path):
    measured = RunHistory()
    fitted(tmp_path, [measured], max_epochs=1, val_check_interval=1)
    seconds = {row["step"]: row["virtual_seconds"] for row in measured.rows()}
    history = RunHistory()
    t, module, _ = fitted(tmp_path, [history, VirtualTimeLimit(seconds[4])], max_epochs=9)
    assert t.global_step == 4
    assert module.standing()["clock/virtual_seconds"] == seconds[4] > 0
    assert steps(history, "val/loss") == [4]
    assert steps(history, "train/loss_epoch") == []


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_a_limit_that_trains_nothing_is_refused(seconds):
    with pytest.raises(ConfigurationError, match="seconds must be a number above 0; got"):
        VirtualTimeLimit(seconds)


def test_other_modules_leave_no_history(tmp_path):
    history = RunHistory()
    history._add(trainer(tmp_path), torch.nn.Module(), lambda name: True)
    assert history.rows() == []


def test_a_round_that_nobody_learnt_from_has_no_loss_in_the_history(tmp_path):
    history = RunHistory()
    module = split(missing=Skip())
    t = trainer(tmp_path, callbacks=[PartyDropout(0.5, 0.3), history], max_epochs=4, log_every_n_steps=1)
    t.fit(module, datamodule=Blobs(batch_size=10))
    assert 0 < module.books.given_up < 24
    assert len(steps(history, "train/loss")) == 24 - module.books.given_up
