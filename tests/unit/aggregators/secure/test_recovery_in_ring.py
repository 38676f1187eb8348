"""Recovery over a ring: shares for neighbours alone, sums of those present, and what a server that lies can read."""

import itertools
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from math import ceil, comb

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import hypergeom

from lightning_vfl.aggregators import MaskedSum
from lightning_vfl.aggregators.secure.neighbours import Neighbours
from lightning_vfl.aggregators.secure.period_keys import Keys
from lightning_vfl.aggregators.secure.recovery import (
    LIMBS,
    MASKS,
    ROUND_KEYS,
    SELF,
    Recovery,
    Sharing,
    Vault,
    reconstruct,
)
from lightning_vfl.crypto import PairKeystream
from lightning_vfl.crypto.mask_graph import fewest_neighbours, opened
from lightning_vfl.errors import ConfigurationError, MalformedMessage
from lightning_vfl.rounds.exchange import Exchange, open_round
from lightning_vfl.types import Roll, Roster, RoundNames, Rows, Stage
from lightning_vfl.wire import Embeddings, Message, PartyView, ServerView
from tests.examples import examples
from tests.unit.aggregators.sides import first_leg

D, B, LEVELS = 2, 3, 2**20
STEP = Fraction(8, LEVELS)
PARTIES = 10
FEW = {"colluders": 0.1, "failure": 0.0, "dropouts": 0.2, "smallest": 4}  # k = 6: of 7 shares 5 give a secret back
NEIGHBOURS, THRESHOLD, LOST = 6, 5, 2


def some(who, parties=PARTIES):
    return torch.tensor([m in who for m in range(parties)])


def integers_of(parties=PARTIES):
    generator = torch.Generator().manual_seed(2)
    return torch.randint(-LEVELS // 2, LEVELS // 2, (parties, B, D), generator=generator)


def embeddings_of(parties=PARTIES):
    return tuple((x.double() * float(STEP)).float() for x in integers_of(parties))


def few(parties=PARTIES, **settings):
    roster = Roster.singles(parties)
    settings = {"recovery": "auto", "neighbours": FEW, "levels": LEVELS} | settings
    return MaskedSum(**settings).among(roster), roster


def opened_round(aggregator, roster, called=None, round=0, memory=None):
    """The view of all parties after a round has been opened."""
    called = torch.ones(roster.parties).bool() if called is None else some(called, roster.parties)
    rows = Rows(torch.arange(B), 0, B)
    view = PartyView(RoundNames(0, Stage.FIT, round), roster, tuple(range(roster.parties)), called, rows)
    return replace(view, memory=open_round(aggregator.opening, Keys() if memory is None else memory, view))


def round_of(aggregator, view, included, h):
    there = some(included, view.roster.parties)
    roll = Roll(view.called, there, there, torch.zeros_like(there))
    server = ServerView(view.names, view.roster, view.rows, roll, (D,) * view.roster.parties)
    return Exchange(aggregator, Embeddings(h), view, server)


def exact(included):
    integers = integers_of()
    return [[Fraction(sum(int(integers[m, r, d]) for m in included)) * STEP for d in range(D)] for r in range(B)]


# ---- how many neighbours, and how many of them


@pytest.mark.parametrize(("parties", "colluders", "lost"), [(32, 11, 2), (64, 22, 4), (256, 86, 13), (40, 4, 8)])
def test_the_bound_is_that_of_hypergeometric_tails(parties, colluders, lost):
    for k in range(2 * lost + 2, parties - 1, 2):
        least = k + 1 - 2 * lost
        beside = parties * hypergeom.sf(least - 1, parties - 1, colluders, k)
        runs = comb(parties, 2) * hypergeom.sf(least - 2, parties, colluders, k)
        assert float(opened(parties, colluders, k, lost)) == pytest.approx(beside + runs, rel=1e-6, abs=1e-300)


def test_the_fewest_neighbours_are_the_first_that_keep_the_bound():
    for parties, colluders, failure in itertools.product((6, 10, 33, 64), (0, 1, 4), (0.0, 1e-3, 2**-40)):
        for lost in (0, 1, 3):
            allowed = [
                k
                for k in range(2, parties - 1, 2)
                if (k + 1 - 2 * lost) * parties > colluders * k and opened(parties, colluders, k, lost) <= failure
            ]
            fewest = fewest_neighbours(parties, colluders, failure, lost)
            assert fewest == min(allowed, default=parties - 1)
            assert all(opened(parties, colluders, k, lost) > failure for k in range(2, fewest, 2))


@pytest.mark.parametrize(
    ("parties", "k", "threshold", "answers"),
    [(31, None, 21, 21), (32, 16, 15, 30), (64, 32, 29, 60), (256, 86, 74, 243)],
)
def test_neighbours_and_thresholds_by_default(parties, k, threshold, answers):
    sharing = Sharing(Recovery(), Neighbours())
    assert (sharing.neighbours(parties), sharing.threshold(parties), sharing.answers(parties)) == (
        k,
        threshold,
        answers,
    )
    if k is not None:
        assert parties - answers == ceil(parties / 20) == k + 1 - threshold
        assert sharing.tolerated(parties) == sharing.tolerated(parties, lies=False) == ceil(parties / 3)


def test_as_many_as_have_to_answer_leave_t_in_every_circle_whoever_is_lost():
    sharing = Sharing(Recovery(), Neighbours(**FEW))
    circles = sharing.circles(PARTIES, b"session")
    assert sharing.answers(PARTIES) == PARTIES - LOST
    for lost in itertools.combinations(range(PARTIES), LOST):
        assert min(len({*circle} - {*lost}) for circle in circles.values()) >= THRESHOLD


# ---- the sum of those present


@pytest.mark.parametrize("lost", range(LOST + 1))
def test_any_loss_leaves_the_sum_of_the_others(lost):
    """All subsets that may be lost; the sums as Python integers."""
    aggregator, roster = few(rekey_every=64)
    h, memory = embeddings_of(), None
    for number, gone in enumerate(itertools.combinations(range(PARTIES), lost)):
        view = opened_round(aggregator, roster, round=number, memory=memory)
        memory = view.memory
        included = {*range(PARTIES)} - {*gone}
        value = round_of(aggregator, view, included, h).send().value
        assert [[Fraction(x) for x in row] for row in value.tolist()] == exact(included)


@examples(15)
@given(st.data())
def test_absent_and_lost_parties_together(data):
    """Parties that are not called have keys, so that the others mask with them and take these masks off again."""
    aggregator, roster = few()
    gone = data.draw(st.lists(st.integers(0, PARTIES - 1), max_size=LOST, unique=True))
    absent = {*gone[: data.draw(st.integers(0, len(gone)))]}
    view = opened_round(aggregator, roster, {*range(PARTIES)} - absent, data.draw(st.integers(0, 9)))
    included = {*range(PARTIES)} - {*gone}
    value = round_of(aggregator, view, included, embeddings_of()).send().value
    assert [[Fraction(x) for x in row] for row in value.tolist()] == exact(included)


@pytest.mark.parametrize("parties", [33, 64])
def test_the_same_bits_as_all_pairs_and_as_without_masks(parties):
    h = tuple(torch.randn(parties, B, D, generator=torch.Generator().manual_seed(3)).unbind())
    values = []
    for settings in ({"neighbours": "auto"}, {"neighbours": "all"}, {"neighbours": "auto", "execution": "equivalent"}):
        aggregator, roster = few(parties, levels="auto", **settings)
        exchange = round_of(aggregator, opened_round(aggregator, roster), {*range(parties)} - {4, 17}, h)
        values.append(exchange.run())
    assert torch.equal(values[0], values[1])
    assert torch.equal(values[0], values[2])


def test_more_losses_are_told_in_one_line():
    aggregator, roster = few()
    view = opened_round(aggregator, roster)
    with pytest.raises(RuntimeError, match="and at least 8 parties have to be") as told:
        round_of(aggregator, view, range(7), embeddings_of()).send()
    assert "\n" not in str(told.value)
    view = opened_round(aggregator, roster, called=range(7), round=1, memory=view.memory)
    with pytest.raises(RuntimeError, match="7 parties are called, and at least 8 have to be"):
        round_of(aggregator, view, range(7), embeddings_of()).send()


def test_shares_of_too_few_neighbours_give_nothing_back():
    aggregator, roster = few()
    view = opened_round(aggregator, roster)
    first_leg(aggregator, Embeddings(embeddings_of()), view)
    message = answers(aggregator, view, range(PARTIES))
    server = ServerView(view.names, roster, view.rows, Roll.everyone(PARTIES), (D,) * PARTIES)
    for owner in range(PARTIES):
        circle = view.memory.vault.circles[owner]
        left = [m for m in message.senders if m not in circle[: NEIGHBOURS + 2 - THRESHOLD]]
        short = replace(message, senders=tuple(left), pieces=tuple(message.pieces[m] for m in left))
        keys = first_keys(view)
        with pytest.raises(ConfigurationError, match="4 results do not determine a polynomial with 5 coefficients"):
            aggregator._layer.sums.recover(torch.zeros(B, D, dtype=torch.int32).numpy().view("u4"), keys, short, server)


def first_keys(view):
    """What all parties tell the server beside their uploads."""
    vault = view.memory.vault
    contents = [vault.public(m, view.names.round) + vault.session for m in range(PARTIES)]
    pieces = tuple(torch.frombuffer(bytearray(content), dtype=torch.uint8) for content in contents)
    return Message(ROUND_KEYS, "server", tuple(range(PARTIES)), pieces)


def answers(aggregator, view, included):
    """What the included parties reveal once they have signed who is included."""
    asked, there = replace(view, parties=tuple(sorted(included))), some(included)
    return aggregator._layer.reveal(there, asked, aggregator._layer.consent(there, asked))


def test_a_party_that_names_another_order_of_the_ring_is_named():
    aggregator, roster = few()
    view = opened_round(aggregator, roster)
    first_leg(aggregator, Embeddings(embeddings_of()), view)
    revealed, keys = answers(aggregator, view, range(PARTIES)), first_keys(view)
    keys.pieces[3][40] ^= 1
    server = ServerView(view.names, roster, view.rows, Roll.everyone(PARTIES), (D,) * PARTIES)
    with pytest.raises(MalformedMessage, match="party 3 names another order of the ring"):
        aggregator._layer.sums.recover(torch.zeros(B, D, dtype=torch.int32).numpy().view("u4"), keys, revealed, server)


# ---- what is shared, with whom, and what it costs


def test_only_the_circle_holds_shares_and_any_t_of_it_give_the_secrets_back():
    aggregator, roster = few()
    vault = opened_round(aggregator, roster).memory.vault
    assert len(vault.session) == 32
    assert {*vault.shares} == {(m, owner) for owner, circle in vault.circles.items() for m in circle}
    for owner in (0, 7):
        circle = vault.circles[owner]
        assert len(circle) == NEIGHBOURS + 1
        for places in itertools.combinations(range(NEIGHBOURS + 1), THRESHOLD):
            shares = torch.stack([vault.shares[circle[place], owner][2] for place in places])
            assert reconstruct(shares, places, THRESHOLD, NEIGHBOURS + 1) == [*vault.secrets[owner, 2].seeds]
            with pytest.raises(ConfigurationError):
                reconstruct(shares[1:], places[1:], THRESHOLD, NEIGHBOURS + 1)


def test_bytes_are_those_of_neighbours(monkeypatch):
    made = []
    first = PairKeystream.__init__
    monkeypatch.setattr(PairKeystream, "__init__", lambda self, *args: (made.append(self), first(self, *args))[1])
    aggregator, roster = few()
    everybody = torch.ones(PARTIES).bool()
    legs = {leg.kind: leg for leg in aggregator.opening.legs(B, roster, everybody, 0, -1)}
    rows = Rows(torch.arange(B), 0, B)
    view = PartyView(RoundNames(0, Stage.FIT, 0), roster, tuple(range(PARTIES)), everybody, rows, Keys())
    sent = Counter()
    for message in aggregator.opening.open(view.memory, view):
        for sender, piece in zip(message.senders, message.pieces, strict=True):
            receivers = range(PARTIES) if message.receivers is None else message.receivers
            sent[message.kind, sender] += sum(len(row) for m, row in zip(receivers, piece, strict=True) if m != sender)
        aggregator.opening.accept(view.memory, message, view)
    assert {kind: leg.bytes.tolist() for kind, leg in legs.items()} == {
        kind: [sent[kind, m] for m in range(PARTIES)] for kind in legs
    }
    upload, keys, _, lists, revealed = aggregator.wire.legs(B, (D,) * PARTIES, (), roster)
    message = first_leg(aggregator, Embeddings(embeddings_of()), view)
    assert len(made) == PARTIES * (NEIGHBOURS + 1)  # with the mask of its own
    assert upload.flops.tolist() == [B * D * NEIGHBOURS] * PARTIES
    assert keys.bytes.tolist() == [piece.nbytes for piece in message.alongside.pieces] == [64] * PARTIES
    assert lists.bytes.tolist() == [64 * (PARTIES - LOST)] * PARTIES
    assert revealed.elements.tolist() == [piece.numel() for piece in answers(aggregator, view, range(PARTIES)).pieces]
    assert revealed.elements.tolist() == [(NEIGHBOURS + 1) * LIMBS] * PARTIES
    assert [leg.gate for leg in (lists, revealed)] == ["all", PARTIES - LOST]


# ---- what parties refuse


def test_a_survivor_never_reveals_both_secrets_of_a_party():
    aggregator, roster = few()
    vault = opened_round(aggregator, roster).memory.vault
    for holder, owner in vault.shares:
        vault.reveal(holder, owner, 0, MASKS)
        with pytest.raises(RuntimeError, match="with both the upload could be read"):
            vault.reveal(holder, owner, 0, SELF)


def test_signatures_of_parties_that_are_no_neighbours_do_not_count():
    aggregator, roster = few()
    view = opened_round(aggregator, roster)
    first_leg(aggregator, Embeddings(embeddings_of()), view)
    there = some(range(PARTIES))
    signed = aggregator._layer.consent(there, view)
    circle = view.memory.vault.circles[0]
    outside = [m for m in range(PARTIES) if m not in circle]
    for inside, enough in ((circle[:THRESHOLD], True), (circle[: THRESHOLD - 1], False)):
        senders = tuple(sorted((*inside, *outside)))
        handed_on = replace(signed, senders=senders, pieces=tuple(signed.pieces[m] for m in senders))
        asked = replace(view, parties=(0,))
        if enough:
            assert aggregator._layer.reveal(there, asked, handed_on).senders == (0,)
        else:
            with pytest.raises(RuntimeError, match=r"4 parties have signed the set .* and 5 signatures are needed"):
                aggregator._layer.reveal(there, asked, handed_on)


def test_a_party_masks_with_its_neighbours_whoever_is_said_to_be_called():
    """A server that leaves neighbours of a party out of the call takes no mask off its upload."""
    aggregator, roster = few()
    vault = opened_round(aggregator, roster).memory.vault
    for party in range(PARTIES):
        assert tuple(vault.partners(party, (party,))) == vault.circles[party]
    view = opened_round(aggregator, roster)
    view.memory.vault.keyed = frozenset(range(1, PARTIES))
    with pytest.raises(RuntimeError, match="party 0 is called and has no keys of this period"):
        first_leg(aggregator, Embeddings(embeddings_of()), view)


def test_nothing_is_masked_without_the_shares_of_a_neighbour():
    aggregator, roster = few()
    view = opened_round(aggregator, roster)
    other = next(m for m in view.memory.vault.circles[0] if m)
    del view.memory.vault.shares[0, other]
    with pytest.raises(RuntimeError, match=f"the seed shares of party {other} have not arrived"):
        first_leg(aggregator, Embeddings(embeddings_of()), view)


# ---- a server that lies: all that it can tell, in a model of sets


def readable(graph, circles, colluders, told, threshold):
    """The sums of honest uploads that a server reads, each as the set of its members.

    Args:
        graph: who shares a mask with whom.
        circles: who holds shares of whom.
        colluders: they sign and reveal what the server likes.
        told: by honest party, the set of survivors that it has signed.
        threshold: t.
    """
    honest = {*graph} - {*colluders}
    own, mask_seed = Counter(), Counter()
    for holder in honest:
        mine = told[holder]
        signed = sum(m in mine and (m in colluders or told[m] == mine) for m in circles[holder])
        if signed < threshold:
            continue
        for owner in circles[holder]:
            (own if owner in mine else mask_seed)[owner] += 1
    corrupt = {owner: sum(m in colluders for m in circle) for owner, circle in circles.items()}
    knows = {m for m in honest if own[m] + corrupt[m] >= threshold}
    masks_of = {m for m in honest if mask_seed[m] + corrupt[m] >= threshold}
    left, parts = set(honest), []
    while left:
        part, edge = set(), {left.pop()}
        while edge:
            part |= edge
            hidden = {o for m in edge - masks_of for o in graph[m] if o in left and o not in masks_of}
            left -= hidden
            edge = hidden
        parts.append(frozenset(part))
    return [part for part in parts if part <= knows], knows & masks_of


def holds_for(graph, colluders, neighbours, lost):
    """Whether the ring keeps what the bound counts, for these colluders."""
    least = neighbours + 1 - 2 * lost
    if any(sum(m in colluders for m in graph[v]) >= least for v in graph if v not in colluders):
        return False
    n, half = len(graph), neighbours // 2
    run = [{(start + step) % n for step in range(half)} for start in range(n)]
    counts = [len(one & colluders) for one in run]
    return not any(
        not run[i] & run[j] and counts[i] + counts[j] >= least - 1 for i, j in itertools.combinations(range(n), 2)
    )


def in_order(parties, neighbours):
    """A ring whose places are the numbers of the parties, and its circles."""
    steps = [step for step in range(-(neighbours // 2), neighbours // 2 + 1) if step]
    graph = {m: tuple((m + step) % parties for step in steps) for m in range(parties)}
    return graph, {m: tuple(sorted((m, *others))) for m, others in graph.items()}


@pytest.mark.parametrize(
    ("parties", "neighbours", "lost", "most"),
    [
        (6, 4, 1, 1),
        (7, 4, 1, 2),
        pytest.param(8, 4, 1, 2, marks=pytest.mark.slow),
        pytest.param(8, 6, 1, 3, marks=pytest.mark.slow),
    ],
)
def test_a_lying_server_reads_at_most_one_sum_where_the_bound_holds(parties, neighbours, lost, most):
    """Every coalition, and every set of survivors that the server can tell each honest party."""
    graph, circles = in_order(parties, neighbours)
    threshold = neighbours + 1 - lost
    everybody = frozenset(range(parties))
    survivors = [everybody - {*gone} for size in range(lost + 1) for gone in itertools.combinations(everybody, size)]
    for count in range(most + 1):
        failing = 0
        for colluders in map(set, itertools.combinations(range(parties), count)):
            holds = holds_for(graph, colluders, neighbours, lost)
            failing += not holds
            if not holds:
                continue
            honest = sorted(everybody - colluders)
            offers = [[one for one in survivors if m in one] for m in honest]
            for sets in itertools.product(*offers) if len(honest) <= 5 else sampled(offers):
                read, both = readable(graph, circles, colluders, dict(zip(honest, sets, strict=True)), threshold)
                assert not both
                assert len(read) <= 1
                assert all(len(sum_of) > 1 for sum_of in read)
        assert Fraction(failing, comb(parties, count)) <= opened(parties, count, neighbours, lost)


def sampled(offers, draws=4000):
    """Sets that a server tells: the same to all, two stories in every cut, and many at random."""
    generator = torch.Generator().manual_seed(0)
    for one, other in itertools.product(offers[0], offers[-1]):
        for cut in range(len(offers)):
            sets = [one if place < cut else other for place in range(len(offers))]
            yield [told if told in offer else offer[0] for told, offer in zip(sets, offers, strict=True)]
    for _ in range(draws):
        picks = [int(torch.randint(len(offer), (), generator=generator)) for offer in offers]
        yield [offer[pick] for offer, pick in zip(offers, picks, strict=True)]


def test_a_lying_server_reads_more_where_the_bound_does_not_hold():
    """The model can find a leak: with t of k + 1 near a half, two stories open a party."""
    graph, circles = in_order(8, 4)
    everybody = frozenset(range(8))
    leaks = 0
    for colluders in map(set, itertools.combinations(range(8), 2)):
        honest = everybody - colluders
        for victim in honest:
            for away in itertools.combinations(sorted(honest - {victim}), 3):
                told = {m: everybody - {victim} if m in away else everybody for m in honest}
                leaks += bool(readable(graph, circles, colluders, told, 3)[1])
    assert leaks


def test_a_vault_without_a_ring_masks_with_the_called():
    assert Vault().partners(0, (0, 2)) == (0, 2)
