"""Messages as headers and tensors, and the seals of what goes from party to party."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from lightning_vfl.errors import MalformedMessage
from lightning_vfl.federation.frames import pack, unpack
from lightning_vfl.federation.letters import Seals, for_receiver, merged, read, written
from lightning_vfl.rounds.exchange import from_senders
from lightning_vfl.types import Roll
from lightning_vfl.wire import Message
from tests.unit.aggregators.test_contract import FACTORIES, M, subject

SEED = 0  # of the rounds of the contract


def same(one, two):
    assert (one.kind, one.to, one.senders, one.relayed) == (two.kind, two.to, two.senders, two.relayed)
    assert one.receivers == two.receivers
    assert one.round == two.round
    for a, b in zip(one.pieces, two.pieces, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    assert (one.alongside is None) == (two.alongside is None)
    if one.alongside is not None and two.alongside is not None:
        same(one.alongside, two.alongside)


def travelled(message, bits=None):
    letter, tensors, sizes = written(message, bits)
    frame = unpack(pack({"message": letter}, tensors, sizes))
    rest = iter(frame.tensors)
    found = read(dict(frame.header["message"]), rest, SEED)
    assert next(rest, None) is None
    return found


@cache
def messages_of(name):
    """All messages of a round, the openings and the set-up left out."""
    return [message for roll in (None, Roll.everyone(M)) for message in subject(name).play(roll).messages()[0]]


@pytest.mark.parametrize("name", FACTORIES)
def test_messages_of_every_aggregator_travel_unchanged(name):
    for message in messages_of(name):
        same(travelled(message), message)


@pytest.mark.parametrize("name", FACTORIES)
def test_messages_of_single_senders_make_that_of_all(name):
    for message in messages_of(name):
        parts = [from_senders(message, torch.arange(M) == party) for party in reversed(message.senders)]
        same(merged(parts), message)


@pytest.mark.parametrize("name", ["LagrangeShared", "LagrangeCoded"])
def test_parts_for_receivers_make_the_pieces_of_all(name):
    peers = [message for message in messages_of(name) if message.to == "peers"]
    for message in peers:
        receivers = range(M) if message.receivers is None else message.receivers
        parts = [for_receiver(message, receiver, M) for receiver in receivers]
        assert [part.receivers for part in parts] == [(receiver,) for receiver in receivers]
        for number, piece in enumerate(message.pieces):
            assert torch.equal(torch.cat([part.pieces[number] for part in parts]), piece)
    assert peers or name == "LagrangeCoded"  # its shares travel before the first round


def test_integers_take_the_bits_of_their_leg():
    message = Message("shares", "server", (2,), (torch.arange(1000) * 2**20,))
    letter, tensors, sizes = written(message, {"shares": 31})
    assert sizes == [31]
    assert len(pack(letter, tensors, sizes)) < 1000 * 31 / 8 + 300
    same(travelled(message, {"shares": 31}), message)
    floats = Message("shares", "server", (2,), (torch.randn(3),))
    assert written(floats, {"shares": 31}).bits == [None]


@pytest.mark.parametrize(
    "change",
    [
        {"kind": None, "pieces": "many"},
        {"pieces": 7},
        {"senders": ["a"]},
        {"senders": None},
        {"round": ["no stage", 1]},
        {"round": ["fit"]},
        {"receivers": 3},
        {"alongside": []},
        {"alongside": {}},
        {"pieces": -1},
    ],
)
def test_a_header_that_is_none_is_refused(change):
    letter, tensors, _ = written(Message("uploads", "server", (0,), (torch.ones(2),)))
    with pytest.raises(MalformedMessage, match="the header of a message"):
        read({**letter, **change}, iter(tensors), SEED)


@pytest.mark.parametrize("key", ["kind", "to", "senders", "pieces", "receivers", "round", "relayed"])
def test_a_header_without_a_key_is_refused(key):
    letter, tensors, _ = written(Message("uploads", "server", (0,), (torch.ones(2),)))
    del letter[key]
    with pytest.raises(MalformedMessage, match="the header of a message"):
        read(letter, iter(tensors), SEED)


# ---- seals

TO_ALL = Message("shares", "peers", (0,), (torch.arange(12).reshape(3, 4),))


@pytest.fixture
def three():
    made = [Seals(party, b"session") for party in range(3)]
    for one in made:
        one.learn({other.party: other.pair.public for other in made})
    return made


def test_each_party_opens_its_own_part(three):
    sealed = three[0].seal(TO_ALL, 3, range(3))
    assert sorted(sealed) == [1, 2]
    for party in (1, 2):
        same(three[party].open(0, sealed[party], SEED), for_receiver(TO_ALL, party, 3))


def test_the_same_message_is_sealed_differently_every_time(three):
    first, second = (three[0].seal(TO_ALL, 3, [1])[1] for _ in range(2))
    assert not torch.equal(first, second)
    for one in (first, second):
        same(three[1].open(0, one, SEED), for_receiver(TO_ALL, 1, 3))


def test_a_repeated_message_is_refused(three):
    first, second = (three[0].seal(TO_ALL, 3, [1])[1] for _ in range(2))
    three[1].open(0, second, SEED)
    for one in (first, second):
        with pytest.raises(MalformedMessage, match="a sealed message of party 0 has come twice"):
            three[1].open(0, one, SEED)


def test_what_is_sealed_for_another_party_or_by_another_is_refused(three):
    sealed = three[0].seal(TO_ALL, 3, [1, 2])
    for sender, receiver, taken in ((0, 1, sealed[2]), (2, 1, sealed[1])):
        with pytest.raises(MalformedMessage, match=f"a sealed message of party {sender} cannot be opened"):
            three[receiver].open(sender, taken, SEED)


@pytest.mark.parametrize("place", [0, 11, 12, 60, -1])
def test_a_changed_message_is_refused(three, place):
    sealed = three[0].seal(TO_ALL, 3, [1])[1]
    sealed[place] ^= 1
    with pytest.raises(MalformedMessage, match="a sealed message of party 0 cannot be opened"):
        three[1].open(0, sealed, SEED)


@pytest.mark.parametrize("length", [0, 5, 12, 28, 60])
def test_a_message_that_is_cut_is_refused(three, length):
    sealed = three[0].seal(TO_ALL, 3, [1])[1][:length]
    with pytest.raises(MalformedMessage, match="party 0"):
        three[1].open(0, sealed, SEED)


def test_a_party_cannot_seal_a_message_of_another(three):
    sealed = three[0].seal(replace(TO_ALL, senders=(2,)), 3, [1])[1]
    with pytest.raises(MalformedMessage, match=r"party 0 has sealed a message of parties \(2,\)"):
        three[1].open(0, sealed, SEED)


def test_another_session_opens_nothing(three):
    stranger = Seals(1, b"another session")
    stranger.pair = three[1].pair
    stranger.learn({0: three[0].pair.public})
    with pytest.raises(MalformedMessage, match="cannot be opened"):
        stranger.open(0, three[0].seal(TO_ALL, 3, [1])[1], SEED)


def test_two_parties_with_one_key_are_refused(three):
    seals = Seals(0, b"session")
    seals.learn({1: three[1].pair.public})
    with pytest.raises(ValueError, match="key of party 2 is one that it has replaced, or that of another"):
        seals.learn({2: three[1].pair.public})
    with pytest.raises(ValueError, match="key of party 2 is one that it has replaced, or that of another"):
        seals.learn({2: seals.pair.public})


def test_a_party_that_comes_back_with_a_new_key_begins_new_channels(three):
    sealed = three[0].seal(TO_ALL, 3, [1])[1]
    back = Seals(1, b"session")
    back.learn({0: three[0].pair.public})
    three[0].fetch = lambda: {1: back.pair.public}
    three[0].learn(three[0].fetch())
    with pytest.raises(MalformedMessage, match="cannot be opened"):
        back.open(0, sealed, SEED)
    same(back.open(0, three[0].seal(TO_ALL, 3, [1])[1], SEED), for_receiver(TO_ALL, 1, 3))


def test_a_key_that_was_replaced_is_not_taken_again(three):
    """A server that told the old key once more would get two messages under one key and nonce."""
    old, seals = three[1].pair.public, three[0]
    first = seals.seal(TO_ALL, 3, [1])[1]
    seals.learn({1: Seals(1, b"session").pair.public})
    with pytest.raises(ValueError, match="key of party 1 is one that it has replaced"):
        seals.learn({1: old})
    second = seals.seal(TO_ALL, 3, [1])[1]
    assert torch.equal(first[:12], second[:12])  # one number under two keys
    assert not torch.equal(first[12:], second[12:])
    with pytest.raises(MalformedMessage):
        three[1].open(0, second, SEED)


def test_a_party_without_a_key_is_named():
    with pytest.raises(MalformedMessage, match="the public key of party 2 has not come"):
        Seals(0, b"session").seal(TO_ALL, 3, [2])
