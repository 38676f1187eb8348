import io
import re
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import CSVLogger
from rich.text import Text

from lightning_vfl import AsyncVFL
from lightning_vfl.aggregators import Concat, PoissonBinomial
from lightning_vfl.callbacks import LearningCurve, PredictionWriter, RunSummary, SparseProgressBar
from lightning_vfl.callbacks.run_summary import in_bytes, per_party
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import Linear
from lightning_vfl.privacy.events import label
from tests.subjects import Blobs, split, trainer


def test_learning_curve_draws_every_epoch_and_keeps_its_points(tmp_path):
    curve = LearningCurve(str(tmp_path / "deep/er/curve.png"), metrics=["accuracy"])
    t = trainer(tmp_path, max_epochs=3, callbacks=[curve])
    t.fit(split(), datamodule=Blobs(batch_size=10))
    assert (tmp_path / "deep/er/curve.png").read_bytes().startswith(b"\x89PNG")
    assert {name: [e for e, _ in points] for name, points in curve.points.items()} == {
        "train/loss_epoch": [1, 2, 3],
        "val/loss": [1, 2, 3],
        "val/accuracy": [1, 2, 3],
    }
    again = LearningCurve()
    again.load_state_dict(curve.state_dict())
    assert again.points == curve.points


def test_the_epochs_own_training_loss_is_drawn(tmp_path):
    curve = LearningCurve(str(tmp_path / "curve.png"))
    t = trainer(tmp_path, max_epochs=2, callbacks=[curve])
    t.fit(split(), datamodule=Blobs(batch_size=10))
    assert curve.points["train/loss_epoch"][-1][1] == float(t.callback_metrics["train/loss_epoch"])


def test_summary_names_what_was_trained_and_sent(tmp_path, capsys):
    data, module = Blobs(batch_size=10), split()
    t = trainer(tmp_path, callbacks=[RunSummary(full=True)])
    t.fit(module, datamodule=data)
    t.test(module, datamodule=data, verbose=False)
    t.validate(module, datamodule=data, verbose=False)
    printed = capsys.readouterr().out
    for words in ("Summary of fit", "Summary of test", "Summary of validate", "test/accuracy", "2.2 kB each"):
        assert words in printed
    assert printed.count("Summary of") == 3


def test_the_short_summary_begins_with_the_score_and_what_it_protects(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    t = trainer(tmp_path, callbacks=[RunSummary()])
    t.fit(split(), datamodule=Blobs(batch_size=10))
    lines = capsys.readouterr().out.splitlines()
    (first,) = [line for line in lines if "no ε, because no noise is added to embeddings: protects no column" in line]
    assert first.startswith(f"val/accuracy {float(t.callback_metrics['val/accuracy']):.4f}; ")
    assert not [line for line in lines if "kB each" in line or "virtual time" in line]
    assert max(len(line) for line in lines if line.startswith("│")) <= 100


@pytest.mark.filterwarnings("ignore:more than 1%")
@pytest.mark.parametrize("beta", [0.001, 0.02, 0.2])
def test_the_verdict_on_epsilon_has_the_bounds_of_the_page(beta, tmp_path, capsys):
    page = (Path(__file__).parents[3] / "docs/privacy.md").read_text(encoding="utf-8")
    strong, weak = map(float, re.search(r"\*\*strong\*\* up to (\d+), \*\*weak\*\* up to (\d+)", page).groups())
    module = split(aggregator=PoissonBinomial(beta=beta, levels=2, clip_outside=True))
    trainer(tmp_path, callbacks=[RunSummary()]).fit(module, datamodule=Blobs(batch_size=10))
    epsilon = module.privacy.tightest()["party-record"].epsilon
    expected = "strong" if epsilon <= strong else "weak" if epsilon <= weak else "protects nothing"
    printed = capsys.readouterr().out
    assert f" of a {label('party-record')}, at δ = 1e-05: {expected}" in printed
    assert "privacy ε of a party, " in printed  # which needs no assumption


def test_the_headline_says_that_noise_is_not_charged(tmp_path, capsys):
    module = AsyncVFL(Concat(), width=4, bottom=Linear, num_classes=3, noise=1.0)
    trainer(tmp_path, callbacks=[RunSummary()]).fit(module, datamodule=Blobs(batch_size=10))
    assert "no ε, because no accountant charges the noise on embeddings" in capsys.readouterr().out


def test_the_checkpoint_is_printed_whole_at_any_width(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    t = trainer(
        tmp_path / "a_long_name_of_a_folder" / "and_another", callbacks=[RunSummary()], enable_checkpointing=True
    )
    t.fit(split(), datamodule=Blobs(batch_size=10))
    printed = [line for line in capsys.readouterr().out.splitlines() if ".ckpt" in line]
    assert printed == [f"checkpoint: {t.checkpoint_callback.best_model_path}"]
    assert len(printed[0]) > 80


def test_summary_can_be_silenced(tmp_path, capsys):
    trainer(tmp_path, callbacks=[RunSummary(enabled=False)]).fit(split(), datamodule=Blobs(batch_size=10))
    assert "Summary" not in capsys.readouterr().out


@pytest.mark.parametrize(("count", "words"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_500_000_000, "2.5 GB")])
def test_bytes_in_words(count, words):
    assert in_bytes(count) == words


def test_unequal_parties_are_listed():
    assert per_party(torch.tensor([1, 2000])) == "party 0 1 B, party 1 2.0 kB"


def test_predictions_go_to_files_that_can_be_read():
    with pytest.raises(ConfigurationError, match="change the ending"):
        PredictionWriter("x.json")


def test_progress_bar_moves_sparsely_and_ends_complete(tmp_path, monkeypatch):
    moves = []
    monkeypatch.setattr(
        "lightning.pytorch.callbacks.RichProgressBar.on_train_batch_end", lambda *args: moves.append(args[-1] + 1)
    )
    bar = SparseProgressBar(every=4)
    trainer(tmp_path, max_epochs=1, enable_progress_bar=True, callbacks=[bar]).fit(
        split(), datamodule=Blobs(batch_size=10)
    )
    assert moves == [4, 6]


def test_progress_bar_shows_metrics_and_no_version_of_a_logger(tmp_path):
    bar = SparseProgressBar(console_kwargs={"file": io.StringIO()})
    fit = trainer(tmp_path, max_epochs=1, callbacks=[bar], enable_progress_bar=True, logger=CSVLogger(tmp_path))
    fit.fit(split(), datamodule=Blobs(batch_size=10))
    assert set(bar.get_metrics(fit, fit.lightning_module)) == {"train/loss"}


class Phased(BoringModel):
    @property
    def phase(self):
        return "owner" if self.current_epoch else "representation"


@pytest.mark.parametrize(
    ("module", "described"),
    [(Phased, ["Epoch 0/1 (representation)", "Epoch 1/1 (owner)"]), (BoringModel, ["Epoch 0/1", "Epoch 1/1"])],
)
def test_progress_bar_names_the_phase(tmp_path, module, described, monkeypatch):
    seen = []

    class Reader(Callback):
        def on_train_batch_start(self, trainer, *_):
            (task,) = trainer.progress_bar_callback.progress.tasks
            seen.append(Text.from_markup(task.description).plain.rstrip())

    monkeypatch.setattr("rich._console", None)  # its settings are those of every later console
    bar = SparseProgressBar(console_kwargs={"file": io.StringIO()})
    settings = {"enable_progress_bar": True, "limit_train_batches": 1, "limit_val_batches": 0}
    trainer(tmp_path, callbacks=[bar, Reader()], **settings).fit(module())
    assert seen == described
