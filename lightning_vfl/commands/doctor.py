"""``lightning-vfl doctor``: whether this host can take part in a federation, step by step."""

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from lightning_vfl.commands.alone import AloneCommand, add_seat, needing

_ABOUT = (
    "Try every step from this host into a federation, without training: disk, table, certificates, key, proxy, name, "
    "TCP, TLS, the server's certificate, access, versions, federation.yaml and clocks. A party needs a server that "
    "waits in lightning-vfl serve. One line a step; the status is 1 if a step fails."
)


class DoctorCommand(AloneCommand):
    """Try the steps and print them."""

    about = _ABOUT

    def add_options(self, parser: ArgumentParser) -> None:
        parser.add_argument("federation", metavar="FEDERATION", help="federation.yaml, the same on all hosts")
        parser.add_argument("--name", help="the party of this host; without it, this host is the server's")
        add_seat(parser)
        parser.add_argument("--folder", default="runs", help="where the run writes (default: runs)")
        parser.add_argument("--table", metavar="FILE", help="the table of this host: CSV or Parquet")
        parser.add_argument("--id_column", default="id", help="column of the ids")
        parser.add_argument("--separator", default=",", help="between the fields of a CSV file")
        parser.add_argument("--encoding", default="utf-8", help="of the text of a CSV file")

    def work(self, given: Namespace) -> int:
        with needing("doctor", "federation"):
            from lightning_vfl.federation.doctor import Doctor

        table = None if given.table is None else lambda: _look_at_table(given)
        failed = False
        for finding in Doctor(
            Path(given.federation), Path(given.seat), given.name, Path(given.folder), table
        ).findings():
            failed |= not finding.fine
            outcome = "ok" if finding.fine else "FAILED"
            line = " ".join(finding.line.split())
            print(f"{outcome:6}  {finding.step:15}  {line}", flush=True)
        return int(failed)


def _look_at_table(given: Namespace) -> str:
    """Read the names of the columns of the table, and no record.

    Raises:
        ConfigurationError: for a table that cannot be read or does not have the id column.
    """
    from lightning_vfl.commands.align_tables import TableFile
    from lightning_vfl.datamodules.records.party_tables import csv_forms

    owner = given.name or "server"
    form = csv_forms([owner], given.separator, given.encoding)[owner]
    TableFile(Path(given.table), owner, (given.id_column,), form).keys()
    return f"{given.table} has the column '{given.id_column}'"
