"""Identities: files that TLS and openssl accept, whole certificates compared, one line for bad files."""

import os
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from lightning_vfl.commands.light import answer
from lightning_vfl.crypto import verified
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.identity import (
    Certificate,
    fingerprint,
    load,
    make_identity,
    paths,
    renew_identity,
    same_certificate,
)
from tests.unit.federation.certificates import issued


def private(identity):
    return load_pem_private_key(identity.key, password=None)


# ---- files


def test_a_renewed_identity_takes_the_place_of_the_old_one(tmp_path, capsys):
    old = make_identity("bank", tmp_path)
    assert answer(["identity", "bank", "--out", str(tmp_path), "--renew"]) == 0
    said = capsys.readouterr().out
    new = load(*paths("bank", tmp_path))
    assert new.certificate.fingerprint in said
    assert not same_certificate(new.certificate.content, old.certificate.content)
    assert new.signer.public != old.signer.public
    kept = paths(f"bank.{old.certificate.fingerprint[:16]}", tmp_path)
    assert load(*kept).certificate == old.certificate
    assert stat.S_IMODE(paths("bank", tmp_path)[0].stat().st_mode) == 0o600
    assert stat.S_IMODE(kept[0].stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        path.name for path in (*paths("bank", tmp_path), *kept)
    )


def test_an_identity_that_has_ended_is_renewed_and_one_that_is_not_there_is_refused(tmp_path):
    made = make_identity("bank", tmp_path)
    _, certificate = paths("bank", tmp_path)
    certificate.write_bytes(issued(private(made), "bank", since=-9, until=-1))
    with pytest.raises(ConfigurationError, match="is valid from"):
        load(*paths("bank", tmp_path))
    renewed, _ = renew_identity("bank", tmp_path)
    assert load(*paths("bank", tmp_path)).certificate == renewed.certificate
    with pytest.raises(ConfigurationError, match="cannot be read"):
        renew_identity("shop", tmp_path)
    certificate.write_bytes(b"nothing")
    with pytest.raises(ConfigurationError, match="is not a certificate in PEM"):
        renew_identity("bank", tmp_path)


def test_an_identity_is_read_as_it_was_made(tmp_path):
    made = make_identity("bank", tmp_path / "new" / "keys")
    key, certificate = paths("bank", tmp_path / "new" / "keys")
    assert (key.name, certificate.name) == ("bank.key", "bank.crt")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    read = load(key, certificate)
    assert (read.certificate, read.key) == (made.certificate, made.key)
    assert read.signer.public == made.certificate.public
    assert fingerprint(certificate) == made.certificate.fingerprint
    assert "PRIVATE" not in repr(made) + str(vars(made.signer))


def test_the_certificate_names_the_host_and_issues_no_others(tmp_path):
    made = make_identity("bank", tmp_path).certificate
    parsed = x509.load_pem_x509_certificate(made.content)
    assert made.names == ("bank", "localhost")
    limits = parsed.extensions.get_extension_for_class(x509.BasicConstraints)
    assert limits.critical
    assert not limits.value.ca
    left = parsed.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=3640) < left < timedelta(days=3660)
    assert parsed.not_valid_before_utc < datetime.now(UTC) - timedelta(hours=12)  # clocks may differ
    parsed.verify_directly_issued_by(parsed)


def test_openssl_shows_the_fingerprint(tmp_path):
    made, (_, path) = make_identity("bank", tmp_path), paths("bank", tmp_path)
    try:
        done = subprocess.run(
            ["openssl", "x509", "-in", str(path), "-noout", "-fingerprint", "-sha256"],
            capture_output=True,
            text=True,
            check=True,
        )
    except FileNotFoundError:
        pytest.skip("no openssl command")
    assert done.stdout.strip().rpartition("=")[2].replace(":", "").lower() == made.certificate.fingerprint


def test_existing_files_are_never_overwritten(tmp_path):
    make_identity("bank", tmp_path)
    key, certificate = paths("bank", tmp_path)
    before = key.read_bytes(), certificate.read_bytes()
    with pytest.raises(ConfigurationError, match=r"bank\.key exists, and overwriting it would destroy an identity"):
        make_identity("bank", tmp_path)
    assert (key.read_bytes(), certificate.read_bytes()) == before
    key.unlink()
    with pytest.raises(ConfigurationError, match=r"bank\.crt exists"):
        make_identity("bank", tmp_path)
    assert not key.exists()


@pytest.mark.parametrize("name", ["", "a b", "../a", "-a", ".a", "a/b", "a\n", "x" * 64, "localhost", "LocalHost", "é"])
def test_a_name_that_is_not_allowed_is_refused(name, tmp_path):
    with pytest.raises(ConfigurationError, match="is not allowed; use 1 to 63 letters"):
        make_identity(name, tmp_path / "keys")
    assert not (tmp_path / "keys").exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        make_identity("bank", tmp_path / "file")


def test_a_key_of_another_certificate_is_refused(tmp_path):
    make_identity("bank", tmp_path)
    make_identity("telco", tmp_path)
    with pytest.raises(ConfigurationError, match=r"bank\.key does not belong to the certificate .* of telco"):
        load(tmp_path / "bank.key", tmp_path / "telco.crt")


def test_files_without_a_key_or_certificate_are_refused(tmp_path):
    made = make_identity("bank", tmp_path)
    key, certificate = paths("bank", tmp_path)
    other = ed25519.Ed25519PrivateKey.generate()
    keys = [b"", b"no PEM", made.certificate.content]
    keys.append(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    keys.append(private(made).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")))
    for content in keys:
        (tmp_path / "bad.key").write_bytes(content)
        with pytest.raises(ConfigurationError, match=r"bad\.key has no private key") as refused:
            load(tmp_path / "bad.key", certificate)
        assert "\n" not in str(refused.value)
    certificates = [b"", b"no PEM", made.key, issued(other, "bank"), 2 * made.certificate.content]
    certificates.append(issued(ec.generate_private_key(ec.SECP384R1()), "bank"))
    for content in certificates:
        (tmp_path / "bad.crt").write_bytes(content)
        with pytest.raises(ConfigurationError, match=r"bad\.crt is not one certificate with a P-256 key"):
            load(key, tmp_path / "bad.crt")
    for files in ((tmp_path / "none.key", certificate), (key, tmp_path / "none.crt"), (tmp_path, certificate)):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            load(*files)


@pytest.mark.parametrize(("since", "until"), [(-9, -1), (1, 9)])
def test_a_certificate_of_another_time_is_refused(since, until, tmp_path):
    path = tmp_path / "old.crt"
    path.write_bytes(issued(private(make_identity("bank", tmp_path)), "bank", since=since, until=until))
    with pytest.raises(ConfigurationError, match=r"old\.crt is valid from 2\d\d\d-.* to 2.*; correct the clock"):
        Certificate.read(path)


# ---- what a certificate proves


def test_certificates_are_compared_as_a_whole(tmp_path):
    bank, telco = (make_identity(name, tmp_path) for name in ("bank", "telco"))
    pinned = telco.certificate.content
    assert same_certificate(pinned, pinned)
    assert same_certificate(pinned, b"text before\n" + pinned.replace(b"\n", b"\r\n"))
    forged = issued(private(bank), "telco", subject=private(telco))  # telco's name and key, signed by bank
    for other in (
        bank.certificate.content,
        forged,
        issued(private(telco), "telco", issuer="telco"),
        b"",
        b"no PEM",
        pinned[:-40],
    ):
        assert not same_certificate(pinned, other)
    assert not same_certificate(b"", b"")


def test_a_statement_is_signed_with_the_key_of_the_certificate(tmp_path):
    bank, telco = (make_identity(name, tmp_path) for name in ("bank", "telco"))
    statement = ("lightning-vfl keys", bytes(32), "fit", 3, 0, b"public")
    signature = bank.signer.sign(*statement)
    assert verified(bank.certificate.public, signature, *statement)
    assert not verified(telco.certificate.public, signature, *statement)
    assert not verified(bank.certificate.public, signature, *statement[:-1], b"other")


# ---- the command


def test_the_command_prints_the_fingerprint(tmp_path, capsys):
    folder = str(tmp_path / "keys")
    assert answer(["identity", "bank", "--out", folder]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(os.path.join(folder, "bank.key: private key"))
    assert said[2] == f"sha256 fingerprint: {fingerprint(tmp_path / 'keys' / 'bank.crt')}"
    assert answer(["identity", "bank", "--out", folder]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("arguments", [[], ["--out", "keys"], ["bank", "--uot", "keys"], ["bank", "telco"]])
def test_a_command_that_cannot_be_read_ends_in_one_line(arguments, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert answer(["identity", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.processes
def test_the_command_imports_neither_torch_nor_grpc(tmp_path):
    code = "from lightning_vfl.commands.light import answer; import sys\n"
    code += f"answer(['identity', 'a', '--out', {str(tmp_path)!r}])\n"
    code += "import lightning_vfl.federation.charter, lightning_vfl.federation.recipe\n"
    code += "print(*{'torch', 'lightning', 'grpc', 'pandas'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == ""
