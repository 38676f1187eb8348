"""Embeddings on Lagrange shares: exact sums from any K + T answers, and nothing else for the server."""

from collections import Counter
from fractions import Fraction
from itertools import combinations, product
from math import floor

import pytest
import torch

from lightning_vfl.aggregators import LagrangeShared
from lightning_vfl.errors import ConfigurationError, MalformedMessage
from lightning_vfl.field import LagrangeCode, PrimeField
from lightning_vfl.rounds.exchange import Exchange
from lightning_vfl.types import Roll, Roster, RoundNames, Rows, Stage
from lightning_vfl.wire import Embeddings, PartyView, ServerView

FIELDS = [PrimeField(), PrimeField(2**61 - 1)]


def exchange(aggregator, h, included=None, responders=None):
    parties, rows = len(h), Rows(torch.arange(len(h[0])), 0, len(h[0]))
    everyone = torch.ones(parties, dtype=torch.bool)
    included = everyone if included is None else included
    roll = Roll(everyone, included, included if responders is None else responders, torch.zeros_like(everyone))
    names, roster = RoundNames(0, Stage.FIT, 3), Roster.singles(parties)
    view = PartyView(names, roster, tuple(range(parties)), everyone, rows)
    server = ServerView(names, roster, rows, roll, (h[0].shape[1],) * parties)
    return Exchange(aggregator, Embeddings(h), view, server)


def embeddings(parties, rows, width=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(rows, width, generator=generator) for _ in range(parties))


def exact_mean(h, who, bits):
    """By fractions: nearest multiples of 2^-bits, halves upwards, summed and divided."""

    def nearest(x):
        return floor(Fraction(x) * 2**bits + Fraction(1, 2))

    rows, width = h[0].shape
    sums = [[sum(nearest(h[m][r, d].item()) for m in who) for d in range(width)] for r in range(rows)]
    return torch.tensor([[float(Fraction(s, 2**bits)) / len(who) for s in row] for row in sums])


@pytest.mark.parametrize("field", FIELDS, ids=str)
@pytest.mark.parametrize(
    ("parties", "blocks", "privacy", "rows"), [(4, 1, 1, 5), (5, 3, 2, 7), (6, 2, 0, 4), (7, 4, 3, 1)]
)
def test_the_mean_is_that_of_the_rounded_embeddings_exactly(field, parties, blocks, privacy, rows):
    h = embeddings(parties, rows)
    value = exchange(LagrangeShared(blocks, privacy, field=field), h).run()
    assert torch.equal(value, exact_mean(h, range(parties), 16))


def test_any_answers_give_the_same_and_the_late_of_the_first_leg_are_left_out():
    h, included = embeddings(6, 5), torch.tensor([1, 1, 0, 1, 1, 1]).bool()
    expected = exact_mean(h, (0, 1, 3, 4, 5), 16)
    for who in combinations((0, 1, 3, 4, 5), 3):
        responders = torch.zeros(6, dtype=torch.bool)
        responders[list(who)] = True
        assert torch.equal(exchange(LagrangeShared(2, 1), h, included, responders).run(), expected)
    few = torch.tensor([1, 1, 0, 0, 0, 0]).bool()
    with pytest.raises(MalformedMessage, match="2 of 3 needed 'sums' have come"):
        exchange(LagrangeShared(2, 1), h, included, few).run()


@pytest.mark.parametrize("seed", range(8))
def test_equivalent_gives_the_bits_of_coded(seed):
    draw = torch.Generator().manual_seed(seed)
    parties = int(torch.randint(2, 9, (), generator=draw))
    privacy = int(torch.randint(0, parties, (), generator=draw))
    rows = int(torch.randint(1, 9, (), generator=draw))
    h = embeddings(parties, rows, seed=seed)
    settings = {"privacy": privacy, "field": FIELDS[seed % 2]}
    coded, equivalent = LagrangeShared(**settings), LagrangeShared(**settings, execution="equivalent")
    assert torch.equal(exchange(coded, h).run(), exchange(equivalent, h).run())
    roster = Roster.singles(parties)
    for a, b in zip(
        coded.wire.legs(rows, (2,) * parties, (), roster),
        equivalent.wire.legs(rows, (2,) * parties, (), roster),
        strict=True,
    ):
        assert torch.equal(a.bytes, b.bytes)
        assert torch.equal(a.flops, b.flops)


@pytest.mark.parametrize(
    ("p", "blocks", "privacy"), [(7, 1, 1), (11, 2, 1), pytest.param(7, 1, 2, marks=pytest.mark.slow)]
)
def test_the_answers_tell_the_server_the_sums_and_nothing_else(p, blocks, privacy):
    """All masks of two parties enumerated: K + T answers are equally often each vector that has these block sums."""
    code = LagrangeCode(PrimeField(p), blocks, privacy, blocks + privacy)
    told = []
    for one in range(2):  # two pairs of embeddings with the same sums
        first = torch.tensor([[(k + one) % p] for k in range(blocks)])
        second = torch.tensor([[(3 - k - one) % p] for k in range(blocks)])
        answers = Counter()
        for masks in product(product(range(p), repeat=privacy), repeat=2):
            shares = [
                code.share(h, torch.tensor(m).view(privacy, 1)) for h, m in zip((first, second), masks, strict=True)
            ]
            answers[tuple(((shares[0] + shares[1]) % p).flatten().tolist())] += 1
        assert len(answers) == p**privacy
        assert set(answers.values()) == {p**privacy}
        told.append(answers)
    assert told[0] == told[1]


def test_a_sum_that_could_wrap_around_is_refused_before_anything_is_sent():
    h = list(embeddings(4, 3))
    h[2] = h[2].clone()
    h[2][1, 1] = 5000.0
    with pytest.raises(ConfigurationError, match=r"party 2: bits = 16 takes 5000 to .*; use bits = 15"):
        exchange(LagrangeShared(), tuple(h)).run()
    exchange(LagrangeShared(bits=15), tuple(h)).run()


def test_parties_in_the_mean_learn_a_share_of_the_gradient_and_the_others_nothing():
    h = tuple(x.requires_grad_() for x in embeddings(4, 3))
    included = torch.tensor([1, 0, 1, 1]).bool()
    grad = torch.randn(3, 2, generator=torch.Generator().manual_seed(1))
    grads = torch.autograd.grad(exchange(LagrangeShared(), h, included).run(), h, grad)
    for party, got in enumerate(grads):
        assert torch.equal(got, grad / 3 if included[party] else torch.zeros(3, 2))


@pytest.mark.parametrize(
    ("settings", "parties", "message"),
    [
        ({"blocks": 3, "privacy": 2}, 4, "need 5 answers, more than the 4 parties; use blocks: 2 or less"),
        ({"privacy": 4}, 4, "need 5 answers, more than the 4 parties; use blocks: 1 and privacy: 3"),
    ],
)
def test_too_few_parties_are_refused_with_what_fits(settings, parties, message):
    with pytest.raises(ConfigurationError, match=message):
        LagrangeShared(**settings).among(Roster.singles(parties))


@pytest.mark.parametrize("value", [8191.99998, 8192.0, 20_000.5, 3e7])
def test_the_bits_that_the_message_names_fit(value):
    h = list(embeddings(4, 3))
    h[0] = h[0].clone()
    h[0][0, 0] = value
    bits = 16
    while True:
        try:
            exchange(LagrangeShared(bits=bits), tuple(h)).run()
        except ConfigurationError as error:
            assert bits == 16, "the bits of the first message do not fit"
            bits = int(str(error).split("use bits = ")[1].split(",")[0])
        else:
            break
    assert bits < 16 or value < 8192


def test_no_rows_are_no_special_case():
    """The last batch of several processes may leave one without a row."""
    h = embeddings(4, 0)
    assert exchange(LagrangeShared(2, 1), h).run().shape == (0, 2)


@pytest.mark.parametrize("execution", ["coded", "equivalent"])
def test_a_called_party_that_overflows_raises_though_it_comes_too_late(execution):
    """It cannot know whether it will be in time; a simulation that skips the shares must not be more lenient."""
    h = list(embeddings(4, 3))
    h[2] = h[2] + 20_000.0
    with pytest.raises(ConfigurationError, match="party 2: bits = 16 takes"):
        exchange(LagrangeShared(execution=execution), tuple(h), torch.tensor([1, 1, 0, 1]).bool()).run()
