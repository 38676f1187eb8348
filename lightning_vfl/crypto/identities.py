"""Signatures (Ed25519, and ECDSA with the keys of certificates), and the parties' identity keys in a folder."""

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from lightning_vfl.checks import positive
from lightning_vfl.crypto.keys import Confined, encoded
from lightning_vfl.crypto.keystream import insecure_words
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.rebuildable import Rebuildable

SIGNATURE = 64  # bytes
VERIFY = 32  # bytes of a public key (Ed25519)
POINT = 33  # bytes of a public key of a certificate (P-256, compressed)


class Signer:
    """A key for signatures; it works only in the object and the process that made it.

    The key is an Ed25519 key, or the key of a certificate: ECDSA with P-256 and SHA-256, because the TLS library of
    gRPC accepts no Ed25519 certificates.

    Shapes: ``public`` has 32 bytes (Ed25519) or 33 (P-256, compressed), a signature 64.
    Guarantee: only the holder of the private key can sign a message that ``verified`` accepts with ``public``
        (existential unforgeability under chosen messages). Pickles and deep copies have only the public key.
    Not guaranteed: erasure from memory.

    Args:
        private: an existing key; None: a new Ed25519 key from the operating system.

    Raises:
        ValueError: for a key of another curve.

    References:
        RFC 8032, section 5.1 (Ed25519), and FIPS 186-5, section 6 (ECDSA), implemented by the ``cryptography`` package.

    Examples:
        >>> one, other = Signer(), Signer()
        >>> signature = one.sign(b"period", 3)
        >>> verified(one.public, signature, b"period", 3), verified(other.public, signature, b"period", 3)
        (True, False)
    """

    def __init__(self, private: Ed25519PrivateKey | EllipticCurvePrivateKey | None = None) -> None:
        private = Ed25519PrivateKey.generate() if private is None else private
        self.public = public_bytes(private.public_key())
        self._private = Confined(private)

    @classmethod
    def insecure_seeded(cls, seed: int, *names: str | int) -> "Signer":
        """A key that depends only on seed and names. INSECURE: anyone can compute it; for tests and simulations."""
        words = insecure_words(seed, "signing key", *names)(VERIFY // 8)
        return cls(Ed25519PrivateKey.from_private_bytes(words.astype("<u8").tobytes()))

    def sign(self, *statement: str | int | bytes) -> bytes:
        """The signature of a statement. Parts are encoded with type and length, so different statements never collide.

        Raises:
            RuntimeError: in a deep copy or a forked process.
            TypeError: for a part that is not a text, bytes or an integer.
        """
        private = self._private.open()
        if isinstance(private, Ed25519PrivateKey):
            return private.sign(encoded(statement))
        pair = decode_dss_signature(private.sign(encoded(statement), ECDSA(SHA256())))
        return b"".join(number.to_bytes(SIGNATURE // 2, "big") for number in pair)


def public_bytes(public: Ed25519PublicKey | EllipticCurvePublicKey) -> bytes:
    """A public key as ``Signer.public`` has it.

    Raises:
        ValueError: for a key of another curve.
    """
    if isinstance(public, Ed25519PublicKey):
        return public.public_bytes_raw()
    if not isinstance(public.curve, SECP256R1):
        raise ValueError(f"the key is of curve {public.curve.name}; P-256 is needed")
    return public.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def verified(public: bytes, signature: bytes, *statement: str | int | bytes) -> bool:
    """Whether the holder of this public key has signed exactly this statement; also False for malformed keys.

    The length of the public key decides between Ed25519 and ECDSA.
    """
    return _verified(public, signature, encoded(statement))


@lru_cache(maxsize=4096)
def _verified(public: bytes, signature: bytes, message: bytes) -> bool:
    """The cached check of public values: parties in one process verify a signature only once (120 µs)."""
    try:
        if len(public) == POINT:
            if len(signature) != SIGNATURE:
                return False
            halves = signature[: SIGNATURE // 2], signature[SIGNATURE // 2 :]
            pair = encode_dss_signature(*(int.from_bytes(half, "big") for half in halves))
            EllipticCurvePublicKey.from_encoded_point(SECP256R1(), public).verify(pair, message, ECDSA(SHA256()))
        else:
            Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


class Identities(Rebuildable):
    """The parties' identity keys in a folder.

    Party 0 has the files ``party-0.key.pem`` (private key, PKCS 8) and ``party-0.pub.pem``. In a simulation, one folder
    has all keys. In a deployment, a party has its own private key and the public keys of all parties.

    Guarantee: loaded keys are Ed25519 keys, every private key belongs to its public key, and no two parties have the
        same key.
    Not guaranteed: that a file belongs to the party in its name. The parties must compare public keys over a channel
        that the server does not control. Private keys are not encrypted; their files have mode 0600.

    Args:
        folder: the folder of the files.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def __repr__(self) -> str:
        return f"Identities({str(self.folder)!r})"

    @classmethod
    def make(cls, folder: str | Path, parties: int) -> "Identities":
        """Make the keys of M parties and write them.

        Raises:
            ConfigurationError: for fewer than one party, and if one of the files exists; no file is written then.
        """
        positive("--parties", parties, whole=True)
        made = cls(folder)
        paths = [made.path(party, kind) for party in range(parties) for kind in ("key", "pub")]
        for path in paths:
            if path.exists():
                raise ConfigurationError(
                    f"{path} exists, and overwriting it would destroy a key; give another folder or move the file"
                )
        made.folder.mkdir(parents=True, exist_ok=True)
        for party in range(parties):
            key = Ed25519PrivateKey.generate()
            private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            with open(made.path(party, "key"), "xb", opener=private_file) as file:
                file.write(private)
            public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
            with made.path(party, "pub").open("xb") as file:
                file.write(public)
        return made

    def path(self, party: int, kind: str) -> Path:
        """The file of a party's ``key`` or ``pub``."""
        return self.folder / f"party-{party}.{kind}.pem"

    def publics(self, parties: int) -> dict[int, bytes]:
        """The public keys of parties 0 to M - 1, 32 bytes each.

        Raises:
            ConfigurationError: for a file that is missing or has no Ed25519 public key, and if two parties have the
                same key.
        """
        found: dict[int, bytes] = {}
        holders: dict[bytes, int] = {}
        for party in range(parties):
            found[party] = self._key(party, "pub", parties).public_bytes_raw()
            if holders.setdefault(found[party], party) != party:
                raise ConfigurationError(
                    f"parties {holders[found[party]]} and {party} have the same identity key in {self.folder}; every "
                    f"party needs its own, {_remedy(parties)}"
                )
        return found

    def signers(self, hosted: Sequence[int], parties: int) -> dict[int, Signer]:
        """The private keys of the hosted parties.

        Raises:
            ConfigurationError: for a file that is missing or has no Ed25519 private key, and for a key that does not
                belong to the party's public key.
        """
        publics = self.publics(parties)
        found = {}
        for party in hosted:
            found[party] = Signer(self._key(party, "key", parties))
            if found[party].public != publics[party]:
                raise ConfigurationError(
                    f"{self.path(party, 'key')} does not belong to {self.path(party, 'pub')}; put the two files of one "
                    "key pair there"
                )
        return found

    def _key(self, party: int, kind: str, parties: int) -> Any:
        """The key in a file, an ``Ed25519PublicKey`` or an ``Ed25519PrivateKey``."""
        path = self.path(party, kind)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigurationError(
                f"the identity key {path} cannot be read ({error.strerror}); {_remedy(parties)}"
            ) from None
        try:
            key = load_pem_public_key(content) if kind == "pub" else load_pem_private_key(content, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PublicKey if kind == "pub" else Ed25519PrivateKey):
            word = "public" if kind == "pub" else "private"
            raise ConfigurationError(f"{path} has no Ed25519 {word} key in PEM; {_remedy(parties)}")
        return key


def _remedy(parties: int) -> str:
    return f"make the keys with `lightning-vfl keys FOLDER --parties {parties}` and give identities: FOLDER"


def private_file(path: str, flags: int) -> int:
    """Open a new file that only its owner can read."""
    return os.open(path, flags, 0o600)
