"""The laws of lightning_vfl.aggregators.base, for every aggregator there is."""

from statistics import fmean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lightning_vfl.aggregators as room
from lightning_vfl.aggregators import Aggregator, Concat, Max, Mean, Sum
from lightning_vfl.rounds import Exchange
from lightning_vfl.types import Embeddings, PartyView, Roll, Roster, RoundNames, Rows, ServerView

FACTORIES = {"Concat": Concat, "Sum": Sum, "Mean": Mean, "Max": Max}
M, B, D = 4, 5, 3
ROLLS = {
    "everyone": [1, 1, 1, 1],
    "two away": [1, 0, 0, 1],
    "one left": [0, 0, 1, 0],
    "nobody": [0, 0, 0, 0],
}
every_aggregator = pytest.mark.parametrize("name", FACTORIES)
every_roll = pytest.mark.parametrize("who", ROLLS)


def setting(name, who="everyone", present=None, dtype=torch.float32):
    aggregator = FACTORIES[name]()
    roster = Roster.singles(M)
    taking_part = torch.tensor(ROLLS[who], dtype=torch.bool)
    roll = Roll.of(taking_part)
    generator = torch.Generator().manual_seed(0)
    widths = aggregator.widths(D, roster)
    h = tuple(torch.randn(B, w, generator=generator, dtype=dtype).requires_grad_() for w in widths)
    rows = Rows(torch.arange(B), 0, B)
    names = RoundNames(0, "fit", 0)
    parties = PartyView(names, roster, tuple(range(M)), roll.called, rows, {}, present)
    server = ServerView(names, roster, rows, roll, widths, present if aggregator.visible else None)
    return aggregator, Embeddings(h), parties, server


def test_every_concrete_aggregator_is_here():
    concrete = {name for name in room.__all__ if not getattr(room, name).__abstractmethods__}
    assert concrete == FACTORIES.keys()
    assert all(issubclass(getattr(room, name), Aggregator) for name in concrete)


@every_aggregator
@every_roll
def test_decode_is_clear_bit_for_bit(name, who):
    aggregator, contribution, parties, server = setting(name, who)
    exchange = Exchange(aggregator, contribution, parties, server)
    decoded, clear = exchange.send(), aggregator.clear(contribution, parties, server.roll)
    assert torch.equal(decoded.value, clear.value)
    assert torch.equal(decoded.columns, clear.columns)


@every_aggregator
@every_roll
def test_a_round_is_plain_within_the_stated_error(name, who):
    """Aggregators in the clear state no error: equal."""
    aggregator, contribution, parties, server = setting(name, who)
    value = Exchange(aggregator, contribution, parties, server).run()
    assert torch.equal(value, aggregator.plain(contribution.leaves, server.roll))
    assert value.shape == (B, aggregator.out_width(D, server.roster))


@every_aggregator
def test_messages_fit_their_leg(name):
    aggregator, contribution, parties, server = setting(name)
    (leg,) = aggregator.legs(B, server.widths, (), server.roster)
    message, _ = aggregator.encode(contribution, parties)
    assert (message.kind, message.to) == (leg.kind, leg.to)
    assert [piece.numel() for piece in message.pieces] == leg.elements.tolist()
    assert [piece.numel() * piece.element_size() for piece in message.pieces] == leg.bytes.tolist()
    downlink = aggregator.downlink(B, server.widths, server.roster)
    assert downlink.to == "parties"
    assert downlink.elements.tolist() == [h.numel() for h in contribution.leaves]


@every_aggregator
@every_roll
def test_pullback_is_the_adjoint(name, who):
    """<g, J v> by central differences of plain in float64 against <pullback(g), v>."""
    aggregator, contribution, parties, server = setting(name, who, dtype=torch.float64)
    exchange = Exchange(aggregator, contribution, parties, server)
    exchange.aggregate = exchange.send()
    generator = torch.Generator().manual_seed(1)
    g = torch.randn(exchange.aggregate.value.shape, generator=generator, dtype=torch.float64)
    v = tuple(torch.randn(h.shape, generator=generator, dtype=torch.float64) for h in contribution.leaves)
    ahead, behind = (
        aggregator.plain(
            tuple(h.detach() + s * 1e-6 * d for h, d in zip(contribution.leaves, v, strict=True)), server.roll
        )
        for s in (1, -1)
    )
    pulled = exchange.pullback(g)
    left = (g * (ahead - behind) / 2e-6).sum()
    right = sum((p * d).sum() for p, d in zip(pulled, v, strict=True))
    torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-8)


@every_aggregator
@every_roll
def test_the_node_of_the_round_gives_the_gradients_of_plain(name, who):
    """The short way for aggregators in the clear and the long way through messages: the same bits."""
    aggregator, contribution, parties, server = setting(name, who)
    g = torch.randn(B, aggregator.out_width(D, server.roster), generator=torch.Generator().manual_seed(1))
    grads = []
    for short in (True, False):
        type(aggregator).in_the_clear, declared = short, type(aggregator).in_the_clear
        try:
            value = Exchange(aggregator, contribution, parties, server).run()
        finally:
            type(aggregator).in_the_clear = declared
        got = (None,) * M
        if value.requires_grad:
            got = torch.autograd.grad(value, contribution.leaves, g, allow_unused=True)
        grads.append([torch.zeros_like(h) if x is None else x for x, h in zip(got, contribution.leaves, strict=True)])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


@every_aggregator
def test_the_uncounted_change_nothing_and_learn_nothing(name):
    aggregator, contribution, parties, server = setting(name, "two away")
    value = Exchange(aggregator, contribution, parties, server).run()
    grads = torch.autograd.grad(value.sum(), contribution.leaves, allow_unused=True)
    changed = tuple(h if server.roll.included[m] else h + 100.0 for m, h in enumerate(contribution.leaves))
    assert torch.equal(value, Exchange(aggregator, Embeddings(changed), parties, server).run())
    for party, grad in enumerate(grads):
        if not server.roll.included[party]:
            assert grad is None or not grad.any()


@every_aggregator
def test_encoding_together_is_encoding_alone(name):
    aggregator, contribution, parties, _ = setting(name)
    together, _ = aggregator.encode(contribution, parties)
    for party in range(M):
        view = PartyView(parties.names, parties.roster, (party,), parties.called, parties.rows, {}, None)
        alone, _ = aggregator.encode(Embeddings((contribution.leaves[party],)), view)
        assert alone.senders == (party,)
        assert torch.equal(alone.pieces[0], together.pieces[party])


@every_aggregator
def test_visible_is_what_the_code_does(name):
    aggregator, contribution, parties, _ = setting(name)
    message, _ = aggregator.encode(contribution, parties)
    read = all(torch.equal(piece, h) for piece, h in zip(message.pieces, contribution.leaves, strict=True))
    assert read == aggregator.visible


@every_aggregator
@given(st.lists(st.lists(st.booleans(), min_size=M, max_size=M), min_size=B, max_size=B))
def test_rows_that_a_party_does_not_hold_do_not_count(name, held):
    """Against plain Python, row by row."""
    present = torch.tensor(held)
    aggregator, contribution, parties, server = setting(name, present=present)
    value = Exchange(aggregator, contribution, parties, server).run().tolist()
    for row in range(B):
        who = [m for m in range(M) if held[row][m]]
        mine = [contribution.leaves[m][row].tolist() for m in who]
        if name == "Concat":
            expected = [x if held[row][m] else 0.0 for m in range(M) for x in contribution.leaves[m][row].tolist()]
        elif not who:
            expected = [0.0] * D
        else:
            join = {"Sum": sum, "Mean": fmean, "Max": max}[name]
            expected = [join([h[d] for h in mine]) for d in range(D)]
        assert value[row] == pytest.approx(expected, rel=1e-5, abs=1e-6)


@every_aggregator
def test_absent_segments_are_marked(name):
    aggregator, contribution, parties, server = setting(name, "two away")
    columns = aggregator.clear(contribution, parties, server.roll).columns
    expected = [bool(x) for x in ROLLS["two away"] for _ in range(D)] if name == "Concat" else [True] * D
    assert columns.tolist() == expected
