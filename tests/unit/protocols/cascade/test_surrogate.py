"""The surrogate's gradient against that of the same written out as sums of products; its value is the loss."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lightning_vfl.protocols.cascade.surrogate import half_squares, surrogate

shapes = st.lists(st.lists(st.integers(1, 4), min_size=0, max_size=3), min_size=1, max_size=4)

LOSS = torch.tensor(0.7, dtype=torch.float64)


def drawn(seed, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return lambda shape: torch.randn(shape, generator=generator, dtype=dtype)


def written_out(values, gradients, parameters, decay, scale):
    total = sum(((g * v).sum() for g, v in zip(gradients, values, strict=True)), torch.zeros((), dtype=torch.float64))
    return scale * (total + decay / 2 * sum((p**2).sum() for p in parameters))


@given(shapes, shapes, st.sampled_from([0.0, 1e-3, 0.5]), st.floats(0.01, 30), st.integers(0, 10**6))
def test_it_is_what_it_says(values, parameters, decay, scale, seed):
    new = drawn(seed)
    leaves = [new(shape).requires_grad_() for shape in values]
    own = [nn.Parameter(new(shape)) for shape in parameters]
    gradients = [new(shape) for shape in values]
    factor = torch.tensor(scale, dtype=torch.float64)
    loss = new(())
    got = surrogate(loss, [2 * v for v in leaves], gradients, own, decay, factor)
    expected = written_out([2 * v for v in leaves], gradients, own, decay, factor)
    assert torch.equal(got, loss)
    assert got is not loss
    everything = [*leaves, *own]
    for a, b in zip(
        torch.autograd.grad(got, everything, allow_unused=True, materialize_grads=True),
        torch.autograd.grad(expected, everything, allow_unused=True, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_it_is_scaled_as_any_other_loss_is():
    """A trainer may divide it, or a scaler multiply."""
    new = drawn(1)
    leaf, own, gradient = new((3, 2)).requires_grad_(), nn.Parameter(new((4,))), new((3, 2))
    loss = surrogate(LOSS, [leaf], [gradient], [own], 0.25, torch.tensor(3.0, dtype=torch.float64))
    got = torch.autograd.grad(7 * loss, [leaf, own])
    torch.testing.assert_close(got[0], 21 * gradient)
    torch.testing.assert_close(got[1], 21 * 0.25 * own)


def test_messages_and_factor_are_constants():
    new = drawn(2)
    leaf = new((3,)).requires_grad_()
    gradient, scale = new((3,)).requires_grad_(), torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    loss = surrogate(LOSS, [leaf], [gradient], [], 0.1, scale)
    assert torch.autograd.grad(loss, [leaf, gradient], allow_unused=True)[1] is None
    torch.testing.assert_close(
        torch.autograd.grad(surrogate(LOSS, [leaf], [gradient], [], 0.1, scale), leaf)[0], 2 * gradient
    )


def test_values_are_carried_through_the_jacobian_of_now():
    """Of a network whose parameters have moved since the gradient was taken, and of a parameter that is itself one."""
    new = drawn(3)
    x, network, top = new((5, 3)), nn.Linear(3, 2).double(), nn.Parameter(new((2, 2)))
    message, of_top = new((5, 2)), new((2, 2))
    with torch.no_grad():
        network.weight += 1.0
    parameters = list(network.parameters())
    surrogate(
        LOSS, [network(x), top], [message, of_top], parameters, 0.5, torch.tensor(4.0, dtype=torch.float64)
    ).backward()
    torch.testing.assert_close(network.weight.grad, 4 * (message.T @ x + 0.5 * network.weight))
    torch.testing.assert_close(network.bias.grad, 4 * (message.sum(0) + 0.5 * network.bias))
    torch.testing.assert_close(top.grad, 4 * of_top)  # the top is not regularised


def test_nothing_but_the_top_may_learn():
    top = nn.Parameter(torch.ones(2))
    surrogate(LOSS, [top], [torch.full((2,), 3.0)], [], 0.5, torch.tensor(2.0)).backward()
    assert top.grad.tolist() == [6.0, 6.0]


def test_without_decay_parameters_that_are_not_reached_have_no_gradient_of_their_own():
    leaf, own = torch.ones(2, requires_grad=True), nn.Parameter(torch.ones(3))
    surrogate(LOSS, [leaf], [torch.ones(2)], [own], 0.0, torch.tensor(1.0)).backward()
    assert own.grad is None or not own.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradients_have_the_precision_of_what_they_are_of(dtype):
    new = drawn(4, dtype)
    leaf, own = new((3, 2)).requires_grad_(), nn.Parameter(new((2,)))
    surrogate(LOSS, [leaf], [new((3, 2))], [own], 0.1, torch.tensor(2.0)).backward()
    assert leaf.grad.dtype == own.grad.dtype == dtype


@given(shapes, st.integers(0, 10**6))
def test_half_squares(of, seed):
    new = drawn(seed)
    parameters = [nn.Parameter(new(shape)) for shape in of]
    expected = sum((p**2).sum() for p in parameters) / 2
    torch.testing.assert_close(half_squares(parameters), expected)
    for a, b in zip(
        torch.autograd.grad(half_squares(parameters), parameters),
        torch.autograd.grad(expected, parameters),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_half_squares_of_zeros_has_a_gradient():
    """As of biases that begin there: the derivative of a norm is none at zero."""
    zeros = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(2))]
    gradients = torch.autograd.grad(half_squares(zeros), zeros)
    assert gradients[0].tolist() == [0.0] * 3
    assert gradients[1].tolist() == pytest.approx([1.0] * 2)
