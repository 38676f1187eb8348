"""Equal networks in one call against a loop over them."""

from functools import partial

import pytest
import torch
from torch import nn

from lightning_vfl.networks import MLP, PartyBank
from lightning_vfl.networks.batched import LARGE, batched

S, D, B, COUNT = (2, 3), 4, 5, 3
TEAM = tuple(range(COUNT))


def normed(shape, width):
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 7, bias=False), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, width))


FACTORIES = {
    "MLP": partial(MLP, hidden=(7,)),
    "deep": partial(MLP, hidden=(8, 6), activation=nn.LeakyReLU, output_activation=nn.Sigmoid),
    "linear": partial(MLP, hidden=()),
    "layer norm": normed,
    "large": partial(MLP, hidden=(700, 80)),  # a matrix of more than LARGE numbers
}


def bank(factory=FACTORIES["deep"]):
    torch.manual_seed(0)
    return PartyBank([factory(S, D) for _ in range(COUNT)], batch_from=2)


def features(dtype=torch.float32):
    return torch.randn(COUNT, B, *S, generator=torch.Generator().manual_seed(1)).to(dtype)


def looped(one, x):
    return torch.stack([network(own) for network, own in zip(one.parties, x, strict=True)])


def losses(out):
    return (out.square() * torch.arange(1.0, COUNT + 1).view(-1, 1, 1).to(out.dtype)).sum((1, 2))


def assert_is_the_loop(one, x=None, atol=1e-6):
    """A bank gives the values and gradients of the loop over its own parameters, now and after a step."""
    x = features(next(one.parameters()).dtype) if x is None else x
    rate = 0.05
    for _ in range(2):
        out = one.together(TEAM, x)
        expected = looped(one, x)
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=atol)
        wanted = torch.autograd.grad(losses(expected).sum(), list(one.parameters()))
        one.zero_grad()
        losses(out).sum().backward()
        for parameter, gradient in zip(one.parameters(), wanted, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=10 * atol)
        with torch.no_grad():
            for parameter in one.parameters():
                parameter -= rate * parameter.grad


@pytest.mark.parametrize("name", FACTORIES)
def test_together_is_the_loop_in_value_and_gradient(name):
    assert_is_the_loop(bank(FACTORIES[name]))


def test_gradients_are_right_in_float64():
    one = bank().double()
    x = features(torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: one.together(TEAM, x), x)


def test_a_loss_of_one_moves_no_other():
    one = bank()
    losses(one.together(TEAM, features()))[1].backward()
    for number, network in enumerate(one.parties):
        assert all(bool(p.grad.any()) == (number == 1) for p in network.parameters())


@pytest.mark.parametrize("name", ["MLP", "large"])
def test_autocast_computes_in_half_precision_and_learns_in_single(name):
    one = bank(FACTORIES[name])
    x = features()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = one.together(TEAM, x)
        expected = looped(one, x)
    assert out.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected.float(), rtol=0.02, atol=0.02)
    losses(out.float()).sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in one.parameters())


def test_twice_in_one_graph():
    """As an objective with two views does."""
    one = bank()
    x = features()
    (losses(one.together(TEAM, x)) + losses(one.together(TEAM, x * 2))).sum().backward()
    wanted = torch.autograd.grad((losses(looped(one, x)) + losses(looped(one, x * 2))).sum(), list(one.parameters()))
    for p, gradient in zip(one.parameters(), wanted, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_the_hooks_of_a_parameter_are_called(kind):
    one, seen = bank(), []
    hooked = one.parties[1].layers[1].weight
    getattr(hooked, kind)(lambda value: seen.append(tuple(value.shape)))
    losses(one.together(TEAM, features())).sum().backward()
    assert seen == [tuple(hooked.shape)]
    assert hooked.grad is not None


def test_large_layers_have_the_gradients_of_torch():
    """Which it copies into the layout of the weights; here they are computed in it."""
    generator = torch.Generator().manual_seed(0)
    layers = [nn.Linear(150, 110, dtype=torch.float64) for _ in range(COUNT)]
    assert layers[0].weight.numel() >= LARGE
    x = torch.randn(COUNT, 2, 3, 150, dtype=torch.float64, generator=generator, requires_grad=True)
    out = batched(layers[0], layers, x)
    wanted = torch.stack([layer(own) for layer, own in zip(layers, x, strict=True)])
    torch.testing.assert_close(out, wanted)
    inputs = [x, *(p for layer in layers for p in layer.parameters())]
    first, expected = (torch.autograd.grad(y.square().sum(), inputs, create_graph=True) for y in (out, wanted))
    second, sought = (torch.autograd.grad(sum(g.cos().sum() for g in gs), inputs) for gs in (first, expected))
    for a, b in zip((*first, *second), (*expected, *sought), strict=True):
        torch.testing.assert_close(a, b)
