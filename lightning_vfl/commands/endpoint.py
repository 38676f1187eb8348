"""``lightning-vfl endpoint``: a party answers requests for predictions from its half."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from jsonargparse import ArgumentParser, Namespace

from lightning_vfl.commands.alone import AloneCommand, add_seat, needing, notes_on_records
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.manifest import Engine
from lightning_vfl.federation.charter import Charter, SeatFile

if TYPE_CHECKING:
    from lightning_vfl.serving.party_half import Readable, Records

_ABOUT = (
    "Answer requests for predictions as one party: its half, which lightning-vfl export has written, gives the "
    "embeddings of the records in its table, which is a file or in a database. The process calls the gateway at the "
    "address in federation.yaml, with the certificates of training."
)


class EndpointCommand(AloneCommand):
    """Read half and table, and answer until a signal comes."""

    about = _ABOUT

    def add_options(self, parser: ArgumentParser) -> None:
        parser.add_argument("half", metavar="HALF", help="folder of the party's exported half")
        parser.add_argument(
            "--table",
            required=True,
            metavar="FILE",
            help="the records: CSV, Parquet or arrays; with --store, the name of a table or view",
        )
        parser.add_argument(
            "--store",
            metavar="URL",
            help="a database with the records, which are read for each request: postgresql+psycopg://bank@host/database",
        )
        parser.add_argument(
            "--training",
            metavar="FILE",
            help="the records of training, for drift; default: what the half says of them",
        )
        parser.add_argument("--id_column", default="id", help="column of the ids")
        parser.add_argument("--separator", default=",", help="between the fields of a CSV file")
        parser.add_argument("--encoding", default="utf-8", help="of the text of a CSV file")
        parser.add_argument(
            "--leave_out",
            nargs="+",
            default=[],
            metavar="COLUMN",
            help="columns that are no features: labels",
        )
        parser.add_argument("--work_dir", help="folder in which the records are indexed; default: temporary")
        add_host_options(parser)

    def work(self, given: Namespace) -> int:
        with needing("endpoint", "serving"):
            from lightning_vfl.serving.endpoint import Endpoint
            from lightning_vfl.serving.party_half import ServedParty
            from lightning_vfl.serving.processes import run_endpoint

        read = files_of(given)
        charter, seat = read()
        with notes_on_records():  # and not of the records of a request, because they have their contents
            half = ServedParty(Path(given.half), records_of(given), Engine(given.engine))
            drift = half.drift(_file(given, given.training)) if given.training else None
        endpoint = Endpoint(half, charter, seat, drift)
        print(f"party {endpoint.name}: {len(half):,} records, model {half.manifest.model[:12]}", flush=True)
        print(endpoint.in_the_clear, *filter(None, [endpoint.limits]), sep="\n", flush=True)
        asyncio.run(run_endpoint(endpoint, read, seat.metrics))
        return 0


def records_of(given: Namespace) -> "Readable":
    """The records that the options name, in a file or in a database.

    Raises:
        ConfigurationError: for options of files beside a database.
    """
    if given.store is None:
        return _file(given, given.table)
    usual: dict[str, object] = {"separator": ",", "encoding": "utf-8", "leave_out": [], "work_dir": None}
    if not given.training and (further := [name for name, value in usual.items() if getattr(given, name) != value]):
        raise ConfigurationError(f"--{further[0]} is for a file, and --store names a database; leave it out")
    with needing("--store", "store"):
        from lightning_vfl.serving.store import Store
    return Store(given.store, given.table, given.id_column)


def _file(given: Namespace, path: str) -> "Records":
    from lightning_vfl.serving.party_half import Records

    return Records(Path(path), given.id_column, given.separator, given.encoding, given.leave_out, given.work_dir)


def files_of(given: Namespace) -> Callable[[], tuple[Charter, SeatFile]]:
    """Reads federation.yaml and seat.yaml, as they are when it is called."""
    return lambda: (Charter.read(given.federation), SeatFile.read(given.seat))


def add_host_options(parser: ArgumentParser) -> None:
    """Add the options that endpoint and gateway have in common."""
    parser.add_argument(
        "--federation", default="federation.yaml", help="the same on all hosts (default: federation.yaml)"
    )
    add_seat(parser)
    parser.add_argument("--engine", type=Literal["onnx", "torch"], default="onnx", help="what runs the program")
