import pytest
import torch
from torch import nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import MLP, ConvNet
from lightning_vfl.networks.batched import has_rule
from lightning_vfl.networks.mlp import mirrored


def layers(network):
    return [
        (layer.in_features, layer.out_features) if isinstance(layer, nn.Linear) else repr(layer)
        for layer in network.modules()
        if not list(layer.children())
    ]


def test_the_paper_guests_decoder():
    """DVFL, appendix D.1, with four guests: 196 -> 100 -> 80, undone with a sigmoid at the end."""
    encoder = MLP((1, 7, 28), 80, hidden=(100,), activation=nn.LeakyReLU, output_activation=nn.ReLU)
    decoder = mirrored(encoder, (1, 7, 28), nn.Sigmoid)
    assert layers(decoder) == [(80, 100), "LeakyReLU(negative_slope=0.01)", (100, 196), "Sigmoid()"]
    assert decoder(encoder(torch.rand(3, 1, 7, 28))).shape == (3, 196)


def test_the_activation_is_repeated_with_its_settings_and_shared_with_nobody():
    encoder = MLP(9, 2, hidden=(7, 5, 3), activation=lambda: nn.LeakyReLU(0.2))
    decoder = mirrored(encoder, (9,), None)
    slope = "LeakyReLU(negative_slope=0.2)"
    assert layers(decoder) == [(2, 3), slope, (3, 5), slope, (5, 7), slope, (7, 9)]
    assert not {id(layer) for layer in encoder.modules()} & {id(layer) for layer in decoder.modules()}
    assert len({id(layer) for layer in decoder.modules()}) == 1 + 1 + 7  # none twice


def test_relu_stays_in_place():
    assert layers(mirrored(MLP(4, 2, hidden=(3,)), (4,), nn.ReLU)) == [(2, 3), "ReLU(inplace=True)", (3, 4), "ReLU()"]


@pytest.mark.parametrize("hidden", [(), (5,), (5, 4)])
def test_what_can_be_batched_stays_so(hidden):
    """Also of an encoder without a hidden layer, whose last activation is not repeated."""
    encoder = MLP((2, 3), 4, hidden=hidden, output_activation=nn.Tanh)
    decoder = mirrored(encoder, (2, 3), None)
    assert has_rule(decoder)
    assert layers(decoder)[-1][1] == 6
    assert "Tanh()" not in layers(decoder)
    odd = MLP((2, 3), 4, hidden=(5,), activation=nn.Dropout)
    assert (has_rule(odd), has_rule(mirrored(odd, (2, 3), None))) == (False, False)


def test_an_encoder_that_is_no_mlp_is_refused():
    with pytest.raises(ConfigurationError, match="mirrored decoder; got ConvNet; give the objective a decoder"):
        mirrored(ConvNet((1, 7, 28), 8), (1, 7, 28), None)
