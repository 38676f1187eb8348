"""Read the CSV or Parquet file of a party into memory, or into a table whose columns stay on the disk."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.limits import TextFile, refuse_large_table

from .code_columns import coded_columns
from .column_tables import StoredTable
from .parquet_file import ParquetFile
from .party_tables import (
    PARQUET,
    CSVForm,
    canonical_ids,
    check_id_column,
    check_ids,
    csv_options,
    csv_warnings,
    missing_cells,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_BYTES = 1 << 22  # of a file that are looked at together
_ROWS = 1 << 17  # rows that are in memory together: 31 MB of 30 numbers


class _Kind(StrEnum):
    """What the cells of a column are read as."""

    NOTHING = "nothing"
    WHOLE = "int64"
    NUMBERS = "float64"
    TRUTHS = "bool"
    PARTLY = "boolean"
    TEXTS = "str"


def read_table(
    path: Path,
    party: str,
    id_column: str,
    form: CSVForm,
    text: Iterable[str] | None = (),
    no_codes: Collection[str] | None = None,
) -> "pd.DataFrame":
    """The party's table with its checked ids as the index.

    Args:
        path: the file; ``.parquet`` and ``.pq`` are Parquet, all others are CSV with a first row of names.
        party: the name of the party, for errors.
        id_column: the column of the ids, which keep their text unless all are whole numbers as usually written.
        form: how a CSV file is written.
        text: columns of a CSV file to read as text; None: all.
        no_codes: columns that are not read as text if they have codes such as 007; None: no column is.

    Guarantee: a CSV file is opened once.

    Raises:
        ConfigurationError: if the file cannot be read or holds more than ``lightning_vfl.limits`` allows for its size,
            or its ids are missing, repeated or neither text nor whole numbers.
    """
    import pandas as pd  # 0.5 s, where it is used

    with readable(path, party):
        if path.suffix in PARQUET:
            refuse_large_table(path)
            table = ParquetFile(path, party).table()
        else:
            with TextFile(path) as file:
                table = _read_csv(file, party, id_column, form, _texts(file, form, text, no_codes))
    check_id_column(table, path, party, id_column)
    ids = check_ids(canonical_ids(table.pop(id_column)), path, party)
    return table.set_axis(pd.Index(ids))


def store_table(
    path: Path,
    party: str,
    id_column: str,
    form: CSVForm,
    text: Iterable[str] | None,
    folder: Path,
    no_codes: Collection[str] | None = None,
    rows: int = _ROWS,
) -> StoredTable:
    """The party's table on the disk; see ``read_table``, whose columns and ids it has.

    Args:
        path: the file; a Parquet file is used as it is, a CSV file is copied into a Parquet file column by column.
        party: the name of the party, for errors.
        id_column: the column of the ids.
        form: how a CSV file is written.
        text: columns of a CSV file to read as text; None: all.
        folder: where the copy is stored.
        no_codes: columns that are not read as text if they have codes such as 007; None: no column is.
        rows: how many rows of a CSV file are in memory together.

    Units: memory, the ids, and so many rows.
    Guarantee: every column has the values and the type that ``read_table`` gives. Types of a CSV file are those of the
        whole file: if a later row has another type than the rows before it, the file is read once more.

    Raises:
        ConfigurationError: as ``read_table``.
    """
    import pandas as pd  # 0.5 s, where it is used

    if path.suffix in PARQUET:
        with readable(path, party):
            refuse_large_table(path)
    file = parquet_file(path, party, id_column, form, text, folder, no_codes, rows)
    check_id_column(file.columns, path, party, id_column)
    index = pd.Index(check_ids(canonical_ids(file.column(id_column)), path, party))
    return StoredTable(file, index, [name for name in file.columns if name != id_column])


def parquet_file(
    path: Path,
    party: str,
    id_column: str | None,
    form: CSVForm,
    text: Iterable[str] | None,
    folder: Path,
    no_codes: Collection[str] | None = None,
    rows: int = _ROWS,
) -> ParquetFile:
    """The party's file, or if it is a CSV file its copy; see ``store_table``.

    Args:
        id_column: the column of the ids, which are whole numbers in the copy if all are written as these usually are,
            else texts; None: the file has no ids.

    Raises:
        ConfigurationError: if the file cannot be read, and for a CSV file without the column of ids.
    """
    if path.suffix in PARQUET:
        return ParquetFile(path, party)
    place = folder / f"{quote(party, safe='')}.parquet"
    with readable(path, party), TextFile(path) as file:
        _copy_csv(file, party, id_column, form, _texts(file, form, text, no_codes), place, rows)
    return ParquetFile(place, party)


@contextmanager
def readable(path: Path, party: str) -> Iterator[None]:
    """Turn the errors of pandas and of the system for a file that cannot be read into one line."""
    import pandas as pd

    try:
        yield
    except ConfigurationError:
        raise
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{path} of party '{party}' is not {error.encoding.upper()} text (byte "
            f"0x{error.object[error.start]:02x} in it); save it as CSV UTF-8, or give its encoding (cp1252 of Excel)"
        ) from error
    except (OSError, ValueError, pd.errors.ParserWarning) as error:
        raise ConfigurationError(
            f"{path} of party '{party}' cannot be read ({error}); correct the path, the file or separator"
        ) from error


def _names_of(file: TextFile, party: str, form: CSVForm) -> list[str]:
    """The names of a CSV file's columns, which must differ; pandas would call the second ``name.1``.

    Raises:
        ConfigurationError: for a name that two columns have.
    """
    import pandas as pd

    options = {**csv_options(form), "header": None, "nrows": 1, "dtype": str, "keep_default_na": False}
    with csv_warnings():
        first = pd.read_csv(file.content(), **options).iloc[0]
    names = first[first != ""].str.strip()
    if names.duplicated().any():
        name = names[names.duplicated()].iloc[0]
        raise ConfigurationError(
            f"{file.path} of party '{party}' has {int((names == name).sum())} columns called '{name}', of which one "
            "may be a copy of the other; give each column its own name"
        )
    return [name or f"Unnamed: {place}" for place, name in enumerate(first.tolist())]


def _texts(
    file: TextFile, form: CSVForm, text: Iterable[str] | None, no_codes: Collection[str] | None
) -> list[str] | None:
    """The columns to read as text, with those of codes; None: all."""
    if text is None or no_codes is None:
        return None if text is None else list(text)
    return [*text, *coded_columns(file, form, no_codes)]


def _read_csv(file: TextFile, party: str, id_column: str, form: CSVForm, text: list[str] | None) -> "pd.DataFrame":
    """The table of a CSV file; its types are those of the whole file."""
    import pandas as pd

    options = {**csv_options(form, _has_spaces(file, form)), **missing_cells(_names_of(file, party, form), [id_column])}
    types: Any = str if text is None else dict.fromkeys((*text, id_column), str)
    with csv_warnings():
        try:
            table: pd.DataFrame = pd.read_csv(file.content(), dtype=types, low_memory=True, **options)
        except pd.errors.DtypeWarning:  # numbers in one part and texts in another: all of them are texts
            table = pd.read_csv(file.content(), dtype=types, low_memory=False, **options)
    return table


def _has_spaces(file: TextFile, form: CSVForm) -> bool:
    """Whether a field may begin with a blank; looking for it makes pandas' reader 40 % slower.

    Of packed files, and of those with more than a byte a character, it is not found out.
    """
    if file.packed or "a ".encode(form.encoding) != b"a ":
        return True
    blanks, ends = (np.frombuffer(cells.encode(form.encoding), np.uint8) for cells in (" \t", f"{form.separator}\n\r"))
    blanks = np.setdiff1d(blanks, ends)  # a tab may be the separator
    content, before = file.content(), b"\n"
    while block := content.read(_BYTES):
        if any(blank in block for blank in blanks.tolist()):
            text = np.frombuffer(before + block, np.uint8)
            if np.isin(text[:-1][np.isin(text[1:], blanks)], ends).any():
                return True
        before = block[-1:]
    return False


def _copy_csv(
    file: TextFile, party: str, id_column: str | None, form: CSVForm, text: list[str] | None, place: Path, rows: int
) -> None:
    """Copy all columns into a Parquet file."""
    names = _names_of(file, party, form)
    ids = [] if id_column is None else [id_column]
    if id_column is not None:
        check_id_column(names, file.path, party, id_column)
    fixed = set(names if text is None else text).intersection(names).difference(ids)
    kinds = dict.fromkeys(fixed, _Kind.TEXTS)
    copied = _copy_as(file, form, ids, names, kinds, place, rows)
    # if a later row has another kind of cells, kinds are now those of all rows
    if not copied and not _copy_as(file, form, ids, names, kinds, place, rows):
        raise ValueError("the file has changed while it was read")


def _copy_as(
    file: TextFile, form: CSVForm, ids: list[str], names: list[str], kinds: dict[str, _Kind], place: Path, rows: int
) -> bool:
    """Copy the columns, if all rows of a column have one kind of cells, which may be known; else find all kinds.

    Args:
        file: the file.
        form: how a CSV file is written.
        ids: the columns of ids.
        names: of all columns.
        kinds: column -> what its cells are read as; kinds are added and changed.
        place: the Parquet file to write.
        rows: how many rows are in memory together.

    Returns:
        Whether the columns are copied.
    """
    import pyarrow.parquet as pq

    types = {name: str(kind) for name, kind in kinds.items() if kind in (_Kind.TEXTS, _Kind.PARTLY)}
    types |= dict.fromkeys(ids, str(_Kind.TEXTS))
    writer, changed = None, False
    try:
        with _chunks(file, form, rows, dtype=types, **missing_cells(names, ids)) as chunks:
            for chunk in chunks:
                for name in ids:
                    numbers = canonical_ids(chunk[name])
                    if numbers.dtype == np.int64 and kinds.get(name) != _Kind.TEXTS:
                        chunk[name] = numbers
                for name in map(str, chunk):
                    kind = _kind_of(chunk[name])
                    known = kinds.setdefault(name, kind)
                    kinds[name] = _together(known, kind)
                    changed |= kinds[name] is not known
                if changed:
                    continue
                table = _arrow(chunk, kinds)
                writer = writer or pq.ParquetWriter(place, table.schema, compression="none", use_dictionary=False)
                writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()
    return not changed


def _arrow(chunk: "pd.DataFrame", kinds: Mapping[str, _Kind]) -> "pa.Table":
    import pyarrow as pa

    types = {
        _Kind.WHOLE: pa.int64(),
        _Kind.TRUTHS: pa.bool_(),
        _Kind.PARTLY: pa.bool_(),
        _Kind.TEXTS: pa.large_string(),
    }
    arrays = {}
    for name in map(str, chunk):
        of_numbers = kinds[name] in (_Kind.NUMBERS, _Kind.NOTHING)
        cells = chunk[name].astype(np.float64) if of_numbers else chunk[name]
        arrays[name] = pa.array(cells, type=types.get(kinds[name], pa.float64()), from_pandas=True)
    return pa.table(arrays)


@contextmanager
def _chunks(file: TextFile, form: CSVForm, rows: int, **options: Any) -> "Iterator[Iterator[pd.DataFrame]]":
    import pandas as pd

    options |= csv_options(form, _has_spaces(file, form))
    with csv_warnings(), pd.read_csv(file.content(), low_memory=False, chunksize=rows, **options) as chunks:
        yield iter(chunks)


def _kind_of(column: "pd.Series[Any]") -> _Kind:
    from pandas.api.types import infer_dtype, is_bool_dtype, is_float_dtype, is_integer_dtype

    if str(column.dtype) == _Kind.PARTLY:
        return _Kind.PARTLY
    if is_bool_dtype(column):
        return _Kind.TRUTHS
    if is_integer_dtype(column):
        return _Kind.WHOLE if column.dtype == np.int64 else _Kind.NUMBERS
    if is_float_dtype(column):
        return _Kind.NOTHING if column.isna().all() else _Kind.NUMBERS
    if infer_dtype(column, skipna=True) == "boolean":
        return _Kind.PARTLY
    return _Kind.TEXTS


def _together(one: _Kind, other: _Kind) -> _Kind:
    """What a column is read as whose rows have these two kinds: the same as pandas reads the whole column as."""
    kinds = {one, other}
    if len(kinds) == 1:
        return one
    for wider, narrower in (
        (_Kind.NUMBERS, {_Kind.WHOLE, _Kind.NOTHING}),
        (_Kind.PARTLY, {_Kind.TRUTHS, _Kind.NOTHING}),
    ):
        if kinds <= {wider, *narrower}:
            return wider
    return _Kind.TEXTS
