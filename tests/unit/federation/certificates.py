"""Certificates that the command would not make."""

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding


def issued(key, *names, since=-1, until=9, subject=None, issuer="bank"):
    """A certificate of these names, signed with this key, valid between two days from now."""
    now = datetime.now(UTC)
    holder, signer = (x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, one)]) for one in (names[0], issuer))
    builder = x509.CertificateBuilder().subject_name(holder).issuer_name(signer).serial_number(7)
    builder = builder.not_valid_before(now + timedelta(since)).not_valid_after(now + timedelta(until))
    listed = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    builder = builder.add_extension(listed, critical=False).public_key((subject or key).public_key())
    made = builder.sign(key, None if isinstance(key, Ed25519PrivateKey) else SHA256())
    return made.public_bytes(Encoding.PEM)
