"""FLOPs against a count by hand: a product of (B, I) and (I, O) is 2·B·I·O."""

import copy

import pytest
import torch
from torch import nn

from lightning_vfl.networks import MLP, ConvNet
from lightning_vfl.networks.flops import work_of


def test_a_bottom_of_two_layers():
    work = work_of(MLP((10,), 3, hidden=(5,)), (10,), input_gradient=False)
    assert work.forward == 2 * (10 * 5 + 5 * 3)
    assert work.backward == 2 * (10 * 5 + 5 * 3 + 5 * 3)  # two weight gradients, and that of the hidden layer


def test_the_top_gives_its_input_a_gradient():
    work = work_of(nn.Linear(10, 3), (10,), input_gradient=True)
    assert (work.forward, work.backward) == (60, 120)


def test_a_convolution_counts():
    assert work_of(ConvNet((1, 8, 8), 4), (1, 8, 8), input_gradient=False).forward > 0


def test_the_network_is_left_as_it_was():
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    network[1].eval()
    before, modes = copy.deepcopy(network.state_dict()), [m.training for m in network.modules()]
    state = torch.random.get_rng_state()
    work_of(network, (4,), input_gradient=False)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), network.state_dict().values(), strict=True))
    assert modes == [m.training for m in network.modules()]
    assert all(p.grad is None for p in network.parameters())
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("rows", [1, 2])
def test_a_network_without_parameters_costs_nothing(rows):
    assert work_of(nn.Flatten(), (2, rows), input_gradient=False) == (0, 0)


def test_a_first_layer_may_work_in_place():
    network = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(10, 3))
    assert work_of(network, (10,), input_gradient=True) == (60, 120)


class Uncopied:
    """A hook of a profiler: it cannot be copied, and counts its calls."""

    calls = 0

    def __call__(self, *_):
        self.calls += 1

    def __deepcopy__(self, memo):
        raise RuntimeError("a hook was copied")


def test_hooks_are_neither_copied_nor_called():
    network, hook = MLP((10,), 3, hidden=(5,)), Uncopied()
    for layer in network.modules():
        layer.register_forward_pre_hook(hook)
        layer.register_forward_hook(hook)
    counted = work_of(network, (10,), input_gradient=False)
    assert counted == work_of(MLP((10,), 3, hidden=(5,)), (10,), input_gradient=False)
    assert hook.calls == 0
    network(torch.zeros(2, 10))
    assert hook.calls == 2 * len([*network.modules()])  # in a round they are called
