"""Every trained parameter has one owner: what is shared between owners, or held by an aggregator, is refused."""

import re

import pytest
import torch
from torch import nn

from lightning_vfl import DecoupledVFL, SplitVFL
from lightning_vfl.aggregators import Concat, Mean
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Zeros
from lightning_vfl.networks import MLP
from lightning_vfl.objectives import MultiClass
from lightning_vfl.protocols.build import refuse_parameters_of
from lightning_vfl.simulation.clock import VirtualClock
from lightning_vfl.waiting import WaitForAll
from tests.subjects import Blobs, split, trainer


def fitted(tmp_path, module):
    trainer(tmp_path, max_epochs=1).fit(module, datamodule=Blobs(batch_size=10))
    return module


def sharing(layer):
    return lambda shape, width: nn.Sequential(nn.Linear(shape[0], width), layer)


def test_a_layer_of_several_bottoms_is_refused_if_it_is_trained(tmp_path):
    message = "party 0 and party 1 have one parameter together, 1.weight (5, 5), and would train it as one party; make"
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        fitted(tmp_path, split(Mean(), bottom=sharing(nn.Linear(5, 5))))


def test_a_frozen_layer_may_be_shared_and_stays_as_it_is(tmp_path):
    layer = nn.Linear(5, 5).requires_grad_(False)
    before = layer.weight.clone()
    module = fitted(tmp_path, split(Mean(), bottom=sharing(layer)))
    assert module.bottoms.parties[2][1] is layer
    assert torch.equal(layer.weight, before)


def test_a_layer_of_a_party_and_the_server_is_refused(tmp_path):
    layer = nn.Linear(5, 5)
    module = split(
        Mean(),
        bottom_of={2: sharing(layer)},
        top=lambda width: nn.Sequential(layer, nn.Linear(width, 3)),
    )
    with pytest.raises(ConfigurationError, match=r"party 2 and the server have one parameter together, 0\.weight"):
        fitted(tmp_path, module)


def test_a_layer_of_two_hosts_is_refused(tmp_path):
    host = MLP((12,), 6)
    sizes = {"width": 4, "host_width": 6, "hosts": 2, "party_shapes": [[3]] * 3}
    module = DecoupledVFL(host=lambda inputs, width: host, **sizes)
    with pytest.raises(ConfigurationError, match="host 0 and host 1 have one parameter together"):
        module.configure_model()


def test_layers_within_one_bottom_may_be_tied(tmp_path):
    def tied(shape, width):
        inner = nn.Linear(width, width)
        return nn.Sequential(nn.Linear(shape[0], width), inner, nn.ReLU(), inner)

    module = split(Mean(), bottom=tied)
    module.build_for(Blobs(batch_size=10))
    before = [bottom[1].weight.clone() for bottom in module.bottoms.parties]
    fitted(tmp_path, module)
    for bottom, weight in zip(module.bottoms.parties, before, strict=True):
        assert bottom[1] is bottom[3]
        assert not torch.equal(bottom[1].weight, weight)


class Weighted(Concat):
    def __init__(self, layer=False):
        super().__init__()
        self.weights = nn.Linear(2, 2) if layer else nn.Parameter(torch.ones(3))


@pytest.mark.parametrize("layer", [False, True])
def test_parameters_of_an_aggregator_are_refused(tmp_path, layer):
    with pytest.raises(ConfigurationError, match=re.escape("Weighted holds parameters (weights), which nobody would")):
        fitted(tmp_path, split(Weighted(layer)))


class Module(Concat, nn.Module):
    def __init__(self, inside):
        nn.Module.__init__(self)
        self.widths_given = None
        self.weights = nn.Sequential(nn.Linear(2, 2)) if inside else nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(("inside", "name"), [(False, "weights"), (True, "weights.0.weight")])
def test_parameters_of_an_aggregator_that_is_a_module_are_refused(inside, name):
    with pytest.raises(ConfigurationError, match=re.escape(f"Module holds parameters ({name}), which nobody would")):
        refuse_parameters_of(Module(inside))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"waiting": "all"}, "waiting must be a WaitingRule, such as WaitForAll(); got 'all'"),
        ({"waiting": WaitForAll}, "waiting must be a WaitingRule, such as WaitForAll(); got <class"),
        ({"missing": Zeros}, "missing must be a MissingPolicy, such as Exclude(); got <class"),
        ({"objective": MultiClass}, "objective must be an Objective, such as Binary(); got <class"),
        ({"clock": VirtualClock}, "clock must be a VirtualClock, such as VirtualClock(); got <class"),
    ],
)
def test_classes_and_names_in_place_of_parts(settings, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        split(Mean(), **settings)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda p: torch.optim.SGD(p, lr=-1), "optimizer cannot be made: Invalid learning rate: -1"),
        (lambda p: None, "optimizer must make an optimiser from parameters, such as partial(torch.optim.SGD, lr=0.1)"),
    ],
)
def test_optimizers(tmp_path, optimizer, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        fitted(tmp_path, split(Mean(), optimizer=optimizer))


def test_schedules(tmp_path):
    with pytest.raises(ConfigurationError, match="lr_scheduler cannot be made: StepLR"):
        fitted(tmp_path, split(Mean(), lr_scheduler=torch.optim.lr_scheduler.StepLR))


class Listed(SplitVFL):
    """It keeps networks of its own in a container of Python."""

    def __init__(self, make):
        super().__init__(Mean(), width=5, seed=0)
        self.make = make

    def build(self):
        super().build()
        self.extras = self.make()


LISTED = {
    "a list": lambda: [nn.Linear(2, 2)],
    "a tuple": lambda: (nn.ReLU(), nn.Linear(2, 2)),
    "a dictionary": lambda: {"own": nn.Linear(2, 2)},
    "parameters": lambda: [nn.Parameter(torch.zeros(2))],
}


@pytest.mark.parametrize("make", LISTED.values(), ids=LISTED)
def test_networks_in_a_container_of_python_are_refused(make):
    with pytest.raises(ConfigurationError, match=r"extras of Listed is a \w+ with parameters, .+ use nn\.\w+"):
        Listed(make).build_for(Blobs())


@pytest.mark.parametrize("make", [lambda: nn.ModuleList([nn.Linear(2, 2)]), lambda: [nn.ReLU(), 1, "a"]])
def test_networks_that_torch_finds_and_lists_of_others_are_not_refused(make):
    Listed(make).build_for(Blobs())
    frozen = nn.Linear(2, 2).requires_grad_(False)
    Listed(lambda: [frozen]).build_for(Blobs())
