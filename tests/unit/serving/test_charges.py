"""Law: what production answers with noise is charged first, in the ledger of training, and never passes the budget."""

import asyncio
import json
import random
import subprocess
import sys
import threading
import urllib.request

import numpy as np
import pytest
import torch

from lightning_vfl.aggregators import LocalGaussian
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.manifest import Missing
from lightning_vfl.federation.charter import Budget
from lightning_vfl.privacy import GaussianEvent, PrivacyAccountant, PrivacyLedger, gaussian_epsilon
from lightning_vfl.privacy.events import restored
from lightning_vfl.serving.charges import Charges
from lightning_vfl.serving.endpoint import GaussianNoise
from lightning_vfl.serving.masks import codec_of
from tests.served import DRAWN, NOISY, Subject, running
from tests.unit.serving.test_commands import free_port, wait_until_ready, words

EVENT = GaussianEvent(2.0, 1.0, 3)
DELTA = 1e-5
FOUR = Budget(gaussian_epsilon(2.0, 1.0, DELTA, 4) + 1e-9, DELTA)  # has room for four releases of a record
IDS = [*range(12)]


def counts_in(path):
    """How often the ledger has charged each record, by its id."""
    ledger, accountant = PrivacyLedger.read(path)
    (row,) = accountant.counts.values()
    positions = ledger.known.positions(ledger.known.hashed(IDS))
    return {one: int(row[place]) if place >= 0 else 0 for one, place in zip(IDS, positions, strict=True)}


@pytest.mark.parametrize("budget", [None, FOUR], ids=["counted", "budget"])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_killed_the_ledger_has_every_answer_and_no_record_passes_the_budget(seed, budget, tmp_path):
    draw, path = random.Random(seed), tmp_path / "seat.privacy.jsonl"
    released = dict.fromkeys(IDS, 0)
    kills = 0
    for _ in range(12):
        charges = Charges(path, EVENT, budget)  # a process that begins
        for _ in range(draw.randrange(1, 8)):
            ids = np.array(draw.sample(IDS, draw.randrange(1, 6)))
            size = path.stat().st_size
            withheld = charges.charge(ids)
            written = path.stat().st_size - size
            fate = draw.choice(["answer"] * 4 + ["killed in the line", "killed before the answer"])
            if fate == "killed in the line" and written:
                path.write_bytes(path.read_bytes()[: -draw.randrange(1, 20)])
            if fate != "answer":
                kills += 1
                break
            for one in ids[~withheld].tolist():
                released[one] += 1
    charged = counts_in(path)
    assert kills
    assert sum(released.values()) > 20
    assert all(charged[one] >= count for one, count in released.items())
    assert budget is None or max(charged.values()) == 4


def test_training_is_in_the_budget_and_other_records_are_served_on(tmp_path):
    path = tmp_path / "seat.privacy.jsonl"
    ledger = PrivacyLedger.begin(path, PrivacyAccountant(0))
    ledger.name(ledger.known.hashed([5, 6]))
    for number in range(3):
        ledger.charge(number, EVENT, np.array([0]))  # record 5, by a fit
    ledger.note_clear(ledger.known.hashed([6]))  # by an evaluation
    charges = Charges(path, EVENT, FOUR)
    answers = [charges.charge(np.array([5, 6, 7])).tolist() for _ in range(3)]
    assert answers == [[False, True, False], [True, True, False], [True, True, False]]
    assert charges.left == pytest.approx(FOUR.epsilon - gaussian_epsilon(2.0, 1.0, DELTA, 4), abs=1e-6)
    with pytest.raises(ConfigurationError, match=r"of ε = 0\.1 in seat\.yaml is spent"):
        Charges(path, EVENT, Budget(0.1, DELTA))
    with pytest.raises(ConfigurationError, match="one answer for a record costs ε"):
        Charges(tmp_path / "new.jsonl", EVENT, Budget(0.1, DELTA))


def test_a_ledger_that_another_process_has_changed_answers_nothing_more(tmp_path):
    path = tmp_path / "seat.privacy.jsonl"
    first, second = Charges(path, EVENT, None), Charges(path, EVENT, None)
    second.charge(np.array([1]))
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="changed by another process"):
            first.charge(np.array([1]))


@pytest.mark.parametrize("bounds", ["record", "value"])
def test_noise_is_normal_around_what_training_clips(bounds):
    class Around:
        clip = 1.5

    Around.bounds = bounds
    noise = GaussianNoise(Around, GaussianEvent(0.5, 3.0, 3))
    values = np.random.default_rng(0).normal(size=(40_000, 3)).astype(np.float32)
    expected = LocalGaussian(clip=1.5, bounds=bounds).wire.mechanism.clipped(torch.from_numpy(values)).numpy()
    np.testing.assert_allclose(noise.clipped(values), expected, rtol=1e-12)
    drawn = noise(values) - expected
    assert abs(drawn.mean()) < 5 * 0.5 / np.sqrt(drawn.size)
    assert drawn.std() == pytest.approx(0.5, rel=0.02)
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.03
    with pytest.raises(ConfigurationError, match="cannot be hidden by noise"):
        noise(np.array([[np.nan, 0, 0]], np.float32))


def test_draws_stand_for_the_sum_of_the_numbers():
    codec = codec_of(DRAWN)
    values = np.random.default_rng(0).uniform(-9, 9, size=(2, 20_000)).astype(np.float32)
    total = sum(codec.to_words(one) for one in values)
    error = codec.to_real(total, 2) - np.clip(values, -8, 8).sum(0)
    variance = sum((8 / (2 * 0.25)) ** 2 * (1 - 4 * (0.25 * np.clip(one, -8, 8) / 8) ** 2) for one in values) / 2**14
    assert abs(error.mean()) < 5 * np.sqrt(variance.mean() / 20_000)
    assert error.var() == pytest.approx(variance.mean(), rel=0.05)


@pytest.mark.parametrize("protection", [NOISY, DRAWN], ids=["noise", "draws"])
def test_answers_are_random_charged_once_a_record_and_withheld_past_the_budget(protection, tmp_path):
    subject = Subject(tmp_path, protection, Missing.SKIP)
    event = restored(protection.event)
    budget = Budget(PrivacyAccountant(1).reserve(event, np.zeros(2, np.int64), DELTA), DELTA)  # for two releases
    for name in subject.weights:
        subject.seat_settings[name] = {"ledger": tmp_path / f"{name}.privacy.jsonl"}
    subject.seat_settings["shop"]["budget"] = budget
    ids = np.array([3, 5, 3])

    async def asked():
        async with running(subject) as (gateway, _):
            return [await gateway.predict(ids) for _ in range(3)]

    first, second, third = asyncio.run(asked())
    for joined in (first, second):
        assert joined.predicted.all()
        np.testing.assert_allclose(joined.values, subject.expected(ids), atol=0.5)
        assert joined.values[0] == joined.values[2]  # one answer for a record in a request
    assert (first.values != second.values).all()
    assert third.withheld.all()
    assert not third.predicted.any()
    _, accountant = PrivacyLedger.read(tmp_path / "shop.privacy.jsonl")
    assert {one: row.tolist() for one, row in accountant.counts.items()} == {event: [2, 2]}


@pytest.mark.slow
@pytest.mark.processes
def test_the_ledger_of_a_process_that_is_killed_again_and_again_has_every_answer(tmp_path):
    subject = Subject(tmp_path, NOISY)
    port = free_port()
    started = {}
    released = dict.fromkeys(IDS, 0)

    def start(name):
        options = {"http": f"127.0.0.1:{port}"} if name == "server" else {"work_dir": tmp_path}
        command = [sys.executable, "-m", "lightning_vfl", *words(subject, name, **options)]
        started[name] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answered():
        """One request for all records; whether the bank has answered."""
        body = json.dumps({"ids": IDS}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/predict", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as page:
            return "bank" not in json.load(page)["absent"]

    try:
        for name in ("bank", "server"):
            (tmp_path / f"{name}.seat.yaml").write_text(f"key: keys/{name}.key\nledger: {name}.privacy.jsonl\n")
            start(name)
        for number in range(4):
            wait_until_ready(f"http://127.0.0.1:{port}/ready")
            killed, answers = threading.Timer(0.01 * number, started["bank"].kill), 0  # sooner and later in a request
            while (there := answered()) or answers < 2:
                for one in IDS:
                    released[one] += there
                answers += there
                if there and answers == 2:
                    killed.start()
            killed.join()
            started["bank"].wait()
            start("bank")
    finally:
        for process in started.values():
            process.kill()
            process.wait()
    charged = counts_in(tmp_path / "bank.privacy.jsonl")
    assert min(released.values()) > 4
    assert all(count <= charged[one] <= count + 4 for one, count in released.items())  # an answer for each kill


def test_a_seat_without_a_ledger_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="LocalGaussian charges a ledger; name one with ledger"):
        Subject(tmp_path, NOISY).endpoint("bank")
