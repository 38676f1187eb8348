"""The laws of lightning_vfl.aggregators.base, for every aggregator there is."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import fmean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lightning_vfl.aggregators as room
from lightning_vfl.aggregators import (
    Aggregator,
    Concat,
    LagrangeCoded,
    LagrangeShared,
    LocalGaussian,
    MaskedSum,
    Max,
    Mean,
    PoissonBinomial,
    Sum,
)
from lightning_vfl.networks import PolynomialNetwork
from lightning_vfl.rounds.exchange import Exchange
from lightning_vfl.types import Roll, Roster, RoundNames, Rows, Stage
from lightning_vfl.wire import Embeddings, LinearForms, PartyView, ServerView

M, B, D = 4, 5, 3
RECORDS = 8
FACTORIES: dict[str, Callable[[], Aggregator]] = {
    "Concat": Concat,
    "Sum": Sum,
    "Mean": Mean,
    "Max": Max,
    "LagrangeCoded": partial(LagrangeCoded, insecure_seeded_secrets=True),
    "LagrangeShared": partial(LagrangeShared, insecure_seeded_secrets=True),
    "LocalGaussian": partial(LocalGaussian, draws="seeded"),
    "MaskedSum": partial(MaskedSum, allow_single=True, insecure_seeded_secrets=True),
    "MaskedSum, with recovery": partial(MaskedSum, recovery="auto", allow_single=True, insecure_seeded_secrets=True),
    "PoissonBinomial": lambda: PoissonBinomial(
        MaskedSum(allow_single=True, insecure_seeded_secrets=True), clip=8.0, draws="seeded"
    ),
}
IN_THE_CLEAR = [name for name, make in FACTORIES.items() if make().in_the_clear]
# How far a round may be off ``plain``, in every element: what the docstrings state, for the numbers of this file.
ERROR = {
    "LagrangeCoded": 2.0**-8,  # l_w = 14, four terms below 16 in absolute value, data on the grid of 2^-8
    "LagrangeShared": 2.0**-17,
    "LocalGaussian": 10 * LocalGaussian().sigma(D, M),
    "MaskedSum": M * 2.0**-24,
    "MaskedSum, with recovery": M * 2.0**-24,
    "PoissonBinomial": 10 * (8**2 * M / (4 * 0.25**2 * 16)) ** 0.5,  # ten standard deviations
}
ROLLS = {
    "everyone": [1, 1, 1, 1],
    "one away": [1, 1, 0, 1],
    "two away": [1, 0, 0, 1],
    "one left": [0, 0, 1, 0],
    "nobody": [0, 0, 0, 0],
}
every_aggregator = pytest.mark.parametrize("name", FACTORIES)
accepted = [
    (name, who)
    for name, make in FACTORIES.items()
    for who, taking_part in ROLLS.items()
    if make().min_responses(M) == 1 or sum(taking_part) >= make().min_responses(M)
]
every_accepted_roll = pytest.mark.parametrize(("name", "who"), accepted)


class FourColumns:
    """Records of M parties with one number each, on the grid of 2^-8; every party expands its own to degree three."""

    def __init__(self, dtype=torch.float32):
        self.x = (torch.randn(RECORDS, M, generator=torch.Generator().manual_seed(2)) * 256).round() / 256
        self.x = (self.x * 2).round() / 2  # so that their cubes are on it too
        self.networks = [PolynomialNetwork((1,), D, degree=3).to(dtype) for _ in range(M)]
        self.dtype = dtype

    def __len__(self):
        return RECORDS

    def basis(self, party, ids):
        return self.networks[party].expand(self.x[ids, party : party + 1].to(self.dtype))


def contribution_of(aggregator, parties, ids, dtype=torch.float32):
    """What these parties bring, with leaves that want gradients; the same numbers whoever else is asked for."""
    generator = torch.Generator().manual_seed(0)
    width = aggregator.widths(D, Roster.singles(M))[0]
    if aggregator.form is LinearForms:
        weights = [torch.randn(4, D, generator=generator, dtype=dtype) for _ in range(M)]
        records = FourColumns(dtype)
        basis = tuple(records.basis(party, ids) for party in parties)
        return LinearForms(tuple(weights[m].requires_grad_() for m in parties), basis)
    h = [torch.randn(len(ids), width, generator=generator, dtype=dtype) for _ in range(M)]
    return Embeddings(tuple(h[m].requires_grad_() for m in parties))


def embeddings(contribution, leaves=None):
    """The embeddings that these leaves stand for."""
    leaves = contribution.leaves if leaves is None else leaves
    if isinstance(contribution, LinearForms):
        return tuple(basis @ weight for basis, weight in zip(contribution.basis, leaves, strict=True))
    return leaves


def with_leaves(contribution, leaves):
    return LinearForms(leaves, contribution.basis) if isinstance(contribution, LinearForms) else Embeddings(leaves)


def view_of(aggregator, parties, called, present=None):
    """The view of these hosted parties, after their set-up."""
    roster, names, rows = Roster.singles(M), RoundNames(0, Stage.FIT, 0), Rows(torch.tensor([6, 0, 3, 1, 7]), 0, B)
    agreed = {"l_w": 14} if aggregator.form is LinearForms else {}
    view = PartyView(names, roster, tuple(parties), called, rows, None, present, agreed)
    everyone = PartyView(names, roster, tuple(range(M)), called, rows, None, None, agreed)
    if aggregator.opens:
        return replace(view, memory=opened(aggregator, view, everyone))
    if not aggregator.sets_up:
        return view
    memory = aggregator.empty_memory(RECORDS, (4,) * M, view)
    for message in aggregator.offer(FourColumns(), aggregator.empty_memory(RECORDS, (4,) * M, everyone), everyone):
        memory = aggregator.accept(memory, message, view)
    return PartyView(names, roster, tuple(parties), called, rows, memory, present, agreed)


def opened(aggregator, view, everyone):
    """The memory of these hosted parties, after they have heard what everybody says at the beginning of a round."""
    own, all_of_them = (aggregator.empty_memory(0, (), v) for v in (view, everyone))
    said = aggregator.open(own, view)
    for message in aggregator.open(all_of_them, everyone):
        next(said, None)
        all_of_them = aggregator.accept(all_of_them, message, everyone)
        own = aggregator.accept(own, message, view)
    return own


def setting(name, who="everyone", present=None, dtype=torch.float32):
    """Made anew for every round: what masks has been used for once is never used again."""
    aggregator = FACTORIES[name]().among(Roster.singles(M))
    roll = Roll.of(torch.tensor(ROLLS[who], dtype=torch.bool))
    parties = view_of(aggregator, range(M), roll.called, present)
    contribution = contribution_of(aggregator, range(M), parties.rows.ids, dtype)
    widths = aggregator.widths(D, parties.roster)
    seen = present if aggregator.visible else None
    server = ServerView(parties.names, parties.roster, parties.rows, roll, widths, seen, RECORDS, parties.agreed)
    return aggregator, contribution, parties, server


def test_every_concrete_aggregator_is_here():
    concrete = {name for name in room.__all__ if not getattr(room, name).__abstractmethods__}
    assert concrete == {name.partition(",")[0] for name in FACTORIES}
    assert all(issubclass(getattr(room, name), Aggregator) for name in concrete)


@every_accepted_roll
def test_decode_is_clear_bit_for_bit(name, who):
    aggregator, contribution, parties, server = setting(name, who)
    exchange = Exchange(aggregator, contribution, parties, server)
    decoded, clear = exchange.send(), aggregator.clear(contribution, parties, server.roll)
    assert torch.equal(decoded.value, clear.value)
    assert torch.equal(decoded.columns, clear.columns)


@every_accepted_roll
def test_a_round_is_plain_within_the_stated_error(name, who):
    """Aggregators in the clear state no error: equal."""
    aggregator, contribution, parties, server = setting(name, who)
    value = Exchange(aggregator, contribution, parties, server).run()
    plain = aggregator.plain(embeddings(contribution), server.roll)
    assert (value - plain).abs().max() <= ERROR.get(name, 0.0)
    assert value.shape == (B, aggregator.out_width(D, server.roster))


@every_aggregator
def test_messages_fit_their_legs(name):
    """To peers, a sender's own piece is in the message and not on the wire."""
    aggregator, contribution, parties, server = setting(name)
    basis = (4,) * M if aggregator.form is LinearForms else ()
    blocks = aggregator.arrangement(RECORDS, M, 0, "fit")
    coded = B if blocks is None else len(blocks.coded_rows(parties.rows.ids)[0])
    message, kept = aggregator.encode(contribution, parties)
    messages = [message]
    if message.alongside is not None:
        messages.append(message.alongside)
    if message.to == "peers":
        messages.append(aggregator.respond(kept, message, server.roll.included, parties))
    legs = aggregator.legs(coded, server.widths, basis, server.roster)
    if message.to == "server" and (signed := aggregator.consent(kept, server.roll.included, parties)) is not None:
        messages += [signed, aggregator.reveal(kept, server.roll.included, parties, signed)]
        (handed_on,) = (leg for leg in legs if leg.to == "parties")  # t of the signatures, to everybody
        assert handed_on.bytes.tolist() == [aggregator.min_responses(M) * signed.pieces[0].nbytes] * M
        legs = tuple(leg for leg in legs if leg is not handed_on)
    assert len(messages) == len(legs)
    for sent, leg in zip(messages, legs, strict=True):
        assert (sent.kind, sent.to) == (leg.kind, leg.to)
        assert sent.senders == tuple(range(M))
        on_the_wire = [p.numel() * (M - 1) // M if sent.to == "peers" else p.numel() for p in sent.pieces]
        assert on_the_wire == leg.elements.tolist()
        if sent.pieces[0].is_floating_point():
            assert leg.bits == 8 * sent.pieces[0].element_size()
        else:
            words = [p.to(torch.int64) for p in sent.pieces]
            assert all(int(p.max()).bit_length() <= leg.bits and int(p.min()) >= 0 for p in words)
    downlink = aggregator.downlink(B, server.widths, server.roster)
    assert downlink.to == "parties"
    assert downlink.elements.tolist() == [B * width for width in server.widths]


@every_accepted_roll
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
            embeddings(
                contribution,
                tuple(h.detach() + s * 1e-6 * d for h, d in zip(contribution.leaves, v, strict=True)),
            ),
            server.roll,
        )
        for s in (1, -1)
    )
    pulled = exchange.pullback(g)
    left = (g * (ahead - behind) / 2e-6).sum()
    right = sum((p * d).sum() for p, d in zip(pulled, v, strict=True))
    torch.testing.assert_close(left, right, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", IN_THE_CLEAR)
@pytest.mark.parametrize("who", ROLLS)
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
    aggregator, contribution, parties, server = setting(name, "one away")
    value = Exchange(aggregator, contribution, parties, server).run()
    grads = torch.autograd.grad(value.sum(), contribution.leaves, allow_unused=True)
    changed = tuple(h if server.roll.included[m] else h + 100.0 for m, h in enumerate(contribution.leaves))
    aggregator, _, parties, server = setting(name, "one away")
    assert torch.equal(value, Exchange(aggregator, with_leaves(contribution, changed), parties, server).run())
    for party, grad in enumerate(grads):
        if not server.roll.included[party]:
            assert grad is None or not grad.any()


@every_aggregator
def test_encoding_together_is_encoding_alone(name):
    aggregator, contribution, parties, _ = setting(name)
    together, _ = aggregator.encode(contribution, parties)
    for party in range(M):
        view = view_of(aggregator, (party,), parties.called)
        alone, _ = aggregator.encode(contribution_of(aggregator, (party,), parties.rows.ids), view)
        assert alone.senders == (party,)
        assert torch.equal(alone.pieces[0], together.pieces[party])
        if together.alongside is not None:
            assert torch.equal(alone.alongside.pieces[0], together.alongside.pieces[party])
        if together.to == "peers":  # and so is what it answers
            everybody = aggregator.respond(None, together, torch.ones(M).bool(), parties)
            own = aggregator.respond(None, together, torch.ones(M).bool(), view)
            assert torch.equal(own.pieces[0], everybody.pieces[party])


@every_aggregator
def test_visible_is_what_the_code_does(name):
    aggregator, contribution, parties, _ = setting(name)
    message, _ = aggregator.encode(contribution, parties)
    shapes = [h.shape for h in embeddings(contribution)]
    reads = message.to == "server" and [p.shape for p in message.pieces] == shapes
    assert (reads and all(piece.is_floating_point() for piece in message.pieces)) == aggregator.visible


@every_aggregator
@given(st.lists(st.lists(st.booleans(), min_size=M, max_size=M), min_size=B, max_size=B), st.sampled_from(list(ROLLS)))
def test_rows_that_a_party_does_not_hold_do_not_count(name, held, who):
    """Against plain Python, row by row; nor do those of a party that is not there."""
    present = torch.tensor(held)
    if name not in IN_THE_CLEAR:
        assert (
            name == "LocalGaussian"
            or name.startswith(("MaskedSum", "PoissonBinomial"))
            or not FACTORIES[name]().partly_held
        )
        return
    aggregator, contribution, parties, server = setting(name, who, present=present)
    value = Exchange(aggregator, contribution, parties, server).run().tolist()
    for row in range(B):
        there = [m for m in range(M) if held[row][m] and ROLLS[who][m]]
        mine = [contribution.leaves[m][row].tolist() for m in there]
        if name == "Concat":
            expected = [x if m in there else 0.0 for m in range(M) for x in contribution.leaves[m][row].tolist()]
        elif not there:
            expected = [0.0] * D
        else:
            join = {"Sum": sum, "Mean": fmean, "Max": max}[name]
            expected = [join([h[d] for h in mine]) for d in range(D)]
        assert value[row] == pytest.approx(expected, rel=1e-5, abs=1e-6)


@every_aggregator
def test_absent_segments_are_marked(name):
    aggregator, contribution, parties, server = setting(name, "one away")
    columns = aggregator.clear(contribution, parties, server.roll).columns
    expected = [bool(x) for x in ROLLS["one away"] for _ in range(D)] if name == "Concat" else [True] * D
    assert columns.tolist() == expected
