"""Habits of Lightning's users: a batch in a call, a plain loader, ``overfit_batches``, the loss in the progress bar."""

import pytest
import torch
from lightning.fabric.utilities.throughput import measure_flops

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Concat
from lightning_vfl.callbacks import SparseProgressBar
from lightning_vfl.errors import ConfigurationError
from tests.subjects import Blobs, split, trainer


def ready(batch_size=9):
    data = Blobs(batch_size=batch_size)
    data.setup("fit")
    return data


def test_a_module_predicts_a_batch():
    data, module = ready(), split()
    module.build_for(data)
    batch = next(iter(data.train_dataloader()))
    assert torch.equal(module(batch), module(batch.features))


@pytest.mark.parametrize("width", [5, 600], ids=["small networks", "large networks"])
def test_the_work_of_a_model_without_numbers_is_counted_where_its_networks_are(width):
    """Lightning counts operations on torch's meta device; networks are built on the CPU in spite of it."""
    with torch.device("meta"):
        module = SplitVFL(Concat(), width=width, party_shapes=[(3,), (3,), (2,)], num_classes=3)
        module.configure_model()
        features = tuple(torch.randn(4, columns) for columns in (3, 3, 2))
    with pytest.raises(ConfigurationError, match=r"features are on meta and the networks on cpu; .+ module.to\('meta'"):
        measure_flops(module, lambda: module(features))
    module.to("meta")
    weights = [layer.weight.numel() for layer in module.modules() if isinstance(layer, torch.nn.Linear)]
    assert measure_flops(module, lambda: module(features)) == 2 * 4 * sum(weights)


def test_the_loader_has_the_records_as_its_dataset():
    data = ready()
    loader = data.train_dataloader()
    assert loader.dataset is data.records("train")
    assert len(loader.dataset) == 54
    assert str(data) == "Blobs (54 train, 18 val records)"
    assert str(Blobs()) == "Blobs (before setup)"
    with pytest.raises(ConfigurationError, match="one was asked for by 3; use the loaders"):
        loader.dataset[3]


class Recorded(SparseProgressBar):
    """Records the loss that the bar shows."""

    shown = ()

    def _update_metrics(self, trainer, pl_module):
        self.shown = (*self.shown, self.get_metrics(trainer, pl_module)["train/loss"])
        super()._update_metrics(trainer, pl_module)


def used(module):
    """The records of every training batch, by epoch; to be called before a fit."""
    seen = {}
    step = module.step

    def recorded(batch, names):
        seen.setdefault(module.current_epoch, []).append(tuple(batch.record_ids.tolist()))
        return step(batch, names)

    module.step = recorded
    return seen


@pytest.mark.parametrize("few", [2, 0.5])
def test_overfit_batches_trains_on_the_same_batches_in_every_epoch(tmp_path, few):
    module = split()
    seen = used(module)
    t = trainer(tmp_path, overfit_batches=few, max_epochs=3)
    t.fit(module, Blobs(batch_size=9))
    assert len(seen[0]) == (2 if few == 2 else 3)
    assert seen[0] == seen[1] == seen[2]
    usual = split()
    first = used(usual)
    trainer(tmp_path, max_epochs=1).fit(usual, Blobs(batch_size=9))
    assert seen[0] == first[0][: len(seen[0])]


def test_the_bar_shows_the_mean_loss_of_the_epoch_so_far(tmp_path):
    bar = Recorded(every=2)
    module = split()
    t = trainer(tmp_path, callbacks=[bar], enable_progress_bar=True, max_epochs=1)
    losses = []
    loss_of = module.rank_loss

    def recorded(output, batch):
        losses.append(loss_of(output, batch))
        return losses[-1]

    module.rank_loss = recorded
    t.fit(module, Blobs(batch_size=9))
    means = [torch.stack(losses[:n]).double().mean().item() for n in (2, 4, 6)]
    assert list(dict.fromkeys(bar.shown)) == pytest.approx(means)
    assert bar.shown[-1] == pytest.approx(float(t.callback_metrics["train/loss_epoch"]))
    assert float(t.callback_metrics["train/loss"]) == losses[0].item()  # what loggers are given has not changed
