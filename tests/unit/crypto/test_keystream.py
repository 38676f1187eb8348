"""The keystream against known answers, block by block in another mode, and under forks and copies."""

import copy
import os
import pickle
import struct

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR, ECB
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from lightning_vfl.crypto import Keystream, insecure_words, keystream

# NIST SP 800-38A, F.5.5: CTR-AES256.Encrypt
NIST_KEY = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
NIST_COUNTER = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
NIST_PLAIN = bytes.fromhex(
    "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
    "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
)
NIST_CIPHER = bytes.fromhex(
    "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
    "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
)
KEY = bytes(range(100, 132))


def blocks(n, key=KEY):
    """n 64-bit words, as the encryption of 0, 1, 2, ... one block at a time."""
    counters = b"".join(struct.pack(">QQ", 0, i) for i in range((n + 1) // 2))
    encryptor = Cipher(AES(key), ECB()).encryptor()
    return np.frombuffer(encryptor.update(counters) + encryptor.finalize(), np.uint64)[:n].tolist()


@pytest.fixture
def known(monkeypatch):
    """Every key that is asked of the operating system is one more than the last, from KEY on."""
    asked = []

    def urandom(n):
        asked.append(n)
        return bytes((byte + len(asked) - 1) % 256 for byte in KEY)

    monkeypatch.setattr(keystream.os, "urandom", urandom)
    return asked


def test_the_known_answer_of_nist(monkeypatch):
    """Started at NIST's counter instead of 0: its keystream is what the plain text and the cipher text differ by."""
    monkeypatch.setattr(keystream.os, "urandom", lambda n: NIST_KEY[:n])
    monkeypatch.setattr(keystream, "CTR", lambda counter: CTR(NIST_COUNTER))
    wanted = bytes(a ^ b for a, b in zip(NIST_PLAIN, NIST_CIPHER, strict=True))
    assert Keystream().words(8).tobytes() == wanted


def test_the_known_answer_comes_in_parts_too(monkeypatch):
    monkeypatch.setattr(keystream.os, "urandom", lambda n: NIST_KEY[:n])
    monkeypatch.setattr(keystream, "CTR", lambda counter: CTR(NIST_COUNTER))
    secrets = Keystream()
    parts = b"".join(secrets.words(n).tobytes() for n in (1, 0, 3, 2, 2))
    assert parts == bytes(a ^ b for a, b in zip(NIST_PLAIN, NIST_CIPHER, strict=True))


@pytest.mark.parametrize("n", [0, 1, 2, 7, 2**15 - 1, 2**15, 2**15 + 1, 2**16, 2**16 + 3])
def test_words_are_the_encrypted_counter_from_zero(known, n):
    """Around the 2^15 words that are encrypted in one call."""
    words = Keystream().words(n)
    assert words.dtype == np.uint64
    assert words.tolist() == blocks(n)
    assert known == [32]


@given(st.lists(st.one_of(st.integers(0, 20), st.sampled_from([2**15 - 1, 2**15, 2**15 + 2])), max_size=6))
def test_the_next_words_go_on_where_the_last_have_ended(sizes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keystream.os, "urandom", lambda n: KEY)
        secrets = Keystream()
        assert [w for n in sizes for w in secrets.words(n).tolist()] == blocks(sum(sizes))


def test_no_word_is_repeated(known):
    words = Keystream().words(100_000)  # two of 10^5 are equal with probability 3e-10
    assert len(np.unique(words)) == len(words)


def test_words_are_written_to_memory_of_their_own(known):
    secrets = Keystream()
    first = secrets.words(2**15 + 5)
    kept = first.copy()
    secrets.words(2**15 + 5)
    assert (first == kept).all()


def test_every_object_has_a_key_of_its_own(known):
    assert Keystream().words(4).tolist() != Keystream().words(4).tolist()
    assert known == [32, 32]
    assert not (Keystream().words(1000) == Keystream().words(1000)).any()


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_has_a_fresh_key(known, again):
    secrets = Keystream()
    secrets.words(6)
    other = again(secrets)
    assert isinstance(other, Keystream)
    assert len(known) == 2
    assert other.words(6).tolist() == blocks(6, bytes(byte + 1 for byte in KEY))
    assert secrets.words(2).tolist() == blocks(8)[6:]


def test_a_pickle_holds_no_key(known):
    secrets = Keystream()
    assert KEY not in pickle.dumps(secrets)
    assert len(pickle.dumps(secrets)) < 100


def test_another_process_takes_another_key(known, monkeypatch):
    secrets = Keystream()
    secrets.words(2)
    monkeypatch.setattr(keystream.os, "getpid", lambda: -1)
    assert secrets.words(4).tolist() == blocks(4, bytes(byte + 1 for byte in KEY))
    assert secrets.words(2).tolist() == blocks(6, bytes(byte + 1 for byte in KEY))[4:]  # and keeps it
    assert known == [32, 32]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_and_its_parent_share_no_word():
    secrets = Keystream()
    secrets.words(3)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # nothing here may raise: an exception would run the tests twice
        os.write(writer, secrets.words(64).tobytes())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        theirs = np.frombuffer(pipe.read(), np.uint64)
    os.waitpid(child, 0)
    assert len(theirs) == 64
    assert not np.isin(theirs, secrets.words(64)).any()


@pytest.mark.parametrize("make", [lambda: Keystream().words, lambda: insecure_words(0)], ids=["secret", "seeded"])
def test_bytes_are_equally_distributed(known, make):
    """Smoke, not proof: all bytes, and the lowest and highest bits of words; fixed keys, so that it cannot flake."""
    words = make()(2**17)
    assert chisquare(np.bincount(words.view(np.uint8), minlength=256)).pvalue > 1e-6
    for bits in (words & np.uint64(15), words >> np.uint64(60)):
        assert chisquare(np.bincount(bits.astype(np.int64), minlength=16)).pvalue > 1e-6


def test_the_keys_of_the_operating_system_give_equally_distributed_bytes():
    """Smoke, not proof: fails once in 10^9 runs."""
    assert chisquare(np.bincount(Keystream().words(2**15).view(np.uint8), minlength=256)).pvalue > 1e-9


def test_seeded_words_are_a_function_of_seed_and_names():
    words = insecure_words(1, "weights", 1)(10).tolist()
    assert words == insecure_words(1, "weights", 1)(10).tolist()
    others = [(2, "weights", 1), (1, "weights", 2), (1, "zeros", 1), (1,)]
    assert all(insecure_words(*names)(10).tolist() != words for names in others)


def test_a_seeded_source_goes_on():
    words = insecure_words(1, "weights")
    assert [*words(3).tolist(), *words(4).tolist()] == insecure_words(1, "weights")(7).tolist()
