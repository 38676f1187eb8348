"""The laws of lightning_vfl.aggregators.base, for every aggregator there is."""

from collections.abc import Callable
from dataclasses import is_dataclass, replace
from enum import Enum
from functools import partial
from inspect import isabstract
from statistics import fmean
from types import FunctionType, MethodType, SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lightning_vfl.aggregators as room
from lightning_vfl.aggregators import (
    Accounting,
    Aggregator,
    Concat,
    LagrangeCoded,
    LagrangeShared,
    LocalGaussian,
    MaskedSum,
    Max,
    Mean,
    Opening,
    PartySide,
    PoissonBinomial,
    ServerSide,
    Setup,
    SharedBottoms,
    Sum,
    Wire,
)
from lightning_vfl.aggregators.clear import InTheClear, wire_of
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import Modular
from lightning_vfl.networks import PolynomialNetwork
from lightning_vfl.privacy.calibration import Noise
from lightning_vfl.rounds.exchange import Exchange
from lightning_vfl.types import Roll, Roster, RoundNames, Rows
from lightning_vfl.wire import Embeddings, LinearForms, Message, PartyView, ServerView
from tests.unit.aggregators.sides import Upload, decoded, first_leg

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
IN_THE_CLEAR = [name for name, make in FACTORIES.items() if make().wire is None]
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
    if wire_of(make()).needed(M) == 1 or sum(taking_part) >= wire_of(make()).needed(M)
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
    roster, names, rows = Roster.singles(M), RoundNames(0, "fit", 0), Rows(torch.tensor([6, 0, 3, 1, 7]), 0, B)
    agreed = {"l_w": 14} if aggregator.form is LinearForms else {}
    view = PartyView(names, roster, tuple(parties), called, rows, None, present, agreed)
    everyone = PartyView(names, roster, tuple(range(M)), called, rows, None, None, agreed)
    if aggregator.opening is not None:
        return replace(view, memory=opened(aggregator.opening, view, everyone))
    if (setup := aggregator.setup) is None:
        return view
    memory = setup.empty_memory(RECORDS, (4,) * M, view)
    for message in setup.offer(FourColumns(), setup.empty_memory(RECORDS, (4,) * M, everyone), everyone):
        memory = setup.accept(memory, message, view)
    return replace(view, memory=memory)


def opened(opening, view, everyone):
    """The memory of these hosted parties, after they have heard what everybody says at the beginning of a round."""
    own, all_of_them = (opening.empty_memory(v) for v in (view, everyone))
    said = opening.open(own, view)
    for message in opening.open(all_of_them, everyone):
        next(said, None)
        all_of_them = opening.accept(all_of_them, message, everyone)
        own = opening.accept(own, message, view)
    return own


def setting(name, who="everyone", present=None, dtype=torch.float32):
    """Made anew for every round: what masks has been used for once is never used again."""
    aggregator = FACTORIES[name]().among(Roster.singles(M))
    roll = Roll.of(torch.tensor(ROLLS[who], dtype=torch.bool))
    parties = view_of(aggregator, range(M), roll.called, present)
    contribution = contribution_of(aggregator, range(M), parties.rows.ids, dtype)
    widths = aggregator.widths(D, parties.roster)
    seen = present if wire_of(aggregator).traits.visible else None
    server = ServerView(parties.names, parties.roster, parties.rows, roll, widths, seen, RECORDS, parties.agreed)
    return aggregator, contribution, parties, server


def test_every_concrete_aggregator_is_here():
    classes = {name: getattr(room, name) for name in room.__all__}
    concrete = {name for name, own in classes.items() if issubclass(own, Aggregator) and not isabstract(own)}
    assert concrete == {name.partition(",")[0] for name in FACTORIES}
    others = {name for name, own in classes.items() if not isabstract(own)} - concrete
    assert others == {"Heard", "Traits"}


@pytest.mark.parametrize("part", [Wire, PartySide, ServerSide, Setup, Opening, Accounting, SharedBottoms])
def test_all_methods_of_a_part_are_abstract(part):
    """So a part is whole or absent, and no class inherits what it has not thought of."""
    public = {name for name in vars(part) if not name.startswith("_")}
    assert public == part.__abstractmethods__


@every_accepted_roll
def test_decode_is_clear_bit_for_bit(name, who):
    aggregator, contribution, parties, server = setting(name, who)
    exchange = Exchange(aggregator, contribution, parties, server)
    decoded, clear = exchange.send(), wire_of(aggregator).clear(contribution, parties, server.roll)
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
    setup, wire = aggregator.setup, wire_of(aggregator)
    coded = B
    if setup is not None:
        coded = len(setup.arrangement(RECORDS, M, 0, "fit").coded_rows(parties.rows.ids)[0])
    messages, decoded = played(aggregator, contribution, parties, server)
    legs = wire.legs(coded, server.widths, basis, server.roster)
    if (signed := next((message for message in messages if message.relayed), None)) is not None:
        (handed_on,) = (leg for leg in legs if leg.to == "parties")  # t of the signatures, to everybody
        assert handed_on.bytes.tolist() == [wire.needed(M) * signed.pieces[0].nbytes] * M
        legs = tuple(leg for leg in legs if leg is not handed_on)
    messages = [part for message in messages for part in (message, message.alongside) if part is not None]
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
    downlink = wire.downlink(B, server.widths, server.roster)
    assert downlink.to == "parties"
    assert downlink.elements.tolist() == [B * width for width in server.widths]
    answer = wire.server_side().answer(torch.ones_like(decoded.value), decoded, server)
    assert (answer.kind, answer.to, answer.senders) == (downlink.kind, downlink.to, ())
    assert answer.receivers == server.roll.included_parties
    assert [piece.numel() for piece in answer.pieces] == downlink.elements.tolist()


def played(aggregator, contribution, parties, server):
    """All messages of the parties in a round in which all answer, and what the server decodes of them."""
    upload, included, received, messages = Upload(aggregator, contribution, parties), server.roll.included, None, []
    message = upload.first
    while message is not None:
        messages.append(message)
        received = message if message.to == "peers" or message.relayed else None
        try:
            message = upload.then(included, received)
        except StopIteration:
            message = None
    to_decode = tuple(message for message in messages if message.to == "server" and not message.relayed)
    return messages, decoded(aggregator, to_decode, server)


@every_accepted_roll
def test_answer_then_carry_is_the_adjoint(name, who):
    """<g, J v> by central differences of plain in float64 against <carry(answer(g)), v>."""
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
    pulled = exchange.send_back(g)
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
    for way in (aggregator, with_a_wire(aggregator)):
        value = Exchange(way, contribution, parties, server).run()
        got = (None,) * M
        if value.requires_grad:
            got = torch.autograd.grad(value, contribution.leaves, g, allow_unused=True)
        grads.append([torch.zeros_like(h) if x is None else x for x, h in zip(got, contribution.leaves, strict=True)])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def with_a_wire(aggregator):
    """The same aggregator in the clear, sent as messages."""
    long = type("Long", (type(aggregator),), {"wire": property(lambda self: InTheClear(aggregator))})
    return long()


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
    all_of_them, everyone = Upload(aggregator, contribution, parties), torch.ones(M).bool()
    together = all_of_them.first
    everybody = all_of_them.then(everyone, together) if together.to == "peers" else None
    for party in range(M):
        view = view_of(aggregator, (party,), parties.called)
        upload = Upload(aggregator, contribution_of(aggregator, (party,), parties.rows.ids), view)
        alone = upload.first
        assert alone.senders == (party,)
        assert torch.equal(alone.pieces[0], together.pieces[party])
        if together.alongside is not None:
            assert torch.equal(alone.alongside.pieces[0], together.alongside.pieces[party])
        if together.to == "peers":  # and so is what it answers
            assert torch.equal(upload.then(everyone, together).pieces[0], everybody.pieces[party])


@every_aggregator
def test_carrying_together_is_carrying_alone(name):
    """Within rounding: one product of all parties' columns may be computed otherwise than a party's own."""
    aggregator, contribution, parties, server = setting(name)
    exchange = Exchange(aggregator, contribution, parties, server)
    exchange.aggregate = exchange.send()
    grad = torch.randn(exchange.aggregate.value.shape, generator=torch.Generator().manual_seed(1))
    answer = exchange.sides.server.answer(grad, exchange.aggregate, server)
    together = exchange.sides.party.carry(answer, contribution, parties)
    apart = replace(answer, pieces=tuple(piece.clone() for piece in answer.pieces))  # no two are one tensor
    for others in (apart, replace(answer, receivers=answer.receivers[::-1], pieces=apart.pieces[::-1])):
        for a, b in zip(together, exchange.sides.party.carry(others, contribution, parties), strict=True):
            torch.testing.assert_close(a, b)
    for party in range(M):
        view = view_of(aggregator, (party,), parties.called)
        own = contribution_of(aggregator, (party,), parties.rows.ids)
        side = wire_of(aggregator).party_side()
        (alone,) = side.carry(answer, own, view)
        torch.testing.assert_close(alone, together[party])
        piece = replace(answer, receivers=(party,), pieces=(answer.pieces[party],))
        assert torch.equal(side.carry(piece, own, view)[0], alone)  # it reads its own piece alone
        nothing = replace(answer, receivers=(), pieces=())
        assert not side.carry(nothing, own, view)[0].any()


@every_aggregator
def test_visible_is_what_the_code_does(name):
    aggregator, contribution, parties, _ = setting(name)
    message = first_leg(aggregator, contribution, parties)
    shapes = [h.shape for h in embeddings(contribution)]
    reads = message.to == "server" and [p.shape for p in message.pieces] == shapes
    assert (reads and all(piece.is_floating_point() for piece in message.pieces)) == wire_of(aggregator).traits.visible


@every_aggregator
@given(st.lists(st.lists(st.booleans(), min_size=M, max_size=M), min_size=B, max_size=B), st.sampled_from(list(ROLLS)))
def test_rows_that_a_party_does_not_hold_do_not_count(name, held, who):
    """Against plain Python, row by row; nor do those of a party that is not there."""
    present = torch.tensor(held)
    if name not in IN_THE_CLEAR:
        if name.startswith("Lagrange"):
            with pytest.raises(ConfigurationError, match="needs every party to hold every record"):
                FACTORIES[name]().wire.refuse_partly_held(present, Roster.singles(M))
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
    columns = wire_of(aggregator).clear(contribution, parties, server.roll).columns
    expected = [bool(x) for x in ROLLS["one away"] for _ in range(D)] if name == "Concat" else [True] * D
    assert columns.tolist() == expected


# ---- two sides


IMMUTABLE = (bool, int, float, complex, str, bytes, range, frozenset, type(None), Enum, torch.dtype, torch.device, type)
SETTINGS = (Modular, Noise)  # set by their constructors and by nothing else


def mutable_objects(side):
    """All objects that can be reached from a side by attributes, items and closures, but for immutable ones.

    Immutable are plain values, tuples and frozen data classes themselves (what they hold is walked), functions, and the
    classes of settings. An aggregator in the clear is shared with the server as configuration: it is walked, and has to
    hold nothing mutable.
    """
    found, left, seen = [], [side], set()
    while left:
        one = left.pop()
        if isinstance(one, IMMUTABLE) or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, tuple):
            left += list(one)
        elif isinstance(one, FunctionType | MethodType | partial):
            left += [cell.cell_contents for cell in getattr(one, "__closure__", None) or ()]
            left += [getattr(one, "__self__", None), *getattr(one, "args", ()), *getattr(one, "keywords", {}).values()]
        elif isinstance(one, SETTINGS) or (is_dataclass(one) and type(one).__dataclass_params__.frozen):
            left += list(vars(one).values())
        else:
            found.append(one)
            left += list(one.values()) if isinstance(one, dict) else []
            left += list(one) if isinstance(one, list | set) else []
            left += list(vars(one).values()) if hasattr(one, "__dict__") else []
    return found


@every_aggregator
def test_no_mutable_object_can_be_reached_from_both_sides(name):
    wire = wire_of(FACTORIES[name]().among(Roster.singles(M)))
    ours, theirs = mutable_objects(wire.party_side()), mutable_objects(wire.server_side())
    assert not {id(one) for one in ours} & {id(one) for one in theirs}


@every_aggregator
def test_new_sides_share_no_mutable_object_with_old_ones(name):
    """Two fits, or two parties in two processes: keystreams are never the same."""
    wire = wire_of(FACTORIES[name]().among(Roster.singles(M)))
    one, other = mutable_objects(wire.party_side()), mutable_objects(wire.party_side())
    assert not {id(found) for found in one} & {id(found) for found in other}


def test_the_walk_finds_what_is_shared():
    shared = {}
    party, server = partial(dict, shared), SimpleNamespace(deep=(1, [lambda: shared]))
    assert id(shared) in {id(one) for one in mutable_objects(party)} & {id(one) for one in mutable_objects(server)}


@every_accepted_roll
def test_decode_is_given_messages_of_plain_tensors_and_a_server_view(name, who):
    aggregator, contribution, parties, server = setting(name, who)
    exchange, given = Exchange(aggregator, contribution, parties, server), []

    class Listening:
        def decode(self, *arguments):
            given.append(arguments)
            return wire_of(aggregator).server_side().decode(*arguments)

    exchange.sides = exchange.sides._replace(server=Listening())
    exchange.send()
    ((messages, view),) = given
    assert view is server
    assert type(messages) is tuple
    for message in (part for m in messages for part in (m, m.alongside) if part is not None):
        assert type(message) is Message
        assert message.to == "server"
        assert not message.relayed
        assert set(message.senders) <= set(server.roll.included_parties)
        assert all(type(piece) is torch.Tensor for piece in message.pieces)
    sent = [piece for message in messages for piece in message.pieces]
    if not wire_of(aggregator).traits.visible:  # no memory of a party's embeddings or weights is handed over
        secrets = {leaf.untyped_storage().data_ptr() for leaf in contribution.leaves}
        assert not secrets & {piece.untyped_storage().data_ptr() for piece in sent}
