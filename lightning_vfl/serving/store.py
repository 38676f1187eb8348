"""A party's records in a database: those that a request asks for are read when it comes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import sqlalchemy as sql
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, NoSuchModuleError, NoSuchTableError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from lightning_vfl.datamodules.records.column_encoders import check_columns, encoder_of
from lightning_vfl.datamodules.records.modal_columns import ModalColumn
from lightning_vfl.datamodules.records.party_tables import canonical_ids, check_id_column, check_ids, kind_of
from lightning_vfl.errors import ConfigurationError, nearest, reason
from lightning_vfl.export.manifest import Manifest, PartyHalf
from lightning_vfl.export.party_data import Table
from lightning_vfl.serving.party_half import BLOCK, Source

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from numpy.typing import NDArray
    from sqlalchemy.types import TypeEngine

_CONNECTIONS = 2  # one for the request, and one while an earlier request still waits for the database
_FREE = 1.0  # seconds in which one of them has to be free
_DIGITS = 38  # of Arrow's decimals
_TOGETHER = 1000  # ids of a query: databases take at most 32,766 (SQLite) or 65,535 (PostgreSQL) parameters


@dataclass(frozen=True)
class Store:
    """The table of a database with a party's records.

    Args:
        url: of the database, as SQLAlchemy has it.
        table: its name, or that of a view; ``schema.name`` if it is not in the schema that the database looks in first.
        id_column: the column of the ids.
    """

    url: str = field(repr=False)  # may have a password
    table: str
    id_column: str = "id"

    def open(self, manifest: Manifest) -> Source:
        """As ``Readable``; no message has the password.

        Raises:
            ConfigurationError: for a URL that SQLAlchemy does not take or a package that it needs, a database that does
                not answer, a table or columns that it does not have, and what ``_Stored`` refuses.
        """
        half = manifest.half
        if not isinstance(half, PartyHalf) or half.encoders is None:
            raise ConfigurationError(
                f"the features of '{manifest.name}' are arrays, which --store does not read; give --table FILE without "
                "--store"
            )
        database = _Database(self.url)
        try:
            table = database.reflected(self.table)
            check_id_column(table.columns.keys(), Path(f"table {self.table}"), manifest.name, self.id_column)
            return _Stored(database, table, table.columns[self.id_column], manifest, half.encoders)
        except ConfigurationError:
            database.close()
            raise


class _Database:
    """A database, with few connections to it.

    Args:
        url: of the database.
    """

    def __init__(self, url: str) -> None:
        try:
            self._url = sql.make_url(url)
            self._engine = sql.create_engine(
                self._url,
                poolclass=QueuePool,
                pool_size=_CONNECTIONS,
                max_overflow=0,
                pool_timeout=_FREE,
                hide_parameters=True,
            )
        except NoSuchModuleError:
            kind = url.split(":")[0]
            raise ConfigurationError(
                f"--store begins with '{kind}', which SQLAlchemy does not know; write postgresql+psycopg://... or "
                "sqlite:///..."
            ) from None
        except ModuleNotFoundError as error:
            raise ConfigurationError(f"--store needs the package {error.name}; pip install {error.name}") from None
        except (ArgumentError, ValueError, TypeError):  # the message has the URL, and so the password
            raise ConfigurationError(
                "--store is no URL that SQLAlchemy can read; write postgresql+psycopg://user@host/database or "
                "sqlite:///file"
            ) from None
        name = self._url.database or ""
        is_file = name.startswith("file:") or Path(name).is_file()
        if self._url.get_backend_name() == "sqlite" and not is_file:  # SQLite would make one
            raise ConfigurationError(f"--store names no file of SQLite ({name}); write sqlite:///path/of/the/file")
        self.native_decimals = self._engine.dialect.supports_native_decimal

    def reflected(self, name: str) -> sql.Table:
        """The table of this name, with the types of its columns.

        Raises:
            ConfigurationError: if there is none.
        """
        schema, _, short = name.rpartition(".")
        for place, own in ((None, name), (schema, short)):
            try:
                with self.answering():
                    return sql.Table(own, sql.MetaData(), schema=place, autoload_with=self._engine, resolve_fks=False)
            except NoSuchTableError:
                if not schema:
                    break
        with self.answering():
            there = sql.inspect(self._engine)
            names = [*there.get_table_names(), *there.get_view_names()]
        fix = nearest(name, names) if names else "it has no table that this user may see"
        raise ConfigurationError(f"--table {name} is no table or view of the database; {fix}")

    def rows(self, query: sql.Select[Any], **values: Any) -> Sequence[Sequence[Any]]:
        """The rows of a query. If an open connection was lost, the query is sent once more over a new one.

        Raises:
            ConfigurationError: if the database does not answer, or has values that are not of the types of its columns.
        """
        with self.answering():
            try:
                return self._once(query, values)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
                return self._once(query, values)

    def close(self) -> None:
        """Close all connections that are not in use."""
        self._engine.dispose()

    def _once(self, query: sql.Select[Any], values: dict[str, Any]) -> Sequence[Sequence[Any]]:
        with self._engine.connect() as connection:
            return connection.execute(query, values).all()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Turn the errors of a database into one line without values and without the password."""
        try:
            yield
        except NoSuchTableError:
            raise
        except (SQLAlchemyError, ValueError, TypeError, OverflowError) as error:
            told = type(error).__name__
            if isinstance(error, DBAPIError) and not isinstance(error, DataError):  # which has the values of records
                told = reason(error.orig or error)
            for secret in (self._url.password, *map(str, self._url.query.values())):
                told = told.replace(str(secret), "***") if secret else told
            place = f"{self._url.get_backend_name()}://{self._url.host or ''}/{self._url.database or ''}"
            raise ConfigurationError(f"the database {place} does not give the records ({told})") from None


class _Stored(Source):
    """The records of a table.

    Guarantee: a record has the embedding that it has from a Parquet file with the same rows and types; a time with a
        zone is one in UTC. Each request reads the records as they are then, and the columns that the half uses.

    Args:
        database: has the table.
        table: its columns and their types.
        id_column: that of the ids.
        manifest: of the party's half.
        states: of the encoders of the half.

    What is unlike the training records in the first 4,096 records is printed, as of a file.

    Raises:
        ConfigurationError: for ids as ``check_ids``, ids with blanks around them, and columns that are missing or of
            another kind, in the first 4,096 records.
    """

    waits = True

    def __init__(
        self,
        database: _Database,
        table: sql.Table,
        id_column: "sql.Column[Any]",
        manifest: Manifest,
        states: Sequence[Any],
    ) -> None:
        import pandas as pd  # 0.5 s, where it is used

        self._database = database
        self._party = manifest.name
        self._dtype = manifest.inputs[0].dtype
        self._encoders = [encoder for encoder in map(encoder_of, states) if encoder.names]
        if several := [encoder.column for encoder in self._encoders if isinstance(encoder, ModalColumn)]:
            raise ConfigurationError(
                f"column '{several[0]}' of party '{self._party}' has pictures or texts, which --store does not read; "
                "give --table FILE without --store"
            )
        wanted = {encoder.column for encoder in self._encoders}
        self._columns = [column for column in table.columns if column.name in wanted and column is not id_column]
        check_columns(pd.DataFrame(columns=[column.name for column in self._columns]), self._encoders, self._party)
        self._types = [_arrow_type(column.type, database.native_decimals) for column in self._columns]
        self._id_column = id_column
        raw = self._raw_ids()
        ids = check_ids(canonical_ids(raw), Path(f"table {table.fullname}"), self._party)
        self._of_texts = kind_of(raw) == "text"
        padded = isinstance(id_column.type, sql.CHAR)  # whose blanks at the end a database does not compare
        written = raw.str.rstrip() if padded and self._of_texts else raw
        if self._of_texts and (blank := ids.astype(str).to_numpy() != written.to_numpy()).any():
            raise ConfigurationError(
                f"{int(blank.sum())} ids in table {table.fullname} of party '{self._party}' have blanks around them; "
                "remove the blanks, or give a view with trim()"
            )
        super().__init__(kind_of(ids), len(ids), ids.iloc[:1].to_numpy())
        kind = sql.String() if self._of_texts else sql.BigInteger()  # an id that the column cannot have is none there
        places = sql.bindparam("ids", expanding=True, type_=kind)
        selected = [self._selected(column) for column in self._columns]
        self._query = sql.select(id_column, *selected).where(id_column.in_(places))
        start = sql.select(id_column, *selected).limit(BLOCK)
        data = self._data(database.rows(start))
        data.features(np.arange(len(data.index)))
        data.new.tell()

    def all_ids(self) -> "NDArray[Any]":
        ids: NDArray[Any] = canonical_ids(self._raw_ids()).to_numpy()
        return ids

    def find(self, ids: "NDArray[Any]") -> Table:
        values = [str(one) if self._of_texts else one for one in ids.tolist()]
        if self.kind == "text":
            values = [one for one in values if "\x00" not in one]  # which PostgreSQL refuses
        rows: list[Sequence[Any]] = []
        for start in range(0, len(values), _TOGETHER):
            rows += self._database.rows(self._query, ids=values[start : start + _TOGETHER])
        return self._data(rows)

    def close(self) -> None:
        self._database.close()

    def _raw_ids(self) -> "pd.Series[Any]":
        import pandas as pd

        return pd.Series([row[0] for row in self._database.rows(sql.select(self._id_column))])

    def _selected(self, column: "sql.Column[Any]") -> Any:
        """The column as it is read: SQLite has no decimals, and SQLAlchemy would round its numbers to ten digits."""
        if isinstance(column.type, sql.Numeric) and not self._database.native_decimals:
            return sql.type_coerce(column, sql.Float(asdecimal=False)).label(column.name)
        return column

    def _data(self, rows: Sequence[Sequence[Any]]) -> Table:
        """The records of rows, whose first cell is the id, as they are in a Parquet file.

        Raises:
            ConfigurationError: for an id that two rows have, and for cells of another type than their column has.
        """
        import pandas as pd
        import pyarrow as pa

        columns = [*zip(*rows, strict=True)] if rows else [()] * (len(self._columns) + 1)
        ids = [str(one).strip() for one in columns[0]] if self._of_texts else [*columns[0]]
        if self.kind == "whole numbers":
            ids = [int(one) for one in ids]
        if len({*ids}) < len(ids):
            raise ConfigurationError(f"the table of party '{self._party}' has an id twice; keep one record of each id")
        arrays = {}
        for column, kind, cells in zip(self._columns, self._types, columns[1:], strict=True):
            try:
                array = pa.array(cells, from_pandas=True)
                # given the type at once, Arrow would read 1.5 as the whole number 1
                arrays[column.name] = array if kind is None else array.cast(kind)
            except (pa.ArrowException, ValueError, TypeError, OverflowError):
                raise ConfigurationError(
                    f"column '{column.name}' of party '{self._party}' is {column.type} and has cells of another type; "
                    "correct them, or give a view with CAST"
                ) from None
        table: pd.DataFrame = pa.table(arrays).to_pandas(use_threads=False)
        index = pd.Index(ids, dtype=np.int64 if self.kind == "whole numbers" else str)
        return Table(self._party, table.set_axis(index), self._encoders, self._dtype)


def _arrow_type(kind: "TypeEngine[Any]", native_decimals: bool) -> "pa.DataType | None":
    """The type that the column has in a Parquet file; None: that of its cells."""
    import pyarrow as pa

    if isinstance(kind, sql.Float):
        return pa.float64()
    if isinstance(kind, sql.Numeric):
        if not native_decimals:
            return pa.float64()
        known = kind.scale is not None and 0 < (kind.precision or 0) <= _DIGITS
        return pa.decimal128(kind.precision, kind.scale) if known else None
    types = {
        sql.Boolean: pa.bool_(),
        sql.Integer: pa.int64(),
        sql.String: pa.string(),
        sql.Date: pa.date32(),
        sql.DateTime: pa.timestamp("us", "UTC" if getattr(kind, "timezone", False) else None),
    }
    return next((own for one, own in types.items() if isinstance(kind, one)), None)
