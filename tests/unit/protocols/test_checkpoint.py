from functools import partial

import pytest
import torch

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Concat, Mean, Sum
from lightning_vfl.cli import run
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import MLP
from tests.subjects import Blobs, trainer


def saved(tmp_path, module):
    t = trainer(tmp_path, max_epochs=1)
    t.fit(module, datamodule=Blobs(batch_size=10))
    path = tmp_path / "x.ckpt"
    t.save_checkpoint(path)
    return path, t


def same_weights(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


def test_a_run_from_python_loads_with_the_parts_that_built_it(tmp_path):
    module = SplitVFL(Sum(), bottom=partial(MLP, hidden=(7,)), width=5, seed=3)
    path, _ = saved(tmp_path, module)
    loaded = SplitVFL.load_from_checkpoint(path, aggregator=Sum(), bottom=partial(MLP, hidden=(7,)))
    assert same_weights(module, loaded)
    assert (loaded.width, loaded.seed, loaded.books.rounds) == (5, 3, module.books.rounds)
    assert torch.equal(loaded.books.meter.total("up"), module.books.meter.total("up"))


@pytest.mark.parametrize(
    ("parts", "message"),
    [({"aggregator": Mean()}, "another aggregator"), ({"aggregator": Sum(), "top": MLP}, "another top")],
)
def test_other_parts_are_refused_instead_of_silently_used(tmp_path, parts, message):
    path, _ = saved(tmp_path, SplitVFL(Sum(), width=5))
    with pytest.raises(ConfigurationError, match=message):
        SplitVFL.load_from_checkpoint(path, **parts)


def test_no_code_is_in_a_checkpoint(tmp_path):
    """The safe loader takes it, and nothing in it comes from this project or the user."""
    path, _ = saved(tmp_path, SplitVFL(Concat(), width=5, bottom_of={0: MLP}))
    content = torch.load(path, weights_only=True)
    assert content["hyper_parameters"].keys() >= {"width", "party_shapes", "num_classes", "seed"}
    assert "aggregator" not in content["hyper_parameters"]
    assert "bottom_of" not in content["hyper_parameters"]


def test_a_run_from_a_recipe_loads_without_its_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["--config", "data/digits", "--config", "protocol/mean", "--trainer.max_epochs", "1"]
    quiet = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]
    module = run(["fit", *arguments, *quiet, "--model.bottom_of", "{1: {class_path: Linear}}"]).model
    (path,) = tmp_path.rglob("*.ckpt")
    loaded = SplitVFL.load_from_checkpoint(path)
    assert same_weights(module, loaded)
    assert type(loaded.bottoms.parties[1]).__name__ == "Linear"
    assert isinstance(loaded.aggregator, Mean)


def test_a_checkpoint_of_python_is_tested_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from lightning_vfl.datamodules import Digits

    module = SplitVFL(Mean())
    t = trainer(tmp_path, max_epochs=1)
    t.fit(module, datamodule=Digits())
    t.save_checkpoint("x.ckpt")
    arguments = ["--data", "Digits", "--model", "SplitVFL", "--model.aggregator", "Mean", "--ckpt_path", "x.ckpt"]
    quiet = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false", "--trainer.logger", "false"]
    assert same_weights(module, run(["test", *arguments, *quiet]).model)
