import copy
from functools import partial

import pytest
import torch
from torch import nn

from lightning_vfl.networks import MLP, ConvNet, Linear, PartyBank, PolynomialNetwork
from lightning_vfl.networks.batched import ELEMENTWISE, has_rule

B, S, D = 6, (2, 5), 4


def normed(shape, width):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(10, 7, bias=False), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, width), nn.LayerNorm(width)
    )


FACTORIES = {
    "MLP": MLP,
    "deep MLP": partial(MLP, hidden=(8, 6), activation=nn.GELU, output_activation=nn.Tanh),
    "Linear": Linear,
    "PolynomialNetwork": partial(PolynomialNetwork, degree=3),
    "layer norm": normed,
}


def both(factory, parties=3):
    torch.manual_seed(0)
    bottoms = [factory(S, D) for _ in range(parties)]
    looped = PartyBank(bottoms, batch_from=10**6)
    banked = PartyBank(copy.deepcopy(bottoms), batch_from=2)
    features = tuple(torch.randn(B, *S) for _ in range(parties))
    return looped, banked, features


@pytest.mark.parametrize("name", FACTORIES)
def test_batched_equals_looped_in_value_and_gradient(name):
    looped, banked, features = both(FACTORIES[name])
    assert (looped.groups, banked.groups) == ((), ((0, 1, 2),))
    weights = torch.randn(3, B, D)
    for bank in (looped, banked):
        sum((h * w).sum() for h, w in zip(bank(features), weights, strict=True)).backward()
    for one, other in zip(looped(features), banked(features), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    for one, other in zip(looped.parameters(), banked.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1), torch.optim.Adam])
@pytest.mark.parametrize("name", ["MLP", "PolynomialNetwork"])
def test_one_optimiser_over_the_bank_is_one_optimiser_a_party(name, make):
    """Batched, in one optimiser, with party 1 withheld in round 2: the same as three separate optimisers."""
    looped, banked, features = both(FACTORIES[name])
    looped.double(), banked.double()  # in float32 four steps blow the rounding up by what the processor's products give
    features = tuple(x.double() for x in features)
    joint = make(banked.parameters())
    apart = [make(bottom.parameters()) for bottom in looped.parties]
    for round_ in range(4):
        for bank in (looped, banked):
            bank.zero_grad()
            sum(h.square().sum() for h in bank(features)).backward()
        absent = [1] if round_ == 2 else []
        banked.withhold(absent)
        joint.step()
        for party, optimizer in enumerate(apart):
            if party not in absent:
                optimizer.step()
    for one, other in zip(looped.parameters(), banked.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "make",
    [
        partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
        partial(torch.optim.Adam, weight_decay=0.1),
        partial(torch.optim.AdamW, fused=True),
        partial(torch.optim.Adam, foreach=True),
    ],
)
def test_a_withheld_party_keeps_every_bit_of_parameters_and_state(make):
    _, bank, features = both(MLP)
    optimizer = make(bank.parameters())

    def step(absent=()):
        optimizer.zero_grad()
        sum(h.square().sum() for h in bank(features)).backward()
        bank.withhold(absent)
        optimizer.step()

    step()
    parameters = copy.deepcopy([list(p.parameters()) for p in bank.parties])
    state = copy.deepcopy([[optimizer.state[p] for p in party.parameters()] for party in bank.parties])
    step(absent=[1])
    for party, bottom in enumerate(bank.parties):
        same = [torch.equal(a, b) for a, b in zip(parameters[party], bottom.parameters(), strict=True)]
        assert all(same) if party == 1 else not any(same)
    after = [optimizer.state[p] for p in bank.parties[1].parameters()]
    assert all(torch.equal(a[k], b[k]) for a, b in zip(state[1], after, strict=True) for k in a)


def test_only_equal_bottoms_are_batched():
    same = [MLP((3,), D), MLP((3,), D)]
    assert PartyBank([*same, MLP((4,), D)], batch_from=2).groups == ((0, 1),)
    assert PartyBank([MLP((3,), D), MLP((3,), D, hidden=(5,))], batch_from=2).groups == ()
    assert PartyBank([MLP((3,), D), MLP((3,), D, activation=nn.Tanh)], batch_from=2).groups == ()


@pytest.mark.parametrize("layer", [nn.Dropout(), nn.BatchNorm1d(3), nn.PReLU()])
def test_what_is_random_or_stateful_or_unknown_is_looped(layer):
    bottoms = [nn.Sequential(nn.Linear(3, 3), copy.deepcopy(layer)) for _ in range(9)]
    assert PartyBank(bottoms).groups == ()


class Residual(nn.Sequential):
    def forward(self, x):
        return x + super().forward(x)


def test_a_subclass_with_a_forward_of_its_own_is_looped():
    assert not has_rule(Residual(nn.Linear(3, 3)))


@pytest.mark.parametrize("parties", [2, 6])
def test_further_axes_in_front_of_the_features(parties):
    """With as many parties as rows, a wrong broadcast would not even fail."""
    layers = [
        nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.LayerNorm((2, 4)), nn.Flatten()) for _ in range(parties)
    ]
    for parameter in nn.ModuleList(layers).parameters():
        nn.init.normal_(parameter)
    features = tuple(torch.randn(B, 2, 5) for _ in range(parties))
    looped, banked = PartyBank(layers, batch_from=10**6), PartyBank(layers, batch_from=2)
    assert banked.groups == (tuple(range(parties)),)
    for one, other in zip(looped(features), banked(features), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_convolutions_are_looped_and_hooks_are_respected():
    assert not has_rule(ConvNet((1, 4, 4), D))
    hooked = MLP((3,), D)
    hooked.register_forward_hook(lambda *_: None)
    assert not has_rule(hooked)


@pytest.mark.parametrize("layer", ELEMENTWISE)
def test_elementwise_rules_have_neither_parameters_nor_buffers(layer):
    assert not list(layer().parameters())
    assert not list(layer().buffers())


def test_a_batch_of_no_rows_passes():
    _, banked, _ = both(MLP)
    assert [tuple(h.shape) for h in banked(tuple(torch.zeros(0, *S) for _ in range(3)))] == [(0, D)] * 3


def test_a_bank_can_be_copied_moved_and_saved():
    _, bank, features = both(MLP)
    twin = copy.deepcopy(bank).to(torch.float64).to(torch.float32)
    twin.load_state_dict(bank.state_dict())
    for one, other in zip(bank(features), twin(features), strict=True):
        assert torch.equal(one, other)
