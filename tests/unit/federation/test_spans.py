"""Spans have the place of a round and counts; without a collector there are none, and nothing is imported for them."""

import asyncio
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.hub import At, Hub, Key
from lightning_vfl.federation.link import Link
from lightning_vfl.federation.spans import exported, span, traced
from tests.served import Subject
from tests.unit.serving.test_http import answering

ROUND = At(3, 2, 0)


@pytest.fixture
def spans():
    """The spans that have ended in this test."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with traced(provider):
        yield exporter.get_finished_spans
    with span("after the block"):
        pass
    assert "after the block" not in {one.name for one in exporter.get_finished_spans()}


def test_a_round_has_spans_of_the_leg_at_the_server_and_of_the_request_at_the_party(spans):
    hub = Hub(1)
    hub.close(ROUND, lambda _: None)
    party = Link(SimpleNamespace(exchange=lambda frame, read: read([hub.call(0, frame)])))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(party.ask, Key(ROUND, 1), "tell")
        assert hub.wait(lambda: hub.request(0, Key(ROUND, 1)), leg="uploads") is not None
        hub.post(0, Key(ROUND, 1), {"outcome": "go"})
        answer.result(5)
    found = {one.name: dict(one.attributes) for one in spans()}
    place = {"lightning_vfl.round": 3, "lightning_vfl.stage": 2, "lightning_vfl.batch": 0}
    assert found == {"uploads": place, "tell": place | {"lightning_vfl.turn": 1}}


def test_a_request_at_the_gateway_has_a_span_without_ids_and_predictions(spans, tmp_path):
    async def ask():
        async with answering(Subject(tmp_path)) as page:
            await page("/predict", json.dumps({"ids": [7, 31]}))
            await page("/predict", json.dumps({"ids": "secret"}))
            await page("/health")

    asyncio.run(ask())
    parties, request, refused = spans()
    assert (parties.name, request.name, refused.name) == ("parties", "POST /predict", "POST /predict")
    assert parties.parent.span_id == request.context.span_id
    assert dict(parties.attributes) == {f"lightning_vfl.{key}": n for key, n in SENT.items()}
    assert [one.attributes["http.response.status_code"] for one in (request, refused)] == [200, 422]
    assert not any(one.events for one in spans())


SENT = {"asked": 3, "records": 2, "answered": 3}


def test_the_text_of_an_error_is_in_no_span(spans):
    with pytest.raises(ValueError, match="record 31"), span("tell"):
        raise ValueError("record 31")
    (one,) = spans()
    assert not one.events
    assert "31" not in one.to_json(indent=None).partition('"attributes"')[2].partition('"resource"')[0]
    assert one.status.description is None


def test_a_collector_that_is_named_needs_the_extra(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigurationError, match=r"lightning-vfl\[otel\]"), exported("bank"):
        pass


def test_nothing_is_imported_without_a_collector():
    code = "import sys; from lightning_vfl.federation.spans import exported, span\n"
    code += "with exported('bank'), span('tell'): print({one for one in sys.modules if 'opentelemetry' in one})"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={}).stdout
    assert printed == "set()\n"
