"""``lightning-vfl gateway``: the server answers requests for predictions over HTTP."""

import asyncio
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from lightning_vfl.checks import positive
from lightning_vfl.commands.alone import AloneCommand, needing
from lightning_vfl.commands.endpoint import add_host_options, files_of
from lightning_vfl.export.manifest import Engine

_ABOUT = (
    "Answer requests for predictions over HTTP: POST /predict with the ids of records. The gateway asks the parties, "
    "which run lightning-vfl endpoint, for embeddings, and joins them with the server's half. The page /docs describes "
    "the requests; /health, /ready and /metrics are for operation."
)


class GatewayCommand(AloneCommand):
    """Read the server's half, wait for the parties, and answer until a signal comes."""

    about = _ABOUT

    def add_options(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "half", nargs="+", metavar="HALF", help="folder of the server's exported half; of each version"
        )
        parser.add_argument(
            "--training",
            metavar="FILE",
            help="predictions of training records (CSV), for drift; default: what the half says",
        )
        parser.add_argument("--http", default="127.0.0.1:8080", help="host:port for requests, without TLS")
        parser.add_argument(
            "--deadline_ms", type=float, default=1000.0, help="time that the parties have for an answer"
        )
        parser.add_argument("--gather_ms", type=float, default=2.0, help="longest time in which requests are joined")
        parser.add_argument(
            "--batch_size", type=int, default=4096, help="records that the parties are asked for together"
        )
        add_host_options(parser)

    def work(self, given: Namespace) -> int:
        with needing("gateway", "serving"):
            from lightning_vfl.serving.drift import training_predictions
            from lightning_vfl.serving.gateway import Gateway
            from lightning_vfl.serving.processes import run_gateway
            from lightning_vfl.serving.server_half import ServedServer

        positive("--deadline_ms", given.deadline_ms)
        positive("--gather_ms", given.gather_ms)
        positive("--batch_size", given.batch_size, whole=True)
        read = files_of(given)
        charter, seat = read()
        servers = [ServedServer(Path(half), Engine(given.engine)) for half in given.half]
        gateway = Gateway(servers, charter, seat, given.deadline_ms / 1000)
        if given.training:
            gateway.measure_drift(training_predictions(Path(given.training)))
        with needing("gateway", "serving"):
            asyncio.run(run_gateway(gateway, read, given.http, given.gather_ms / 1000, given.batch_size))
        return 0
