"""federation.yaml and seat.yaml: read as written, and every mistake is one line with the file and the key."""

import shutil

import pytest
import yaml
from cryptography.hazmat.primitives.asymmetric import ec

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.charter import Alignment, Budget, Charter, Consent, Log, Patience, SeatFile
from lightning_vfl.federation.identity import make_identity
from tests.unit.federation.certificates import issued

NAMES = ("scorer", "bank", "telco")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the identities of three hosts and one more."""
    folder = tmp_path_factory.mktemp("federation")
    for name in (*NAMES, "thief"):
        make_identity(name, folder / "keys")
    return folder


def content():
    """A federation with every key given."""
    hosts = [{"name": name, "certificate": f"keys/{name}.crt"} for name in NAMES]
    return {
        "federation": "loans-2026-11",
        "server": {**hosts[0], "address": "scorer.example.org:8443"},
        "parties": hosts[1:],
        "alignment": "given",
        "patience": {"join": 60, "reconnect": 5, "silence": 1.5},
    }


def read(folder, said, name="federation.yaml", kind=Charter):
    (folder / name).write_text(said if isinstance(said, str) else yaml.safe_dump(said, sort_keys=False))
    return kind.read(folder / name)


def changed(said, key, value):
    """The content with another value of a dotted key; None: without the key."""
    *parts, last = [int(part) if part.isdigit() else part for part in key.split(".")]
    inner = said
    for part in parts:
        inner = inner[part]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return said


# ---- federation.yaml


def test_the_certificate_that_ends_first_is_told_two_months_before(made, tmp_path):
    shutil.copytree(made / "keys", tmp_path / "keys")
    assert read(tmp_path, content()).ending() is None
    for days, told in ((61.5, False), (59.5, True), (1.5, True)):
        key = ec.generate_private_key(ec.SECP256R1())
        (tmp_path / "keys" / "bank.crt").write_bytes(issued(key, "bank", until=days))
        charter = read(tmp_path, content())
        assert charter.ends_first.name == "bank"
        line = charter.ending()
        assert (line is not None) == told
        assert line is None or line.startswith(f"the certificate of bank ends in {int(days)} days; renew it")


def test_a_charter_is_read_as_written(made):
    charter = read(made, content())
    assert (charter.federation, charter.server.name) == ("loans-2026-11", "scorer")
    assert charter.server.address == "scorer.example.org:8443"
    assert [party.name for party in charter.parties] == ["bank", "telco"]
    assert charter.alignment is Alignment.GIVEN
    assert charter.patience == Patience(60.0, 5.0, 1.5)
    assert charter.number("telco") == 1
    assert charter.parties[0].certificate.content == (made / "keys/bank.crt").read_bytes()


def test_alignment_and_patience_have_defaults(made):
    said = content()
    del said["alignment"], said["patience"]
    charter = read(made, said)
    assert charter.alignment is Alignment.CLEAR
    assert charter.patience == Patience(600.0, 600.0, 15.0)
    assert read(made, changed(content(), "patience", {"join": 7})).patience == Patience(7.0)


def test_the_steps_that_make_ids_equal_are_agreed_upon(made):
    def private(**more):
        return read(made, {**content(), "alignment": "psi", **more})

    one, other = private(normalise=["casefold", "strip"]), private(normalise=["strip"])
    assert (one.normalise, other.normalise) == (("strip", "casefold"), ("strip",))
    assert len({one.digest, other.digest, private().digest}) == 3
    assert private(normalise=[]).digest == private().digest


def test_equal_content_has_one_digest_wherever_it_lies(made, tmp_path):
    digest = read(made, content()).digest
    assert len(digest) == 32
    shutil.copytree(made / "keys", tmp_path / "certificates")
    said = content()
    for host in (said["server"], *said["parties"]):
        host["certificate"] = host["certificate"].replace("keys", "certificates")
    assert read(tmp_path, "# a comment\n" + yaml.safe_dump(said, default_flow_style=True)).digest == digest


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("federation", "loans-2026-12"),
        ("server.address", "scorer.example.org:8444"),
        ("parties", [{"name": name, "certificate": f"keys/{name}.crt"} for name in ("telco", "bank")]),
        ("parties.1", {"name": "thief", "certificate": "keys/thief.crt"}),
        ("parties.1", None),
        ("alignment", "clear"),
        ("patience.silence", 2),
    ],
)
def test_other_content_has_another_digest(made, key, value):
    assert read(made, changed(content(), key, value)).digest != read(made, content()).digest


def test_another_certificate_of_the_same_name_changes_the_digest(made, tmp_path):
    shutil.copytree(made / "keys", tmp_path / "keys")
    before = read(tmp_path, content()).digest
    for ending in ("key", "crt"):
        (tmp_path / f"keys/bank.{ending}").unlink()
    make_identity("bank", tmp_path / "keys")
    assert read(tmp_path, content()).digest != before


def test_a_party_is_found_by_its_whole_certificate(made):
    charter = read(made, content())
    for number, party in [*enumerate(charter.parties)] * 2:  # every call of a party shows it again
        assert charter.holder(party.certificate.content) == number
    stranger = (made / "keys/thief.crt").read_bytes()
    with pytest.raises(
        ConfigurationError, match=r"no party of loans-2026-11 has this certificate \(sha256 [0-9a-f]{16}"
    ):
        charter.holder(stranger)
    with pytest.raises(ConfigurationError, match=r"has this certificate \(unreadable\)"):
        charter.holder(b"none")
    with pytest.raises(ConfigurationError, match="no party of loans-2026-11 has the name 'bnak'; did you mean bank"):
        charter.number("bnak")


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("federation", None, "federation is missing"),
        ("server", None, "server is missing"),
        ("parties", None, "parties is missing"),
        ("parties", [], "parties must be a list of at least one"),
        ("parties", {"bank": "keys/bank.crt"}, "parties must be a list of at least one"),
        ("partys", [], "partys is not a key of this file; did you mean parties?"),
        ("server.addres_", "a:1", "server.addres_ is not a key of this file; did you mean address?"),
        ("parties.1.cert", "a", "parties[1].cert is not a key of this file"),
        ("patience.silense", 1, "patience.silense is not a key of this file; did you mean silence?"),
        ("parties.1", "telco", "parties[1] must have the keys name, certificate; got 'telco'"),
        ("parties.1.certificate", None, "parties[1].certificate is missing"),
        ("parties.1.name", 7, "parties[1].name must be a text; got 7"),
        ("parties.1.name", "a b", "parties[1].name: the name 'a b' is not allowed; use 1 to 63"),
        ("federation", "a/b", "federation: the name 'a/b' is not allowed"),
        ("parties.1", {"name": "bank", "certificate": "keys/bank.crt"}, "two hosts have the name bank"),
        ("parties.1", {"name": "telco", "certificate": "keys/bank.crt"},
         "is the certificate of bank, localhost; give that of telco"),
        ("parties.1.certificate", "keys/none.crt", "parties[1].certificate: the certificate"),
        ("parties.1.certificate", "keys/telco.key", "telco.key is not one certificate"),
        ("parties.1.certificate", 3, "parties[1].certificate must be the path of a file; got 3"),
        ("server.address", "scorer.example.org", "must be host:port, such as scorer.example.org:8443; got"),
        ("server.address", "scorer:0", "server.address must be host:port"),
        ("server.address", "scorer:65536", "server.address must be host:port"),
        ("server.address", "https://scorer:8443", "server.address must be host:port"),
        ("server.address", 8443, "server.address must be host:port"),
        ("alignment", "join", "alignment must be 'clear', 'given' or 'psi'; got 'join'"),
        ("alignment", ["clear"], "alignment must be 'clear', 'given' or 'psi'"),
        ("normalise", "strip", "normalise must be a list of nfkc, strip, casefold, zeros; got 'strip'"),
        ("normalise", ["strp"], "normalise must be 'nfkc', 'strip', 'casefold' or 'zeros'; got 'strp'"),
        ("normalise", ["strip"], "normalise is for alignment: psi; with alignment: given write the ids equally in all"),
        ("patience", 3, "patience must have the keys join, reconnect, silence; got 3"),
        ("patience.join", 0, "patience.join must be seconds above 0; got 0"),
        ("patience.join", float("inf"), "patience.join must be seconds above 0; got inf"),
        ("patience.join", float("nan"), "patience.join must be seconds above 0; got nan"),
        ("patience.join", True, "patience.join must be seconds above 0; got True"),
        ("patience.join", "long", "patience.join must be seconds above 0; got 'long'"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_with_file_and_key(made, key, value, line):
    with pytest.raises(ConfigurationError) as refused:
        read(made, changed(content(), key, value))
    assert str(refused.value).startswith(str(made / "federation.yaml"))
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "keys federation, server, parties, alignment, patience, normalise, weights, limits; got None"),
        ("- a", "the file must have the keys"),
        ("a: [", "correct the YAML"),
        ("federation: a\nfederation: b", "the key 'federation' is given twice"),
        ("? [a]\n: b", "correct the YAML"),
        ("1: b", "1 is not a key of this file"),
        ("federation: !!python/object/apply:os.getcwd []", "correct the YAML"),
    ],
)
def test_a_file_that_is_no_charter_is_refused(made, text, line):
    with pytest.raises(ConfigurationError) as refused:
        read(made, text)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"none\.yaml cannot be read \(No such file"):
        Charter.read(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigurationError, match="it is not UTF-8"):
        Charter.read(tmp_path / "bytes.yaml")


def test_one_certificate_for_two_hosts_is_refused(made, tmp_path):
    shutil.copytree(made / "keys", tmp_path / "keys")
    (tmp_path / "keys/both.crt").write_bytes(issued(ec.generate_private_key(ec.SECP256R1()), "bank", "telco"))
    said = content()
    for party in said["parties"]:
        party["certificate"] = "keys/both.crt"
    with pytest.raises(ConfigurationError, match="bank and telco have the same certificate; every host needs its own"):
        read(tmp_path, said)


def test_names_that_differ_in_the_size_of_letters_are_refused(made, tmp_path):
    make_identity("Bank", tmp_path)
    said = changed(content(), "parties.1", {"name": "Bank", "certificate": str(tmp_path / "Bank.crt")})
    with pytest.raises(ConfigurationError, match="two hosts have the name Bank"):
        read(made, said)


# ---- seat.yaml


def seat(folder, said):
    return read(folder, said, "seat.yaml", SeatFile)


def test_a_seat_is_read_as_written(tmp_path, monkeypatch):
    named = "http://environment.example:3128"
    monkeypatch.setenv("https_proxy", f"{named}/")
    said = "{key: keys/bank.key, least_members: 3, budget: {epsilon: 8, delta: 1e-5}, evaluate: plain}"
    assert seat(tmp_path, said) == SeatFile(
        tmp_path / "keys/bank.key", 3, Budget(8.0, 1e-5), Consent.PLAIN, tmp_path / "seat.privacy.jsonl"
    )
    assert seat(tmp_path, "{key: k, proxy: 'http://proxy.example:3128'}").proxy == "http://proxy.example:3128"
    assert seat(tmp_path, "{key: k, proxy: env}").proxy == named
    assert seat(tmp_path, "{key: k, metrics: '127.0.0.1:9100'}").metrics == "127.0.0.1:9100"
    assert seat(tmp_path, "{key: k, log: json}").log is Log.JSON
    assert seat(tmp_path, "key: /keys/bank.key").key.as_posix() == "/keys/bank.key"
    assert seat(tmp_path, "key: k") == SeatFile(
        tmp_path / "k", 1, None, Consent.PROTOCOL, tmp_path / "seat.privacy.jsonl"
    )


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("{}", "key is missing"),
        ("key: 3", "key must be the path of a file; got 3"),
        ("{key: k, metrics: 9100}", "metrics must be host:port"),
        ("{key: k, least_member: 2}", "least_member is not a key of this file; did you mean least_members?"),
        ("{key: k, least_members: 0}", "least_members must be a whole number, 1 or more; got 0"),
        ("{key: k, least_members: true}", "least_members must be a whole number, 1 or more; got True"),
        ("{key: k, least_members: 2.5}", "least_members must be a whole number, 1 or more; got 2.5"),
        ("{key: k, budget: 8}", "budget must have the keys epsilon, delta; got 8"),
        ("{key: k, budget: {epsilon: 8}}", "budget.delta is missing"),
        ("{key: k, budget: {epsilon: -1, delta: 0.1}}", "budget.epsilon must be a number above 0; got -1"),
        ("{key: k, budget: {epsilon: .inf, delta: 0.1}}", "budget.epsilon must be a number above 0; got inf"),
        ("{key: k, budget: {epsilon: 1, delta: 1}}", "budget.delta must be a number above 0 and below 1; got 1"),
        (
            "{key: k, proxy: proxy.example}",
            "proxy must be http://host:port, such as http://proxy.example.org:3128; got",
        ),
        ("{key: k, log: yes}", "log must be 'text' or 'json'; got True"),
        ("{key: k, evaluate: always}", "evaluate must be 'protocol' or 'plain'; got 'always'"),
    ],
)
def test_a_mistake_in_a_seat_is_one_line(tmp_path, said, line):
    with pytest.raises(ConfigurationError) as refused:
        seat(tmp_path, said)
    assert str(refused.value).startswith(str(tmp_path / "seat.yaml"))
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)
