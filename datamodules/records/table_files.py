"""Read the CSV or Parquet file of a party into memory, or into a table whose columns stay on the disk."""

import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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
    CSV,
    PARQUET,
    CSVForm,
    canonical_ids,
    check_id_column,
    check_ids,
    csv_options,
    csv_warnings,
    missing_cells,
    refuse_equal_names,
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


@dataclass(frozen=True)
class TableSource:
    """The file of a party's table, and how it is read.

    Args:
        path: the file; ``.parquet`` and ``.pq`` are Parquet, all others are CSV with a first row of names.
        party: the name of the party, for errors.
        id_column: the column of the ids, which keep their text unless all are whole numbers as usually written; None:
            the file has no ids.
        form: how a CSV file is written.
        text: columns of a CSV file to read as text; None: all.
        no_codes: columns that are not read as text if they have codes such as 007; None: no column is.

    Guarantee: a CSV file is opened once.
    """

    path: Path
    party: str
    id_column: str | None
    form: CSVForm = CSV
    text: Collection[str] | None = ()
    no_codes: Collection[str] | None = None

    def read(self) -> "pd.DataFrame":
        """The table with its checked ids as the index.

        Raises:
            ConfigurationError: if the file cannot be read or holds more than ``lightning_vfl.limits`` allows for its
                size, or its ids are missing, repeated or neither text nor whole numbers.
        """
        with readable(self.path, self.party):
            if self.path.suffix in PARQUET:
                file = ParquetFile(self.path, self.party)
                refuse_large_table(self.path)
                table = file.table()
            else:
                with TextFile(self.path) as text:
                    table = self._read_csv(text)
        self._check_id_column(table)
        return table.set_axis(self._index(table.pop(str(self.id_column))))

    def store(self, folder: Path, rows: int = _ROWS) -> StoredTable:
        """The table on the disk, with the columns and ids that ``read`` gives.

        A Parquet file is used as it is; a CSV file is copied into a Parquet file column by column.

        Args:
            folder: where the copy is stored.
            rows: how many rows of a CSV file are in memory together.

        Units: memory, the ids, and so many rows.
        Guarantee: every column has the values and the type that ``read`` gives. Types of a CSV file are those of the
            whole file: if a later row has another type than the rows before it, the file is read once more.

        Raises:
            ConfigurationError: as ``read``.
        """
        file = self.parquet(folder, rows)
        if self.path.suffix in PARQUET:
            with readable(self.path, self.party):
                refuse_large_table(self.path)
        self._check_id_column(file.columns)
        index = self._index(file.column(str(self.id_column)))
        return StoredTable(file, index, [name for name in file.columns if name != self.id_column])

    def parquet(self, folder: Path, rows: int = _ROWS) -> ParquetFile:
        """The file, or the copy of a CSV file, whose ids are whole numbers if all are written as these usually are.

        Raises:
            ConfigurationError: if the file cannot be read, and for a CSV file without the column of ids.
        """
        if self.path.suffix in PARQUET:
            return ParquetFile(self.path, self.party)
        place = folder / f"{quote(self.party, safe='')}.parquet"
        with readable(self.path, self.party), TextFile(self.path) as file:
            self._copy_csv(file, place, rows)
            copy = ParquetFile(place, self.party)
            self._tell_short_rows(file, len(copy.columns), len(copy))
        return copy

    # ---- inside

    def _check_id_column(self, names: "Collection[str] | pd.DataFrame") -> None:
        check_id_column(names, self.path, self.party, str(self.id_column))

    def _index(self, ids: "pd.Series[Any]") -> "pd.Index[Any]":
        import pandas as pd  # 0.5 s, where it is used

        index: pd.Index[Any] = pd.Index(check_ids(canonical_ids(ids), self.path, self.party))
        return index

    @property
    def _ids(self) -> list[str]:
        return [] if self.id_column is None else [self.id_column]

    def _names(self, file: TextFile) -> list[str]:
        """The names of a CSV file's columns.

        Raises:
            ConfigurationError: for a name that two columns have.
        """
        import pandas as pd

        options = {**csv_options(self.form), "header": None, "nrows": 1, "dtype": str, "keep_default_na": False}
        with csv_warnings():
            first = pd.read_csv(file.content(), **options).iloc[0]
        refuse_equal_names(first[first != ""].str.strip().tolist(), self.path, self.party)
        return [name or f"Unnamed: {place}" for place, name in enumerate(first.tolist())]

    def _texts(self, file: TextFile) -> list[str] | None:
        """The columns to read as text, with those of codes; None: all."""
        if self.text is None or self.no_codes is None:
            return None if self.text is None else list(self.text)
        return [*self.text, *coded_columns(file, self.form, self.no_codes)]

    def _read_csv(self, file: TextFile) -> "pd.DataFrame":
        """The table of a CSV file; its types are those of the whole file."""
        import pandas as pd

        text = self._texts(file)
        spaces = _has_spaces(file, self.form)
        names = self._names(file)
        if self.id_column is not None:
            self._check_id_column(names)  # before the rows, which another separator makes unreadable
        options = {**csv_options(self.form, spaces), **missing_cells(names, self._ids)}
        types: Any = str if text is None else dict.fromkeys((*text, *self._ids), str)
        with csv_warnings():
            try:
                table: pd.DataFrame = pd.read_csv(file.content(), dtype=types, low_memory=True, **options)
            except pd.errors.DtypeWarning:  # numbers in one part and texts in another: all of them are texts
                table = pd.read_csv(file.content(), dtype=types, low_memory=False, **options)
        self._tell_short_rows(file, len(names), len(table))
        return table

    def _tell_short_rows(self, file: TextFile, columns: int, rows: int) -> None:
        """Warn of rows with fewer fields than the header, such as the last one of a file that is cut off.

        pandas reads their other fields as missing. Of packed files, of those with more than a byte a character, and
        where separators stand in quotes, they may be overlooked.
        """
        separator = self.form.separator.encode(self.form.encoding)
        if file.packed or len(separator) != 1:
            return
        lacking = (rows + 1) * (columns - 1)
        content = file.content()
        while block := content.read(_BYTES):
            lacking -= block.count(separator)
        if lacking > 0:
            warnings.warn(
                f"rows of {self.path} of party '{self.party}' have {lacking} fields less than the header, which are "
                "read as missing; if the file is cut off, copy it again",
                stacklevel=2,
            )

    def _copy_csv(self, file: TextFile, place: Path, rows: int) -> None:
        """Copy all columns into a Parquet file."""
        text = self._texts(file)
        names = self._names(file)
        if self.id_column is not None:
            self._check_id_column(names)
        fixed = set(names if text is None else text).intersection(names).difference(self._ids)
        kinds = dict.fromkeys(fixed, _Kind.TEXTS)
        copied = self._copy_as(file, names, kinds, place, rows)
        # if a later row has another kind of cells, kinds are now those of all rows
        if not copied and not self._copy_as(file, names, kinds, place, rows):
            raise ValueError("the file has changed while it was read")

    def _copy_as(self, file: TextFile, names: list[str], kinds: dict[str, _Kind], place: Path, rows: int) -> bool:
        """Copy the columns, if all rows of a column have one kind of cells, which may be known; else find all kinds.

        Args:
            file: the file.
            names: of all columns.
            kinds: column -> what its cells are read as; kinds are added and changed.
            place: the Parquet file to write.
            rows: how many rows are in memory together.

        Returns:
            Whether the columns are copied.
        """
        import pyarrow.parquet as pq

        types = {name: str(kind) for name, kind in kinds.items() if kind in (_Kind.TEXTS, _Kind.PARTLY)}
        types |= dict.fromkeys(self._ids, str(_Kind.TEXTS))
        writer = None
        changed = False
        try:
            with self._chunks(file, rows, dtype=types, **missing_cells(names, self._ids)) as chunks:
                for chunk in chunks:
                    for name in self._ids:
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

    @contextmanager
    def _chunks(self, file: TextFile, rows: int, **options: Any) -> "Iterator[Iterator[pd.DataFrame]]":
        import pandas as pd

        options |= csv_options(self.form, _has_spaces(file, self.form))
        with csv_warnings(), pd.read_csv(file.content(), low_memory=False, chunksize=rows, **options) as chunks:
            yield iter(chunks)


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
        why = getattr(error, "strerror", None) or error  # without the path, which stands before it
        raise ConfigurationError(
            f"{path} of party '{party}' cannot be read ({why}); correct the path, the file or separator"
        ) from error


def _has_spaces(file: TextFile, form: CSVForm) -> bool:
    """Whether a field may begin with a blank; looking for it makes pandas' reader 40 % slower.

    Of packed files, and of those with more than a byte a character, it is not found out.
    """
    if file.packed or "a ".encode(form.encoding) != b"a ":
        return True
    blanks, ends = (np.frombuffer(cells.encode(form.encoding), np.uint8) for cells in (" \t", f"{form.separator}\n\r"))
    blanks = np.setdiff1d(blanks, ends)  # a tab may be the separator
    content = file.content()
    before = b"\n"
    while block := content.read(_BYTES):
        if any(blank in block for blank in blanks.tolist()):
            text = np.frombuffer(before + block, np.uint8)
            if np.isin(text[:-1][np.isin(text[1:], blanks)], ends).any():
                return True
        before = block[-1:]
    return False


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
