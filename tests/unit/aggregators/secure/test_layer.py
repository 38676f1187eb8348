"""The Secure Layer: whose keys, which masks, what is sealed; by enumeration, by AES alone, by closed forms."""

import itertools
from collections import Counter
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.aggregators.secure import opening
from lightning_vfl.aggregators.secure.layer import SecureLayer
from lightning_vfl.aggregators.secure.opening import IDS, LayerOpening, check_selection
from lightning_vfl.aggregators.secure.period_keys import KEYS, Keys
from lightning_vfl.aggregators.secure.recovery import ROUND_KEYS, SHARES, Recovery
from lightning_vfl.crypto import KeyPair, PairKeystream, Sealed
from lightning_vfl.errors import ConfigurationError, MalformedMessage
from lightning_vfl.types import Roll, Roster, RoundNames, Rows
from lightning_vfl.wire import PartyView
from tests.examples import examples
from tests.further import further
from tests.keystream_uses import reused

IDS_OF_BATCH = [40, 7, 1000, 3, 12]


def view_of(layer, roster, round=0, stage="fit", called=None, present=None, memory=None, start=0, seed=0, ids=None):
    called = torch.ones(roster.parties).bool() if called is None else called
    ids = torch.tensor(IDS_OF_BATCH if ids is None else ids)
    rows = Rows(ids, start, start + len(ids))
    memory = Keys() if memory is None else memory
    return PartyView(
        RoundNames(seed, stage, round), roster, tuple(range(roster.parties)), called, rows, memory, present
    )


def opened(layer, view):
    """All messages at the beginning of a round, each of which is accepted; the view keeps the memory."""
    messages = []
    for message in LayerOpening(layer).open(view.memory, view):
        messages.append(message)
        LayerOpening(layer).accept(view.memory, message, view)
    return messages


def sent_to(message, receiver):
    """What a receiver is sent, by sender: bytes."""
    pairs = zip(message.senders, message.pieces, strict=True)
    return {sender: piece[receiver].numpy().tobytes() for sender, piece in pairs if sender != receiver}


class Recorded(Sealed):
    """A channel that notes which nonce it uses under which key."""

    used: ClassVar[list[tuple[bytes, bytes]]] = []

    def __init__(self, key):
        super().__init__(key)
        self.key = key

    def seal(self, message, number, bound=b""):
        sealed = super().seal(message, number, bound)
        self.used.append((self.key, sealed[:12]))
        return sealed


@pytest.fixture
def nonces(monkeypatch):
    monkeypatch.setattr(opening, "Sealed", Recorded)
    monkeypatch.setattr(Recorded, "used", [])
    return Recorded.used


# ---- masks


def of_small_words(layer, roster, monkeypatch, drawn):
    """Masks in a small ring, whose keystream words are chosen: ``drawn[pair]`` stands for a pair's word."""
    view = view_of(layer, roster)
    opened(layer, view)
    names, make = {}, PairKeystream.__init__

    def noting(self, key, *word):
        make(self, key, *word)
        self.key = key

    def add_to(self, values, round, sign=1):
        values += np.array(sign * drawn[names.setdefault(self.key, len(names))], np.int64).astype(values.dtype)

    monkeypatch.setattr(PairKeystream, "__init__", noting)
    monkeypatch.setattr(PairKeystream, "add_to", add_to)
    return view


def test_periods_begin_every_so_many_rounds():
    everybody = torch.ones(3, dtype=torch.bool)
    for every, begin in ((1, [0, 1, 2, 3, 4, 5, 6]), (3, [0, 3, 6])):
        opening = LayerOpening(SecureLayer(rekey_every=every))
        legs = [opening.legs(1, Roster.singles(3), everybody, round, round - 1) for round in range(7)]
        assert [round for round in range(7) if [leg.kind for leg in legs[round]] == [KEYS]] == begin
        assert not any(legs[round] for round in range(7) if round not in begin)
    for wrong in (0, -5):
        with pytest.raises(ConfigurationError, match="rekey_every must be a whole number, 1 or more"):
            SecureLayer(rekey_every=wrong)


@pytest.mark.parametrize("bits", [1, 2, 3])
@pytest.mark.parametrize("hidden", [(0, 0, 0), (1, 0, 1), (1, 1, 1)])
def test_all_uploads_of_a_given_sum_are_equally_likely(monkeypatch, bits, hidden):
    """Lemma 4.1 by enumeration over all words of the three pairs, through the layer."""
    size, layer, drawn = 2**bits, SecureLayer(bits=bits), {}
    view = of_small_words(layer, Roster.singles(3), monkeypatch, drawn)
    seen, alone = Counter(), [Counter() for _ in range(3)]
    for words in itertools.product(range(size), repeat=3):
        drawn.update(enumerate(words))
        sent = []
        for party in range(3):
            values = np.array([hidden[party]], np.uint32)
            layer.mask({party: values}, (0, 1, 2), "embeddings", 0, view)
            sent.append(int(values[0]))
            alone[party][sent[-1]] += 1
        assert int(layer.sums.add([np.array([word], np.uint32) for word in sent])[0]) == sum(hidden) % size
        seen[tuple(sent)] += 1
    of_that_sum = [s for s in itertools.product(range(size), repeat=3) if sum(s) % size == sum(hidden) % size]
    assert seen == dict.fromkeys(of_that_sum, size)
    assert all(counts == dict.fromkeys(range(size), size**2) for counts in alone)


@pytest.mark.parametrize("layout", ["sum", "segments"])
def test_masks_cancel_over_the_whole_set_and_no_other(layout):
    roster = Roster(((0,), (1, 2), (3, 4)), active=0)
    layer = SecureLayer(layout)
    view = view_of(layer, roster)
    opened(layer, view)
    for segment, members in enumerate(layer.segments(roster).members):
        masks = {}
        for party in members:
            masks[party] = np.zeros(6, np.uint32)
            layer.mask({party: masks[party]}, members, "embeddings", segment, view)
        for size in range(1, len(members) + 1):
            for some in itertools.combinations(members, size):
                total = np.sum([masks[m].astype(object) for m in some], axis=0) % 2**32
                assert (not total.any()) == (size == len(members))
                assert bool((total == 0).any()) == (size == len(members))


def test_streams_of_purposes_stages_segments_ranks_and_rounds_never_meet(uses):
    """All of a party's masks under one set of keys: no two words are alike beyond chance, no block is used twice."""
    roster = Roster(((0,), (1, 2), (3,)), active=0)
    layer = SecureLayer("segments", rekey_every=100)
    memory, seen = Keys(), []
    for stage in ("sanity check", "validation", "fit"):
        for number in range(3):
            for start in (0, 5):
                view = view_of(layer, roster, number, stage, memory=memory, start=start)
                if not memory.pairs:
                    opened(layer, view)
                for purpose, segment, members in (
                    ("embeddings", 0, (0, 1, 2)),
                    ("embeddings", 1, (0, 3)),
                    ("embeddings", 2, (0, 3)),
                    ("updates", 1, (1, 2)),
                ):
                    for party in members:
                        values = np.zeros(5, np.uint32)
                        layer.mask({party: values}, members, purpose, segment, view)
                        seen.append((party, values))
    assert reused(uses) == []
    assert len(uses) == 3 * 3 * 2 * (6 + 2 + 2 + 2)
    for party in range(4):
        words = np.concatenate([values for owner, values in seen if owner == party])
        assert len(np.unique(words)) == len(words)


def test_the_same_round_is_not_masked_twice():
    layer, roster = SecureLayer(), Roster.singles(2)
    view = view_of(layer, roster)
    opened(layer, view)
    values = np.zeros(3, np.uint32)
    layer.mask({0: values}, (0, 1), "embeddings", 0, view)
    with pytest.raises(ValueError, match="never be used twice"):
        layer.mask({0: values}, (0, 1), "embeddings", 0, view)


def test_the_same_round_is_not_masked_twice_with_recovery_either():
    layer, roster = SecureLayer(recovery=Recovery()), Roster.singles(3)
    view = view_of(layer, roster)
    opened(layer, view)
    values = np.zeros(3, np.uint32)
    layer.mask_for_recovery(values, 0, (0, 1, 2), view)
    with pytest.raises((ValueError, RuntimeError)):
        layer.mask_for_recovery(values, 0, (0, 1, 2), view)


# ---- keys and their periods


@pytest.mark.parametrize("stage", ["fit", "validation", further("test"), further("predict")])
@pytest.mark.parametrize("every", [1, further(2), 5])
@pytest.mark.parametrize("recovery", [None, Recovery()])
def test_keys_are_renewed_every_so_many_rounds_in_every_stage(stage, every, recovery):
    layer, roster, memory = SecureLayer(rekey_every=every, recovery=recovery), Roster.singles(3), Keys()
    publics = []
    for number in range(11):
        view = view_of(layer, roster, number, stage, memory=memory)
        messages = opened(layer, view)
        kinds = [message.kind for message in messages]
        due = [KEYS] if recovery is None else [KEYS, ROUND_KEYS, SHARES]
        assert kinds == (due if number % every == 0 else [])
        publics += [sent_to(message, receiver) for message in messages for receiver in range(3)]
        assert all(len(content) for sent in publics for content in sent.values())
    keys = Counter(content for sent in publics for content in sent.values())
    # a public key and the round keys of a period go to both others, a share to one; none comes again
    assert set(keys.values()) == ({2} if recovery is None else {1, 2})


@pytest.mark.parametrize(("first", "count"), [(7, 3), (4, 2), (10, 1)])
def test_a_party_that_begins_in_the_middle_has_fresh_keys(first, count):
    layer, roster, memory = SecureLayer(), Roster.singles(3), Keys()
    exchanged = 0
    for number in range(first, first + count):
        exchanged += len(opened(layer, view_of(layer, roster, number, memory=memory)))
    assert exchanged == 1 + sum(number % 5 == 0 for number in range(first + 1, first + count))
    again = Keys()
    opened(layer, view_of(layer, roster, first, memory=again))
    assert set(again.publics.values()).isdisjoint(memory.publics.values())


def test_keys_come_from_the_system_unless_it_is_said_that_they_do_not():
    def publics(seeded, seed=0, stage="fit", number=0):
        layer, roster = SecureLayer(insecure_seeded_secrets=seeded), Roster.singles(3)
        view = view_of(layer, roster, number, stage, seed=seed)
        opened(layer, view)
        return frozenset(view.memory.publics.values())

    assert publics(True) == publics(True)
    others = [publics(True), publics(True, 1), publics(True, 0, "test"), publics(True, 0, "fit", 5)]
    assert len({key for keys in (*others, publics(False), publics(False)) for key in keys}) == 18


def test_both_ends_agree_on_keys_that_nobody_else_has():
    layer, roster = SecureLayer(), Roster.singles(4)
    view = view_of(layer, roster)
    opened(layer, view)
    keys = {(m, j): view.memory.masks[m].keys.key(j, "x") for m in range(4) for j in range(4) if m != j}
    assert all(keys[m, j] == keys[j, m] for m, j in keys)
    assert len(set(keys.values())) == 6


# ---- the selection of records


def held_by(roster, seed=0):
    """Each record with one party of every group."""
    generator = torch.Generator().manual_seed(seed)
    present = torch.zeros(len(IDS_OF_BATCH), roster.parties, dtype=torch.bool)
    for group in roster.groups:
        for row in range(len(IDS_OF_BATCH)):
            present[row, group[int(torch.randint(len(group), (), generator=generator))]] = True
    return present


def test_record_ids_reach_their_holders_and_nobody_else():
    roster = Roster(((0,), (1, 2), (3, 4)), active=0)
    layer, present = SecureLayer("segments"), held_by(roster)
    view = view_of(layer, roster, 3, present=present)
    message = opened(layer, view)[-1]
    assert (message.kind, message.senders, message.to) == ("record ids", (0,), "peers")
    for party in range(1, 5):
        expected = [id if present[row, party] else -1 for row, id in enumerate(IDS_OF_BATCH)]
        assert np.frombuffer(view.memory.ids[party], "<i8").tolist() == expected
        # by the cipher alone: 8 bytes a record, little-endian, under the number of the round
        sealed = message.pieces[0][party].numpy().tobytes()
        key = view.memory.masks[party].keys.key(0, 0, "record ids", "fit", 0)
        plain = AESGCM(key).decrypt((3).to_bytes(12, "big"), sealed[12:], None)
        assert np.frombuffer(plain, "<i8").tolist() == expected
        assert sealed[:12] == (3).to_bytes(12, "big")
        for other in set(range(1, 5)) - {party}:
            stranger = view.memory.masks[other].keys.key(0, 0, "record ids", "fit", 0)
            with pytest.raises(InvalidTag):
                AESGCM(stranger).decrypt((3).to_bytes(12, "big"), sealed[12:], None)


def test_messages_are_of_one_length_whoever_holds_what():
    """Also for a party that holds nothing of the batch: it is sent as much as the others."""
    roster = Roster(((0,), (1, 2), (3,)), active=0)
    lengths = set()
    for first in range(6):
        present = torch.ones(5, 4, dtype=torch.bool)
        present[:, 1] = torch.arange(5) < first
        present[:, 2] = ~present[:, 1]
        (_, message) = opened(layer := SecureLayer(), view_of(layer, roster, present=present))
        lengths |= {len(sent_to(message, party)[0]) for party in (1, 2, 3)}
        contents = {sent_to(message, party)[0][12:] for party in (1, 2, 3)}
        assert len(contents) == 3
        assert all(any(content) for content in contents)  # no zeros in the place of what was not held
    assert lengths == {5 * 8 + 28}


@examples(10)
@given(st.integers(0, 67), st.integers(0, 7), st.integers(1, 3))
def test_a_changed_selection_is_noticed(place, bit, party):
    roster, layer = Roster.singles(4, active=0), SecureLayer("segments")
    view = view_of(layer, roster)
    begin = LayerOpening(layer)
    keys, ids = begin.open(view.memory, view), None
    for message in keys:
        if message.kind == IDS:
            ids = message
            break
        begin.accept(view.memory, message, view)
    ids.pieces[0][party, place] ^= 1 << bit
    with pytest.raises(ValueError, match=r"(message|number) 0"):
        begin.accept(view.memory, ids, view)


def test_a_selection_of_another_round_is_not_taken_again():
    roster, layer, memory = Roster.singles(3, active=0), SecureLayer(), Keys()
    old = opened(layer, view_of(layer, roster, 0, memory=memory))[-1]
    view = view_of(layer, roster, 1, memory=memory)
    opened(layer, view)
    with pytest.raises(MalformedMessage, match=r"party 0 sent 'record ids' of round 0 of fit .*, but this is round 1"):
        LayerOpening(layer).accept(memory, old, view)
    with pytest.raises(MalformedMessage, match="of party 0 cannot be opened: the sealed message must have number 1"):
        LayerOpening(layer).accept(memory, replace(old, round=view.names), view)


def test_computing_other_records_than_were_selected_is_noticed():
    roster, layer = Roster.singles(3, active=0), SecureLayer()
    view = view_of(layer, roster)
    opened(layer, view)
    check_selection(view.memory, view)
    other = replace(view, rows=Rows(torch.tensor([40, 7, 1000, 3, 13]), 0, 5))
    with pytest.raises(RuntimeError, match="party 1 computes other records"):
        check_selection(view.memory, other)


def test_who_is_not_called_is_sent_no_selection():
    roster, layer = Roster.singles(4, active=0), SecureLayer("segments")
    called = torch.tensor([True, True, False, True])
    view = view_of(layer, roster, called=called)
    message = opened(layer, view)[-1]
    assert not any(sent_to(message, 2)[0])
    assert set(view.memory.ids) == {1, 3}


def test_without_an_active_party_nothing_is_selected():
    layer = SecureLayer()
    assert [m.kind for m in opened(layer, view_of(layer, Roster.singles(3)))] == [KEYS]


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("recovery", [None, Recovery()])
def test_no_nonce_is_used_twice_under_one_key(nonces, seeded, recovery):
    """Three stages that share the keys of a process, two ranks of other rows, three periods."""
    roster = Roster.singles(4, active=1)
    layer = SecureLayer(rekey_every=4, recovery=recovery, insecure_seeded_secrets=seeded)
    for start in (0, 5):
        memories = {"fit": Keys(), "validation": Keys()}
        for stage in ("sanity check", "fit", "validation"):
            memory = memories["fit" if stage == "fit" else "validation"]
            for number in range(9):
                opened(layer, view_of(layer, roster, number, stage, memory=memory, start=start))
    assert len(nonces) >= 2 * 27 * 3
    assert len(nonces) == len(set(nonces))


# ---- bytes


@pytest.mark.parametrize("parties", [2, 3, 5])
@pytest.mark.parametrize("active", [None, 1])
@pytest.mark.parametrize("recovery", [None, Recovery()])
@pytest.mark.parametrize("every", [1, 3])
def test_what_is_announced_is_what_is_sent_and_has_a_closed_form(parties, active, recovery, every):
    """Keys of 32 bytes, two with recovery; 8 bytes a record and 28 of sealing; 9 limbs in 4 bytes a secret."""
    roster = Roster.singles(parties, active)
    layer, memory = SecureLayer(rekey_every=every, recovery=recovery), Keys()
    for number in range(2 * every):
        view = view_of(layer, roster, number, memory=memory)
        sent = {
            message.kind: {
                sender: sum(piece[receiver].numel() for receiver in range(parties) if receiver != sender)
                for sender, piece in zip(message.senders, message.pieces, strict=True)
            }
            for message in opened(layer, view)
        }
        legs = {
            leg.kind: leg
            for leg in LayerOpening(layer).legs(5, roster, Roll.everyone(roster.parties).called, number, number - 1)
        }
        assert {kind: {m: n for m, n in enumerate(leg.bytes.tolist()) if n} for kind, leg in legs.items()} == sent
        others = parties - 1
        expected = {} if number % every else {"public keys": [others * (32 if recovery is None else 64)] * parties}
        if recovery is not None and number % every == 0:
            expected |= {
                "round keys": [others * 32 * every] * parties,
                "seed shares": [others * (every * 2 * 9 * 4 + 28)] * parties,
            }
        if active is not None:
            expected["record ids"] = [others * (5 * 8 + 28) if m == active else 0 for m in range(parties)]
        assert {kind: leg.bytes.tolist() for kind, leg in legs.items()} == expected
        assert all(leg.to == "peers" for leg in legs.values())


# ---- which sums there are


@examples(40)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=5), st.booleans())
def test_the_sums_are_those_of_the_paper(sizes, has_active):
    ends = list(itertools.accumulate(sizes))
    groups = tuple(tuple(range(end - size, end)) for size, end in zip(sizes, ends, strict=True))
    alone = [group[0] for group in groups if len(group) == 1]
    active = alone[-1] if has_active and alone else None
    roster = Roster(groups, active)
    assert SecureLayer("sum").segments(roster).members == (tuple(range(roster.parties)),)
    passive = [group for group in groups if group != (active,)]
    expected = tuple(tuple(sorted({*group} | ({active} - {None}))) for group in passive)
    sums = SecureLayer("segments").segments(roster)
    assert sums.members == expected
    for party in range(roster.parties):
        assert sums.of[party] == tuple(number for number, members in enumerate(expected) if party in members)
    assert sums.slots == tuple((m, number) for m in range(roster.parties) for number in sums.of[m])


def test_nothing_secret_is_printed():
    layer, roster = SecureLayer(recovery=Recovery()), Roster.singles(3, active=0)
    view = view_of(layer, roster)
    opened(layer, view)
    said = repr(view.memory) + repr(layer)
    secrets = [seed for own in view.memory.vault.secrets.values() for seed in own.seeds]
    assert len(secrets) == 3 * 5 * 2
    assert not any(repr(secret) in said or secret.hex() in said for secret in secrets)
    assert "X25519" not in said


def test_a_seeded_pair_is_not_that_of_another_period():
    keys = {KeyPair.insecure_seeded(0, "secure layer", "fit", period, 0).public for period in range(5)}
    assert len(keys) == 5
