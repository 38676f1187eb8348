"""Tables in memory, of pandas, polars or Arrow, written into files that are then read like any other."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from urllib.parse import quote

from lightning_vfl.errors import ConfigurationError, reason

from .work_folders import WorkFolder

if TYPE_CHECKING:
    import pyarrow as pa


@runtime_checkable
class Frame(Protocol):
    """A table that gives its columns to Arrow, as those of pandas, polars and pyarrow do."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The columns, by Arrow's C interface."""
        ...


def files_of_frames(
    tables: Mapping[str, Any], id_columns: Mapping[str, str], work_dir: str | Path | None, setting: str = "tables"
) -> tuple[dict[str, Any], WorkFolder | None]:
    """The tables, with a Parquet file in the place of each frame, and the folder of these files.

    Args:
        tables: party -> a frame, or the name of a file, which stays.
        id_columns: party -> the column of its ids, which may be the index of a pandas frame.
        work_dir: where the folder is made; None: in the folder of the system for temporary files.
        setting: the name of ``tables`` for those who give them.

    Raises:
        ConfigurationError: for what is neither a frame nor a name, and for a frame without rows or with columns that
            Arrow does not take, naming the party.
    """
    frames = {party: table for party, table in tables.items() if isinstance(table, Frame)}
    for party, table in tables.items():
        if not isinstance(table, str | Path | Frame):
            raise ConfigurationError(
                f"{setting} must give party '{party}' a file or a frame of pandas, polars or Arrow; got a "
                f"{type(table).__name__}; make a frame of it first, of a lazy one with collect()"
            )
    if not frames:
        return dict(tables), None
    folder = WorkFolder(work_dir)
    files = {party: folder.path / f"{quote(party, safe='')}.parquet" for party in frames}
    for party, frame in frames.items():
        _store(frame, party, id_columns[party], files[party], setting)
    return {**tables, **files}, folder


def _store(frame: Any, party: str, id_column: str, path: Path, setting: str) -> None:
    """Write a frame into a Parquet file."""
    import pandas as pd  # 0.5 s, where it is used
    import pyarrow as pa
    from pyarrow import parquet

    try:
        if isinstance(frame, pd.DataFrame):
            if id_column in frame.index.names and id_column not in frame:
                # a level without a name numbers the rows, which is no feature
                frame = frame.reset_index([level for level in frame.index.names if level is not None])
            table = pa.Table.from_pandas(frame, preserve_index=False)
        else:
            table = pa.table(frame)
        parquet.write_table(_with_plain_categories(table), path)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise ConfigurationError(
            f"the frame of party '{party}' cannot be read: {reason(error)}; give each column one type and a name of "
            "its own"
        ) from error
    if not table.num_rows:
        raise ConfigurationError(f"the frame of party '{party}' in {setting} has no rows; give it records")


def _with_plain_categories(table: "pa.Table") -> "pa.Table":
    """The table with texts as categories: polars gives views of texts, which Parquet does not store as categories."""
    import pyarrow as pa

    for place, column in enumerate(table.schema):
        if pa.types.is_dictionary(column.type) and pa.types.is_string_view(column.type.value_type):
            plain = pa.dictionary(column.type.index_type, pa.string(), column.type.ordered)
            table = table.set_column(place, column.name, table[place].cast(plain))
    return table
