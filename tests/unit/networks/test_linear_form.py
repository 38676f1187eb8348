"""The linear form of a network against the network itself."""

import pytest
import torch
from torch import nn

from lightning_vfl.networks import MLP, Linear, PolynomialNetwork
from lightning_vfl.networks.linear_form import linear_form

LINEAR = {
    "Linear": lambda: Linear((2, 3), 4),
    "MLP": lambda: MLP((2, 3), 4, hidden=()),
    "polynomial": lambda: PolynomialNetwork((2, 3), 4, degree=2),
    "no bias": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 4, bias=False)),
}


@pytest.mark.parametrize("make", LINEAR.values(), ids=LINEAR)
def test_output_and_gradients_are_those_of_the_network(make):
    network, x, grad = make().double(), torch.randn(5, 2, 3).double(), torch.randn(5, 4).double()
    form = linear_form(network)
    assert torch.allclose(form.expand(x) @ form.weight(), network(x))
    wanted = torch.autograd.grad(network(x), list(network.parameters()), grad)
    found = torch.autograd.grad(form.weight(), list(network.parameters()), form.expand(x).T @ grad)
    assert all(torch.allclose(a, b) for a, b in zip(found, wanted, strict=True))


class Bent(Linear):
    def forward(self, x):
        return super().forward(x).tanh()


@pytest.mark.parametrize(
    "network",
    [
        Bent((4,), 3),
        MLP((4,), 3),
        MLP((4,), 3, hidden=(), output_activation=nn.Tanh),
        nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)),
    ],
    ids=["own class", "hidden", "tanh", "two layers"],
)
def test_other_networks_have_none(network):
    assert linear_form(network) is None
