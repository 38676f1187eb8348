"""Recovery of a masked sum from lost parties: all subsets, what is revealed and what never is (Bonawitz 2017)."""

import itertools
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from hashlib import sha256

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from lightning_vfl.aggregators import MaskedSum, PoissonBinomial
from lightning_vfl.aggregators.secure.masked_wire import MaskedServer
from lightning_vfl.aggregators.secure.period_keys import Keys
from lightning_vfl.aggregators.secure.recovery import (
    FIELD,
    LIMBS,
    MASKS,
    REVEALED,
    SELF,
    Recovery,
    Vault,
    own_mask,
    reconstruct,
    round_masks,
    share,
    to_bytes,
    to_limbs,
    unmask,
)
from lightning_vfl.crypto import KeyPair, PairKeys, PairMasks
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import LagrangeCode, PrimeField
from lightning_vfl.rounds.exchange import Exchange, open_round
from lightning_vfl.testing.rounds import Upload
from lightning_vfl.types import Roll, Roster, RoundNames, Rows, Stage
from lightning_vfl.wire import Embeddings, PartyView, ServerView
from tests.examples import examples
from tests.further import further
from tests.keystream_uses import reused
from tests.unit.aggregators.sides import first_leg

D, B, LEVELS = 2, 3, 2**20
STEP = Fraction(8, LEVELS)
PRIME = 2**31 - 1


def some(who, parties):
    return torch.tensor([m in who for m in range(parties)])


def integers_of(parties, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-LEVELS // 2, LEVELS // 2, (parties, B, D), generator=generator)


def embeddings_of(parties, seed=0):
    return tuple((x.double() * float(STEP)).float() for x in integers_of(parties, seed))


def opened(aggregator, roster, called=None, round=0, memory=None, stage="fit"):
    """The view of all parties after a round has been opened."""
    called = set(range(roster.parties)) if called is None else set(called)
    names, rows = RoundNames(0, stage, round), Rows(torch.arange(B), 0, B)
    view = PartyView(names, roster, tuple(range(roster.parties)), some(called, roster.parties), rows)
    return replace(view, memory=open_round(aggregator.opening, Keys() if memory is None else memory, view))


def round_of(aggregator, roster, h, called=None, included=None, responders=None, round=0, memory=None):
    view = opened(aggregator, roster, called, round, memory)
    there = view.called
    arrived = there if included is None else some(set(included), roster.parties)
    answered = arrived if responders is None else some(set(responders), roster.parties)
    roll = Roll(there, arrived, answered, torch.zeros_like(there))
    server = ServerView(view.names, roster, view.rows, roll, (D,) * roster.parties)
    return Exchange(aggregator, Embeddings(h), view, server)


def recovering(parties, threshold="auto", **settings):
    roster = Roster.singles(parties)
    aggregator = MaskedSum(levels=LEVELS, recovery={"threshold": threshold}, allow_single=True, **settings)
    return aggregator.among(roster), roster


def masked(aggregator, roster, round=0, memory=None):
    """The view of all parties after all have been called and have sent their uploads, and the uploads."""
    view = opened(aggregator, roster, round=round, memory=memory)
    sent = first_leg(aggregator, Embeddings(embeddings_of(roster.parties)), view)
    return view, sent


def answers(aggregator, view, included, who=None):
    """What these parties reveal once they have signed who is included; default: all of these."""
    who = included if who is None else who
    asked, there = replace(view, parties=tuple(sorted(who))), some(set(included), view.roster.parties)
    return aggregator._layer.reveal(there, asked, aggregator._layer.consent(there, asked))


@pytest.mark.parametrize(
    ("parties", "threshold"),
    [
        *((n, t) for n in range(2, 5) for t in range(n // 2 + 1, n + 1)),
        *(further(5, t) for t in (3, 4, 5)),
        *(further(6, t) for t in (4, 5, 6)),
    ],
)
def test_any_loss_leaves_the_sum_of_the_others_or_discards_the_round(parties, threshold):
    """All subsets of lost parties; the sums as Python integers."""
    aggregator, roster = recovering(parties, threshold, rekey_every=64)
    h, integers, memory = embeddings_of(parties), integers_of(parties), None
    subsets = [s for size in range(parties + 1) for s in itertools.combinations(range(parties), size)]
    for number, lost in enumerate(subsets):
        included = set(range(parties)) - set(lost)
        exchange = round_of(aggregator, roster, h, included=included, round=number, memory=memory)
        memory = exchange.parties.memory
        if len(included) < threshold:
            if included:
                with pytest.raises(RuntimeError, match=f"and at least {threshold} parties have to be"):
                    exchange.send()
            continue
        expected = [
            [Fraction(sum(int(integers[m, r, d]) for m in included)) * STEP for d in range(D)] for r in range(B)
        ]
        value = exchange.send().value
        assert [[Fraction(x) for x in row] for row in value.tolist()] == expected


def test_what_is_sent_in_a_small_ring_fits_its_leg():
    roster = Roster.singles(4)
    aggregator = PoissonBinomial(MaskedSum(recovery="auto"), levels=4, clip=8.0).among(roster)
    sent = first_leg(aggregator, Embeddings(embeddings_of(4)), opened(aggregator, roster))
    (leg, *_) = aggregator.wire.legs(B, (D,) * 4, (), roster)
    assert leg.bits == 5
    assert all(int(piece.to(torch.int64).max()) < 2**5 for piece in sent.pieces)


@examples(20)
@given(st.data())
def test_announced_absences_and_losses_together_and_any_t_answers(data):
    parties = data.draw(st.integers(3, 6))
    threshold = data.draw(st.integers(parties // 2 + 1, parties))
    aggregator, roster = recovering(parties, threshold)
    called = data.draw(st.sets(st.integers(0, parties - 1), min_size=threshold))
    included = data.draw(st.sets(st.sampled_from(sorted(called)), min_size=threshold))
    answers = data.draw(st.sets(st.sampled_from(sorted(included)), min_size=threshold))
    h, integers = embeddings_of(parties), integers_of(parties)
    value = round_of(aggregator, roster, h, called, included, answers, round=data.draw(st.integers(0, 9))).send().value
    expected = sum(integers[m].double() for m in included) * float(STEP)
    assert torch.equal(value.double(), expected)


def test_the_same_bits_as_equivalent_for_numbers_off_the_grid():
    roster, generator = Roster.singles(5), torch.Generator().manual_seed(3)
    h = tuple(torch.randn(B, D, generator=generator) for _ in range(5))
    values = []
    for execution in ("masked", "equivalent"):
        aggregator = MaskedSum(recovery={}, execution=execution).among(roster)
        values.append(round_of(aggregator, roster, h, included={0, 2, 3, 4}, round=4).run())
    assert torch.equal(*values)


# ---- secrets are never together


@pytest.mark.parametrize("first", [MASKS, SELF])
def test_a_survivor_never_reveals_both_secrets_of_a_party(first):
    aggregator, roster = recovering(3)
    view = opened(aggregator, roster)
    vault, second = view.memory.vault, MASKS if first == SELF else SELF
    for holder, owner in itertools.product(range(3), repeat=2):
        one = vault.reveal(holder, owner, 0, first)
        assert torch.equal(vault.reveal(holder, owner, 0, first), one)
        with pytest.raises(RuntimeError, match="with both the upload could be read"):
            vault.reveal(holder, owner, 0, second)
        vault.reveal(holder, owner, 1, second)  # another round, another secret


def test_a_second_call_for_the_other_secret_is_refused_by_the_layer():
    """The server first says that everybody is there, and then that party 2 is not; without another signature too."""
    aggregator, roster = recovering(4)
    view, _ = masked(aggregator, roster)
    answers(aggregator, view, {0, 1, 2, 3})
    with pytest.raises(RuntimeError, match=r"party 0 signs no set .* it has signed \(0, 1, 2, 3\)"):
        answers(aggregator, view, {0, 1, 3})
    with pytest.raises(RuntimeError, match=r"party 0 reveals nothing .* it has not signed the set \(0, 1, 3\)"):
        aggregator._layer.reveal(some({0, 1, 3}, 4), view, None)


def test_what_is_revealed_is_one_share_of_one_secret_a_party():
    """Survivors' self-masks, the lost ones' seeds; against the secrets themselves, by Lagrange in Python integers."""
    aggregator, roster = recovering(5, 3)
    view, _ = masked(aggregator, roster, round=2)
    included = some({0, 1, 4}, 5)
    message = answers(aggregator, view, {0, 1, 4})
    assert (message.kind, message.to, message.senders) == (REVEALED, "server", (0, 1, 4))
    secrets = view.memory.vault.secrets
    for owner in range(5):
        x = to_bytes(torch.tensor([[at_zero_of(message, owner, limb) for limb in range(LIMBS)]]))[0]
        own = secrets[owner, 2]
        assert x == (own.seeds[1] if included[owner] else own.seeds[0])


def at_zero_of(message, owner, limb):
    """Lagrange over GF(2^31 - 1) at the secret's point: the code has β = 1 and α = t + 1, ..., t + n (t = 3)."""
    points = [3 + 1 + m for m in message.senders]
    values = [int(piece[owner, limb]) for piece in message.pieces]
    total = 0
    for j, xj in enumerate(points):
        weight = 1
        for k, xk in enumerate(points):
            if k != j:
                weight = weight * (1 - xk) * pow(xj - xk, -1, PRIME) % PRIME
        total += values[j] * weight
    return total % PRIME


def test_nothing_that_is_sent_holds_a_secret_of_the_period():
    """Of all bytes on the wire in two rounds, in the clear or as shares: no seed, no private key, no pair's key."""
    aggregator, roster = recovering(4)
    memory, wire = Keys(), []
    for number in range(2):
        called = torch.ones(4).bool()
        view = PartyView(
            RoundNames(0, Stage.FIT, number), roster, (0, 1, 2, 3), called, Rows(torch.arange(B), 0, B), memory
        )
        for message in aggregator.opening.open(memory, view):
            wire += [piece.numpy().tobytes() for piece in message.pieces]
            aggregator.opening.accept(memory, message, view)
        upload, there = Upload(aggregator, Embeddings(embeddings_of(4)), view), some({0, 1, 3}, 4)
        sent, signed = upload.first, upload.then(there, parties=(0, 1, 3))
        revealed = upload.then(there, signed, (0, 1, 3))
        for message in (sent, sent.alongside, signed, revealed):
            wire += [piece.numpy().tobytes() for piece in message.pieces]
    everything = b"|".join(wire)
    secrets = [seed for own in memory.vault.secrets.values() for seed in own.seeds]
    pairs = [memory.pairs[m].shared(memory.publics[j]) for m in range(4) for j in range(4) if m != j]
    keys = [
        memory.masks[m].keys.key(j, "mask", 32, "updates", "fit", 0, 0, 0) for m in range(3) for j in range(m + 1, 4)
    ]
    assert len(secrets) == 40
    assert not any(secret in everything for secret in (*secrets, *pairs, *keys))
    # what is revealed are shares of round seeds: no party's key pair of the period is among the shared secrets
    private = {own.pair.public for own in memory.vault.secrets.values()}
    assert private.isdisjoint(memory.publics.values())


def test_what_is_revealed_in_a_round_opens_no_other():
    """With x of party 2 in round 0 the server has its masks of that round, and of no other."""
    aggregator, roster = recovering(3)
    view = opened(aggregator, roster)
    vault = view.memory.vault
    seeds = [seed for own in vault.secrets.values() for seed in own.seeds]
    assert len(seeds) == len(set(seeds)) == 3 * 5 * 2
    assert len({vault.public(m, r) for m in range(3) for r in range(5)}) == 15
    for holder in range(3):
        shares = torch.stack([vault.shares[holder, owner] for owner in range(3)])  # owners, rounds, two, limbs
        assert len(torch.unique(shares.flatten(0, 2), dim=0)) == 3 * 5 * 2
    again = opened(aggregator, roster, round=5, memory=view.memory).memory.vault
    fresh = [seed for own in again.secrets.values() for seed in own.seeds]
    assert set(fresh).isdisjoint(seeds)


def test_a_late_upload_of_a_party_that_was_declared_absent_stays_masked():
    """All the server could do: it takes the revealed masks off the late upload. What is left is the self-mask."""
    aggregator, roster = recovering(4, 3)
    rows = 4000
    h = tuple(torch.zeros(rows, D) for _ in range(4))
    view = opened(aggregator, roster)
    view = replace(view, rows=Rows(torch.arange(rows), 0, rows))
    sent = first_leg(aggregator, Embeddings(h), view)
    revealed = answers(aggregator, view, {0, 1, 3})
    vault, late = view.memory.vault, sent.pieces[2].numpy().copy()
    seeds = reconstruct(torch.stack(revealed.pieces), revealed.senders, 3, 4)
    assert seeds[2] == vault.secrets[2, 0].seeds[0]
    publics = {m: vault.public(m, 0) for m in range(4)}
    private = X25519PrivateKey.from_private_bytes(seeds[2])
    session = sha256(b"".join(publics[m] for m in range(4))).digest()
    masks = PairMasks(PairKeys(2, KeyPair(private), publics, session))
    late -= masks.mask_of((0, 1, 2, 3), names := round_masks(view.names, view.rows), 0, late.shape)
    assert (late != LEVELS // 2).mean() > 0.999  # what a zero would be
    for shift in (0, 8, 16, 24):
        assert chisquare(np.bincount((late.ravel() >> shift) & 255, minlength=256)).pvalue > 1e-6
    own_mask(vault.secrets[2, 0].seeds[1], names).add_to(
        late.reshape(-1), 0, -1
    )  # and b, which nobody reveals, would do it
    assert (late == LEVELS // 2).all()


def test_a_late_upload_is_dropped_before_anything_is_decoded(monkeypatch):
    """Uploads, round keys and answers of those who are in, and nobody else's, reach the server's sum."""
    heard, decode = [], MaskedServer.decode

    def listening(self, messages, view):
        heard.extend([messages[0].senders, messages[0].alongside.senders, messages[1].senders])
        return decode(self, messages, view)

    monkeypatch.setattr(MaskedServer, "decode", listening)
    aggregator, roster = recovering(5, 3)
    round_of(aggregator, roster, embeddings_of(5), included={0, 2, 4}).send()
    assert heard == [(0, 2, 4)] * 3


def test_an_included_upload_keeps_its_masks_with_the_others():
    """b of a survivor is revealed: its masks with others still stand."""
    aggregator, roster = recovering(3)
    view = opened(aggregator, roster)
    sent = first_leg(aggregator, Embeddings(embeddings_of(3)), view)
    names = round_masks(view.names, view.rows)
    for party in range(3):
        upload = sent.pieces[party].numpy().copy()
        own_mask(view.memory.vault.secrets[party, 0].seeds[1], names).add_to(upload.reshape(-1), 0, -1)
        clear = (integers_of(3)[party].numpy() + LEVELS // 2).astype(np.uint32)
        assert not (upload[0] == clear).any()


# ---- Shamir


@pytest.mark.parametrize(
    ("p", "needed", "parties"), [(7, 2, 3), (7, 3, 3), pytest.param(11, 3, 4, marks=pytest.mark.slow)]
)
def test_fewer_than_t_shares_are_consistent_with_every_secret(p, needed, parties):
    """The code that shares seeds, in a small field, all masks enumerated: every view is equally likely."""
    code = LagrangeCode(PrimeField(p), 1, needed - 1, parties)
    for who in itertools.combinations(range(parties), needed - 1):
        views = []
        for secret in range(p):
            seen = Counter()
            for drawn in itertools.product(range(p), repeat=needed - 1):
                shares = code.share(torch.tensor([[secret]]), torch.tensor(drawn).view(-1, 1))
                seen[tuple(int(shares[m]) for m in who)] += 1
            views.append(seen)
        assert all(set(seen.values()) == {1} and len(seen) == p ** (needed - 1) for seen in views)


@examples(15)
@given(st.binary(min_size=32, max_size=32), st.integers(2, 6), st.data())
def test_any_t_shares_give_the_secret_back(secret, parties, data):
    needed = data.draw(st.integers(parties // 2 + 1, parties))
    shares = share([secret, bytes(32), b"\xff" * 32], needed, parties)
    assert shares.shape == (parties, 3, LIMBS)
    assert 0 <= int(shares.min()) <= int(shares.max()) < PRIME == FIELD.modulus
    for who in itertools.combinations(range(parties), needed):
        assert reconstruct(shares[list(who)], who, needed, parties) == [secret, bytes(32), b"\xff" * 32]
    few = tuple(range(needed - 1))
    with pytest.raises(ConfigurationError):
        reconstruct(shares[list(few)], few, needed, parties)


def test_shares_of_the_same_secret_are_uniform_and_never_the_same():
    many = torch.cat([share([bytes(32)], 3, 5) for _ in range(400)])
    assert len(torch.unique(many, dim=0)) == len(many)  # single elements meet by chance: 18,000 of 2^31
    for holder in range(5):
        own = many.view(400, 5, LIMBS)[:, holder].flatten().numpy()
        assert chisquare(np.bincount(own >> 23, minlength=256)).pvalue > 1e-6
        assert chisquare(np.bincount(own & 255, minlength=256)).pvalue > 1e-6


@given(st.lists(st.binary(min_size=32, max_size=32), min_size=1, max_size=4))
def test_limbs_are_thirty_bits_each_from_the_lowest(secrets):
    limbs = to_limbs(secrets)
    for row, secret in zip(limbs.tolist(), secrets, strict=True):
        number = int.from_bytes(secret, "little")
        assert row == [number >> 30 * k & (2**30 - 1) for k in range(9)]
    assert to_bytes(limbs) == secrets


@pytest.mark.parametrize("limbs", [[2**30] + [0] * 8, [0] * 8 + [2**16]])
def test_shares_that_do_not_belong_together_are_noticed(limbs):
    with pytest.raises(ValueError, match="do not belong together"):
        to_bytes(torch.tensor([limbs]))


# ---- thresholds, bytes, keystreams


@pytest.mark.parametrize("parties", range(2, 9))
def test_thresholds_are_a_majority_at_least_and_everybody_at_most(parties):
    """auto: the smallest t above two thirds, so that a third of the parties may collude with a server that lies."""
    least = parties // 2 + 1
    assert Recovery().needed(parties) == min(t for t in range(parties + 1) if Fraction(t, parties) > Fraction(2, 3))
    for threshold in range(-1, parties + 3):
        if least <= threshold <= parties:
            assert Recovery(threshold).needed(parties) == threshold
            assert 2 * threshold > parties  # no two disjoint sets reach it
        else:
            remedy = f"use {least} to {parties}, or auto" if threshold > 0 else f"got {threshold}; or use auto"
            with pytest.raises(ConfigurationError, match=remedy):
                MaskedSum(recovery={"threshold": threshold}).among(Roster.singles(parties))
    with pytest.raises(ConfigurationError):
        Recovery(True).needed(1)


@pytest.mark.parametrize("threshold", [3.5, "most"])
def test_thresholds_that_are_no_whole_numbers_are_refused(threshold):
    with pytest.raises(ConfigurationError, match="recovery threshold"):
        MaskedSum(recovery={"threshold": threshold}).among(Roster.singles(4))


def test_bytes_of_a_round_have_a_closed_form():
    """32 bits a number, a key of 32 bytes, and M secrets of 9 elements of 31 bits."""
    aggregator, roster = recovering(5, 4)
    uploads, keys, signed, lists, revealed = aggregator.wire.legs(B, (D,) * 5, (), roster)
    assert uploads.bytes.tolist() == [B * D * 4] * 5
    assert keys.bytes.tolist() == [32] * 5
    assert signed.bytes.tolist() == [64] * 5
    assert lists.bytes.tolist() == [4 * 64] * 5
    assert revealed.bytes.tolist() == [-(-5 * 9 * 31 // 8)] * 5
    assert [leg.gate for leg in (uploads, keys, signed, lists, revealed)] == ["rule", "previous", 4, "all", 4]
    assert [leg.to for leg in (uploads, keys, signed, lists, revealed)] == [*["server"] * 3, "parties", "server"]
    assert aggregator.wire.needed(5) == 4
    view, sent = masked(aggregator, roster)
    assert [piece.nbytes for piece in sent.pieces] == uploads.bytes.tolist()
    assert [piece.nbytes for piece in sent.alongside.pieces] == keys.bytes.tolist()
    there = torch.ones(5).bool()
    consent = aggregator._layer.consent(there, view)
    assert [piece.nbytes for piece in consent.pieces] == signed.bytes.tolist()
    answered = aggregator._layer.reveal(there, view, consent)
    assert [piece.numel() for piece in answered.pieces] == revealed.elements.tolist()
    assert all(int(piece.max()).bit_length() <= revealed.bits for piece in answered.pieces)


def test_no_block_is_used_twice_over_rounds_periods_and_losses(uses):
    roster = Roster.singles(4)
    aggregator = MaskedSum(levels=LEVELS, recovery={}, rekey_every=3)
    aggregator, memory = aggregator.among(roster), None
    for number in range(7):
        exchange = round_of(
            aggregator, roster, embeddings_of(4), included={0, 1, 2, 3} - {number % 5}, round=number, memory=memory
        )
        memory = exchange.parties.memory
        exchange.send()
    assert reused(uses) == []
    assert len(uses) == 7 * 4 * (3 + 1)  # three pairs and a mask of its own, everybody, every round


def test_seeds_come_from_the_system_unless_it_is_said_that_they_do_not():
    def drawn(stage, seeded):
        vault = Vault(range(2))
        vault.draw((0, 1), RoundNames(0, stage, 0), seeded)
        return {place: own.seeds for place, own in vault.secrets.items()}

    secret = [drawn(Stage.FIT, False) for _ in range(3)]
    assert len({seed for each in secret for seeds in each.values() for seed in seeds}) == 24
    seeded = [drawn(stage, True) for stage in (Stage.FIT, Stage.TEST)]
    assert len({seed for each in seeded for seeds in each.values() for seed in seeds}) == 16
    assert drawn(Stage.FIT, True) == seeded[0]


def test_unmasking_needs_every_survivors_own_mask():
    """Take one survivor's b away: the sum stays uniform."""
    aggregator, roster = recovering(3, 2)
    view = opened(aggregator, roster)
    sent = first_leg(aggregator, Embeddings(embeddings_of(3)), view)
    vault = view.memory.vault
    total = sum(piece.numpy().astype(object) for piece in sent.pieces) % 2**32
    clear = integers_of(3).sum(0).numpy() + 3 * LEVELS // 2
    publics = {m: vault.public(m, 0) for m in range(3)}
    names = round_masks(view.names, view.rows)
    for known in ((0, 1, 2), (0, 1), (0, 2), (1, 2)):
        words = total.astype(np.uint32)
        unmask(words, {m: vault.secrets[m, 0].seeds[1] for m in known}, {}, publics, 32, names, 0)
        assert (words[0] == clear).all() == (len(known) == 3)
