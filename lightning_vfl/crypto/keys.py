"""Key pairs (X25519), and the keys that a pair of parties derives from its shared secret (HKDF-SHA256)."""

import operator
import os
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from lightning_vfl.crypto.keystream import SeededSecrets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SIZE = 32  # bytes of a public key, of a shared secret and of a derived key

Held = TypeVar("Held")


class Confined(Generic[Held]):
    """A secret that works in one object of one process: deep copies, pickles and forked processes are refused it.

    Two processes that go on under one key mask two messages with the same words, and the difference of what they send
    is the difference of the messages.

    Guarantee: a pickle and a deep copy are made without the secret and say so when it is asked for, and so does a
        forked process.
    Not guaranteed: erasure from memory; a forked process still has the pages.

    Args:
        secret: what is kept; whoever opens it must not keep it.

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
            RuntimeError: in a deep copy, in what was unpickled, in a forked process.
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
    """What a copy holds: nothing, made by no process."""
    confined = Confined[Any](None)
    confined._process = -1
    return confined


class KeyPair:
    """An X25519 key pair; its private half stays where it was made.

    Shapes: ``public`` and a shared secret are 32 bytes.
    Guarantee: ``a.shared(b.public) == b.shared(a.public)``; whoever knows neither private key learns nothing about it
        (computational Diffie-Hellman on Curve25519). Pickles and deep copies hold the public key alone.
    Not guaranteed: that a public key is the party's it is said to be (``Identities`` sign them); erasure from memory.

    Args:
        private: a key that exists already; None: a fresh one from the operating system.

    References:
        RFC 7748, Sections 5 (X25519) and 6.1 (Diffie-Hellman); the ``cryptography`` package does the work.

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
        """A key pair that is a function of seed and names. INSECURE: everybody can compute it; tests and simulations.

        Examples:
            >>> KeyPair.insecure_seeded(0, "party", 1).public == KeyPair.insecure_seeded(0, "party", 1).public
            True
        """
        words = SeededSecrets(seed).source("key pair", *names)(SIZE // 8)
        return cls(X25519PrivateKey.from_private_bytes(words.astype("<u8").tobytes()))

    def shared(self, public: bytes) -> bytes:
        """The secret shared with the holder of ``public``. No key: points of a curve are not uniform bytes; derive.

        Raises:
            ValueError: for a public key of another length, or of low order: the secret would be zero, known to all.
            RuntimeError: in a deep copy or a forked process.
        """
        private = self._private.open()
        if len(public) != SIZE:
            raise ValueError(f"a public key has {SIZE} bytes, not {len(public)}")
        try:
            return private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:
            raise ValueError(
                f"the public key {public.hex()} is a point of low order, with which every shared secret is zero; "
                "no honest party has it, discard its message"
            ) from error


def hkdf(secret: bytes, salt: bytes, info: bytes, size: int = SIZE) -> bytes:
    """Extract and expand with HMAC-SHA256: ``size`` bytes (at most 8160), uniform to whoever does not know ``secret``.

    References:
        RFC 5869, Sections 2.2 and 2.3.
    """
    return HKDF(SHA256(), size, salt, info).derive(secret)


def derive(secret: bytes, *names: str | int | bytes, session: bytes) -> bytes:
    """The 32-byte key of these names, one of many from one secret.

    Shapes: 32 bytes.
    Guarantee: different sequences of names, and different sessions, give independent keys: every name enters with its
        kind and its length, so that ("a", "b") and ("ab",), 1, "1" and b"1" differ.
    Not guaranteed: anything about a secret that can be guessed.

    Args:
        secret: shared by those who shall derive the same key.
        names: what the key is for.
        session: the salt: public, fresh with every set-up, and the same for everybody.

    Raises:
        TypeError: for a name that is neither text nor bytes nor an integer.

    References:
        RFC 5869, Sections 3.1 (salt) and 3.2 (``info`` binds a key to its context).

    Examples:
        >>> derive(bytes(32), "masks", 1, session=b"") == derive(bytes(32), "masks", 2, session=b"")
        False
    """
    return hkdf(secret, session, encoded(names))


def encoded(names: tuple[str | int | bytes, ...]) -> bytes:
    """An injective encoding: kind, length in 8 bytes and content, name by name."""
    parts = []
    for name in names:
        if isinstance(name, str):
            kind, content = b"s", name.encode()
        elif isinstance(name, bytes):
            kind, content = b"b", name
        else:
            kind, content = b"i", str(operator.index(name)).encode()
        parts += [kind, len(content).to_bytes(8, "big"), content]
    return b"".join(parts)


class PairKeys:
    """One party's secrets with all others for one key period, and the keys derived from them.

    A new period has new key pairs, and hence a new object (vFedSec, Section 4.1: set-up every K iterations, so that a
    leaked key opens K rounds and no more).

    Shapes: public keys and derived keys are 32 bytes.
    Guarantee: both parties of a pair derive the same key for the same names, and nobody else can; keys of different
        pairs, names, sessions and key pairs are independent. Pickles and deep copies hold no secret, a forked process
        is refused it.
    Not guaranteed: agreement with a party that was told other public keys or another session (its masks will not
        cancel); who is behind a public key; erasure from memory.

    Args:
        party: whose secrets these are.
        own: the key pair of this party.
        publics: public keys of all parties by their number; this party's own may be among them.
        session: the salt of all derivations: public, fresh with every set-up, the same for every party.

    Raises:
        ValueError: if two parties have the same public key, this party's is not ``own``'s, or one of them is no usable
            point; names the parties.

    References:
        RFC 7748, Section 6.1: the public keys of both parties go into the derivation.
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
            raise ValueError(f"the public key that is listed for party {party} is not the one of its own key pair")
        self.party = party
        self.session = session
        self.publics = {**publics, party: own.public}
        holders: dict[bytes, int] = {}
        for number, public in self.publics.items():
            if holders.setdefault(public, number) != number:
                raise ValueError(f"parties {holders[public]} and {number} have one public key; each makes its own")
        secrets = {}
        for other, public in self.publics.items():
            if other == party:
                continue
            try:
                secrets[other] = own.shared(public)
            except ValueError as error:
                raise ValueError(f"party {party} shares no secret with party {other}: {error}") from error
        derived: dict[tuple[int, tuple[str | int | bytes, ...]], bytes] = {}
        self._held = Confined((secrets, derived))

    def key(self, other: int, *names: str | int | bytes) -> bytes:
        """The key of these names that this party has in common with ``other``; derived once.

        Raises:
            ValueError: for a party without a public key here, this party itself among them.
            RuntimeError: in a deep copy or a forked process.
        """
        secrets, derived = self._held.open()
        key = derived.get((other, names))
        if key is None:
            if other not in secrets:
                raise ValueError(f"party {self.party} shares a secret with {sorted(secrets)}, not with party {other}")
            low, high = min(self.party, other), max(self.party, other)
            pair = ("lightning_vfl pair", low, high, self.publics[low], self.publics[high])
            key = derived[other, names] = derive(secrets[other], *pair, *names, session=self.session)
        return key
