"""Copies of networks that nobody else sees."""

from copy import deepcopy
from itertools import chain

import pytest
import torch
from torch import nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.bank import PartyBank
from lightning_vfl.protocols.cascade.memory import Replicas, refuse_above
from tests.subjects import same


def bottom(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Dropout(0.5))


@pytest.fixture
def networks():
    return PartyBank([bottom(seed) for seed in range(3)]), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


def moved(*modules):
    """Everything that they hold is another: parameters, running statistics, counts."""
    with torch.no_grad():
        for tensor in chain.from_iterable((*module.parameters(), *module.buffers()) for module in modules):
            tensor += 1


def state_of(replica):
    return deepcopy([replica.bottoms.state_dict(), replica.top.state_dict()])


def test_they_are_copies_that_stay_when_the_networks_move(networks):
    replicas = Replicas((0, 2), *networks)
    before = [deepcopy(module.state_dict()) for module in networks]
    moved(*networks)
    for party in (0, 2):
        assert same(state_of(replicas.of[party]), before)
    assert sorted(replicas.of) == [0, 2]


@pytest.mark.parametrize("top", [True, False])
def test_a_party_that_begins_takes_note_of_all_bottoms_and_of_the_top_it_was_sent(networks, top):
    replicas = Replicas((0, 1), *networks)
    before = [deepcopy(module.state_dict()) for module in networks]
    moved(*networks)
    now = [deepcopy(module.state_dict()) for module in networks]
    replicas.refresh(1, top)
    assert same(state_of(replicas.of[0]), before)
    assert same(state_of(replicas.of[1]), [now[0], now[1] if top else before[1]])
    moved(*networks)
    assert same(state_of(replicas.of[1]), [now[0], now[1] if top else before[1]])


def test_by_itself_a_refresh_sends_the_top(networks):
    replicas = Replicas((0,), *networks)
    moved(*networks)
    replicas.refresh(0)
    assert same(replicas.of[0].top.state_dict(), networks[1].state_dict())


def test_running_a_replica_moves_nobody_else(networks):
    """Nor does it leave gradients: an optimiser would carry them on."""
    networks[0].parties[0][0].weight.grad = torch.ones(2, 3)
    networks[1][0].weight.grad = torch.ones(2, 2)
    replicas = Replicas((0, 1), *networks)
    before = [deepcopy(module.state_dict()) for module in networks], state_of(replicas.of[1])
    h = replicas.of[0].bottoms(tuple(torch.randn(4, 3) for _ in range(3)))
    replicas.of[0].top(torch.stack(h).sum(0)).sum().backward()
    assert same(([module.state_dict() for module in networks], state_of(replicas.of[1])), before)
    assert all(p.grad is None for p in replicas.of[1].top.parameters())
    assert all(p.grad is None for replica in replicas.of.values() for p in replica.bottoms.parameters())
    assert networks[1][0].weight.grad.tolist() == [[1.0, 1.0]] * 2


def test_gradients_are_taken_of_the_top_and_of_no_bottom(networks):
    replica = Replicas((0,), *networks).of[0]
    assert not any(p.requires_grad for p in replica.bottoms.parameters())
    assert all(p.requires_grad for p in replica.top.parameters())


def test_modes_are_those_of_the_networks_layer_by_layer(networks):
    networks[0].parties[1].eval()
    networks[0].parties[2][1].eval()
    networks[1].train()
    networks[1][1].eval()
    replicas = Replicas((0, 1), *networks)
    for replica in replicas.of.values():
        for own, live in zip((replica.bottoms, replica.top), networks, strict=True):
            assert [m.training for m in own.modules()] == [m.training for m in live.modules()]


def test_they_go_on_from_their_state(networks):
    replicas = Replicas((0, 1), *networks)
    moved(*networks)
    replicas.refresh(1, top=False)
    moved(*networks)
    state = deepcopy(replicas.state())
    other = Replicas((0, 1), *networks)
    other.load_state(state)
    for party in (0, 1):
        assert same(state_of(other.of[party]), state_of(replicas.of[party]))
    assert not same(state_of(other.of[0]), state_of(other.of[1]))
    other.refresh(0)  # the networks are still the ones that are copied
    assert same(other.of[0].top.state_dict(), networks[1].state_dict())


def test_replicas_of_other_parties_are_refused(networks):
    state = Replicas((0, 1), *networks).state()
    with pytest.raises(ConfigurationError, match=r"parties \[0, 1\], but in this run parties \[0, 2\] .* same label"):
        Replicas((0, 2), *networks).load_state(state)


def test_nobody_has_replicas_where_nobody_needs_them(networks):
    replicas = Replicas((), *networks)
    assert (replicas.of, replicas.state()) == ({}, {})


def test_their_size_is_that_of_all_parameters_and_statistics(networks):
    each = 3 * (6 + 2 + 2 + 2 + 2 + 2) * 4 + (4 + 2 + 2 + 2 + 2 + 2) * 4 + 4 * 8  # a count is an int64
    assert refuse_above(5 * each, 5, *networks) == 5 * each
    with pytest.raises(ConfigurationError, match=f"limit_bytes = {5 * each - 1}; raise the limit, or use smaller"):
        refuse_above(5 * each - 1, 5, *networks)
