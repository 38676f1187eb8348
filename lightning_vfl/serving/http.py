"""The gateway's pages: predictions, health and metrics over HTTP."""

import json
import re
import socket
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, StrictInt, StrictStr
from starlette.types import ASGIApp, Receive, Scope, Send

from lightning_vfl.errors import printable
from lightning_vfl.federation.log import log
from lightning_vfl.federation.spans import span
from lightning_vfl.serving.batches import Batches, Full
from lightning_vfl.serving.endpoint import said_of
from lightning_vfl.serving.gateway import Gateway
from lightning_vfl.serving.metrics import Metrics

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST = 10_000  # ids of a request
LONGEST = 1000  # characters of an id: in an array of numpy, all ids take the room of the longest one
# numpy drops NUL at the end, so that another record would be found; half a pair of surrogates has no UTF-8
_JSON = re.compile(r"application/([\w.-]+\+)?json\s*(;|$)", re.IGNORECASE)
_ID = re.compile(rf"[^\x00\ud800-\udfff]{{0,{LONGEST}}}")
_POLICY = "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

_Ids = Annotated[list[StrictInt], Field(min_length=1, max_length=MOST)]
_Texts = Annotated[list[StrictStr], Field(min_length=1, max_length=MOST)]


class Asked(BaseModel):
    """The records to predict."""

    ids: _Ids | _Texts = Field(examples=[[7, 12, 31]])


class Prediction(BaseModel):
    """The prediction of a record; fields are null where there is none."""

    id: int | str
    probability: float | dict[str, float | None] | None = Field(
        None, description="of the second of two classes, or of each class or label by name"
    )
    decision: int | str | dict[str, int | None] | None = Field(None, description="the likeliest class")
    confidence: float | None = Field(
        None, description="how often such a decision is right, if it was calibrated for the parties that are there"
    )
    value: float | dict[str, float | None] | None = Field(None, description="for real-valued labels")
    parties: list[str] | None = Field(None, description="that took part, if parties may lack records")


class Answer(BaseModel):
    """Predictions, in the order of the ids."""

    model: str = Field(description="the sha256 of the checkpoint, of which all halves were exported")
    predictions: list[Prediction]
    absent: list[str] = Field(description="the parties that did not answer in time")
    unknown: list[int | str] = Field(description="the ids that the parties lack")
    withheld: list[int | str] = Field(description="the ids for which a party does not answer, to protect its records")


class HTTPServer(uvicorn.Server):
    """A server that leaves the signals to its process."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    @classmethod
    def of(cls, app: FastAPI) -> "HTTPServer":
        """The server of an application; it writes no log of its own."""
        return cls(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))

    async def answer(self, place: socket.socket) -> None:
        """Answer at a socket until ``end`` is called."""
        await self.serve([place])

    def end(self) -> None:
        """Accept no further requests, and answer those that have begun."""
        self.should_exit = True


class Counted:
    """Counts and logs the answers to predictions. Starlette's form of a middleware takes 0.3 ms longer.

    Args:
        app: answers.
        metrics: where answers are counted.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") != "/predict":
            await self._app(scope, receive, send)
            return
        began = monotonic()

        async def counting(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                if current is not None:
                    current.set_attribute("http.response.status_code", message["status"])
                seconds = monotonic() - began
                self._metrics.requests.add(seconds)
                self._metrics.answers[message["status"]] += 1
                log("request", status=message["status"], milliseconds=round(1000 * seconds, 3))
            await send(message)

        with span("POST /predict") as current:
            await self._app(scope, receive, counting)


def pages(gateway: Gateway, batches: Batches) -> FastAPI:
    """The application.

    Args:
        gateway: knows the parties.
        batches: predicts.
    """
    app = FastAPI(title="lightning-vfl gateway")
    app.add_middleware(Counted, metrics=gateway.metrics)
    page = (Path(__file__).parent / "dashboard.html").read_text(encoding="utf-8")

    @app.exception_handler(RequestValidationError)
    async def refused(request: Request, error: RequestValidationError) -> Response:
        kind = request.headers.get("content-type", "nothing")
        if not _JSON.match(kind):
            return _failed(422, f"the header content-type must be application/json; got {printable(kind)}")
        return _failed(422, f'the body must be {{"ids": [...]}} with 1 to {MOST} whole numbers or texts')

    @app.post("/predict", response_model=Answer)
    async def predict(asked: Asked) -> Response:
        numbers = isinstance(asked.ids[0], int)
        if gateway.ids is not None and numbers != (gateway.ids == "whole numbers"):
            return _failed(422, f"the ids of the parties are {gateway.ids}; write the ids of the request in this form")
        if not numbers and not all(map(_ID.fullmatch, map(str, asked.ids))):
            return _failed(
                422, f"texts in ids must have at most {LONGEST} characters, no NUL and no half of a surrogate pair"
            )
        try:
            ids = np.array(asked.ids, np.int64 if numbers else np.str_)
        except OverflowError:
            return _failed(422, "whole numbers in ids must fit 64 bits")
        try:
            joined, part = await batches.predict(ids)
        except Full:
            return _failed(503, "too many records wait; ask again later")
        gateway.metrics.records += len(ids)
        predictions = joined.server.rows(asked.ids, joined, part)
        gateway.metrics.note(predictions)
        content = {
            "model": joined.server.manifest.model,
            "predictions": predictions,
            "absent": list(joined.absent),
            "unknown": _those(asked.ids, joined.unknown[part]),
            "withheld": _those(asked.ids, joined.withheld[part]),
        }
        return _json(200, content)

    @app.get("/health")
    async def health() -> Response:
        server = gateway.server
        return _json(
            200,
            {
                "model": server.manifest.model,
                "versions": {model: version.states for model, version in gateway.versions.items()},
                "classes": list(server.half.classes),
                "aggregator": server.half.aggregator,
                "protection": said_of(server.protection),
                "without_a_party": str(server.half.missing),
                "confidence_without": [list(one.absent) for one in server.half.calibration],
                "parties": gateway.states,
                "budget_left": gateway.budgets,
                "drift": None if gateway.drift is None else gateway.drift.distance,
            },
        )

    @app.get("/ready")
    async def ready() -> Response:
        return _json(200 if gateway.ready else 503, {"ready": gateway.ready, "parties": gateway.states})

    @app.get("/metrics")
    async def metrics() -> Response:
        text = gateway.metrics.text(gateway.states, batches.waiting, gateway.budgets, gateway.drift)
        return Response(text, media_type="text/plain; version=0.0.4")

    @app.get("/status", include_in_schema=False)
    async def status() -> Response:
        return _json(200, _status(gateway, batches))

    @app.get("/", include_in_schema=False)
    async def dashboard() -> Response:
        return Response(page, media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": _POLICY})

    return app


def _status(gateway: Gateway, batches: Batches) -> dict[str, Any]:
    """What the dashboard shows."""
    metrics = gateway.metrics
    parties = [
        {
            "name": name,
            "state": state,
            "answers": metrics.parties[name].count,
            "median_ms": metrics.parties[name].milliseconds(0.5),
            "p99_ms": metrics.parties[name].milliseconds(0.99),
            "absences": metrics.absences[name],
            "budget_left": gateway.budgets.get(name),
        }
        for name, state in gateway.states.items()
    ]
    return {
        "model": gateway.server.manifest.model,
        "versions": len(gateway.versions),
        "ready": gateway.ready,
        "protection": said_of(gateway.server.protection),
        "parties": parties,
        "requests": metrics.requests.count,
        "records": metrics.records,
        "waiting": batches.waiting,
        "median_ms": metrics.requests.milliseconds(0.5),
        "p99_ms": metrics.requests.milliseconds(0.99),
        "drift": None if gateway.drift is None else gateway.drift.distance,
        "decisions": metrics.decisions(),
    }


def _those(ids: Sequence[int | str], marks: "NDArray[np.bool_]") -> list[int | str]:
    return [ids[row] for row in np.flatnonzero(marks).tolist()]


def _json(status: int, content: dict[str, Any]) -> Response:
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text, status, media_type="application/json")


def _failed(status: int, line: str) -> Response:
    return _json(status, {"error": line})
