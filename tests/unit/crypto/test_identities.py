"""Identity keys: a pair of files a party, signatures that the openssl command accepts, one sentence for bad files."""

import copy
import pickle
import stat
import subprocess

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, SECP384R1, derive_private_key, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl import cli
from lightning_vfl.crypto import Identities, Signer, verified
from lightning_vfl.crypto.keys import encoded
from lightning_vfl.errors import ConfigurationError
from tests.examples import examples

statements = st.lists(st.one_of(st.text(max_size=4), st.binary(max_size=4), st.integers(-3, 300)), max_size=4)


# ---- signatures


@pytest.mark.parametrize(
    ("private", "public", "message", "signature"),
    [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe"
            "24655141438e7a100b",
        ),
    ],
)
def test_the_key_is_that_of_rfc_8032(private, public, message, signature):
    """Section 7.1, test 1: our messages are never empty (encoded statements), the key and the scheme are the same."""
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(private))
    assert Signer(key).public.hex() == public
    assert key.sign(bytes.fromhex(message)).hex() == signature
    assert verified(bytes.fromhex(public), key.sign(encoded(("a", 1))), "a", 1)


# a key each of Ed25519 and of P-256, as certificates have it, and another one of the same kind
KINDS = {
    "Ed25519": (Signer.insecure_seeded(0, "test"), Signer.insecure_seeded(1, "test")),
    "P-256": (Signer(derive_private_key(3, SECP256R1())), Signer(derive_private_key(4, SECP256R1()))),
}


@pytest.mark.parametrize("kind", KINDS)
@examples(25)
@given(statements, statements)
def test_a_signature_is_of_one_statement_alone(kind, one, other):
    signer, stranger = KINDS[kind]
    signature = signer.sign(*one)
    assert len(signature) == 64
    assert verified(signer.public, signature, *other) == (one == other)
    assert not verified(stranger.public, signature, *one)


def test_the_signature_of_a_certificate_is_that_of_rfc_6979():
    """Appendix A.2.5: the public key; a signature is two numbers of 32 bytes each."""
    private = derive_private_key(
        int("C9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721", 16), SECP256R1()
    )
    assert Signer(private).public.hex() == "0360fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6"
    for number in range(20):  # leading zeros of a number stay
        signature = Signer(private).sign("a", number)
        assert verified(Signer(private).public, signature, "a", number)
        assert not verified(Signer(private).public, signature[:-1], "a", number)
        assert not verified(Signer(private).public, bytes(1) + signature, "a", number)
    with pytest.raises(ValueError, match="secp384r1; P-256 is needed"):
        Signer(generate_private_key(SECP384R1()))


@pytest.mark.parametrize("public", [b"", bytes(31), bytes(33), b"\xff" * 32, b"\x02" + b"\xff" * 32])
@pytest.mark.parametrize("signature", [b"", bytes(63), bytes(64), bytes(65)])
def test_malformed_keys_and_signatures_are_no_signatures(public, signature):
    assert not verified(public, signature, "a")
    assert not any(verified(signer.public, signature, "a") for pair in KINDS.values() for signer in pair)


def test_copies_and_pickles_hold_no_private_key():
    signer = Signer()
    for other in (copy.deepcopy(signer), pickle.loads(pickle.dumps(signer))):
        assert other.public == signer.public
        with pytest.raises(RuntimeError, match="copy or a forked process"):
            other.sign("a")
    assert Signer().public != Signer().public
    assert Signer.insecure_seeded(0, "a").public == Signer.insecure_seeded(0, "a").public


# ---- files


def test_the_command_writes_one_pair_of_files_a_party(tmp_path, capsys):
    folder = tmp_path / "new" / "ids"
    cli.main(["keys", str(folder), "--parties", "3"])
    assert capsys.readouterr().out == f"{folder}: identity keys of parties 0 to 2\n"
    names = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert set(names) == {f"party-{m}.{kind}.pem" for m in range(3) for kind in ("key", "pub")}
    assert all(mode == 0o600 for name, mode in names.items() if ".key." in name)
    identities = Identities(folder)
    publics, signers = identities.publics(3), identities.signers((0, 2), 3)
    assert set(signers) == {0, 2}
    assert len(set(publics.values())) == 3
    assert verified(publics[2], signers[2].sign("a"), "a")


def test_openssl_reads_the_files_and_agrees_about_a_signature(tmp_path):
    folder = Identities.make(tmp_path, 1).folder
    public, message, signature = folder / "party-0.pub.pem", tmp_path / "message", tmp_path / "signature"
    message.write_bytes(encoded(("a", 7)))
    signature.write_bytes(Identities(folder).signers((0,), 1)[0].sign("a", 7))
    command = ["openssl", "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", str(public), "-in", str(message)]
    try:
        done = subprocess.run([*command, "-sigfile", str(signature)], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("no openssl command")
    assert done.returncode == 0, done.stderr
    assert "Verified Successfully" in done.stdout


def test_existing_files_are_never_overwritten(tmp_path, capsys):
    Identities.make(tmp_path, 2)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for parties in (1, 2, 5):
        with pytest.raises(SystemExit) as ended:
            cli.main(["keys", str(tmp_path), "--parties", str(parties)])
        assert ended.value.code == 1
        said = capsys.readouterr().err
        assert "party-0.key.pem exists, and overwriting it would destroy a key" in said
        assert said.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("arguments", [["keys"], ["keys", "FOLDER"], ["keys", "FOLDER", "--parties", "some"]])
def test_a_command_that_cannot_be_read_ends_in_one_line(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_no_parties_are_no_keys(tmp_path):
    with pytest.raises(ConfigurationError, match="--parties must be a whole number, 1 or more; got 0"):
        Identities.make(tmp_path, 0)


def other_pem(kind):
    key = X25519PrivateKey.generate()
    if kind == "key":
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


@pytest.mark.parametrize("kind", ["key", "pub"])
@pytest.mark.parametrize("content", [None, b"", b"no PEM", "another scheme"])
def test_files_that_hold_no_key_are_refused_and_named(tmp_path, kind, content):
    identities = Identities.make(tmp_path, 3)
    path = identities.path(1, kind)
    path.unlink()
    if content is not None:
        path.write_bytes(other_pem(kind) if content == "another scheme" else content)
    with pytest.raises(ConfigurationError, match=rf"party-1\.{kind}\.pem .*lightning-vfl keys FOLDER --parties 3"):
        identities.signers(range(3), 3)


def test_keys_that_do_not_belong_together_are_refused(tmp_path):
    identities = Identities.make(tmp_path / "one", 2)
    other = Identities.make(tmp_path / "other", 2)
    identities.path(1, "key").write_bytes(other.path(1, "key").read_bytes())
    with pytest.raises(ConfigurationError, match=r"party-1\.key\.pem does not belong to .*party-1\.pub\.pem"):
        identities.signers(range(2), 2)
    for kind in ("key", "pub"):
        identities.path(1, kind).write_bytes(identities.path(0, kind).read_bytes())
    with pytest.raises(ConfigurationError, match="parties 0 and 1 have the same identity key"):
        identities.publics(2)
