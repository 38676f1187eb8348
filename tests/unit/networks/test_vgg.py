from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Concat, Mean
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import VGG13

# Table 1 of the paper, column B: conv3-64 twice, maxpool, conv3-128 twice, maxpool, and so on
CONFIGURATION_B = [64, 64, "M", 128, 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"]


def convolutions(network):
    return [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]


def parameters(layers):
    return sum(p.numel() for layer in layers for p in layer.parameters())


@pytest.mark.parametrize("batch_norm", [False, True])
def test_the_layers_are_those_of_configuration_b(batch_norm):
    with torch.device("meta"):
        network = VGG13((3, 224, 224), 1000, batch_norm=batch_norm, hidden=(4096, 4096))
    described, rest = [], list(network.layers)
    while isinstance(rest[0], nn.Conv2d | nn.MaxPool2d):
        layer = rest.pop(0)
        if isinstance(layer, nn.MaxPool2d):
            assert (layer.kernel_size, layer.stride, layer.padding) == ((2, 2), (2, 2), 0)
            described.append("M")
        else:
            assert (layer.kernel_size, layer.stride, layer.padding) == ((3, 3), (1, 1), (1, 1))
            described.append(layer.out_channels)
            kinds = [nn.BatchNorm2d, nn.ReLU] if batch_norm else [nn.ReLU]
            assert [type(rest.pop(0)) for _ in kinds] == kinds
    assert described == CONFIGURATION_B
    assert [type(layer) for layer in rest] == [nn.Flatten, nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]


def test_parameters_are_as_many_as_in_the_paper():
    """Its Table 2 says 133 million for A and B; the convolutions by hand, Σ (9 · in + 1) · out."""
    with torch.device("meta"):
        network = VGG13((3, 224, 224), 1000, hidden=(4096, 4096))
    widths = [3, *(wide for wide in CONFIGURATION_B if wide != "M")]
    by_hand = sum((9 * into + 1) * out for into, out in pairwise(widths))
    assert parameters(convolutions(network)) == by_hand == 9_404_992
    assert round(parameters([network]) / 1e6) == 133
    assert parameters([network]) == 9_404_992 + (512 * 7 * 7 + 1) * 4096 + (4096 + 1) * 4096 + (4096 + 1) * 1000


def test_a_smaller_base_has_the_same_shape():
    small, large = convolutions(VGG13((1, 28, 28), 10, base=4)), convolutions(VGG13((1, 28, 28), 10))
    assert [16 * layer.out_channels for layer in small] == [layer.out_channels for layer in large]


@pytest.mark.parametrize(
    ("shape", "sides"),
    [
        ((1, 28, 28), [(14, 14), (7, 7), (3, 3), (1, 1), (1, 1)]),
        ((3, 32, 32), [(16, 16), (8, 8), (4, 4), (2, 2), (1, 1)]),
        ((1, 7, 28), [(3, 14), (1, 7), (1, 3), (1, 1), (1, 1)]),
        ((1, 1, 28), [(1, 14), (1, 7), (1, 3), (1, 1), (1, 1)]),
        ((2, 1, 1), [(1, 1)] * 5),
    ],
)
def test_images_of_every_size_pass_as_bottoms(shape, sides):
    network = VGG13(shape, 5, base=2).eval()
    met = []
    for layer in network.layers:
        if isinstance(layer, nn.MaxPool2d):
            layer.register_forward_hook(lambda _layer, _x, out: met.append(tuple(out.shape[2:])))
    assert network(torch.zeros(3, *shape)).shape == (3, 5)
    assert met == sides
    assert network(torch.zeros(0, *shape)).shape == (0, 5)


def test_a_top_sees_the_aggregate_row_by_row():
    """The same network on the image itself."""
    torch.manual_seed(0)
    top, bottom = VGG13(2 * 9 * 9, 4, channels=2, base=2), VGG13((2, 9, 9), 4, base=2)
    weights = dict(zip(bottom.state_dict(), top.state_dict().values(), strict=True))
    bottom.load_state_dict(weights)
    x = torch.randn(3, 2, 9, 9)
    assert torch.equal(top(x.flatten(1)), bottom(x))


def test_signals_neither_vanish_nor_explode():
    """What the start after He et al. is for: with torch's own, the variance falls to a sixth in each of 12 layers."""
    torch.manual_seed(0)
    network = VGG13((1, 32, 32), 10, base=16).eval()
    inner = nn.Sequential(*list(network.layers)[:-1])
    with torch.no_grad():
        spread = inner(torch.randn(16, 1, 32, 32)).square().mean().sqrt()
    assert 0.1 < spread < 10


@pytest.mark.parametrize(("aggregator", "width"), [(Mean(), 64), (Concat(), 48)])
def test_it_is_a_top_of_a_protocol(aggregator, width):
    """64 = 1 x 8 x 8, and 3 parties x 48 = 144 = 1 x 12 x 12; the protocol states the outputs."""
    module = SplitVFL(
        aggregator, top=partial(VGG13, base=2), width=width, party_shapes=[(3,), (2,), (4,)], num_classes=7
    )
    module.configure_model()
    assert module.top.layers[-1].out_features == 7
    assert module((torch.zeros(5, 3), torch.zeros(5, 2), torch.zeros(5, 4))).shape == (5, 7)


def test_a_batch_norm_is_not_moved_by_being_built():
    module = SplitVFL(Mean(), top=partial(VGG13, base=2, batch_norm=True), width=16, party_shapes=[(3,)], num_classes=2)
    module.configure_model()
    norms = [layer for layer in module.top.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert len(norms) == 10
    assert all(not layer.running_mean.any() and layer.num_batches_tracked == 0 for layer in norms)


@pytest.mark.parametrize(
    ("inputs", "settings", "said"),
    [
        ((30,), {}, "MLP bottom"),
        (785, {}, "use width 784 or 841"),
        (784, {"channels": 3}, "use width 768 or 867"),
        (2, {"channels": 3}, "use width 3 "),
        (0, {}, "use width 1 "),
        (64, {"channels": 0}, "channels must be .*; got 0"),
        (64, {"base": 0}, "base must be .*; got 0"),
    ],
)
def test_what_makes_no_image_is_refused_with_the_way_out(inputs, settings, said):
    with pytest.raises(ConfigurationError, match=said):
        VGG13(inputs, 10, **settings)


def test_a_protocol_says_which_widths_a_top_takes():
    module = SplitVFL(Mean(), top=VGG13, width=60, party_shapes=[(3,), (2,)], num_classes=2)
    with pytest.raises(ConfigurationError, match="use width 49 or 64"):
        module.configure_model()


def test_outputs_have_to_be_stated():
    with pytest.raises(TypeError, match="outputs="):
        VGG13(64)
