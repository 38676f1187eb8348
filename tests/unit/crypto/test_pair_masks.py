"""Keystreams of pairs against known answers and block by block; masks against their definition, alone and together."""

import copy
import itertools
import os
import pickle
import struct
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from lightning_vfl.crypto import (
    KeyPair,
    MaskNames,
    PairKeys,
    PairKeystream,
    PairMasks,
    add_together,
)
from lightning_vfl.crypto.pair_masks import CHUNK, _scratch
from lightning_vfl.errors import ConfigurationError
from tests.examples import examples
from tests.keystream_uses import Use, recorded, reused
from tests.unit.crypto.test_keys import COPIES, in_a_fork
from tests.unit.crypto.test_keystream import NIST_CIPHER, NIST_COUNTER, NIST_KEY, NIST_PLAIN

KEY = bytes(range(100, 132))
NAMES = MaskNames("embeddings", "fit", segment=0, rank=0, period=0)
SESSION = b"a session"
TOP = 2**64 - 1


def oracle(key, round, n):
    """The n words of a round as Python integers: one block at a time, in another mode."""
    count = -(-n * 4 // 16)
    counters = b"".join(struct.pack(">QQ", round, block) for block in range(count))
    encryptor = Cipher(AES(key), ECB()).encryptor()
    return list(struct.unpack(f"<{n}I", encryptor.update(counters)[: 4 * n]))


def setting(count, bits=32, seed=0, period=0):
    """The masks of this many parties, each with keys of its own making."""
    pairs = [KeyPair.insecure_seeded(seed, "party", m, "period", period) for m in range(count)]
    publics = {m: pair.public for m, pair in enumerate(pairs)}
    held = [PairKeys(m, pair, publics, SESSION) for m, pair in enumerate(pairs)]
    return [PairMasks(keys, bits) for keys in held]


def add_up(arrays, bits):
    """Their sum in the ring, by Python integers."""
    return [sum(values) % 2**bits for values in zip(*(array.ravel().tolist() for array in arrays), strict=True)]


class AtNistCounter:
    """An encryptor that begins at NIST's counter, whatever counter block it is given."""

    def __init__(self, encryptor):
        self.encryptor, self.update_into = encryptor, encryptor.update_into

    def reset_nonce(self, block):
        self.encryptor.reset_nonce(NIST_COUNTER)


def test_the_known_answer_of_nist():
    """Started at NIST's counter, SP 800-38A, F.5.5: its keystream is what plain text and cipher text differ by."""
    stream = PairKeystream(NIST_KEY)
    progress = stream._progress.open()
    progress.encryptor = AtNistCounter(progress.encryptor)
    wanted = bytes(a ^ b for a, b in zip(NIST_PLAIN, NIST_CIPHER, strict=True))
    assert stream.words(0, 16).tobytes() == wanted


@pytest.mark.parametrize("round", [0, 1, 255, 2**32, 2**63, TOP])
def test_the_round_is_the_upper_half_of_the_counter_block(round):
    words = PairKeystream(KEY).words(round, 37)
    assert words.dtype == np.uint32
    assert words.tolist() == oracle(KEY, round, 37)


@pytest.mark.parametrize("beyond", [-1, 0, 1, 5])
@pytest.mark.parametrize("chunks", [1, 2])
def test_long_stretches_go_on_behind_a_chunk(chunks, beyond):
    n = chunks * CHUNK // 4 + beyond
    assert PairKeystream(KEY).words(5, n).tolist() == oracle(KEY, 5, n)


@given(st.lists(st.tuples(st.integers(1, 2**33), st.integers(0, 50)), max_size=8))
def test_a_round_depends_on_nothing_drawn_before(draws):
    """Whatever block a round has ended in the middle of, the next one starts at a block of its own."""
    stream = PairKeystream(KEY)
    round = -1
    for step, n in draws:
        round += step
        assert stream.words(round, n).tolist() == oracle(KEY, round, n)


@given(st.data())
def test_words_are_added_and_subtracted_in_their_ring(data):
    extremes = st.sampled_from([0, 1, 2**31, 2**32 - 1])
    before = data.draw(st.lists(st.one_of(extremes, st.integers(0, 2**32 - 1)), max_size=20))
    sign = data.draw(st.sampled_from([1, -1]))
    values = np.array(before, np.uint32)
    PairKeystream(KEY).add_to(values, 3, sign)
    pad = oracle(KEY, 3, len(before))
    assert values.tolist() == [(b + sign * w) % 2**32 for b, w in zip(before, pad, strict=True)]


def test_values_may_have_a_stride():
    whole = np.zeros(20, np.uint32)
    PairKeystream(KEY).add_to(whole[::-2], 0)
    assert whole[::-2].tolist() == oracle(KEY, 0, 10)
    assert not whole[::2].any()


@pytest.mark.parametrize("round", [-1, -(2**64), 2**64, 2**64 + 3, 2**128])
def test_a_round_that_does_not_fit_its_half_is_refused(round):
    """2^64 + 3 taken modulo 2^64 would be round 3 again."""
    stream = PairKeystream(KEY)
    with pytest.raises(ValueError, match="round must fit 64 bits"):
        stream.words(round, 4)
    assert stream.words(0, 4).tolist() == oracle(KEY, 0, 4)


def test_a_round_is_a_whole_number():
    with pytest.raises(TypeError):
        PairKeystream(KEY).words(1.0, 4)
    assert PairKeystream(KEY).words(np.int64(7), 4).tolist() == oracle(KEY, 7, 4)


@pytest.mark.parametrize("round", [0, 6, 7])
def test_no_round_is_handed_out_twice(round):
    stream = PairKeystream(KEY)
    stream.words(7, 1)
    with pytest.raises(
        ValueError, match=f"round {round} must be above the last round 7, because words must never be used twice"
    ):
        stream.words(round, 4)
    assert stream.words(8, 4).tolist() == oracle(KEY, 8, 4)


def test_a_refused_round_leaves_values_alone():
    stream, values = PairKeystream(KEY), np.arange(5, dtype=np.uint32)
    stream.words(7, 1)
    with pytest.raises(ValueError, match="must be above the last round"):
        stream.add_to(values, 7)
    assert values.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("values", [np.zeros(3, np.uint64), np.zeros(3, np.int32), np.zeros((3, 1), np.uint32)])
def test_values_of_another_kind_are_refused_and_use_no_round(values):
    stream = PairKeystream(KEY)
    with pytest.raises(ValueError, match="values must be"):
        stream.add_to(values, 0)
    assert stream.words(0, 2).tolist() == oracle(KEY, 0, 2)


def test_another_key_is_refused():
    with pytest.raises(ValueError, match="must have 32 bytes; got 16"):
        PairKeystream(bytes(16))


def test_every_thread_has_scratch_memory_of_its_own():
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(lambda: _scratch.target).result()
    assert theirs.obj is not _scratch.target.obj


@pytest.mark.parametrize("again", COPIES)
def test_a_deep_copy_of_a_keystream_gives_nothing(again):
    stream = PairKeystream(KEY)
    stream.words(0, 4)
    copied = again(stream)
    with pytest.raises(RuntimeError, match="set up again"):
        copied.words(1, 4)
    assert KEY not in pickle.dumps(stream)
    assert stream.words(1, 4).tolist() == oracle(KEY, 1, 4)


@pytest.mark.parametrize("again", COPIES)
def test_a_deep_copy_of_masks_gives_nothing_under_old_and_new_names(again):
    masks = setting(3)[1]
    masks.mask_of((0, 1, 2), NAMES, 0, 4)
    copied = again(masks)
    for names in (NAMES, NAMES._replace(stage="test")):
        with pytest.raises(RuntimeError, match="set up again"):
            copied.mask_of((0, 1, 2), names, 1, 4)
    assert masks.mask_of((0, 1, 2), NAMES, 1, 4).any()


def test_a_shallow_copy_is_the_same_stream():
    """Not a second one from the same place."""
    stream, masks = PairKeystream(KEY), setting(2)[0]
    copied, other = copy.copy(stream), copy.copy(masks)
    assert copied.words(3, 4).tolist() == oracle(KEY, 3, 4)
    other.mask_of((0, 1), NAMES, 3, 4)
    with pytest.raises(ValueError, match="must be above the last round 3"):
        stream.words(3, 4)
    with pytest.raises(ValueError, match="must be above the last round 3"):
        masks.mask_of((0, 1), NAMES, 3, 4)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_gets_no_mask():
    """Parent and child would mask two messages of round 1 with the same words."""
    masks, stream = setting(2)[0], PairKeystream(KEY)
    masks.mask_of((0, 1), NAMES, 0, 4)
    for work in (
        lambda: masks.mask_of((0, 1), NAMES, 1, 4),
        lambda: masks.mask_of((0, 1), NAMES._replace(rank=1), 1, 4),
        lambda: stream.words(1, 4),
    ):
        assert in_a_fork(work).startswith("RuntimeError: keys work only in the object and the process that made them")
    assert masks.mask_of((0, 1), NAMES, 1, 4).any()


@given(st.data())
def test_masks_of_all_members_cancel_exactly(data):
    """Any members of any number of parties, in any order each, any ring, shape and round; nobody else matters."""
    count, bits = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 32))
    members = data.draw(st.lists(st.integers(0, count - 1), unique=True, min_size=1))
    shape = data.draw(st.sampled_from([(), (1,), (7,), (3, 5), (2, 3, 4), (0, 3)]))
    round = data.draw(st.integers(0, TOP))
    masks = setting(count, bits)
    given_out = [masks[m].mask_of(data.draw(st.permutations(members)), NAMES, round, shape) for m in members]
    assert all(mask.shape == shape and mask.dtype == np.uint32 for mask in given_out)
    assert all(mask.size == 0 or int(mask.max()) < 2**bits for mask in given_out)
    assert not any(add_up(given_out, bits))


@pytest.mark.parametrize("bits", [1, 20, 32])
def test_a_mask_is_its_definition(bits):
    """The lower number adds, the higher subtracts; words by the oracle, sums by Python integers."""
    masks = setting(4, bits)
    members = (3, 0, 2)
    for m in members:
        wanted = [0] * 9
        for j in set(members) - {m}:
            key = masks[m].keys.key(j, "mask", bits, *NAMES)
            sign = 1 if m < j else -1
            wanted = [w + sign * word for w, word in zip(wanted, oracle(key, 6, 9), strict=True)]
        assert masks[m].mask_of(members, NAMES, 6, 9).tolist() == [w % 2**bits for w in wanted]


def test_streams_of_different_names_pairs_rounds_rings_and_key_pairs_differ():
    """512 bits of each: equal ones would share blocks. Whoever owns the stream, whatever it is for."""
    others = [
        NAMES._replace(purpose="updates"),
        NAMES._replace(stage="validation"),
        NAMES._replace(segment=1),
        NAMES._replace(rank=1),
        NAMES._replace(period=1),
    ]
    streams = {}
    with recorded(party=0) as uses:
        masks = setting(3)
        for pair, names, round in itertools.product(((0, 1), (0, 2), (1, 2)), [NAMES, *others], range(3)):
            shared = masks[pair[0]].keystreams(pair, names)[pair[1]]
            streams[pair, names, round] = shared.words(round, 16).tobytes()
        streams["next key pairs"] = setting(2, period=1)[0].keystreams([1], NAMES)[1].words(0, 16).tobytes()
        streams["another ring"] = setting(2, 31)[0].keystreams([1], NAMES)[1].words(0, 16).tobytes()
    assert len(set(streams.values())) == len(streams) == 3 * 6 * 3 + 2
    blocks = Counter(text[i : i + 16] for text in streams.values() for i in range(0, 64, 16))
    assert set(blocks.values()) == {1}
    assert len({(use.key, use.start) for use in uses}) == len(streams)
    assert reused(uses) == []


@pytest.mark.parametrize("bits", [5, 32])
@pytest.mark.parametrize("party", range(3))
def test_what_one_party_sends_is_uniform(party, bits):
    """Smoke, not proof: the worst values, all equal; fixed keys, so that it cannot flake."""
    masks = setting(3, bits)[party]
    values = np.full(2**16, 2**bits // 2, np.uint32)
    masks.add_to(values, (0, 1, 2), NAMES, 0)
    for shift in {0, max(0, bits - 8), max(0, bits // 2 - 4)}:
        kept = min(8, bits)
        found = np.bincount((values >> np.uint32(shift) & np.uint32(2**kept - 1)).astype(np.int64), minlength=2**kept)
        assert chisquare(found).pvalue > 1e-6


def test_what_two_of_three_parties_send_is_jointly_uniform():
    """Smoke, not proof: pairs of the top four bits, of any two parties and of neighbours in one message."""
    sent = [masks.mask_of((0, 1, 2), NAMES, 0, 2**16) >> np.uint32(28) for masks in setting(3)]
    pairs = [(sent[0], sent[1]), (sent[0], sent[2]), (sent[1], sent[2]), (sent[0][:-1], sent[0][1:])]
    for one, other in pairs:
        assert chisquare(np.bincount((16 * one + other).astype(np.int64), minlength=256)).pvalue > 1e-6


class AllWords:
    """In place of a pair's keystream: the next of all combinations of words that the pairs of a small ring can have."""

    def __init__(self, word):
        self.word = word

    def add_to(self, values, round, sign):
        values += np.array(sign * self.word, np.int64).astype(values.dtype)


@pytest.mark.parametrize("bits", [1, 2, 3])
@pytest.mark.parametrize("hidden", [(0, 0, 0), (1, 0, 1), (1, 1, 0)])
def test_every_message_of_a_given_sum_is_equally_likely(monkeypatch, bits, hidden):
    """Lemma 4.1 of vFedSec, by enumeration: all words of the three pairs, in a ring of 2 to 8 elements."""
    size, masks, words = 2**bits, setting(3, bits), {}

    def keystreams(self, members, names):
        return {j: AllWords(words[frozenset((self.keys.party, j))]) for j in members if j != self.keys.party}

    monkeypatch.setattr(PairMasks, "keystreams", keystreams)
    seen = Counter()
    for drawn in itertools.product(range(size), repeat=3):
        words.update(zip(map(frozenset, ((0, 1), (0, 2), (1, 2))), drawn, strict=True))
        sent = []
        for own, value in zip(masks, hidden, strict=True):
            message = np.array([value], np.uint32)
            own.add_to(message, (0, 1, 2), NAMES, 0)
            sent.append(int(message[0]))
        seen[tuple(sent)] += 1
    of_that_sum = [s for s in itertools.product(range(size), repeat=3) if sum(s) % size == sum(hidden) % size]
    assert seen == dict.fromkeys(of_that_sum, size)


@pytest.mark.parametrize("members", [(), (1,)])
def test_nobody_else_means_no_mask_and_no_use(uses, members):
    masks = setting(3)[1]
    assert masks.mask_of(members, NAMES, 0, (2, 2)).tolist() == [[0, 0], [0, 0]]
    assert uses == []


def test_members_that_make_no_sense_are_refused_and_use_no_round():
    masks, values = setting(3)[1], np.arange(4, dtype=np.uint32)
    for members, reason in {
        (0, 2): r"the members must include party 1; got \[0, 2\]",
        (0, 1, 0): "must name every party once",
        (1, 1): "must name every party once",
        (0, 1, 5): r"party 1 shares a secret with \[0, 2\], not with party 5",
    }.items():
        with pytest.raises(ValueError, match=reason):
            masks.add_to(values, members, NAMES, 0)
    assert values.tolist() == [0, 1, 2, 3]
    masks.add_to(values, (0, 1, 2), NAMES, 0)


@pytest.mark.parametrize(
    ("bits", "values"),
    [
        (32, np.zeros(4, np.uint64)),
        (32, np.zeros(4, np.int32)),
        (32, np.zeros((4, 4), np.uint32).T[1:]),
        (32, np.zeros(8, np.uint32)[::2]),
    ],
)
def test_values_of_another_type_or_order_are_refused(bits, values):
    with pytest.raises(ValueError, match="values of a ring must be uint32 in C order"):
        setting(2, bits)[0].add_to(values, (0, 1), NAMES, 0)


@pytest.mark.parametrize("bits", [0, 33, -1])
def test_a_ring_that_fits_no_word_is_refused(bits):
    with pytest.raises(ConfigurationError, match="must be a whole number from 1 to 32"):
        setting(2, bits)


def test_masking_twice_in_a_round_is_refused():
    """An optimiser that evaluates a step twice would send two messages under one mask."""
    masks = setting(2)[0]
    masks.mask_of((0, 1), NAMES, 4, 3)
    with pytest.raises(ValueError, match="set up again with new keys"):
        masks.mask_of((0, 1), NAMES, 4, 3)
    assert masks.mask_of((0, 1), NAMES._replace(segment=1), 4, 3).any()


@given(st.data())
@examples(16)
def test_no_keystream_byte_is_used_twice_in_any_run(data):
    """Rounds of several stages, segments, ranks and periods with changing members, as the record has it."""
    steps, rekey_every = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 4))
    with recorded() as uses:
        _mask_some_rounds(data, steps, rekey_every)
    assert reused(uses) == []
    assert all(use.stop > use.start and use.start >> 64 == (use.stop - 1) >> 64 for use in uses)
    assert set(Counter((use.key, use.start) for use in uses).values()) <= {2}  # both ends of a pair


def _mask_some_rounds(data, steps, rekey_every):
    masks = {}
    for round in range(steps):
        period = round // rekey_every
        members = data.draw(st.lists(st.integers(0, 3), unique=True, max_size=4))
        for stage, segment, rank in itertools.product(("fit", "validation"), (0, 1), (0, 1)):
            n = data.draw(st.sampled_from([0, 1, 3, 4, 5, 64]))
            names = MaskNames("embeddings", stage, segment, rank, period)
            # every rank sets up alone; here with the same seeded keys, so that only names keep the ranks apart
            own = masks.setdefault((rank, period), setting(4, period=period))
            given_out = [own[m].mask_of(members, names, round, n) for m in members]
            assert not any(add_up(given_out, 32))


def test_the_record_says_which_blocks_were_handed_out():
    with recorded(party=3) as uses:
        stream = PairKeystream(KEY)
        for round, n in ((0, 1), (1, 4), (2, 5), (5, 0), (2**40, 2 * CHUNK // 4)):
            stream.words(round, n)
    assert [(use.party, use.start, use.stop) for use in uses] == [
        (3, 0, 1),
        (3, 2**64, 2**64 + 1),
        (3, 2 * 2**64, 2 * 2**64 + 2),
        (3, 2**104, 2**104 + 2 * CHUNK // 16),
    ]
    assert len({use.key for use in uses}) == 1
    assert KEY.hex()[:8] not in uses[0].key


def test_the_record_finds_two_ranks_under_one_name(uses):
    for _ in range(2):
        setting(2)[0].mask_of((0, 1), NAMES, 0, 10)
    assert len(reused(uses)) == 1
    setting(2)[0].mask_of((0, 1), NAMES._replace(rank=1), 0, 10)
    assert len(reused(uses)) == 1


def test_the_record_finds_a_run_that_was_resumed_with_its_old_keys():
    with recorded() as uses:
        for seed in (0, 0):
            setting(2, 32, seed=seed)[1].mask_of((0, 1), NAMES, 3, 10)
    with recorded() as fresh:
        for seed in (0, 1):
            setting(2, 32, seed=seed)[1].mask_of((0, 1), NAMES, 3, 10)
    assert len(reused(uses)) == 1
    assert reused(fresh) == []


@given(
    st.lists(
        st.builds(
            lambda party, key, start, blocks: Use(party, key, start, start + blocks),
            st.integers(0, 1),
            st.sampled_from("ab"),
            st.integers(0, 30),
            st.integers(1, 12),
        ),
        max_size=8,
    )
)
def test_overlaps_are_found_block_by_block(uses):
    blocks = Counter((use.party, use.key, block) for use in uses for block in range(use.start, use.stop))
    found = reused(uses)
    assert bool(found) == any(count > 1 for count in blocks.values())
    for one, other in found:
        assert (one.party, one.key) == (other.party, other.key)
        assert max(one.start, other.start) < min(one.stop, other.stop)


def test_a_third_party_with_a_key_is_found():
    uses = [Use(party, "key", 10 * party, 10 * party + 5) for party in range(3)]
    assert reused(uses[:2]) == []
    assert reused(uses) == [(uses[0], uses[2])]


def test_equal_names_are_one_stream():
    masks = setting(2)[0]
    assert masks.keystreams((0, 1), NAMES)[1] is masks.keystreams([1], MaskNames(*NAMES))[1]


# ---- several parties in one process


def keys_of(count, session=b"together"):
    pairs = [KeyPair() for _ in range(count)]
    publics = {party: pair.public for party, pair in enumerate(pairs)}
    return lambda: [PairKeys(m, pair, publics, session=session) for m, pair in enumerate(pairs)]


@pytest.mark.parametrize("bits", [1, 31, 32])
@pytest.mark.parametrize("hosted", [(0, 1, 2, 3), (1, 3), (2,), (3, 0, 2)])
def test_masks_of_hosted_parties_are_those_of_each_alone(bits, hosted):
    make, names = keys_of(4), MaskNames("embeddings", "fit", 0, 0, 0)
    alone, together = (
        [PairMasks(keys, bits) for keys in make()],
        dict(enumerate(PairMasks(keys, bits) for keys in make())),
    )
    for round, members in ((0, (0, 1, 2, 3)), (5, (3, 2, 1, 0)), (6, tuple(sorted({*hosted, 0})))):
        draw = np.random.Generator(np.random.PCG64(round))
        values = {m: draw.integers(0, 2**bits, (3, 5), dtype=np.uint32) for m in hosted}
        expected = {m: own.copy() for m, own in values.items()}
        for m, own in expected.items():
            alone[m].add_to(own, members, names, round)
        add_together(together, values, members, names, round)
        for m in hosted:
            assert np.array_equal(values[m], expected[m])


def test_more_words_than_one_piece():
    make, names, size = keys_of(2), MaskNames("embeddings", "fit", 0, 0, 0), 2**17 + 5
    values = {m: np.zeros(size, np.uint32) for m in range(2)}
    add_together(dict(enumerate(map(PairMasks, make()))), values, (0, 1), names, 0)
    assert np.array_equal(values[0], PairMasks(make()[0]).mask_of((0, 1), names, 0, size))
    assert not (values[0] + values[1]).any()


def test_a_round_is_used_at_both_ends():
    make, names = keys_of(2), MaskNames("embeddings", "fit", 0, 0, 0)
    masks = dict(enumerate(map(PairMasks, make())))
    add_together(masks, {m: np.zeros(4, np.uint32) for m in range(2)}, (0, 1), names, 7)
    for m in range(2):
        with pytest.raises(ValueError, match="above the last round 7"):
            masks[m].add_to(np.zeros(4, np.uint32), (0, 1), names, 7)
    with pytest.raises(ValueError, match="above the last round 7"):
        add_together(masks, {m: np.zeros(4, np.uint32) for m in range(2)}, (0, 1), names, 7)


def test_parties_that_have_not_agreed_have_the_masks_of_their_own_keys():
    """As on machines of their own: nothing cancels."""
    one, other, names = keys_of(2), keys_of(2), MaskNames("embeddings", "fit", 0, 0, 0)
    values = {m: np.zeros(4, np.uint32) for m in range(2)}
    add_together({0: PairMasks(one()[0]), 1: PairMasks(other()[1])}, values, (0, 1), names, 0)
    assert np.array_equal(values[0], PairMasks(one()[0]).mask_of((0, 1), names, 0, 4))
    assert np.array_equal(values[1], PairMasks(other()[1]).mask_of((0, 1), names, 0, 4))


def test_hosted_parties_are_checked_like_each_alone():
    make, names = keys_of(3), MaskNames("embeddings", "fit", 0, 0, 0)
    masks = dict(enumerate(map(PairMasks, make())))
    for values, members, said in (
        ({0: np.zeros(4, np.uint64)}, (0, 1), "in C order"),
        ({0: np.zeros((4, 4), np.uint32)[:, :2]}, (0, 1), "in C order"),
        ({2: np.zeros(4, np.uint32)}, (0, 1), "must include party 2"),
        ({0: np.zeros(4, np.uint32)}, (0, 1, 1), "every party once"),
        ({0: np.zeros(4, np.uint32)}, (0, 7), "not with party 7"),
    ):
        with pytest.raises(ValueError, match=said):
            add_together(masks, values, members, names, 0)
