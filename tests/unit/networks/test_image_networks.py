"""Laws of the networks for images, whichever paper they are from."""

from functools import partial

import pytest
import torch
from torch import nn

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.networks import MLP, VGG13, ResNet18
from lightning_vfl.networks.bank import PartyBank

both = pytest.mark.parametrize("network", [VGG13, ResNet18])


@both
def test_it_learns(network):
    """Which of four quadrants is bright."""
    torch.manual_seed(0)
    y = torch.arange(32) % 4
    x = torch.randn(32, 1, 8, 8) * 0.3
    for image, quadrant in zip(x, y.tolist(), strict=True):
        image[0, 4 * (quadrant // 2) :, 4 * (quadrant % 2) :][:4, :4] += 1
    made = network((1, 8, 8), 4, base=4)
    optimizer = torch.optim.Adam(made.parameters(), lr=3e-3)
    for _ in range(12 if network is ResNet18 else 40):
        optimizer.zero_grad()
        nn.functional.cross_entropy(made(x), y).backward()
        optimizer.step()
    assert (made(x).argmax(1) == y).float().mean() > 0.9


@both
def test_the_input_is_left_alone(network):
    x = torch.randn(2, 3, 8, 8)
    before = x.clone()
    network((3, 8, 8), 3, base=1)(x)
    assert torch.equal(x, before)


@both
@pytest.mark.parametrize("shape", [(1, 7, 28), (3, 16, 16)])
def test_it_is_a_bottom_of_a_protocol(network, shape):
    """Strips and quadrants, and every bottom is run by itself."""
    bottom = partial(network, base=2)
    module = SplitVFL(Mean(), bottom=bottom, top=MLP, width=6, party_shapes=[shape] * 4, num_classes=10)
    module.configure_model()
    assert PartyBank(list(module.bottoms.parties), batch_from=2).groups == ()
    assert module(tuple(torch.zeros(5, *shape) for _ in range(4))).shape == (5, 10)
