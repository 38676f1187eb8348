"""Key pairs against RFC 7748, derived keys against RFC 5869, and what copies, pickles and forks do not get."""

import copy
import hashlib
import hmac
import os
import pickle
import struct

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.crypto import Confined, KeyPair, PairKeys, derive, hkdf, keys

# RFC 7748, Section 5.2: scalar, u-coordinate, product; the second u has its unused top bit set
MULTIPLES = [
    (
        "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
        "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
        "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
    ),
    (
        "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
        "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
        "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
    ),
]
# RFC 7748, Section 6.1
ALICE = "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"
ALICE_PUBLIC = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
BOB = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"
BOB_PUBLIC = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
SHARED = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
P = 2**255 - 19
ORDER_EIGHT = (
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
)
LOW_ORDER = [u.to_bytes(32, "little") for u in (0, 1, P - 1, P, P + 1)] + [bytes.fromhex(u) for u in ORDER_EIGHT]
# RFC 5869, Appendix A.1 to A.3: input, salt, info, output
EXPANSIONS = [
    (
        bytes([0x0B] * 22),
        bytes(range(0x0D)),
        bytes(range(0xF0, 0xFA)),
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
    ),
    (
        bytes(range(0x50)),
        bytes(range(0x60, 0xB0)),
        bytes(range(0xB0, 0x100)),
        "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09"
        "da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87",
    ),
    (
        bytes([0x0B] * 22),
        b"",
        b"",
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
    ),
]
SESSION = b"a session"
COPIES = [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), lambda x: pickle.loads(pickle.dumps(x, 2))]
names = st.lists(st.one_of(st.integers(), st.text(max_size=4), st.binary(max_size=4)), max_size=4).map(tuple)


def pair_of(private):
    return KeyPair(X25519PrivateKey.from_private_bytes(bytes.fromhex(private)))


def hkdf_of_rfc_5869(secret, salt, info, size):
    """Sections 2.2 and 2.3, by HMAC alone."""
    pseudorandom = hmac.digest(salt or bytes(32), secret, "sha256")
    out, block = b"", b""
    while len(out) < size:
        block = hmac.digest(pseudorandom, block + info + bytes([len(out) // 32 + 1]), "sha256")
        out += block
    return out[:size]


def parties(count, session=SESSION):
    pairs = [KeyPair.insecure_seeded(0, "party", m) for m in range(count)]
    publics = {m: pair.public for m, pair in enumerate(pairs)}
    return [PairKeys(m, pair, publics, session) for m, pair in enumerate(pairs)]


def in_a_fork(work):
    """What ``work`` gives in a forked process, as text; an exception by its type and message."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # nothing here may raise: an exception would run the tests twice
        try:
            said = repr(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


@pytest.mark.parametrize(("scalar", "u", "product"), MULTIPLES)
def test_the_known_answers_of_rfc_7748_5_2(scalar, u, product):
    assert pair_of(scalar).shared(bytes.fromhex(u)).hex() == product


def test_the_thousand_iterations_of_rfc_7748_5_2():
    scalar = u = (9).to_bytes(32, "little")
    after = []
    for _ in range(1000):
        scalar, u = pair_of(scalar.hex()).shared(u), scalar
        after.append(scalar.hex())
    assert after[0] == "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
    assert after[-1] == "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"


def test_the_known_answer_of_rfc_7748_6_1():
    alice, bob = pair_of(ALICE), pair_of(BOB)
    assert (alice.public.hex(), bob.public.hex()) == (ALICE_PUBLIC, BOB_PUBLIC)
    assert alice.shared(bob.public).hex() == bob.shared(alice.public).hex() == SHARED


def test_fresh_pairs_differ_and_their_secrets_are_symmetric():
    pairs = [KeyPair() for _ in range(4)]
    assert len({pair.public for pair in pairs}) == 4
    secrets = {(i, j): pairs[i].shared(pairs[j].public) for i in range(4) for j in range(4) if i != j}
    assert all(secrets[i, j] == secrets[j, i] for i, j in secrets)
    assert len(set(secrets.values())) == 6


@pytest.mark.parametrize("top", [0, 128], ids=["", "top bit set"])
@pytest.mark.parametrize("point", LOW_ORDER, ids=bytes.hex)
def test_points_of_low_order_are_refused(point, top):
    """All seven encodings below 2^255, and again with the bit that X25519 ignores."""
    with pytest.raises(ValueError, match=r"low order.*discard") as refused:
        KeyPair().shared(point[:31] + bytes([point[31] | top]))
    assert refused.value.__cause__ is not None


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_public_key_of_another_length_is_refused(size):
    with pytest.raises(ValueError, match=f"must have 32 bytes; got {size}"):
        KeyPair().shared(bytes([9] * size))


def test_seeded_pairs_are_a_function_of_seed_and_names():
    """And are what their name says: computed from the seed by somebody else."""
    pair = KeyPair.insecure_seeded(3, "party", 1)
    assert pair.public == KeyPair.insecure_seeded(3, "party", 1).public
    others = [(4, "party", 1), (3, "party", 2), (3, "party"), (3, "party", "1")]
    assert len({KeyPair.insecure_seeded(*other).public for other in others} | {pair.public}) == 5
    digest = hashlib.blake2b(repr((3, "insecure secrets", "key pair", "party", 1)).encode(), digest_size=16).digest()
    words = np.random.Philox(key=int.from_bytes(digest, "little")).random_raw(4)
    assert pair.public == pair_of(struct.pack("<4Q", *words.tolist()).hex()).public


@pytest.mark.parametrize("again", COPIES)
def test_a_deep_copy_of_a_pair_has_the_public_key_alone(again):
    pair, other = pair_of(ALICE), KeyPair()
    copied = again(pair)
    assert copied.public == pair.public
    with pytest.raises(RuntimeError, match=r"copy or a forked process; set up again"):
        copied.shared(other.public)
    assert pair.shared(other.public) == other.shared(pair.public)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_holds_no_secret(protocol):
    pair = pair_of(ALICE)
    assert bytes.fromhex(ALICE) not in pickle.dumps(pair, protocol)
    held = PairKeys(0, pair, {1: bytes.fromhex(BOB_PUBLIC)}, SESSION)
    key = held.key(1, "masks")
    text = pickle.dumps(held, protocol)
    assert all(secret not in text for secret in (bytes.fromhex(SHARED), bytes.fromhex(ALICE), key))
    assert pickle.dumps(Confined("secret"), protocol).find(b"secret") == -1


def test_nothing_secret_is_printed():
    pair = pair_of(ALICE)
    held = PairKeys(0, pair, {1: bytes.fromhex(BOB_PUBLIC)}, SESSION)
    held.key(1)
    for printed in (repr(pair), repr(vars(pair)), repr(held), repr(vars(held)), repr(Confined(b"secret"))):
        assert all(word not in printed for word in (ALICE, SHARED, "secret'", repr(bytes.fromhex(SHARED))))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_is_refused_all_keys():
    pair, held = KeyPair(), parties(2)[0]
    key = held.key(1, "masks")
    for work in (lambda: pair.shared(bytes.fromhex(BOB_PUBLIC)), lambda: held.key(1, "masks"), lambda: held.key(1)):
        assert in_a_fork(work).startswith("RuntimeError: keys work only in the object and the process that made them")
    assert held.key(1, "masks") == key


@pytest.mark.parametrize(("secret", "salt", "info", "output"), EXPANSIONS, ids=["A.1", "A.2", "A.3"])
def test_the_known_answers_of_rfc_5869(secret, salt, info, output):
    size = len(output) // 2
    assert hkdf(secret, salt, info, size).hex() == output
    assert hkdf(secret, salt, info).hex() == output[:64]
    assert hkdf_of_rfc_5869(secret, salt, info, size).hex() == output  # the oracle of the tests below


@given(st.binary(min_size=1), st.binary(max_size=100), names)
def test_a_derived_key_is_that_of_rfc_5869_with_named_lengths_and_kinds(secret, session, sequence):
    info = b""
    for name in sequence:
        kind = {str: b"s", bytes: b"b", int: b"i"}[type(name)]
        content = name if kind == b"b" else str(name).encode()
        info += kind + struct.pack(">Q", len(content)) + content
    assert derive(secret, *sequence, session=session) == hkdf_of_rfc_5869(secret, session, info, 32)


@given(names, names)
def test_different_names_are_encoded_differently(one, other):
    assert (keys.encoded(one) == keys.encoded(other)) == (one == other)


def test_names_that_look_alike_give_different_keys():
    alike = [
        ("a", "b"),
        ("ab",),
        ("ab", ""),
        ("", "ab"),
        (b"ab",),
        ("a", b"b"),
        (1,),
        ("1",),
        (b"1",),
        (11,),
        (1, 1),
        (-1,),
        (),
        ("",),
        ("s" + "\0" * 7 + "\1a",),
        ("i\0\0\0\0\0\0\0\0011",),
    ]
    assert len({derive(bytes(32), *sequence, session=SESSION) for sequence in alike}) == len(alike)


def test_numbers_of_numpy_are_numbers():
    assert derive(b"s", np.int64(3), session=b"") == derive(b"s", 3, session=b"")


@pytest.mark.parametrize("name", [1.5, 1.0, None, (1,)])
def test_other_names_are_refused(name):
    with pytest.raises(TypeError):
        derive(bytes(32), name, session=SESSION)


def test_secret_and_session_are_in_a_derived_key():
    made = [
        derive(s, "n", session=t) for s, t in ((b"1", b"1"), (b"2", b"1"), (b"1", b"2"), (b"12", b""), (b"", b"12"))
    ]
    assert len(set(made)) == 5
    assert {len(key) for key in made} == {32}


def test_both_parties_of_a_pair_derive_the_same_keys_on_their_own():
    held = parties(4)
    made = {}
    for i in range(4):
        for j in range(4):
            for purpose in ("masks", "records"):
                if i != j:
                    made[i, j, purpose] = held[i].key(j, purpose, "fit", 0)
    assert all(key == made[j, i, purpose] for (i, j, purpose), key in made.items())
    assert len(set(made.values())) == 6 * 2


def test_a_key_of_a_pair_is_bound_to_numbers_and_public_keys_of_both():
    """The whole derivation by hand, from the keys of RFC 7748."""
    low, high = bytes.fromhex(ALICE_PUBLIC), bytes.fromhex(BOB_PUBLIC)
    wanted = b""
    for kind, content in ((b"s", b"lightning_vfl pair"), (b"i", b"3"), (b"i", b"12"), (b"b", low), (b"b", high)):
        wanted += kind + struct.pack(">Q", len(content)) + content
    wanted += b"s" + struct.pack(">Q", 5) + b"masks" + b"i" + struct.pack(">Q", 1) + b"7"
    wanted = hkdf_of_rfc_5869(bytes.fromhex(SHARED), SESSION, wanted, 32)
    assert PairKeys(3, pair_of(ALICE), {12: high}, SESSION).key(12, "masks", 7) == wanted
    assert PairKeys(12, pair_of(BOB), {3: low, 12: high}, SESSION).key(3, "masks", 7) == wanted


def test_other_sessions_numbers_and_pairs_give_other_keys():
    alice, bob = bytes.fromhex(ALICE_PUBLIC), bytes.fromhex(BOB_PUBLIC)
    made = [
        PairKeys(0, pair_of(ALICE), {1: bob}, SESSION).key(1, "masks"),
        PairKeys(0, pair_of(ALICE), {1: bob}, b"another").key(1, "masks"),
        PairKeys(0, pair_of(ALICE), {2: bob}, SESSION).key(2, "masks"),
        PairKeys(0, pair_of(BOB), {1: alice}, SESSION).key(1, "masks"),
        PairKeys(0, KeyPair(), {1: bob}, SESSION).key(1, "masks"),
    ]
    assert len(set(made)) == len(made)


def test_a_key_is_derived_once(monkeypatch):
    held = parties(3)[0]
    derived = []
    monkeypatch.setattr(keys, "derive", lambda *names, session: derived.append(names) or bytes(32))
    for _ in range(3):
        held.key(1, "masks", 0)
        held.key(1, "masks", 1)
        held.key(2, "masks", 0)
    assert len(derived) == 3


@pytest.mark.parametrize("again", COPIES)
def test_a_deep_copy_of_the_keys_derives_nothing(again):
    held = parties(3)[0]
    held.key(1, "masks")
    copied = again(held)
    for other in (1, 2):
        with pytest.raises(RuntimeError, match="set up again"):
            copied.key(other, "masks")


@pytest.mark.parametrize("other", [0, 3])
def test_a_party_shares_nothing_with_itself_and_strangers(other):
    with pytest.raises(ValueError, match=rf"party 0 shares a secret with \[1, 2\], not with party {other}"):
        parties(3)[0].key(other, "masks")


def test_two_parties_with_one_public_key_are_refused():
    """A server that hands somebody's key out twice, or sends a party its own key back."""
    own, other = KeyPair(), KeyPair()
    with pytest.raises(ValueError, match="parties 1 and 2 have the same public key"):
        PairKeys(0, own, {1: other.public, 2: other.public}, SESSION)
    with pytest.raises(ValueError, match="have the same public key"):
        PairKeys(0, own, {1: own.public}, SESSION)


def test_another_key_under_the_own_number_is_refused():
    with pytest.raises(ValueError, match="of party 0 in publics must be that of its own key pair"):
        PairKeys(0, KeyPair(), {0: KeyPair().public, 1: KeyPair().public}, SESSION)


@pytest.mark.parametrize("point", [bytes(32), bytes(31)])
def test_an_unusable_public_key_is_refused_by_the_name_of_its_party(point):
    keys = PairKeys(0, KeyPair(), {3: KeyPair().public, 7: point}, SESSION)
    with pytest.raises(ValueError, match="party 0 shares no secret with party 7: "):
        keys.key(7, "mask")
    assert len(keys.key(3, "mask")) == 32
