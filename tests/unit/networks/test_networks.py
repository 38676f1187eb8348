import numpy as np
import pytest
import torch
from numpy.polynomial.polynomial import polyval
from torch import nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import MLP, ConvNet, Linear, PolynomialNetwork


@pytest.mark.parametrize("degree", [1, 2, 3, 5])
def test_polynomial_network_is_the_polynomial_of_the_paper(degree):
    """FedVS section 3, h = Σ_i x^i W^i + b, against numpy's own polynomial evaluation feature by feature."""
    network = PolynomialNetwork((2, 2), 3, degree=degree).double()
    x = torch.randn(5, 2, 2, dtype=torch.float64)
    weight, bias = network.weight[:-1].detach().numpy().reshape(degree, 4, 3), network.weight[-1].detach().numpy()
    flat = x.flatten(1).numpy()
    expected = np.zeros((5, 3)) + bias
    for feature in range(4):
        coefficients = np.concatenate([np.zeros((1, 3)), weight[:, feature]])
        expected += np.stack([polyval(flat[:, feature], coefficients[:, d]) for d in range(3)], axis=1)
    np.testing.assert_allclose(network(x).detach().numpy(), expected, rtol=1e-12, atol=1e-12)


def test_polynomial_network_is_linear_in_one_weight_matrix():
    network = PolynomialNetwork((3,), 2, degree=2)
    x = torch.randn(4, 3)
    assert network.weight.shape == (7, 2)
    assert network.expand(x).shape == (4, 7)
    assert torch.equal(network.expand(x)[:, -1], torch.ones(4))
    assert torch.equal(network(x), network.expand(x) @ network.weight)


def test_polynomial_network_of_degree_one_is_a_linear_layer():
    network = PolynomialNetwork((3,), 2)
    linear = nn.Linear(3, 2)
    with torch.no_grad():
        linear.weight.copy_(network.weight[:-1].T)
        linear.bias.copy_(network.weight[-1])
    x = torch.randn(4, 3)
    torch.testing.assert_close(network(x), linear(x))


def test_degree_zero_is_refused():
    with pytest.raises(ValueError, match="degree must be a whole number, 1 or more"):
        PolynomialNetwork((3,), 2, degree=0)


@pytest.mark.parametrize("shape", [(1, 1, 28), (1, 7, 28), (3, 16, 16), (1, 28, 28), (1, 2, 8)])
def test_convnet_takes_images_and_thin_strips(shape):
    network = ConvNet(shape, 5)
    assert network(torch.zeros(2, *shape)).shape == (2, 5)


def test_convnet_refuses_tables():
    with pytest.raises(ConfigurationError, match="MLP bottom"):
        ConvNet((30,), 5)


@pytest.mark.parametrize("kind", [MLP, Linear])
def test_bottoms_flatten_and_tops_take_a_width(kind):
    assert kind((2, 3), 5)(torch.zeros(4, 2, 3)).shape == (4, 5)
    assert kind(6, 5)(torch.zeros(4, 6)).shape == (4, 5)
    with pytest.raises(TypeError, match="outputs="):
        kind(6)


def test_mlp_leaves_its_input_alone():
    """ReLU works in place, but never on the features."""
    x = torch.randn(4, 3)
    before = x.clone()
    MLP((3,), 2)(x)
    assert torch.equal(x, before)
