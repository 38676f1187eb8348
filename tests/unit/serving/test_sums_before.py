"""Law: a record that was summed without a party is in no sum with it, whatever the ledger of the seat gets when."""

import asyncio
import random

import numpy as np
import pytest

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.manifest import Missing
from lightning_vfl.privacy import PrivacyAccountant, PrivacyLedger
from lightning_vfl.privacy.ledger import Sum
from lightning_vfl.serving.sums_before import SumsBefore
from tests.served import MASKED, NETWORK, Subject, running

ALL = (0, 1, 2)
SETS = (ALL, (0, 1), (0, 2), (1, 2), (1,))
IDS = [*range(20)]
SINCE = 5  # rounds of training


@pytest.fixture
def ledger(tmp_path):
    return PrivacyLedger.begin(tmp_path / "seat.privacy.jsonl", PrivacyAccountant(0))


def note(ledger, parties, ids, network=NETWORK, trained=SINCE):
    ledger.note_sum(network, Sum(parties, ledger.known.hashed(ids), trained), "fit")


def sums_of(ledger):
    return SumsBefore(ledger.path, NETWORK, len(ALL), SINCE)


@pytest.mark.parametrize("as_text", [False, True], ids=["numbers", "texts"])
@pytest.mark.parametrize("seed", range(4))
def test_exactly_the_records_of_late_short_sums_of_this_network_are_apart(seed, as_text, ledger):
    draw = random.Random(seed)
    sums = sums_of(ledger)
    asked = np.array([str(one) for one in IDS]) if as_text else np.array(IDS)
    expected = set()
    for _ in range(12):
        parties, network, ids = draw.choice(SETS), draw.choice([NETWORK, "b2"]), draw.sample(IDS, 2)
        trained = SINCE + draw.randrange(-2, 3)
        note(ledger, parties, ids, network, trained)
        if draw.random() < 0.3:
            ledger.note_left_out(NETWORK, 3, "test")
        if network == NETWORK and parties != ALL and trained >= SINCE:
            expected |= {*ids}
        assert [one in expected for one in IDS] == sums.withheld(asked).tolist()
    assert sums_of(ledger).withheld(asked).tolist() == [one in expected for one in IDS]
    assert len(sums) == len(expected) > 0


def test_a_line_counts_when_it_is_whole(ledger):
    note(ledger, (0, 1), [1])
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole[:-9])  # as a run that is writing
    sums = sums_of(ledger)
    assert not sums.withheld(np.array([1])).any()
    with ledger.path.open("ab") as file:
        file.write(whole[-9:])
    assert sums.withheld(np.array([1, 2])).tolist() == [True, False]


def test_a_ledger_that_begins_later_counts(tmp_path):
    sums = SumsBefore(tmp_path / "seat.privacy.jsonl", NETWORK, len(ALL), SINCE)
    assert not sums.withheld(np.array([1])).any()
    note(PrivacyLedger.begin(tmp_path / "seat.privacy.jsonl", PrivacyAccountant(0)), (1, 2), [1])
    assert sums.withheld(np.array([1])).all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: path.unlink(), "is gone"),
        (lambda path: path.write_bytes(path.read_bytes()[:40]), "was replaced"),
        (lambda path: PrivacyLedger.begin(path, PrivacyAccountant(0)), "was replaced"),
        (lambda path: path.write_bytes(path.read_bytes() + b"{]\n"), "is damaged"),
        (lambda path: path.write_bytes(path.read_bytes() + b"[]\n"), "is damaged"),
    ],
    ids=["gone", "cut", "new", "no JSON", "no line"],
)
def test_a_ledger_that_is_not_the_one_that_was_read_is_refused(change, said, ledger):
    note(ledger, (0, 1), [1])
    sums = sums_of(ledger)
    change(ledger.path)
    for _ in range(2):  # nothing is served later either
        with pytest.raises(ConfigurationError, match=said):
            sums.withheld(np.array([1]))


def test_a_running_endpoint_serves_no_record_from_the_line_on(ledger, tmp_path):
    subject = Subject(tmp_path, MASKED, Missing.SKIP)
    subject.seat_settings["bank"] = {"ledger": ledger.path}
    ids = np.array([3, 5, 7])

    async def asked():
        async with running(subject) as (gateway, _):
            before = await gateway.predict(ids)
            note(ledger, (1, 2), [5])
            return before, await gateway.predict(ids)

    before, after = asyncio.run(asked())
    assert before.predicted.all()
    assert after.withheld.tolist() == [False, True, False]
    assert not after.unknown.any()
    assert after.predicted.tolist() == [True, False, True]
    np.testing.assert_allclose(after.values[[0, 2]], subject.expected(ids[[0, 2]]), atol=1e-5)


def test_an_endpoint_says_at_start_how_many_records_it_withholds(ledger, tmp_path):
    subject = Subject(tmp_path, MASKED, Missing.SKIP)
    note(ledger, (1, 2), [5, 6, "Name 7"])  # the last as a training without ids names it
    assert subject.endpoint("bank", ledger=ledger.path).limits == (
        f"2 records are withheld: {ledger.path} has them in sums without a party; 1 others in such sums are not in the "
        "table, or were noted without ids"
    )
    assert subject.endpoint("bank", ledger=tmp_path / "none.jsonl").limits.startswith("0 records are withheld")
    assert "no ledger" in subject.endpoint("bank").limits


def test_a_half_that_does_not_name_its_network_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.served.NETWORK", "")
    with pytest.raises(ConfigurationError, match="does not name its network; export the model again"):
        Subject(tmp_path, MASKED).endpoint("bank")
