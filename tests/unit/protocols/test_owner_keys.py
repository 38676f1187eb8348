"""Secrets of the owners of networks: another process cannot compute a party's network, dropout or noise."""

import os
import random

import numpy as np
import pytest
import torch
from torch import nn

from lightning_vfl import AsyncVFL, SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.hub import Hub
from lightning_vfl.federation.rounds_at_server import RoundsAtServer
from lightning_vfl.protocols.owner_keys import FILE, drawn_from, new_key, read_key, save_key
from lightning_vfl.protocols.place import Elsewhere
from lightning_vfl.streams import secret_state, secret_words
from lightning_vfl.types import Event, Seat, VerticalBatch

KEY, OTHER = bytes(range(32)), bytes(32)
SHAPES = [(3,), (2,)]


class Untraceable(nn.Module):
    """A bottom that cannot be built on the meta device, and draws from all three global generators."""

    def __init__(self, shape, width):
        super().__init__()
        first = torch.rand(shape[0], width).numpy() + np.random.rand(shape[0], width) + random.random()
        self.weight = nn.Parameter(torch.from_numpy(first).float())

    def forward(self, x):
        return x @ self.weight + float(self.weight.detach().sum()) * 0


def made(keys, seat, kind=SplitVFL, **settings):
    """A protocol in a process of a federation, built after the process was seeded as the command line does."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    module = kind(Mean(), party_shapes=SHAPES, num_classes=2, width=4, seed=0, **settings)
    if seat != "everybody":
        module.place = RoundsAtServer(Hub(2), injected=False)
        module.place.seat = Seat(seat)
    module.keys.update(keys)
    module.configure_model()
    return module


def numbers(module):
    return [value for value in module.state_dict().values() if value.is_floating_point()]


def test_the_whole_state_of_torchs_generator_follows_from_the_key():
    """The oracle is numpy's Mersenne Twister with the same 624 words."""
    generator = torch.Generator()
    generator.set_state(secret_state(KEY, "a", 1))
    drawn = torch.empty(1000, dtype=torch.int32).random_(-(2**31), 2**31 - 1, generator=generator)
    twister = np.random.MT19937()
    twister.state = {**twister.state, "state": {"key": secret_words(KEY, "a", 1), "pos": 624}}
    again = torch.Generator()
    again.set_state(secret_state(KEY, "a", 1))
    words = torch.empty(500, dtype=torch.int64).random_(0, 2**32, generator=again)
    assert words.tolist() == twister.random_raw(1000)[1::2].tolist()  # torch draws 64 bits a number here
    assert len(set(secret_words(KEY, "a", 1).tolist())) == 624
    assert not (secret_words(KEY, "a", 1) == secret_words(OTHER, "a", 1)).any()
    assert not (secret_words(KEY, "a", 1) == secret_words(KEY, "a", 2)).any()
    assert drawn.unique().numel() > 990


def test_global_generators_go_on_as_before():
    for seeded in (torch.manual_seed, np.random.seed, random.seed):
        seeded(3)
    expected = torch.rand(1), np.random.rand(), random.random()
    for seeded in (torch.manual_seed, np.random.seed, random.seed):
        seeded(3)
    with drawn_from(KEY, "x"):
        inside = torch.rand(1), np.random.rand(), random.random()
    assert (torch.rand(1), np.random.rand(), random.random()) == expected
    assert all(a != b for a, b in zip(inside, expected, strict=True))


@pytest.mark.parametrize("bottom", [nn.Linear, Untraceable])
def test_no_process_has_numbers_of_another_ends_networks(bottom, monkeypatch):
    """Every network that is built with numbers is watched, also those that are thrown away again."""
    factory = (lambda shape, width: nn.Linear(shape[0], width)) if bottom is nn.Linear else Untraceable
    simulated = made({}, "everybody", bottom=factory)
    known = {value.flatten()[0].item() for value in numbers(simulated)}
    assert len(known) >= 4
    watched = []
    monkeypatch.setattr(
        nn.Module, "__init__", lambda self, _init=nn.Module.__init__: (watched.append(self), _init(self))[1]
    )
    server, party = made({None: KEY}, None, bottom=factory), made({0: OTHER}, 0, bottom=factory)
    values = [p for network in watched for p in network.parameters() if p.device.type == "cpu" and p.numel()]
    assert values
    assert not any(value.flatten()[0].item() in known for value in values)
    assert [type(own) for own in server.bottoms.parties] == [Elsewhere, Elsewhere]
    assert [type(own) for own in (*party.bottoms.parties, party.top)][1:] == [Elsewhere, Elsewhere]
    assert server.costs.work == simulated.costs.work
    assert [p.device.type for p in party.parameters()] == ["cpu"] * len(list(party.parameters()))


def test_initial_weights_follow_from_the_key_alone():
    one, again, other = made({0: KEY}, 0), made({0: KEY}, 0), made({0: OTHER}, 0)
    assert all(torch.equal(a, b) for a, b in zip(numbers(one), numbers(again), strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(numbers(one), numbers(other), strict=True))
    bottom = one.initial_networks(0).state_dict()
    assert all(torch.equal(bottom[name], value) for name, value in one.bottoms.parties[0].state_dict().items())


def test_a_process_seeds_torch_from_its_secret(monkeypatch):
    module = made({0: KEY}, 0)
    seeds = []
    monkeypatch.setattr(
        "lightning_vfl.protocols.message_rounds.seed_torch", lambda device, seed, *_: seeds.append(seed)
    )
    monkeypatch.setattr("lightning_vfl.networks.bank.seed_torch", lambda device, seed, *_: seeds.append(seed))
    module.next_round(seed_global=True)
    module.bottoms._drawing = frozenset({0})
    module.bottoms.stream = 0, ("networks", 1)
    module.bottoms.one(0, torch.zeros(2, 3))
    assert seeds == [KEY, KEY]


def test_a_wrong_network_is_told_in_one_line():
    with pytest.raises(ConfigurationError, match="the top Linear outputs"):
        made({0: KEY}, 0, top=lambda width: nn.Linear(width, 7))


def test_noise_is_secret_and_never_shared_by_two_values():
    event = Event(5, 0, 5, 0.0, 0.0, (0,))

    def sent(keys, x):
        module = made(keys, 0, AsyncVFL, noise=2.0, bottom=lambda shape, width: nn.Linear(shape[0], 4))
        with torch.no_grad():
            module.bottoms.parties[0].weight.zero_()
            module.bottoms.parties[0].bias.zero_()
            module.bottoms.parties[0].weight[:, 0] = 1.0
        fresh = module.upload(VerticalBatch((x, x), None, torch.arange(len(x))), event)
        fresh.sum().backward()
        assert torch.equal(module.bottoms.parties[0].bias.grad, torch.full((4,), float(len(x))))
        return fresh.detach() - x[:, :1]

    x = torch.zeros(20_000, 3)
    x[:, 0] = torch.linspace(-1, 1, len(x))
    noise, again, moved = sent({0: KEY}, x), sent({0: KEY}, x), sent({0: KEY}, x + 0.25)
    seeded, other = sent({}, x), sent({0: OTHER}, x)
    assert torch.equal(noise, again)
    for one in (moved, seeded, other):
        assert abs(torch.corrcoef(torch.stack([noise.flatten(), one.flatten()]))[0, 1]) < 0.02
    assert noise.std() == pytest.approx(2.0, rel=0.02)


def test_a_secret_is_for_its_owner_alone(tmp_path):
    key = new_key()
    save_key(key, tmp_path)
    assert os.stat(tmp_path / FILE).st_mode & 0o777 == 0o600
    assert read_key(tmp_path / FILE) == key
    (tmp_path / FILE).write_text("something else")
    with pytest.raises(ConfigurationError, match=r"give the secret\.key of a process"):
        read_key(tmp_path / FILE)
