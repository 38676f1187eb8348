"""Questions about networks before a fit has built them: one line names the early build, which a fit then trains."""

from functools import partial
from traceback import format_exception

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint
from lightning.pytorch.utilities.model_summary.model_summary import ModelSummary

from lightning_vfl import AsyncVFL, SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.downlinks import Marvell
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.early_build import NotBuilt
from tests.subjects import Blobs, split, trainer

QUESTIONS = {
    "parameters": lambda module: list(module.parameters()),
    "an optimiser": lambda module: torch.optim.SGD(module.parameters(), lr=0.1),
    "a summary": lambda module: str(ModelSummary(module)),
    "freezing": lambda module: module.freeze(),
    "weights": lambda module: module.state_dict(),
    "a network": lambda module: module.top,
    "a prediction": lambda module: module((torch.zeros(1, 3), torch.zeros(1, 3), torch.zeros(1, 2))),
    "the parties": lambda module: module.roster,
    "optimisers": lambda module: module.configure_optimizers(),
    "an own network": lambda module: module.extra,
}


class Own(SplitVFL):
    def build(self):
        super().build()
        self.extra = torch.nn.Linear(2, 2)


@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_a_question_before_the_networks_are_built_names_the_early_build(question):
    module = Own(Mean(), width=4, seed=0)
    with pytest.raises(
        NotBuilt, match=r"Own has no \w+ before its networks are built.+ build_for\(datamodule\) builds"
    ):
        question(module)
    with pytest.raises(NotBuilt, match=r"configure_model\(\) builds them earlier"):
        question(Own(Mean(), width=4, party_shapes=[(3,), (3,), (2,)], num_classes=3))
    module.build_for(Blobs(batch_size=9))
    question(module)


def test_before_the_build_an_attribute_is_missing_as_usual_and_the_module_moves():
    module = split()
    assert not hasattr(module, "top")
    assert getattr(module, "bottoms", None) is None
    assert module.to("cpu").train() is module
    with pytest.raises(AttributeError, match="no attribute '_own'"):
        module._own  # noqa: B018
    module.build_for(Blobs())
    with pytest.raises(AttributeError, match="object has no attribute 'tpo'"):
        module.tpo  # noqa: B018


class Unmade(SplitVFL):
    def __init__(self, aggregator):
        self.rate = 0.1


def test_a_constructor_that_leaves_out_the_first_one_is_told(tmp_path):
    with pytest.raises(NotBuilt, match=r"__init__ of Unmade must first call super\(\).__init__"):
        trainer(tmp_path).fit(Unmade(Mean()), Blobs(batch_size=9))


def test_a_fit_trains_the_networks_of_an_early_build_as_those_of_its_own(tmp_path):
    early, late = split(), split()
    torch.manual_seed(0)
    early.build_for(Blobs(batch_size=9))
    watched = early.top
    before = {name: value.clone() for name, value in early.state_dict().items()}
    for module in (early, late):
        torch.manual_seed(0)
        trainer(tmp_path, max_epochs=1).fit(module, Blobs(batch_size=9))
    assert early.top is watched
    assert not all(torch.equal(value, before[name]) for name, value in early.state_dict().items())
    assert all(torch.equal(value, early.state_dict()[name]) for name, value in late.state_dict().items())


def test_shapes_come_from_a_datamodule_alone():
    for wrong in (torch.utils.data.DataLoader([1]), [(3,), (2,)], None):
        with pytest.raises(ConfigurationError, match="build_for must be given a VerticalDataModule"):
            split().build_for(wrong)


def test_a_hook_that_waits_for_forward_is_told(tmp_path):
    module = split()
    module.build_for(Blobs())
    module.register_forward_hook(lambda *_: None)
    with pytest.warns(UserWarning, match=r"forward hooks of SplitVFL.+ do not run in training.+ watch\(module.top"):
        trainer(tmp_path, max_epochs=1).fit(module, Blobs(batch_size=9))


class Unread(Blobs):
    def setup(self, stage):
        raise RuntimeError("the first error")


def unmade(shape, width):
    raise RuntimeError("the first error")


PROTOCOLS = {
    "split": lambda **settings: SplitVFL(Mean(), downlink=Marvell(2.0), **settings),
    "async": lambda **settings: AsyncVFL(Mean(), **settings),
}


@pytest.mark.filterwarnings("ignore:.*was called without a model", "ignore:.*no last checkpoint")  # what Lightning says
@pytest.mark.parametrize(
    ("protocol", "saves"),
    [
        (PROTOCOLS["split"], OnExceptionCheckpoint),
        (PROTOCOLS["async"], partial(ModelCheckpoint, save_on_exception=True)),
    ],
)
def test_an_error_before_the_networks_exist_is_not_hidden_by_one_of_saving(tmp_path, protocol, saves):
    for module, data in (protocol(), Unread()), (protocol(bottom=unmade), Blobs()):
        t = trainer(tmp_path, callbacks=[saves(tmp_path)], enable_checkpointing=True)
        with pytest.raises((RuntimeError, ConfigurationError), match="the first error") as told:
            t.fit(module, data)
        assert not isinstance(told.value.__context__, NotBuilt)
        assert "no weights" not in "".join(format_exception(told.value))
    assert not [*tmp_path.rglob("*.ckpt")]
