"""Spans for OpenTelemetry: when a process has waited for what. Without the extra ``otel`` nothing of it is imported.

Guarantee: an attribute is a count, the place of a round in the training, or the status of an answer. Records, ids,
    names of columns and the texts of errors are in no span.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from lightning_vfl.errors import ConfigurationError

_WHERE = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_tracers: list[Any] = []  # of the blocks that are open


@contextmanager
def exported(service: str) -> Iterator[None]:
    """Send the spans of the block to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names; else there are none.

    Args:
        service: the name of this process.

    Raises:
        ConfigurationError: if a collector is named and the packages of the extra are missing.
    """
    if not any(os.environ.get(name) for name in _WHERE):
        yield
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{_WHERE[0]} is set, which needs the package {error.name}; pip install 'lightning-vfl[otel]', or unset it"
        ) from None
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        with traced(provider):
            yield
    finally:
        provider.shutdown()  # sends those that wait


@contextmanager
def traced(provider: Any) -> Iterator[None]:
    """Make spans with this ``TracerProvider`` until the block ends."""
    _tracers.append(provider.get_tracer("lightning_vfl"))
    try:
        yield
    finally:
        _tracers.pop()


def span(name: str, **attributes: int) -> AbstractContextManager[Any]:
    """A span of the block, below the one around it."""
    if not _tracers:
        return nullcontext()
    span: AbstractContextManager[Any] = _tracers[-1].start_as_current_span(
        name,
        attributes={f"lightning_vfl.{key}": value for key, value in attributes.items()},
        record_exception=False,  # its text could name a record
        set_status_on_exception=False,
    )
    return span
