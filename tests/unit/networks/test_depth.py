"""The number of columns that a bottom is linear in, against the rank of its outputs."""

import pytest
import torch
from torch import nn

from lightning_vfl.networks import MLP, Linear, PolynomialNetwork
from lightning_vfl.networks.depth import depth_of, linear_columns

WIDTH = 20  # more than there are columns

LINEAR = {
    "Linear": lambda: Linear((2, 3), WIDTH),
    "MLP": lambda: MLP((2, 3), WIDTH, hidden=()),
    "polynomial": lambda: PolynomialNetwork((2, 3), WIDTH, degree=2),
    "no bias": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, WIDTH, bias=False)),
}


@pytest.mark.parametrize("make", LINEAR.values(), ids=LINEAR)
def test_columns_are_the_rank_of_the_outputs_without_their_mean(make):
    torch.manual_seed(0)
    network = make().double()
    outputs = network(torch.randn(50, 2, 3).double())
    assert linear_columns(network) == int(torch.linalg.matrix_rank(outputs - outputs.mean(0), rtol=1e-9))


class Bent(Linear):
    def forward(self, x):
        return super().forward(x).tanh()


OTHERS = {
    "own class": Bent((4,), 3),
    "hidden": MLP((4,), 3),
    "tanh": MLP((4,), 3, hidden=(), output_activation=nn.Tanh),
    "two layers": nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)),
}


@pytest.mark.parametrize("network", OTHERS.values(), ids=OTHERS)
def test_other_networks_are_not_linear(network):
    assert linear_columns(network) is None


@pytest.mark.parametrize(
    "network", [nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2, bias=False)), Bent((4,), 3)]
)
def test_other_networks_have_no_hidden_layer(network):
    assert depth_of(network) is None
