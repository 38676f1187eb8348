"""``lightning-vfl score``: predictions of exported halves, without torch, Lightning and a recipe."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from jsonargparse import ArgumentParser, Namespace

from lightning_vfl.commands.alone import AloneCommand, notes_on_records
from lightning_vfl.commands.usage import UsageError
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.manifest import Engine
from lightning_vfl.export.score import score
from lightning_vfl.trained.predictions import check_ending, write_predictions
from lightning_vfl.whole_files import refuse_unwritable

_ABOUT = (
    "Predict the records of tables with the halves that lightning-vfl export has written. Records are joined on their "
    "ids. The file of predictions is that of lightning-vfl predict."
)


class ScoreCommand(AloneCommand):
    """Read the folders and tables, and write the predictions."""

    about = _ABOUT

    def add_options(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "folders", type=str, nargs="+", metavar="FOLDER", help="folders of all parties and the server"
        )
        parser.add_argument(
            "--tables",
            type=str,
            nargs="+",
            required=True,
            metavar="PARTY=FILE",
            help="the file of each party's records",
        )
        parser.add_argument("--out", type=str, default="predictions.csv", help="file to write, .csv or .parquet")
        parser.add_argument("--engine", type=Literal["onnx", "torch"], default="onnx", help="what runs the programs")
        parser.add_argument(
            "--id_column", type=str | dict[str, str], default="id", help="column of the ids, or PARTY: COLUMN, ..."
        )
        parser.add_argument(
            "--separator",
            type=str | dict[str, str],
            default=",",
            help="between fields of a CSV file, or PARTY: TEXT, ...",
        )
        parser.add_argument(
            "--encoding", type=str | dict[str, str], default="utf-8", help="of CSV files, or PARTY: ENCODING, ..."
        )
        parser.add_argument(
            "--leave_out",
            type=str,
            nargs="+",
            default=[],
            metavar="COLUMN",
            help="columns that are no features: labels",
        )
        parser.add_argument(
            "--records_of", type=str, help="overlap: keep: the party whose records are predicted; default: all records"
        )
        parser.add_argument("--batch_size", type=int, default=4096, help="records that are run together")
        parser.add_argument("--work_dir", type=str, help="folder in which large tables are encoded; default: temporary")

    def run_alone(self, arguments: Sequence[str]) -> int:
        with notes_on_records():
            try:
                return super().run_alone(arguments)
            except OSError as error:
                raise ConfigurationError(f"{error}; correct the path") from error

    def work(self, given: Namespace) -> int:
        out = Path(given.out)
        check_ending(out)
        refuse_unwritable(out)
        tables = {}
        for word in given.tables:
            party, equals, path = word.partition("=")
            if not (party and equals and path) or party in tables:
                raise UsageError(f"--tables takes PARTY=FILE, once for each party; got {word}")
            tables[party] = Path(path)
        folders = [Path(folder) for folder in given.folders]
        table = score(
            folders,
            tables,
            Engine(given.engine),
            id_column=given.id_column,
            separator=given.separator,
            encoding=given.encoding,
            leave_out=given.leave_out,
            records_of=given.records_of,
            batch_size=given.batch_size,
            work_dir=given.work_dir,
            out=out,
        )
        write_predictions(table, out)
        print(f"{len(table):,} predictions: {out}")
        return 0
