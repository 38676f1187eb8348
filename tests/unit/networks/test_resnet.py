import pytest
import torch
from torch import nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import ResNet18
from lightning_vfl.networks.flops import work_of

# Table 1 of the paper, 18 layers: outputs and stride of the convolutions of every block, then of its projection
BLOCKS = [(64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)]


def convolutions(network):
    return [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]


def test_the_layers_are_those_of_the_paper():
    with torch.device("meta"):
        network = ResNet18((3, 32, 32), 10)
    expected, depth = [(64, 3, 1)], 64
    for wide, stride in BLOCKS:
        expected += [(wide, 3, stride), (wide, 3, 1)] + ([(wide, 1, stride)] if (depth, 1) != (wide, stride) else [])
        depth = wide
    found = [(layer.out_channels, layer.kernel_size[0], layer.stride[0]) for layer in convolutions(network)]
    assert found == expected
    assert sum(size > 1 for _, size, _ in found) + 1 == 18  # projections do not count, the linear layer does


@pytest.mark.parametrize("norm", [None, nn.BatchNorm2d])
def test_parameters_are_as_many_as_everybody_counts(norm):
    """ResNet18 for CIFAR-10 with ten outputs: 11,173,962, of whichever norm."""
    with torch.device("meta"):
        network = ResNet18((3, 32, 32), 10, norm=norm)
    assert sum(p.numel() for p in network.parameters()) == 11_173_962


@pytest.mark.parametrize(("base", "groups"), [(2, [1, 1, 1, 1]), (20, [1, 2, 5, 10]), (64, [4, 8, 16, 32])])
def test_the_norm_is_over_groups_of_sixteen_channels_or_more(base, groups):
    with torch.device("meta"):
        network = ResNet18((3, 8, 8), 4, base=base)
    norms = [layer for layer in network.modules() if isinstance(layer, nn.GroupNorm)]
    assert len(norms) == len(convolutions(network)) == 20
    assert list(dict.fromkeys((n.num_channels, n.num_groups) for n in norms)) == [
        (base * times, number) for times, number in zip((1, 2, 4, 8), groups, strict=True)
    ]


@pytest.mark.parametrize("shape", [(3, 16, 16), (1, 1, 28), (3, 7, 28), (2, 1, 1), (6, 33, 9)])
def test_images_of_every_size_pass(shape):
    network = ResNet18(shape, 5, base=2)
    assert network(torch.zeros(3, *shape)).shape == (3, 5)
    assert network(torch.zeros(1, *shape)).shape == (1, 5)


def test_flops_are_those_of_a_count_by_hand():
    """A convolution of k x k from I to O channels on H x W outputs is 2·k²·I·O·H·W; sides 16, 16, 8, 4, 2."""
    base, side = 4, 16
    forward = first = 2 * 9 * 3 * base * side**2
    depth = base
    for wide, stride in [(wide * base // 64, stride) for wide, stride in BLOCKS]:
        side //= stride
        forward += 2 * 9 * (depth + wide) * wide * side**2
        forward += 2 * depth * wide * side**2 if depth != wide else 0
        depth = wide
    forward += 2 * 8 * base * 6
    work = work_of(ResNet18((3, 16, 16), 6, base=base), (3, 16, 16), input_gradient=False)
    assert work.forward == forward
    assert work.backward == 2 * forward - first  # of weights and inputs, but not of the features


def test_an_embedding_depends_on_its_own_record_alone():
    torch.manual_seed(0)
    network, x = ResNet18((3, 8, 8), 4, base=4), torch.randn(6, 3, 8, 8)
    torch.testing.assert_close(network(x)[:2], network(x[:2]))
    assert not list(network.buffers())


def test_a_block_adds_its_input():
    """With the last norm of every block at zero, what is left are projections of the stem."""
    torch.manual_seed(0)
    network = ResNet18((3, 8, 8), 4, base=2)
    stem, blocks = network.layers[:3], network.layers[3:11]
    for block in blocks:
        nn.init.zeros_(block.residual[-1].weight)
    x = expected = stem(torch.randn(2, 3, 8, 8))
    for block in blocks:
        x, expected = block(x), torch.relu(block.shortcut(expected))
    assert torch.equal(x, expected)


def test_an_output_activation_bounds_the_embedding():
    network = ResNet18((1, 4, 4), 3, base=2, output_activation=nn.Tanh)
    assert network(1e6 * torch.randn(5, 1, 4, 4)).abs().max() <= 1
    assert isinstance(network.layers[-1], nn.Tanh)


@pytest.mark.parametrize(
    ("shape", "settings", "said"),
    [((30,), {}, "MLP bottom"), ((3, 8, 8), {"base": 0}, "base must be a whole number")],
)
def test_what_makes_no_network_is_refused_with_the_way_out(shape, settings, said):
    with pytest.raises(ConfigurationError, match=said):
        ResNet18(shape, 10, **settings)
