"""Rounds of a split model over NVFlare: the server sends gradients to all clients, which answer with embeddings.

It is what NVFlare's SplitNN example does, with requests on the auxiliary channel (`send_aux_request`), and without
arithmetic. The simulator runs each client in a process of its own, without TLS.

    python nvflare_rounds.py CLIENTS ROUNDS ROWS WIDTH FOLDER
"""

import json
import sys
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.app_common.decomposers import numpy_decomposers

TOPIC = "round"


def filled(rows: int, width: int) -> Shareable:
    """A message with a matrix of float32."""
    message = Shareable()
    message["tensor"] = np.random.default_rng(0).standard_normal((rows, width), dtype=np.float32)
    return message


class Server(Controller):
    """Asks all clients at once, round after round, and writes down when each round has ended."""

    def __init__(self, clients: int, rounds: int, rows: int, width: int, file: str) -> None:
        super().__init__()
        self.clients, self.rounds, self.rows, self.width, self.file = clients, rounds, rows, width, file

    def start_controller(self, fl_ctx: FLContext) -> None:
        numpy_decomposers.register()

    def stop_controller(self, fl_ctx: FLContext) -> None: ...

    def process_result_of_unknown_task(self, *args: Any, **kwargs: Any) -> None: ...

    def control_flow(self, abort_signal: Any, fl_ctx: FLContext) -> None:
        engine: Any = fl_ctx.get_engine()
        while len(engine.get_clients()) < self.clients:
            sleep(0.1)
        names = [client.name for client in engine.get_clients()]
        ends: list[float] = []
        tried = 0
        while len(ends) < self.rounds:
            request = filled(self.rows, self.width)
            replies = engine.send_aux_request(names, TOPIC, request, timeout=10.0, fl_ctx=fl_ctx, optional=True)
            answered = [reply for reply in replies.values() if "tensor" in reply]
            if len(answered) == self.clients:
                ends.append(perf_counter())
                continue
            tried += 1
            if ends or tried > 10:  # before the first round, a client may not listen yet
                raise RuntimeError(f"{len(answered)} of {self.clients} clients have answered")
            sleep(1.0)
        Path(self.file).write_text(json.dumps(ends))


class Party(Executor):
    """Answers each request."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.rows, self.width = rows, width

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.START_RUN:
            numpy_decomposers.register()
            engine: Any = fl_ctx.get_engine()
            engine.register_aux_message_handler(TOPIC, self.answer)

    def answer(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        if request["tensor"].shape != (self.rows, self.width):
            raise ValueError(request["tensor"].shape)
        return filled(self.rows, self.width)

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Any) -> Shareable:
        return Shareable()


def main() -> None:
    from nvflare.job_config.api import FedJob
    from nvflare_rounds import Party, Server  # type: ignore[import-not-found]  # under this name, clients import them

    clients, rounds, rows, width = map(int, sys.argv[1:5])
    folder = Path(sys.argv[5])
    job = FedJob("rounds")
    job.to_server(Server(clients, rounds, rows, width, str(folder / "ends.json")))
    job.to_clients(Party(rows, width), tasks=["none"])
    job.simulator_run(str(folder / "workspace"), n_clients=clients, threads=clients)


if __name__ == "__main__":
    main()
