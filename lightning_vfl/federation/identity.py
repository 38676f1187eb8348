"""Identities of the server and the parties: a private key and a self-signed certificate, both as PEM files.

Certificates are pinned: every host has the certificates of all others, and a certificate is accepted if it equals the
pinned one as a whole. Keys are ECDSA keys of the curve P-256: the TLS library in gRPC's wheels (BoringSSL) ends a
handshake with an Ed25519 certificate.
"""

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from ipaddress import ip_address
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from lightning_vfl.crypto.identities import Signer, private_file, public_bytes
from lightning_vfl.errors import ConfigurationError

YEARS = 10  # how long a certificate is valid
NAMES = "1 to 63 letters, digits, dots, - and _, a letter or a digit first, and not localhost"
_MAKE = "make one with `lightning-vfl identity NAME --out FOLDER`"


class NotValidToday(ConfigurationError):
    """A certificate has ended, or has not begun by the clock of this host."""


@dataclass(frozen=True)
class Certificate:
    """The certificate of a server or a party.

    Args:
        content: the certificate in PEM.
    """

    content: bytes = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> "Certificate":
        """The certificate in a file.

        Raises:
            ConfigurationError: for a file that cannot be read or has not exactly one certificate with a P-256 key.
            NotValidToday: for a certificate that is not valid today.
        """
        content = _content(path, "certificate")
        made = cls(content)
        try:
            if len(x509.load_pem_x509_certificates(content)) != 1:
                raise ValueError
            _ = made.public, made.names
        except (ValueError, UnsupportedAlgorithm, x509.InvalidVersion):
            raise ConfigurationError(f"{path} is not one certificate with a P-256 key in PEM; {_MAKE}") from None
        now = datetime.now(UTC)
        since = made._parsed.not_valid_before_utc
        if not since <= now <= made.until:
            raise NotValidToday(
                f"{path} is valid from {since:%Y-%m-%d} to {made.until:%Y-%m-%d}, and this host has {now:%Y-%m-%d}; "
                f"correct the clock of this host, or {_MAKE}"
            )
        return made

    @property
    def until(self) -> datetime:
        """When it ends."""
        return self._parsed.not_valid_after_utc

    @property
    def days_left(self) -> int:
        """Whole days until it ends."""
        return (self.until - datetime.now(UTC)).days

    @cached_property
    def _parsed(self) -> x509.Certificate:
        try:
            return x509.load_pem_x509_certificate(self.content)
        except x509.InvalidVersion as error:
            raise ValueError(error) from None

    @cached_property
    def whole(self) -> bytes:
        """The whole certificate in DER, by which two certificates are compared."""
        return self._parsed.public_bytes(Encoding.DER)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the whole certificate, 64 hexadecimal digits; ``openssl x509 -fingerprint -sha256`` shows it."""
        return self._parsed.fingerprint(SHA256()).hex()

    @cached_property
    def public(self) -> bytes:
        """The public key, as ``lightning_vfl.crypto.verified`` takes it."""
        public = self._parsed.public_key()
        if not isinstance(public, EllipticCurvePublicKey):
            raise ValueError("a certificate needs a P-256 key")
        return public_bytes(public)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names in the certificate (subjectAltName); none if they cannot be read."""
        try:
            found = self._parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        except (x509.ExtensionNotFound, x509.DuplicateExtension):
            return ()
        return tuple(found.value.get_values_for_type(x509.DNSName))


@dataclass(frozen=True)
class Identity:
    """The private key and the certificate of this host.

    Guarantee: the key belongs to the certificate.
    Not guaranteed: erasure from memory.

    Args:
        certificate: which all others have.
        key: the private key in PEM, for the TLS library.
        signer: signs statements with this key.
    """

    certificate: Certificate
    key: bytes = field(repr=False)
    signer: Signer = field(repr=False)


def make_identity(name: str, folder: str | Path) -> Identity:
    """Make a private key and a self-signed certificate, and write them as ``NAME.key`` (mode 0600) and ``NAME.crt``.

    The certificate cannot issue others (CA:FALSE), names ``name``, localhost and 127.0.0.1, and is valid for ten years
    from yesterday, so that clocks may differ.

    Raises:
        ConfigurationError: for a name that is not allowed, and if one of the files exists or cannot be written; an
            existing file is never changed.
    """
    check_name(name)
    key_path, certificate_path = paths(name, folder)
    for path in (key_path, certificate_path):
        if path.exists():
            raise ConfigurationError(
                f"{path} exists, and overwriting it would destroy an identity; give another folder or move the file"
            )
    private = generate_private_key(SECP256R1())
    key = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    content = _certificate(name, private).public_bytes(Encoding.PEM)
    try:
        key_path.parent.mkdir(parents=True, exist_ok=True)
        with open(key_path, "xb", opener=private_file) as file:
            file.write(key)
        with certificate_path.open("xb") as file:
            file.write(content)
    except OSError as error:
        raise ConfigurationError(
            f"{error.filename} cannot be written ({error.strerror}); give another folder"
        ) from None
    return Identity(Certificate(content), key, Signer(private))


def renew_identity(name: str, folder: str | Path) -> tuple[Identity, tuple[Path, Path]]:
    """Make a new identity in place of one that is about to end, has ended, or whose key somebody else may have.

    Certificates are pinned, so a host that gets the new certificate refuses the old one from then on.

    Returns:
        The new identity, and where the old key and certificate are kept: with a part of their fingerprint in the names.

    Raises:
        ConfigurationError: if there is no identity of this name, or if files cannot be written; then it is as before.
    """
    check_name(name)
    key_path, certificate_path = paths(name, folder)
    _content(key_path, "private key")
    try:
        old = Certificate(_content(certificate_path, "certificate")).fingerprint
    except ValueError:
        raise ConfigurationError(f"{certificate_path} is not a certificate in PEM; {_MAKE}") from None
    kept = paths(f"{name}.{old[:16]}", folder)
    try:
        with TemporaryDirectory(dir=folder) as made:
            identity = make_identity(name, made)
            for now, then in zip(paths(name, folder), kept, strict=True):
                now.rename(then)
            for new, place in zip(paths(name, made), paths(name, folder), strict=True):
                new.rename(place)
    except OSError as error:
        raise ConfigurationError(f"{folder} cannot be written ({error.strerror}); give another folder") from None
    return identity, kept


def paths(name: str, folder: str | Path) -> tuple[Path, Path]:
    """The files of the private key and of the certificate."""
    return Path(folder) / f"{name}.key", Path(folder) / f"{name}.crt"


def load(key: str | Path, certificate: "str | Path | Certificate") -> Identity:
    """The identity of a key's file and a certificate, or the certificate's file.

    Raises:
        ConfigurationError: for files that cannot be read, other kinds of keys, and a key of another certificate.
    """
    content = _content(Path(key), "private key")
    shown = certificate if isinstance(certificate, Certificate) else Certificate.read(Path(certificate))
    try:
        private = load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        private = None
    if not isinstance(private, EllipticCurvePrivateKey):
        raise ConfigurationError(f"{key} has no private key (P-256, not encrypted) in PEM; {_MAKE}")
    if private.public_key() != x509.load_pem_x509_certificate(shown.content).public_key():
        raise ConfigurationError(
            f"{key} does not belong to the certificate {shown.fingerprint[:16]}... of {', '.join(shown.names)}; give "
            "the key that was made with it"
        )
    return Identity(shown, content, Signer(private))


def fingerprint(path: str | Path) -> str:
    """SHA-256 of the certificate in a file, 64 hexadecimal digits."""
    return Certificate.read(Path(path)).fingerprint


def same_certificate(one: bytes, other: bytes) -> bool:
    """Whether two certificates in PEM are equal as a whole; False for anything that is not one.

    A name or an issuer proves nothing: whoever has the key of a pinned certificate can issue certificates of any name.
    """
    try:
        return Certificate(one).whole == Certificate(other).whole
    except ValueError:
        return False


def check_name(name: str) -> None:
    """Refuse a name that cannot be that of a server or a party.

    Raises:
        ConfigurationError: names the rule.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name) or name.lower() == "localhost":
        raise ConfigurationError(f"the name {name[:80]!r} is not allowed; use {NAMES}")


def _certificate(name: str, private: EllipticCurvePrivateKey) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    names = [x509.DNSName(name), x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    since = datetime.now(UTC) - timedelta(days=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(since + timedelta(days=365.25 * YEARS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(private, SHA256())
    )


def _content(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"the {what} {path} cannot be read ({error.strerror}); {_MAKE}") from None
