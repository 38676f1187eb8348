"""Tied networks against a loop; and everything that takes parameters elsewhere."""

import copy
import io
import pickle
from functools import partial

import pytest
import torch
from torch import nn

from lightning_vfl.networks import MLP, PartyBank
from lightning_vfl.networks.batched import LARGE, batched
from lightning_vfl.networks.tied import Tied
from tests.further import further
from tests.subjects import same

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


def bank(factory=FACTORIES["deep"], tied=True):
    torch.manual_seed(0)
    return PartyBank([factory(S, D) for _ in range(COUNT)], batch_from=2, tied=tied)


def features(dtype=torch.float32):
    return torch.randn(COUNT, B, *S, generator=torch.Generator().manual_seed(1)).to(dtype)


def looped(one, x):
    return torch.stack([network(own) for network, own in zip(one.parties, x, strict=True)])


def losses(out):
    return (out.square() * torch.arange(1.0, COUNT + 1).view(-1, 1, 1).to(out.dtype)).sum((1, 2))


def assert_is_the_loop(one, x=None, atol=1e-6):
    """A tied bank gives the values and gradients of the loop over its own parameters, now and after a step."""
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
def test_tied_is_the_loop_in_value_and_gradient(name):
    assert_is_the_loop(bank(FACTORIES[name]))


def test_tied_is_the_stack_to_the_bit():
    one, other = bank(), bank(tied=False)
    x = features()
    for own in (one, other):
        losses(own.together(TEAM, x)).sum().backward()
    assert torch.equal(one.together(TEAM, x), other.together(TEAM, x))
    assert all(torch.equal(p.grad, q.grad) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def test_gradients_are_right_in_float64():
    one = bank().double()
    x = features(torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: one.together(TEAM, x), x)


def test_the_networks_have_one_memory_and_keep_their_parameters():
    one = bank()
    before = list(one.parameters())
    one.together(TEAM, features())
    assert all(p is q for p, q in zip(before, one.parameters(), strict=True))
    for alike in zip(*(network.parameters() for network in one.parties), strict=True):
        assert len({p.untyped_storage().data_ptr() for p in alike}) == 1
        assert len({p.data_ptr() for p in alike}) == COUNT
    assert len(before) == len(one.state_dict())


def test_it_is_laid_out_once(monkeypatch):
    one, seen = bank(), []
    stack = torch.stack
    monkeypatch.setattr(torch, "stack", lambda *a, **k: seen.append(1) or stack(*a, **k))
    one.together(TEAM, features())
    first = len(seen)
    optimizer = torch.optim.Adam(one.parameters())
    for _ in range(3):
        losses(one.together(TEAM, features())).sum().backward()
        optimizer.step()
    assert len(seen) == first == len(list(one.parties[0].parameters()))


def moved_by_assignment(one):
    one.load_state_dict({name: value.clone() + 0.1 for name, value in one.state_dict().items()}, assign=True)
    return one


def loaded(one):
    one.load_state_dict({name: value.clone() + 0.1 for name, value in one.state_dict().items()})
    return one


def saved(one):
    file = io.BytesIO()
    torch.save(one, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def replaced(one):
    one.parties[1].layers[1].weight = nn.Parameter(torch.full_like(one.parties[1].layers[1].weight, 0.3))
    return one


def given_data(one):
    for parameter in one.parties[2].parameters():
        parameter.data = parameter.data.clone() * 2
    return one


MOVES = {
    "deepcopy": copy.deepcopy,
    "float64": lambda one: one.to(torch.float64),
    "there and back": lambda one: one.double().float(),
    "load_state_dict": loaded,
    "load_state_dict with assign": moved_by_assignment,
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),
    "torch.save": saved,
    "a new parameter": replaced,
    "new data": given_data,
}


@pytest.mark.parametrize("used", [further(False), True])
@pytest.mark.parametrize("move", MOVES)
def test_it_survives_what_moves_parameters(move, used):
    one = bank()
    if used:
        one.together(TEAM, features())
    assert_is_the_loop(MOVES[move](one))


@pytest.mark.parametrize("move", ["deepcopy", "pickle", "torch.save"])
def test_a_copy_shares_nothing(move):
    one = bank()
    x = features()
    expected = one.together(TEAM, x).detach().clone()
    other = MOVES[move](one)
    assert torch.equal(other.together(TEAM, x), expected)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += 1.0
    assert torch.equal(one.together(TEAM, x), expected)
    assert not torch.equal(other.together(TEAM, x), expected)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("make", [partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1), torch.optim.AdamW])
def test_who_is_withheld_keeps_its_bits_and_the_others_step(make, fused):
    one, other = bank(), bank(tied=False)
    optimizers = [make(own.parameters(), fused=fused) for own in (one, other)]
    x = features()
    for withheld in ((), (1,), (0, 2)):
        before = {name: value.clone() for name, value in one.state_dict().items()}
        states = copy.deepcopy([optimizers[0].state[p] for p in one.parties[1].parameters()])
        for own, optimizer in zip((one, other), optimizers, strict=True):
            optimizer.zero_grad()
            losses(own.together(TEAM, x)).sum().backward()
            own.withhold(withheld)
            optimizer.step()
        for name, value in one.state_dict().items():
            assert torch.equal(value, before[name]) == (int(name.split(".")[1]) in withheld)
        if withheld == (1,):
            for p, state in zip(one.parties[1].parameters(), states, strict=True):
                assert same(state, optimizers[0].state[p])
        for p, q in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(p, q)


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


def test_gradients_of_several_passes_are_added_up():
    one = bank()
    x = features()
    wanted = torch.autograd.grad(losses(looped(one, x)).sum(), list(one.parameters()))
    for times in (1, 2):
        losses(one.together(TEAM, x)).sum().backward()
        for p, gradient in zip(one.parameters(), wanted, strict=True):
            torch.testing.assert_close(p.grad, times * gradient, rtol=1e-4, atol=1e-5)
    one.zero_grad(set_to_none=False)
    losses(one.together(TEAM, x)).sum().backward()
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


def test_a_frozen_parameter_gets_no_gradient():
    one, other = bank(), bank(tied=False)
    x = features()
    for own in (one, other):
        own.parties[1].layers[1].weight.requires_grad_(False)
        losses(own.together(TEAM, x)).sum().backward()
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None) == (not p.requires_grad)
        assert p.grad is None or torch.equal(p.grad, q.grad)


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


def test_nothing_stays_in_the_layers():
    networks = [MLP(S, D) for _ in range(COUNT)]
    tied = Tied(networks)

    def broken():
        with tied.stacked():
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        broken()
    assert not any("_stacked" in layer.__dict__ for network in networks for layer in network.modules())


def size_of(state):
    file = io.BytesIO()
    torch.save(state, file)
    return len(file.getvalue())


def test_a_checkpoint_holds_every_parameter_once():
    one = bank(partial(MLP, hidden=(200,)))
    before = size_of(one.state_dict())
    one.together(TEAM, features())
    assert size_of(one.state_dict()) <= before
    assert size_of(one) < 1.2 * size_of(bank(partial(MLP, hidden=(200,))))


def test_the_file_of_one_network_has_no_others_parameters():
    one = bank(partial(MLP, hidden=(200,)))
    before = size_of(one.parties[0].state_dict())
    one.together(TEAM, features())
    assert size_of(one.parties[0].state_dict()) <= before


def test_a_first_use_in_inference_mode_does_not_end_the_training():
    one = bank()
    with torch.inference_mode():
        one.together(TEAM, features())
    assert_is_the_loop(one)
