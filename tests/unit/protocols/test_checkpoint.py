from functools import partial

import pytest
import torch
from torchmetrics import Accuracy

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Concat, Max, Mean, Sum
from lightning_vfl.cli import run
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Stale
from lightning_vfl.networks import MLP, Linear
from lightning_vfl.objectives import MultiClass
from lightning_vfl.protocols.trusted_classes import refuse_strangers
from lightning_vfl.simulation.clock import VirtualClock
from lightning_vfl.waiting import Deadline
from tests.subjects import Blobs, dropping, trainer


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
    assert content["hyper_parameters"]["aggregator"] == {"class_path": "lightning_vfl.aggregators.plain.Concat"}
    assert content["hyper_parameters"]["bottom_of"] == {0: {"class_path": "lightning_vfl.networks.mlp.MLP"}}


def test_a_run_from_a_recipe_loads_without_its_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["--config", "data/digits", "--config", "protocol/mean", "--trainer.max_epochs", "1"]
    quiet = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false", "--data.batch_size=512"]
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


KINDS = {
    "an aggregator with arguments": {"aggregator": Concat(widths=[5, 4, 3])},
    "factories": {"aggregator": Mean(), "bottom": partial(MLP, hidden=(7,)), "top": Linear, "bottom_of": {1: Linear}},
    "a function of a module": {"aggregator": Sum(), "bottom": dropping},
    "rules": {"aggregator": Mean(), "waiting": Deadline(0.5), "missing": Stale("float16"), "clock": VirtualClock(1e6)},
    "learning": {
        "aggregator": Max(),
        "optimizer": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        "lr_scheduler": partial(torch.optim.lr_scheduler.StepLR, step_size=2),
        "objective": MultiClass(),
        "norm": torch.nn.LayerNorm,
    },
}


QUICK = ("factories", "learning")


@pytest.mark.parametrize(
    "parts",
    [pytest.param(parts, marks=() if name in QUICK else pytest.mark.slow) for name, parts in KINDS.items()],
    ids=KINDS,
)
def test_a_module_made_in_python_is_rebuilt_from_its_checkpoint(tmp_path, parts):
    module = SplitVFL(width=5, seed=3, **parts)
    path, _ = saved(tmp_path, module)
    loaded = SplitVFL.load_from_checkpoint(path, trusted=["tests.subjects"])
    assert same_weights(module, loaded)
    assert loaded.parts() == module.parts()
    assert dict(loaded.hparams) == dict(module.hparams)
    assert (repr(loaded.waiting), repr(loaded.missing)) == (repr(module.waiting), repr(module.missing))
    assert loaded.clock.bandwidth == module.clock.bandwidth
    made = [m._optimizer and m._optimizer(m.parameters()).defaults for m in (loaded, module)]
    assert made[0] == made[1]
    again, _ = saved(tmp_path, loaded)
    assert loaded.parts() == SplitVFL.load_from_checkpoint(again, trusted=["tests.subjects"]).parts()


@pytest.mark.parametrize(
    ("name", "part", "what"),
    [
        ("bottom", lambda shape, width: Linear(shape, width), "<lambda> of tests.+, which cannot be imported"),
        ("metrics", {"right": Accuracy("multiclass", num_classes=3)}, "a MulticlassAccuracy"),
    ],
)
def test_an_argument_that_is_not_plain_is_named(tmp_path, name, part, what):
    path, _ = saved(tmp_path, SplitVFL(Mean(), width=5, **{name: part}))
    line = (
        rf"the checkpoint does not have the model's {name}, which was made with {what}.*; give it: load_from_.+{name}="
    )
    with pytest.raises(ConfigurationError, match=line):
        SplitVFL.load_from_checkpoint(path)
    assert SplitVFL.load_from_checkpoint(path, **{name: part}).width == 5


def test_a_checkpoint_of_an_earlier_version_names_the_aggregator(tmp_path):
    path, _ = saved(tmp_path, SplitVFL(Mean(), width=5))
    content = torch.load(path, weights_only=True)
    del content["hyper_parameters"]["aggregator"], content["hyper_parameters"]["_instantiator"]
    del content["lightning_vfl"]["lost"]
    torch.save(content, path)
    with pytest.raises(ConfigurationError, match="does not have the model's aggregator, which was not kept by the ver"):
        SplitVFL.load_from_checkpoint(path)
    assert SplitVFL.load_from_checkpoint(path, aggregator=Mean()).width == 5


def test_classes_of_ones_own_are_trusted_by_name(tmp_path):
    path, _ = saved(tmp_path, SplitVFL(Mean(), bottom=dropping, width=5))
    with pytest.raises(ConfigurationError, match=r"names tests.subjects.dropping as bottom.+trusted=\['tests'\]"):
        SplitVFL.load_from_checkpoint(path)


class Passing(SplitVFL):
    """A protocol that passes on whatever it is given."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)


class Choosing(SplitVFL):
    """A protocol that chooses its aggregator, with a setting of its own."""

    def __init__(self, columns=5, **settings):
        super().__init__(Concat(widths=[columns] * 3), width=columns, **settings)


@pytest.mark.parametrize("module", [Passing(Mean(), width=5), Choosing(4, seed=3)], ids=lambda one: type(one).__name__)
def test_protocols_of_ones_own_are_rebuilt(tmp_path, module):
    path, _ = saved(tmp_path, module)
    assert same_weights(module, type(module).load_from_checkpoint(path))


@pytest.mark.parametrize(
    "name", ["lightning_vfl.protocols.groups.noise.UpdateNoise", "lightning_vfl.field.PrimeProduct"]
)
def test_a_checkpoint_that_names_a_removed_class_is_refused_in_one_line(name):
    content = {"hyper_parameters": {"downlink": {"class_path": name, "init_args": {}}}}
    with pytest.raises(
        ConfigurationError, match=f"names {name} as downlink, which this version .*; train anew"
    ) as error:
        refuse_strangers(content, SplitVFL, (), ())
    assert "\n" not in str(error.value)
