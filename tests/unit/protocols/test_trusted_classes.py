"""A stranger's checkpoint: what it names is not imported, not built and not called."""

import sys
from functools import partial

import pytest
import torch

from lightning_vfl import SplitVFL, VFLModule
from lightning_vfl.aggregators import Mean
from lightning_vfl.cli import run
from lightning_vfl.commands.vfl_cli import VFLCLI
from lightning_vfl.datamodules import Digits
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import MLP
from lightning_vfl.protocols.trusted_classes import refuse_strangers
from tests.subjects import Blobs, trainer

EVIL = """
from pathlib import Path
from torch import nn
from lightning_vfl.aggregators import Mean
Path({mark!r}).write_text("imported")

class Net(nn.Module):
    def __init__(self, *args, **kwargs):
        super().__init__()
        Path({mark!r}).write_text("built")

class Aggregate(Mean):
    def __init__(self, *args, **kwargs):
        Path({mark!r}).write_text("built")
        super().__init__()

def make(*args, **kwargs):
    Path({mark!r}).write_text("called")
"""


def write_checkpoint(folder):
    """A checkpoint of the command line, whose hyperparameters are those of its recipe."""
    arguments = ["--config", "data/digits", "--config", "protocol/mean", "--trainer.fast_dev_run", "1"]
    quiet = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false", "--trainer.logger", "false"]
    with pytest.MonkeyPatch.context() as patch:  # the run writes its settings into its folder
        patch.chdir(folder)
        done = run(["fit", *arguments, *quiet])
    done.trainer.save_checkpoint(folder / "own.ckpt")
    return folder / "own.ckpt"


def write_evil(folder):
    """A module that leaves a mark when it is imported, and another when something of it runs; the file of the mark."""
    mark = folder / "mark"
    (folder / "evil_parts.py").write_text(EVIL.format(mark=str(mark)))
    return mark


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("run"))


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module on the path that leaves a mark when it is imported; the file of the mark."""
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("evil_parts", None)
    yield write_evil(tmp_path)
    sys.modules.pop("evil_parts", None)


def forged(saved, folder, change):
    """The same checkpoint with other hyperparameters."""
    content = torch.load(saved, weights_only=True)
    change(content["hyper_parameters"], content)
    torch.save(content, folder / "forged.ckpt")
    return folder / "forged.ckpt"


def _set(**settings):
    return lambda hparams, content: hparams.update(settings)


def _of(path, **init_args):
    return {"class_path": path, "init_args": init_args}


NET, AGGREGATE = _of("evil_parts.Net"), {"class_path": "evil_parts.Aggregate"}
LAMBDA, MEAN, NOISY = "torch.optim.lr_scheduler.LambdaLR", "lightning_vfl.aggregators.Mean", "LocalGaussian"
FORGERIES = {
    "aggregator": _set(aggregator=AGGREGATE),
    "a factory": _set(bottom=NET),
    "a factory as text": _set(bottom="evil_parts.Net"),
    "a function as text": _set(top="evil_parts.make"),
    "a structure as text": _set(top="{class_path: evil_parts.Net}"),
    "a list as text": _set(lr_scheduler=_of(LAMBDA, lr_lambda="[evil_parts.make]")),
    "in init_args": _set(aggregator=_of(f"lightning_vfl.aggregators.{NOISY}", inner=AGGREGATE)),
    "in dict_kwargs": _set(aggregator={"class_path": MEAN, "dict_kwargs": {"x": AGGREGATE}}),
    "in a dict": _set(bottom_of={0: _of("lightning_vfl.networks.MLP"), 1: NET}),
    "in a list": _set(metrics=[{"accuracy": NET}]),
    "under a dotted key": _set(**{"aggregator.class_path": "evil_parts.Aggregate"}),
    "type of a layer": _set(top=_of("lightning_vfl.networks.MLP", output_activation="evil_parts.Net")),
    "the module itself": _set(_class_path="evil_parts.Net"),
    "the instantiator": _set(_instantiator="evil_parts.make"),
    "an old key": lambda hparams, content: content.update(hparams={"aggregator": AGGREGATE}),
    "a class path that is none": _set(aggregator={"class_path": ["evil_parts.Aggregate"]}),
    "a short name": _set(aggregator={"class_path": "Aggregate"}),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_stranger_is_refused_before_it_is_imported(saved, tmp_path, evil, name):
    path = forged(saved, tmp_path, FORGERIES[name])
    with pytest.raises(ConfigurationError, match=r"evil_parts|Aggregate|\btext\b") as caught:
        SplitVFL.load_from_checkpoint(path)
    assert "\n" not in str(caught.value)
    assert not evil.exists()
    assert "evil_parts" not in sys.modules


REACHABLE = [
    "torch.os.system",
    "torch.serialization.os.system",
    "torch.hub.load",
    "torch.load",
    "torch.utils.data.DataLoader",
    "torch.fx.Graph",
    "torch.os._Environ",
    "os.system",
    "builtins.eval",
    "subprocess.Popen",
    "lightning.pytorch.Trainer",
    "lightning_vfl.commands.vfl_cli.VFLCLI",
    "lightning_vfl.cli.main",
    "lightning_vfl.__main__.main",
    "lightning_vfl.protocols.model.os.system",
    "lightning_vfl.networks.NoSuchNetwork",
    "torchmetrics.utilities.data.torch.hub.load",
]


@pytest.mark.parametrize("path", REACHABLE)
def test_what_is_only_reachable_below_a_trusted_name_is_refused(path):
    for hparams in ({"bottom": {"class_path": path}}, {"metrics": {"a": [{"class_path": path, "init_args": {}}]}}):
        with pytest.raises(ConfigurationError, match=path):
            refuse_strangers({"hyper_parameters": hparams}, VFLModule, (), ())
    if "NoSuch" not in path and path.split(".")[0] != "lightning_vfl":
        with pytest.raises(ConfigurationError, match=path):
            refuse_strangers({"hyper_parameters": {"bottom": path}}, VFLModule, (), ())


def test_the_remedies_of_the_message_work(saved, tmp_path, evil):
    path = forged(saved, tmp_path, FORGERIES["aggregator"])
    with pytest.raises(ConfigurationError, match=r"trusted=\['evil_parts'\]\), or give your own aggregator"):
        SplitVFL.load_from_checkpoint(path)
    assert isinstance(SplitVFL.load_from_checkpoint(path, aggregator=Mean()).aggregator, Mean)
    assert not evil.exists()
    with pytest.raises(ConfigurationError, match="another aggregator"):  # built, and then held to the checkpoint
        SplitVFL.load_from_checkpoint(path, trusted=["evil_parts"])
    assert evil.read_text() == "built"


@pytest.mark.parametrize("trusted", [("evil_part",), ("evil_parts.Other",), ("parts",)])
def test_trust_is_by_whole_names(saved, tmp_path, evil, trusted):
    with pytest.raises(ConfigurationError, match=r"evil_parts\.Aggregate"):
        SplitVFL.load_from_checkpoint(forged(saved, tmp_path, FORGERIES["aggregator"]), trusted=trusted)


def test_a_text_that_names_a_file_of_settings_is_refused(saved, tmp_path, evil):
    settings = tmp_path / "more.yaml"
    settings.write_text("class_path: evil_parts.Aggregate\n")
    path = forged(saved, tmp_path, _set(aggregator=str(settings)))
    with pytest.raises(ConfigurationError, match="name of a file"):
        SplitVFL.load_from_checkpoint(path)
    assert not evil.exists()


def test_a_file_of_hyperparameters_is_held_to_the_same(saved, tmp_path, evil):
    settings = tmp_path / "more.yaml"
    settings.write_text("aggregator: {class_path: evil_parts.Aggregate}\n")
    with pytest.raises(ConfigurationError, match=r"evil_parts\.Aggregate"):
        SplitVFL.load_from_checkpoint(saved, hparams_file=settings)
    assert not evil.exists()


def test_an_open_file_is_checked_and_loaded(saved, tmp_path, evil):
    with saved.open("rb") as file:
        assert isinstance(SplitVFL.load_from_checkpoint(file).aggregator, Mean)
    with forged(saved, tmp_path, FORGERIES["aggregator"]).open("rb") as file, pytest.raises(ConfigurationError):
        SplitVFL.load_from_checkpoint(file)
    assert not evil.exists()


def test_a_pickle_is_not_executed(tmp_path):
    class Pickled:
        def __reduce__(self):
            return print, ("executed",)

    torch.save({"hyper_parameters": Pickled()}, tmp_path / "x.ckpt")
    with pytest.raises(Exception, match=r"[Ww]eights"):
        SplitVFL.load_from_checkpoint(tmp_path / "x.ckpt")


def test_the_module_that_is_called_is_trusted_and_no_instance_loads(tmp_path):
    class Own(SplitVFL):
        pass

    module = Own(Mean(), bottom=partial(MLP, hidden=(7,)), width=5)
    t = trainer(tmp_path, max_epochs=1)
    t.fit(module, datamodule=Blobs(batch_size=30))
    t.save_checkpoint(tmp_path / "x.ckpt")
    assert isinstance(
        Own.load_from_checkpoint(tmp_path / "x.ckpt", aggregator=Mean(), bottom=partial(MLP, hidden=(7,))), Own
    )
    with pytest.raises(TypeError, match="instance"):
        module.load_from_checkpoint(tmp_path / "x.ckpt")


@pytest.mark.parametrize(
    "recipe", ["dvfl", "vfedsec", *(pytest.param(name, marks=pytest.mark.slow) for name in ("pbm_local", "fedvs"))]
)
def test_checkpoints_of_packaged_recipes_name_accepted_classes(recipe):
    module = VFLCLI(["fit", "--config", "data/digits", "--config", f"protocol/{recipe}"]).build().model
    assert "class_path" in str(module.hparams)
    refuse_strangers({"hyper_parameters": dict(module.hparams)}, VFLModule, (), ())


@pytest.mark.filterwarnings("ignore:all .* predictions .*decide for class")  # one short epoch
def test_the_command_line_builds_the_recipe_and_nothing_of_the_checkpoint(saved, tmp_path, evil, monkeypatch):
    """A checkpoint that says otherwise is loaded into what the recipe has built."""
    monkeypatch.chdir(tmp_path)
    path = forged(saved, tmp_path, FORGERIES["aggregator"])
    arguments = ["--config", "data/digits", "--config", "protocol/mean", "--ckpt_path", str(path)]
    quiet = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false", "--trainer.logger", "false"]
    done = run(["test", *arguments, *quiet])
    assert isinstance(done.model.aggregator, Mean)
    assert not evil.exists()


def test_a_datamodule_is_held_to_the_same(tmp_path, evil):
    forged = {
        "datamodule_hyper_parameters": {"_instantiator": "lightning.pytorch.cli.instantiate_module", "normaliser": NET},
        "pytorch-lightning_version": "2.5.0",
        "state_dict": {},
    }
    torch.save(forged, tmp_path / "x.ckpt")
    with pytest.raises(ConfigurationError, match=r"evil_parts\.Net"):
        Digits.load_from_checkpoint(tmp_path / "x.ckpt")
    assert not evil.exists()
