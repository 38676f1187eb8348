"""Key pairs (X25519), and the keys that a pair of parties derives from its shared secret (HKDF-SHA256)."""

import operator
import os
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from lightning_vfl.crypto.keystream import insecure_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SIZE = 32  # bytes of a public key, of a shared secret and of a derived key

Held = TypeVar("Held")


class Confined(Generic[Held]):
    """A secret that works in one object of one process; deep copies, pickles and forked processes cannot open it.

    Two processes with one key would mask two messages with the same words; the difference of the masked messages would
    then be the difference of the messages.

    Guarantee: pickles and deep copies do not contain the secret. Opening it in these, or in a forked process, raises an
        error.
    Not guaranteed: erasure from memory; a forked process still has the memory pages.

    Args:
        secret: the secret; a caller of ``open`` must not store it.

    Examples:
        >>> import copy
        >>> copy.deepcopy(Confined(b"secret")).open()
        Traceback (most recent call last):
        ...
        RuntimeError: keys work only in the object and the process that made them, and this is a copy or a forked ...
    """

    __slots__ = ("_process", "_secret")

    def __init__(self, secret: Held) -> None:
        self._secret = secret
        self._process = os.getpid()

    def open(self) -> Held:
        """The secret.

        Raises:
            RuntimeError: in a deep copy, in an unpickled object, in a forked process.
        """
        if self._process != os.getpid():
            raise RuntimeError(
                "keys work only in the object and the process that made them, and this is a copy or a forked process; "
                "set up again, with fresh keys"
            )
        return self._secret

    def __reduce__(self) -> "tuple[Callable[[], Confined[Any]], tuple[()]]":
        return _emptied, ()


def _emptied() -> Confined[Any]:
    """The content of a copy: no secret, and no process."""
    confined = Confined[Any](None)
    confined._process = -1
    return confined


class KeyPair:
    """An X25519 key pair; the private key works only in the object and the process that made it.

    Shapes: ``public`` and a shared secret have 32 bytes.
    Guarantee: ``a.shared(b.public) == b.shared(a.public)``. Without one of the private keys, an attacker learns nothing
        about the shared secret (computational Diffie-Hellman on Curve25519). Pickles and deep copies have only the
        public key.
    Not guaranteed: that a public key belongs to the stated party (keys of ``Identities`` sign public keys); erasure
        from memory.

    Args:
        private: an existing key; None: a new key from the operating system.

    References:
        RFC 7748, Sections 5 (X25519) and 6.1 (Diffie-Hellman), implemented by the ``cryptography`` package.

    Examples:
        >>> one, other = KeyPair(), KeyPair()
        >>> one.shared(other.public) == other.shared(one.public), len(one.public)
        (True, 32)
    """

    def __init__(self, private: X25519PrivateKey | None = None) -> None:
        private = X25519PrivateKey.generate() if private is None else private
        self.public = private.public_key().public_bytes_raw()
        self._private = Confined(private)

    @classmethod
    def insecure_seeded(cls, seed: int, *names: str | int) -> "KeyPair":
        """A key pair that depends only on seed and names. INSECURE: anyone can compute it; for tests and simulations.

        Examples:
            >>> KeyPair.insecure_seeded(0, "party", 1).public == KeyPair.insecure_seeded(0, "party", 1).public
            True
        """
        words = insecure_words(seed, "key pair", *names)(SIZE // 8)
        return cls(X25519PrivateKey.from_private_bytes(words.astype("<u8").tobytes()))

    def shared(self, public: bytes) -> bytes:
        """The secret shared with the holder of ``public``. Use ``derive``: a point of a curve is not a uniform key.

        Raises:
            ValueError: for a public key of another length, or of low order: the secret would be zero and public.
            RuntimeError: in a deep copy or a forked process.
        """
        private = self._private.open()
        if len(public) != SIZE:
            raise ValueError(f"a public key must have {SIZE} bytes; got {len(public)}")
        try:
            return private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise ValueError(
                f"the public key {public.hex()} is a point of low order, with which every shared secret is zero; "
                "no honest party sends it, so discard the message"
            ) from error


def hkdf(secret: bytes, salt: bytes, info: bytes, size: int = SIZE) -> bytes:
    """Extract and expand with HMAC-SHA256: ``size`` bytes (at most 8160), which are uniform without ``secret``.

    References:
        RFC 5869, Sections 2.2 and 2.3.
    """
    return HKDF(SHA256(), size, salt, info).derive(secret)


def derive(secret: bytes, *names: str | int | bytes, session: bytes) -> bytes:
    """The 32-byte key of these names, one of many keys from one secret.

    Shapes: 32 bytes.
    Guarantee: different sequences of names, and different sessions, give independent keys. Every name is encoded with
        its type and its length, so that ("a", "b") and ("ab",), 1, "1" and b"1" differ.
    Not guaranteed: secrecy of keys from a secret that can be guessed.

    Args:
        secret: the secret that the parties of the key share.
        names: the purpose of the key.
        session: the salt: public, new for every set-up, and the same for all parties.

    Raises:
        TypeError: for a name that is not a text, bytes or an integer.

    References:
        RFC 5869, Sections 3.1 (salt) and 3.2 (``info`` binds a key to its context).

    Examples:
        >>> derive(bytes(32), "masks", 1, session=b"") == derive(bytes(32), "masks", 2, session=b"")
        False
    """
    return hkdf(secret, session, encoded(names))


def encoded(names: tuple[str | int | bytes, ...]) -> bytes:
    """An injective encoding: for each name its type, its length in 8 bytes and its content."""
    parts = []
    for name in names:
        if isinstance(name, str):
            kind = b"s"
            content = name.encode()
        elif isinstance(name, bytes):
            kind = b"b"
            content = name
        else:
            kind = b"i"
            content = str(operator.index(name)).encode()
        parts += [kind, len(content).to_bytes(8, "big"), content]
    return b"".join(parts)


class PairKeys:
    """One party's secrets with the other parties for one key period, each made when a key of it is first asked for.

    A new period has new key pairs, and therefore a new object (vFedSec, Section 4.1: set-up every K iterations, so that
    a leaked key discloses at most K rounds).

    Shapes: public keys and derived keys have 32 bytes.
    Guarantee: both parties of a pair derive the same key for the same names, and no other party can derive it. Keys of
        different pairs, names, sessions and key pairs are independent. Pickles and deep copies have no secret, and a
        forked process cannot use it.
    Not guaranteed: agreement with a party that received other public keys or another session (its masks do not cancel);
        the identity of the holder of a public key; erasure from memory.

    Args:
        party: the number of this party.
        own: the key pair of this party.
        publics: public keys of all parties by number; this party's own key may be among them.
        session: the salt of all derivations: public, new for every set-up, the same for all parties.

    Raises:
        ValueError: if two parties have the same public key, or if this party's public key is not that of ``own``;
            names the parties.

    References:
        RFC 7748, Section 6.1: the public keys of both parties are part of the derivation.
        Qiu et al., "Secure Vertical Federated Learning Under Unreliable Connectivity" (vFedSec), Sections 3.4 and 4.1.

    Examples:
        >>> pairs = [KeyPair() for _ in range(3)]
        >>> publics = {party: pair.public for party, pair in enumerate(pairs)}
        >>> first, second, third = (PairKeys(m, pair, publics, session=b"salt") for m, pair in enumerate(pairs))
        >>> first.key(1, "masks", "fit") == second.key(0, "masks", "fit")
        True
        >>> first.key(1, "masks", "fit") == first.key(2, "masks", "fit")
        False
    """

    def __init__(self, party: int, own: KeyPair, publics: "Mapping[int, bytes]", session: bytes) -> None:
        if publics.get(party, own.public) != own.public:
            raise ValueError(f"the public key of party {party} in publics must be that of its own key pair")
        self.party = party
        self.session = session
        self.publics = {**publics, party: own.public}
        holders: dict[bytes, int] = {}
        for number, public in self.publics.items():
            if holders.setdefault(public, number) != number:
                raise ValueError(f"parties {holders[public]} and {number} have the same public key; each needs its own")
        secrets: dict[int, bytes] = {}
        derived: dict[tuple[int, tuple[str | int | bytes, ...]], bytes] = {}
        self._held = Confined((own, secrets, derived))

    def key(self, other: int, *names: str | int | bytes) -> bytes:
        """The key of these names that this party shares with ``other``; derived once.

        Raises:
            ValueError: for a party without a public key in ``publics``, for this party itself, and for a public key
                that is not a usable point; names the parties.
            RuntimeError: in a deep copy or a forked process.
        """
        own, secrets, derived = self._held.open()
        key = derived.get((other, names))
        if key is None:
            if other == self.party or other not in self.publics:
                others = sorted(self.publics.keys() - {self.party})
                raise ValueError(f"party {self.party} shares a secret with {others}, not with party {other}")
            if other not in secrets:
                try:
                    secrets[other] = own.shared(self.publics[other])
                except ValueError as error:
                    raise ValueError(f"party {self.party} shares no secret with party {other}: {error}") from error
            low, high = min(self.party, other), max(self.party, other)
            pair = ("lightning_vfl pair", low, high, self.publics[low], self.publics[high])
            key = derived[other, names] = derive(secrets[other], *pair, *names, session=self.session)
        return key
