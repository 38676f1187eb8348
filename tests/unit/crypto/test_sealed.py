"""Sealed messages against published answers of AES-256-GCM, and what tampering, repetition and copies are told."""

import copy
import os
import pickle

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.crypto import Sealed
from lightning_vfl.crypto.sealed import NONCE, OVERHEAD, TAG

# McGrew and Viega, "The Galois/Counter Mode of Operation", appendix B, test cases 13 to 15 (256-bit keys, 96-bit nonces
# and nothing authenticated besides): key, nonce, message, ciphertext, tag. NIST's submission has the same.
KEY = "feffe9928665731c6d6a8f9467308308" * 2
KNOWN = {
    "13": ("00" * 32, "00" * 12, "", "", "530f8afbc74536b9a963b4f1c4cb738b"),
    "14": (
        "00" * 32,
        "00" * 12,
        "00" * 16,
        "cea7403d4d606b6e074ec5d3baf39d18",
        "d0d1c8a799996bf0265b98b5d48ab919",
    ),
    "15": (
        KEY,
        "cafebabefacedbaddecaf888",
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255",
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
        "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad",
        "b094dac5d93471bdec1a502270e3cc6c",
    ),
}
messages = st.binary(max_size=60)


@pytest.mark.parametrize("case", ["13", "14"])
def test_the_known_answers_for_the_nonce_zero(case):
    key, nonce, message, ciphertext, tag = map(bytes.fromhex, KNOWN[case])
    assert Sealed(key).seal(message, 0) == nonce + ciphertext + tag


@pytest.mark.parametrize("case", KNOWN)
def test_the_known_answers_are_opened(case):
    key, nonce, message, ciphertext, tag = map(bytes.fromhex, KNOWN[case])
    assert Sealed(key).open(nonce + ciphertext + tag, int.from_bytes(nonce, "big")) == message


@given(st.binary(min_size=32, max_size=32), messages, st.integers(0, 2**64 - 1))
def test_a_message_is_what_the_cipher_makes_of_it_under_its_number(key, message, number):
    nonce = number.to_bytes(12, "big")
    sealed = Sealed(key).seal(message, number)
    assert sealed == nonce + AESGCM(key).encrypt(nonce, message, b"")
    assert (NONCE, TAG, OVERHEAD, len(sealed)) == (12, 16, 28, len(message) + 28)
    assert Sealed(key).open(sealed, number) == message


@given(st.lists(st.integers(0, 40), min_size=2, max_size=8))
def test_no_number_is_sealed_twice_and_none_below_the_last(numbers):
    channel, last = Sealed(bytes(32)), -1
    for number in numbers:
        if number > last:
            assert channel.seal(b"x", number)[:12] == number.to_bytes(12, "big")
            last = number
        else:
            with pytest.raises(ValueError, match="a nonce must never be used twice"):
                channel.seal(b"x", number)


@pytest.mark.parametrize("number", [-1, 2**64, 2**96])
def test_numbers_that_are_no_counter_are_refused(number):
    with pytest.raises(ValueError):
        Sealed(bytes(32)).seal(b"x", number)


def test_every_bit_is_authenticated():
    """Each bit of a sealed message turned over: nonce, ciphertext and tag."""
    sealed = Sealed(bytes(32)).seal(b"ids", 7)
    for bit in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError, match=r"(message|number) 7( |,|$)"):
            Sealed(bytes(32)).open(bytes(changed), 7)


@given(messages, messages)
def test_what_is_cut_off_or_added_is_noticed(message, more):
    sealed = Sealed(bytes(32)).seal(message, 1)
    for changed in {sealed[:-1], sealed[:12], sealed[:20], b"", sealed + (more or b"x")} - {sealed}:
        with pytest.raises(ValueError):
            Sealed(bytes(32)).open(changed, 1)


def test_another_number_and_another_key_open_nothing():
    sender, receiver = Sealed(bytes(32)), Sealed(bytes(32))
    first, second = sender.seal(b"one", 1), sender.seal(b"one", 2)
    assert first[12:] != second[12:]
    with pytest.raises(ValueError, match="must have number 2"):
        receiver.open(first, 2)
    with pytest.raises(ValueError, match="sealed with another key"):
        Sealed(bytes([1]) * 32).open(first, 1)
    swapped = second[:12] + first[12:]
    with pytest.raises(ValueError, match="message 2 was changed"):
        receiver.open(swapped, 2)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_and_pickles_have_no_key(again):
    channel = Sealed(bytes(range(32)))
    sealed = channel.seal(b"ids", 3)
    copied = again(channel)
    with pytest.raises(RuntimeError, match="set up again"):
        copied.open(sealed, 3)
    with pytest.raises(RuntimeError, match="set up again"):
        copied.seal(b"ids", 4)
    assert bytes(range(32)) not in pickle.dumps(channel)
    assert channel.open(sealed, 3) == b"ids"


def test_a_shallow_copy_is_told_of_numbers_that_are_used():
    """Two counters over one key would be a nonce used twice."""
    channel = Sealed(bytes(32))
    other = copy.copy(channel)
    channel.seal(b"one", 5)
    with pytest.raises(ValueError):
        other.seal(b"two", 5)


def test_a_forked_process_seals_nothing():
    channel = Sealed(bytes(32))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # nothing here may raise: an exception would run the tests twice
        try:
            channel.seal(b"x", 0)
            os.write(writer, b"sealed")
        except BaseException as error:
            os.write(writer, type(error).__name__.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == "RuntimeError"
    os.waitpid(child, 0)
