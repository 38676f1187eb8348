"""What the gateway answers over HTTP, and the commands as processes."""

import asyncio
import json
import math
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import asynccontextmanager

import matplotlib.pyplot as plt
import numpy as np
import pytest

from lightning_vfl.export.manifest import Calibration, Missing
from lightning_vfl.federation.charter import Budget
from lightning_vfl.privacy import PrivacyAccountant
from lightning_vfl.privacy.events import restored
from lightning_vfl.serving.batches import Batches
from lightning_vfl.serving.drift import moments_of
from lightning_vfl.serving.http import HTTPServer, pages
from lightning_vfl.serving.metrics import Metrics
from tests.served import CLEAR, MASKED, NOISY, PARTIES, Subject, running

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")


@asynccontextmanager
async def answering(subject, parties=PARTIES, most=50_000):
    """A function that asks a gateway over HTTP: the status, and the content."""
    async with running(subject, parties) as (gateway, _):
        subject.last = gateway
        with socket.create_server(("127.0.0.1", 0)) as place:
            server = HTTPServer.of(pages(gateway, Batches(gateway.predict, most=most)))
            task = asyncio.create_task(server.answer(place))
            address = f"http://127.0.0.1:{place.getsockname()[1]}"

            def page(path, body=None, kind="application/json"):
                return asyncio.to_thread(get, address + path, body, kind)

            page.address = address
            yield page
            server.end()
            await task


def get(url, body=None, kind="application/json"):
    request = urllib.request.Request(url, None if body is None else body.encode(), {"Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def asked(subject, *requests, **settings):
    async def ask():
        async with answering(subject, **settings) as get_page:
            return [await get_page(*request) for request in requests]

    return asyncio.run(ask())


def test_an_answer_names_the_model_the_absent_and_the_unknown(tmp_path):
    subject = Subject(tmp_path)
    ((status, text),) = asked(subject, ("/predict", '{"ids": [7, 77, 3]}'), parties=PARTIES[:2])
    assert status == 200
    content = json.loads(text)
    expected = subject.expected([7, 3], PARTIES[:2])
    assert content["model"] == "f" * 64
    assert (content["absent"], content["unknown"], content["withheld"]) == (["telco"], [77], [])
    first, unknown, last = content["predictions"]
    assert unknown == {"id": 77, "probability": None, "decision": None}
    ((_, health),) = asked(subject, ("/health",))
    assert json.loads(health)["classes"] == ["no", "yes"]  # a probability is that of the second
    for entry, one, probability in zip((first, last), (7, 3), expected, strict=True):
        assert (entry["id"], entry["decision"]) == (one, "yes" if probability >= 0.5 else "no")
        assert entry["probability"] == pytest.approx(probability, abs=1e-5)


def test_a_confidence_is_that_of_the_parties_that_are_there(tmp_path):
    fitted = Calibration((), 0.5, 0.3, 100), Calibration(("telco",), 2.0, -1.0, 100)
    subject = Subject(tmp_path, calibration=fitted)
    request = "/predict", json.dumps({"ids": [*range(50), 77]})
    for parties, one in zip((PARTIES, PARTIES[:2]), fitted, strict=True):
        answer, (_, health) = asked(subject, request, ("/health",), parties=parties)
        *entries, unknown = json.loads(answer[1])["predictions"]
        assert json.loads(health)["confidence_without"] == [[], ["telco"]]
        assert unknown["confidence"] is None
        for entry, probability in zip(entries, subject.expected(range(50), parties), strict=True):
            yes = 1 / (1 + math.exp(-one.slope * math.log(probability / (1 - probability)) - one.offset))
            expected = yes if entry["decision"] == "yes" else 1 - yes
            assert entry["confidence"] == pytest.approx(expected, abs=1e-4)
    ((_, text),) = asked(subject, request, parties=PARTIES[:1])  # for which nothing was fitted
    assert {entry["confidence"] for entry in json.loads(text)["predictions"]} == {None}


def test_wrong_requests_are_refused_in_one_line(tmp_path):
    bodies = ['{"ids": []}', '{"ids": [1, "a"]}', '{"id": [1]}', "no", '{"ids": ["a"]}', '{"ids": [1.5]}']
    bodies += ['{"ids": [99999999999999999999]}', json.dumps({"ids": [0] * 10_001})]
    for status, text in asked(Subject(tmp_path), *(("/predict", body) for body in bodies)):
        assert status == 422
        assert "\n" not in json.loads(text)["error"]


def test_a_body_that_is_not_said_to_be_json_is_refused_with_the_header_to_send(tmp_path):
    curl = "application/x-www-form-urlencoded"  # what curl -d sends by itself, which is read as a text
    kinds = {
        curl: "header",
        "text/json": "header",
        "application/JSON; charset=utf-8": "body",
        "application/a+json": "body",
    }
    answers = asked(Subject(tmp_path), *(("/predict", '{"ids": []}', kind) for kind in kinds))
    for (kind, wrong), (status, text) in zip(kinds.items(), answers, strict=True):
        told = json.loads(text)["error"]
        assert status == 422
        assert told.startswith(f"the {wrong} ")
        assert (told == f"the header content-type must be application/json; got {kind}") == (wrong == "header")


ODD = ("\ud800", "a7\0", "a7\0\0", "x" * 1001)


def of_texts(folder):
    """A subject whose ids are texts."""
    return Subject(folder, ids={name: [f"a{number}" for number in range(50)] for name in PARTIES})


def test_a_text_that_numpy_or_the_wire_changes_is_refused_and_no_other_record_predicted(tmp_path):
    bodies = [json.dumps({"ids": ["a3", text]}) for text in ODD]
    for status, text in asked(of_texts(tmp_path), *(("/predict", body) for body in bodies)):
        assert (status, "characters" in json.loads(text)["error"]) == (422, True)


def test_requests_that_are_refused_do_not_disturb_those_that_are_joined_with_others(tmp_path):
    subject = of_texts(tmp_path)

    async def ask():
        async with answering(subject) as page:
            good = [page("/predict", '{"ids": ["a7"]}') for _ in range(20)]
            bad = [page("/predict", json.dumps({"ids": [text]})) for text in ODD for _ in range(5)]
            both = [one for pair in zip(good, bad, strict=True) for one in pair]
            return (await asyncio.gather(*both))[::2]

    answers = asyncio.run(ask())
    assert {status for status, _ in answers} == {200}
    for _, text in answers:
        (entry,) = json.loads(text)["predictions"]
        assert entry["probability"] == pytest.approx(subject.expected(["a7"])[0], abs=1e-5)


def test_too_many_waiting_records_are_refused(tmp_path):
    ((status, text),) = asked(Subject(tmp_path), ("/predict", '{"ids": [1, 2, 3]}'), most=2)
    assert (status, json.loads(text)) == (503, {"error": "too many records wait; ask again later"})


@pytest.mark.parametrize(("protection", "said"), [(CLEAR, "in the clear"), (MASKED, "are masked")])
def test_health_says_what_is_in_the_clear_and_ready_who_is_there(protection, said, tmp_path):
    subject = Subject(tmp_path, protection, Missing.SKIP)
    health, ready, page = asked(subject, ("/health",), ("/ready",), ("/openapi.json",), parties=PARTIES[1:])
    assert health[0] == 200
    assert said in json.loads(health[1])["protection"]
    assert ready[0] == 503
    assert json.loads(ready[1])["parties"] == {"bank": "absent", "shop": "connected", "telco": "connected"}
    assert "/predict" in json.loads(page[1])["paths"]


def test_metrics_count_requests_absences_and_times(tmp_path):
    requests = ("/predict", '{"ids": [7]}'), ("/predict", '{"ids": [7, 8]}'), ("/metrics",)
    *_, (status, text) = asked(Subject(tmp_path), *requests, parties=PARTIES[:2])
    lines = text.splitlines()
    assert status == 200
    assert 'lightning_vfl_party_absences_total{party="telco"} 2' in lines
    assert 'lightning_vfl_party_seconds_count{party="bank"} 2' in lines
    assert 'lightning_vfl_party_connected{party="telco"} 0' in lines
    assert 'lightning_vfl_responses_total{status="200"} 2' in lines
    assert "lightning_vfl_records_total 3" in lines


def test_health_and_metrics_have_the_budget_that_is_left_and_the_drift(tmp_path):
    subject = Subject(tmp_path, NOISY, Missing.SKIP)
    for name in PARTIES:
        subject.seat_settings[name] = {"ledger": tmp_path / f"{name}.privacy.jsonl"}
    subject.seat_settings["shop"]["budget"] = Budget(1e6, 1e-5)

    async def ask():
        async with answering(subject) as get_page:
            before = await get_page("/health")
            subject.last.measure_drift(moments_of(np.array([[0.4], [0.6]])))
            for _ in range(3):
                await get_page("/predict", json.dumps({"ids": [*range(50)]}))
            return json.loads(before[1]), json.loads((await get_page("/health"))[1]), (await get_page("/metrics"))[1]

    before, after, metrics = asyncio.run(ask())
    assert (before["budget_left"], before["drift"]) == ({}, None)
    spent = PrivacyAccountant(1).reserve(restored(NOISY.event), np.zeros(3, np.int64), 1e-5)
    assert after["budget_left"] == {"shop": pytest.approx(1e6 - spent, rel=1e-4)}
    assert after["drift"] > 0
    assert f'lightning_vfl_party_budget_left{{party="shop"}} {after["budget_left"]["shop"]}' in metrics.splitlines()
    assert f"lightning_vfl_prediction_drift {after['drift']}" in metrics.splitlines()


def test_the_dashboard_shows_states_absences_and_decisions(tmp_path):
    subject = Subject(tmp_path)
    ids = [*range(40)]
    requests = [("/",), ("/status",), ("/predict", json.dumps({"ids": ids})), ("/status",)]
    page, before, _, after = asked(subject, *requests, parties=PARTIES[:2])
    assert page[0] == 200
    assert 'fetch("status")' in page[1]
    assert json.loads(before[1])["decisions"] == []
    status = json.loads(after[1])
    yes = int((subject.expected(ids, PARTIES[:2]) >= 0.5).sum())
    assert status["decisions"] == [{"name": "no", "count": 40 - yes}, {"name": "yes", "count": yes}]
    assert (status["requests"], status["records"]) == (1, 40)
    bank, _, telco = status["parties"]
    assert (bank["state"], bank["answers"], bank["absences"]) == ("connected", 1, 0)
    assert bank["median_ms"] == bank["p99_ms"] > 0
    assert (telco["state"], telco["answers"], telco["absences"], telco["median_ms"]) == ("absent", 0, 1, None)


def test_decisions_of_several_labels_and_of_values_are_counted():
    metrics = Metrics(PARTIES)
    metrics.note([{"decision": {"a": 1, "b": 0}}, {"decision": {"a": 1, "b": 1}}, {"decision": None}])
    assert metrics.decisions() == [{"name": "a", "count": 2}, {"name": "b", "count": 1}]
    metrics = Metrics(PARTIES)
    metrics.note([{"value": float(number)} for number in range(1100)])
    assert [one["count"] for one in metrics.decisions()] == [100] * 10  # of the latest 1,000
    assert metrics.decisions()[0]["name"] == "100 to 199.9"


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.skipif(BROWSER is None, reason="there is no chromium")
@pytest.mark.parametrize("page_colour", [(246, 247, 249), (13, 17, 23)], ids=["light", "dark"])
@pytest.mark.parametrize("size", ["1100,800", "390,1200"], ids=["desktop", "phone"])
def test_a_browser_draws_the_dashboard_in_its_colours_and_nothing_beyond_its_width(size, page_colour, tmp_path):
    picture = tmp_path / "page.png"
    settings = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=4000"]
    settings += ["--blink-settings=preferredColorScheme=0"] if sum(page_colour) < 100 else []
    settings += [f"--window-size={size}", f"--screenshot={picture}"]

    async def draw():
        async with answering(Subject(tmp_path), PARTIES[:2]) as get_page:
            await get_page("/predict", '{"ids": [1, 2, 3]}')
            command = [BROWSER, *settings, get_page.address]
            await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=120, check=True)

    asyncio.run(draw())
    pixels = np.rint(255 * plt.imread(picture)[:, :, :3]).astype(int)
    assert pixels.shape[:2] == tuple(map(int, reversed(size.split(","))))
    assert (pixels[:, -8:] == page_colour).all()  # the margin: nothing is wider than the window
    assert (pixels != page_colour).any(2).mean() > 0.3  # cards, which are drawn when the status has come
    red = (pixels[:, :, 0] > 180) & (pixels[:, :, 1] < 100) & (pixels[:, :, 2] < 100)
    assert red.any()  # the absent party


@pytest.mark.processes
def test_no_training_code_is_imported():
    code = "import sys, lightning_vfl.serving.processes, lightning_vfl.serving.http, lightning_vfl.commands.gateway\n"
    code += "import lightning_vfl.serving.server_half, lightning_vfl.serving.store, lightning_vfl.commands.endpoint\n"
    code += "print(*{'torch', 'lightning', 'sklearn', 'lightning_vfl.protocols'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""
