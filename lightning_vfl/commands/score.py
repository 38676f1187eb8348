"""``lightning-vfl score``: predictions of exported halves, without torch, Lightning and a recipe."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from jsonargparse import ArgumentParser, Namespace

from lightning_vfl.commands.alone import AloneCommand, add_csv_form, files_by_party, notes_on_records
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
        parser.add_argument("folders", nargs="+", metavar="FOLDER", help="folders of all parties and the server")
        parser.add_argument(
            "--tables",
            nargs="+",
            required=True,
            metavar="PARTY=FILE",
            help="the file of each party's records",
        )
        parser.add_argument("--out", default="predictions.csv", help="file to write, .csv or .parquet")
        parser.add_argument("--engine", type=Literal["onnx", "torch"], default="onnx", help="what runs the programs")
        parser.add_argument(
            "--id_column", type=str | dict[str, str], default="id", help="column of the ids, or PARTY: COLUMN, ..."
        )
        add_csv_form(parser)
        parser.add_argument(
            "--leave_out",
            nargs="+",
            default=[],
            metavar="COLUMN",
            help="columns that are no features: labels",
        )
        parser.add_argument(
            "--records_of", help="overlap: keep: the party whose records are predicted; default: all records"
        )
        parser.add_argument("--batch_size", type=int, default=4096, help="records that are run together")
        parser.add_argument("--work_dir", help="folder in which large tables are encoded; default: temporary")

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
        table = score(
            [Path(folder) for folder in given.folders],
            files_by_party(given.tables),
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
