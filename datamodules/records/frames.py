"""Tables in memory, of pandas, polars or Arrow, written into files that are then read like any other."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from urllib.parse import quote

from lightning_vfl.errors import ConfigurationError, reason

from .number_files import WorkFolder

if TYPE_CHECKING:
    import pyarrow as pa


@runtime_checkable
class Frame(Protocol):
    """A table that gives its columns to Arrow, as those of pandas, polars and pyarrow do."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The columns, by Arrow's C interface."""
        ...


def files_of_frames(
    tables: Mapping[str, Any], id_columns: Mapping[str, str], work_dir: str | Path | None
) -> tuple[dict[str, Any], WorkFolder | None]:
    """The tables, with a Parquet file in the place of each frame, and the folder of these files.

    Args:
        tables: party -> a frame, or the name of a file, which stays.
        id_columns: party -> the column of its ids, which may be the index of a pandas frame.
        work_dir: where the folder is made; None: in the folder of the system for temporary files.

    Raises:
        ConfigurationError: for a frame whose columns Arrow does not take, naming the party.
    """
    frames = {party: table for party, table in tables.items() if isinstance(table, Frame)}
    if not frames:
        return dict(tables), None
    folder = WorkFolder(work_dir)
    files = {party: folder.path / f"{quote(party, safe='')}.parquet" for party in frames}
    for party, frame in frames.items():
        _write(_in_arrow(frame, party, id_columns[party]), files[party])
    return {**tables, **files}, folder


def _in_arrow(frame: Any, party: str, id_column: str) -> "pa.Table":
    import pandas as pd  # 0.5 s, where it is used
    import pyarrow as pa

    try:
        if not isinstance(frame, pd.DataFrame):
            return pa.table(frame)
        if id_column in frame.index.names and id_column not in frame:
            frame = frame.reset_index()
        return pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"the frame of party '{party}' cannot be read: {reason(error)}; give each column one type and a name of "
            "its own"
        ) from error


def _write(table: "pa.Table", path: Path) -> None:
    from pyarrow import parquet

    parquet.write_table(table, path)
