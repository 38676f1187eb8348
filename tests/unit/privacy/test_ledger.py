"""The ledger's file: what is read back is what was charged, whatever a kill leaves of the last line."""

import json
import resource
import signal
import zlib
from base64 import b64decode
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy import GaussianEvent, PoissonBinomialEvent, PrivacyAccountant, PrivacyLedger, UnknownEvent
from tests.examples import examples

RECORDS = 9
EVENTS = (
    PoissonBinomialEvent(levels=4, beta=0.1, parties=3, coordinates=4),
    GaussianEvent(sigma=0.1 + 0.2, sensitivity=2.0, parties=3),
    UnknownEvent("Laplace", (("scale", 1.5),)),
)
ROUNDS = st.lists(st.tuples(st.sampled_from(EVENTS), st.lists(st.integers(0, RECORDS - 1), max_size=12)), max_size=8)


def counted(accountant):
    """(event, record) -> how often it was charged."""
    rows = accountant._counts.items()
    return Counter({(event, i): int(n) for event, row in rows for i, n in enumerate(row) if n})


def charge_all(ledger, rounds):
    for number, (event, ids) in enumerate(rounds):
        ledger.charge(number, event, torch.tensor(ids, dtype=torch.int64))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ledgers")


@examples(15)
@given(before=ROUNDS, rounds=ROUNDS, again=ROUNDS)
def test_what_is_read_is_what_was_charged(folder, before, rounds, again):
    accountant = PrivacyAccountant(RECORDS)
    for event, ids in before:
        accountant.spend(event, torch.tensor(ids, dtype=torch.int64))
    ledger = PrivacyLedger.begin(folder, accountant, whole=not before)
    charge_all(ledger, rounds)
    resumed, read = PrivacyLedger.resume(ledger.path)
    assert resumed == ledger
    charge_all(resumed, again)
    expected = Counter((event, i) for event, ids in [*before, *rounds, *again] for i in ids)
    last, read = PrivacyLedger.read(ledger.path)
    assert counted(read) == expected
    assert (last.records, last.whole) == (RECORDS, not before)
    assert read.covers(accountant)
    assert accountant.covers(read) == (not rounds + again or counted(accountant) == expected)


def test_only_its_owner_may_read_a_ledger(tmp_path):
    ledger = PrivacyLedger.begin(tmp_path, PrivacyAccountant(10))
    assert ledger.path.stat().st_mode & 0o777 == 0o600


def test_a_line_is_json_that_another_program_can_read(tmp_path):
    ledger = PrivacyLedger.begin(tmp_path, PrivacyAccountant(1000))
    ids = [7, 3, 3, 999, 512]
    ledger.charge(41, EVENTS[0], torch.tensor(ids))
    head, line = (json.loads(line) for line in ledger.path.read_text().splitlines())
    assert head == {
        "privacy_ledger": 2,
        "run": ledger.run,
        "records": 1000,
        "whole": True,
        "key": ledger.known.key,
    }
    assert (line["round"], line["event"]) == (41, EVENTS[0].plain())
    packed = zlib.decompress(b64decode(line["ids"]))
    steps = [int.from_bytes(packed[i : i + 8], "little") for i in range(0, len(packed), 8)]
    assert [sum(steps[: i + 1]) for i in range(len(steps))] == sorted(ids)


def test_an_incomplete_last_line_is_dropped_wherever_it_was_cut(tmp_path):
    ledger = PrivacyLedger.begin(tmp_path, PrivacyAccountant(RECORDS))
    ledger.charge(0, EVENTS[0], torch.tensor([1, 2]))
    whole = ledger.size
    ledger.charge(1, EVENTS[1], torch.tensor([2, 3]))
    text = ledger.path.read_bytes()
    for cut in range(whole, len(text)):
        ledger.path.write_bytes(text[:cut])
        resumed, read = PrivacyLedger.resume(ledger.path)
        assert counted(read) == Counter({(EVENTS[0], 1): 1, (EVENTS[0], 2): 1})
        assert resumed.size == ledger.path.stat().st_size == whole
    resumed.charge(1, EVENTS[1], torch.tensor([2, 3]))
    assert ledger.path.read_bytes() == text


def test_a_complete_line_that_is_damaged_is_refused(tmp_path):
    ledger = PrivacyLedger.begin(tmp_path, PrivacyAccountant(RECORDS))
    charge_all(ledger, [(EVENTS[0], [1, 2]), (EVENTS[0], [3, 4])])
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    packed = json.loads(lines[1])["ids"].encode()
    for number, wrong in (
        (1, lines[0][5:]),
        (1, b"\n"),
        (2, lines[1][:30] + b"\n"),
        (2, lines[1].replace(packed, packed[:8] + packed[8:].swapcase())),
        (2, lines[1].replace(b'"event"', b'"evnt"')),
        (3, b"\0" * 20 + b"\n"),
    ):
        damaged = [wrong if i == number else line for i, line in enumerate(lines, start=1)]
        ledger.path.write_bytes(b"".join(damaged))
        with pytest.raises(ConfigurationError, match=f"line {number} of the privacy ledger .* is damaged; restore"):
            PrivacyLedger.read(ledger.path)
    ledger.path.write_bytes(lines[0].replace(b'ledger":2', b'ledger":3'))
    with pytest.raises(ConfigurationError, match="has version 3, but this toolkit reads 2"):
        PrivacyLedger.read(ledger.path)


def test_a_second_writer_is_noticed_before_the_uploads(tmp_path):
    first = PrivacyLedger.begin(tmp_path, PrivacyAccountant(RECORDS))
    second, _ = PrivacyLedger.resume(first.path)
    first.charge(0, EVENTS[0], torch.tensor([1]))
    with pytest.raises(ConfigurationError, match="changed by another process during this run"):
        second.charge(0, EVENTS[0], torch.tensor([2]))
    first.charge(1, EVENTS[0], torch.tensor([3]))
    assert counted(PrivacyLedger.read(first.path)[1]) == Counter({(EVENTS[0], 1): 1, (EVENTS[0], 3): 1})


def test_a_charge_that_comes_while_another_process_reads_the_ledger_stays(tmp_path, monkeypatch):
    """It is not taken for what a killed process has left."""
    ledger = PrivacyLedger.begin(tmp_path, PrivacyAccountant(RECORDS))
    read = PrivacyLedger.read.__func__

    def read_and_charged(cls, path):
        told = read(cls, path)
        ledger.charge(0, EVENTS[0], torch.tensor([1]))
        return told

    with monkeypatch.context() as patch:
        patch.setattr(PrivacyLedger, "read", classmethod(read_and_charged))
        with pytest.raises(ConfigurationError, match="changed by another process"):
            PrivacyLedger.resume(ledger.path)
    assert counted(PrivacyLedger.read(ledger.path)[1]) == Counter({(EVENTS[0], 1): 1})


def test_a_disk_that_fills_within_a_line_leaves_no_part_of_it(tmp_path):
    """The system cuts the write, as on a full disk; with room again, the same process goes on."""
    ledger = PrivacyLedger.begin(tmp_path, PrivacyAccountant(RECORDS))
    before = ledger.path.read_bytes()
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, kept[1]))
        with pytest.raises(ConfigurationError, match="so no more records are released"):
            ledger.charge(0, EVENTS[0], torch.tensor([1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
        signal.signal(signal.SIGXFSZ, handler)
    assert ledger.path.read_bytes() == before
    ledger.charge(0, EVENTS[0], torch.tensor([1]))
    assert counted(PrivacyLedger.read(ledger.path)[1]) == Counter({(EVENTS[0], 1): 1})


def test_files_that_cannot_be_used(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be created"):
        PrivacyLedger.begin(tmp_path / "file", PrivacyAccountant(3))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        PrivacyLedger.read(tmp_path / "none.jsonl")
    ledger = PrivacyLedger.begin(tmp_path / "made" / "for it", PrivacyAccountant(3))
    ledger.path.unlink()
    with pytest.raises(ConfigurationError, match=r"cannot be written .* no more records are released"):
        ledger.charge(0, EVENTS[0], torch.tensor([1]))
    torn = PrivacyLedger.begin(tmp_path, PrivacyAccountant(3))
    torn.path.write_bytes(torn.path.read_bytes() + b"{")
    monkeypatch.setattr("os.ftruncate", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(ConfigurationError, match=r"cannot be written \(Permission denied\); make the file writable"):
        PrivacyLedger.resume(torn.path)
