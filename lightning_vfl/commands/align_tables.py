"""The tables of ``lightning-vfl align``: the ids of a party's table, and the aligned table."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning_vfl.align.files import write_whole
from lightning_vfl.datamodules.records.code_columns import coded_columns
from lightning_vfl.datamodules.records.party_tables import (
    CSV,
    PARQUET,
    CSVForm,
    csv_options,
    csv_warnings,
    kind_of,
    listed,
    missing_cells,
    other_separator,
)
from lightning_vfl.datamodules.records.table_files import readable
from lightning_vfl.errors import ConfigurationError, nearest
from lightning_vfl.limits import TextFile, refuse_large_table
from lightning_vfl.trained.predictions import for_spreadsheets, write_table
from lightning_vfl.whole_files import refuse_unwritable

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

Texts = list[str | None]
ENDINGS = (".csv", ".parquet")


@dataclass(frozen=True)
class TableFile:
    """The file of a party's table.

    Args:
        path: CSV, or Parquet (``.parquet``, ``.pq``).
        party: whose table.
        id_columns: the columns of the ids, one word for each key that is tried in turn; a key of several columns joins
            their names with ``+``.
        form: how a CSV file is written.
    """

    path: Path
    party: str
    id_columns: tuple[str, ...]
    form: CSVForm = CSV

    def told(self) -> dict[str, Any]:
        """What a party keeps of its table, as plain values."""
        return {"path": str(self.path.absolute()), "id_columns": list(self.id_columns), "form": list(self.form)}

    @classmethod
    def of(cls, told: Mapping[str, Any], party: str, moved: str | None) -> "TableFile":
        """The file that ``told`` has kept, or the one to which it has moved.

        Raises:
            KeyError, TypeError: for other values.
        """
        words = tuple(map(str, told["id_columns"]))
        return cls(Path(moved or str(told["path"])), party, words, CSVForm(*told["form"]))

    def keys(self) -> list[list[str]]:
        """The columns of each key.

        Raises:
            ConfigurationError: if the file cannot be read or does not have a column.
        """
        names, keys = self._names(), []
        for word in self.id_columns:
            columns = [word] if word in names else word.split("+")
            for column in columns:
                if column not in names:
                    mark = other_separator(names)
                    similar = nearest(column, names, "correct --id-column or --separator")
                    similar = similar if mark is None else f"give --separator {mark!r}"
                    raise ConfigurationError(
                        f"{self.path} of party '{self.party}' has no column '{column}', only {listed(names)}; {similar}"
                    )
            keys.append(columns)
        used = [column for columns in keys for column in columns]
        if twice := next((column for column in used if used.count(column) > 1 and len(keys) == 1), None):
            raise ConfigurationError(f"--id-column names '{twice}' twice; give each column of a key once")
        return keys

    def texts(self, keys: list[list[str]]) -> list[list[Texts]]:
        """Key -> its columns -> (n,) the texts of the cells; None: missing.

        Raises:
            ConfigurationError: if the file cannot be read, and for columns that are neither text nor whole numbers.
        """
        import pandas as pd  # 0.5 s, where it is used

        used = list(dict.fromkeys(column for columns in keys for column in columns))
        with readable(self.path, self.party):
            if self.path.suffix in PARQUET:
                refuse_large_table(self.path)
                table = pd.read_parquet(self.path, columns=used, dtype_backend="numpy_nullable")
            else:
                table = self._csv(usecols=used.__contains__, dtype=str, **missing_cells(used, used))
        cells = {column: _texts(table.pop(column), self.party) for column in used}
        return [[cells[column] for column in columns] for columns in keys]

    def aligned(
        self,
        records: "NDArray[np.int64]",
        rows: "NDArray[np.int64]",
        keys: list[list[str]],
        id_name: str,
        as_text: bool,
    ) -> "tuple[pd.DataFrame, pd.DataFrame]":
        """The rows of these records with their common numbers in place of the ids, and the ids of the numbers.

        Args:
            records: numbers of rows of the file.
            rows: their common numbers.
            keys: the columns of each key, which the table then does not have.
            id_name: the column of the numbers, the first one.
            as_text: whether cells of a CSV file stay as they are written; else columns of numbers become numbers.

        Raises:
            ConfigurationError: if the file cannot be read, and if it has another column of the name ``id_name``.
        """
        import pandas as pd

        used = list(dict.fromkeys(column for columns in keys for column in columns))
        with readable(self.path, self.party):
            if self.path.suffix in PARQUET:
                refuse_large_table(self.path)
                table = pd.read_parquet(self.path)
            elif as_text:
                table = self._csv(dtype=str, keep_default_na=False, na_filter=False)
            else:  # codes such as 0150 stay texts, as CSVTables reads them
                with TextFile(self.path) as file:
                    codes = coded_columns(file, self.form, used)
                missing = missing_cells(self._names(), used)
                table = self._csv(dtype=dict.fromkeys((*codes, *used), str), low_memory=False, **missing)
        table = table.iloc[records].reset_index(drop=True)
        ids = pd.DataFrame({column: table.pop(column) for column in used})
        if id_name in table:
            raise ConfigurationError(
                f"{self.path} has a column '{id_name}' that is no id; name the column of the common numbers "
                "(--id-name), which is the same for all parties"
            )
        table.insert(0, id_name, rows)
        ids.insert(0, "record", rows, allow_duplicates=True)
        return table, ids

    def _names(self) -> list[str]:
        with readable(self.path, self.party):
            if self.path.suffix in PARQUET:
                from pyarrow import parquet  # 0.1 s, where it is used

                return [str(name) for name in parquet.read_schema(self.path).names]
            return [str(name) for name in self._csv(nrows=0)]

    def _csv(self, **options: Any) -> "pd.DataFrame":
        import pandas as pd

        with csv_warnings(), TextFile(self.path) as file:
            table: pd.DataFrame = pd.read_csv(file.content(), **csv_options(self.form), **options)
            return table


def check_out(path: Path) -> None:
    """Accept a file that ends in ``.csv`` or ``.parquet`` and can be written.

    Raises:
        ConfigurationError: for any other.
    """
    if path.suffix not in ENDINGS:
        raise ConfigurationError(f"--out {path}: the aligned table is a .csv or .parquet file; change the ending")
    refuse_unwritable(path)


def map_path(out: Path) -> Path:
    """Where the ids of an aligned table are."""
    return out.with_name(f"{out.stem}.map.csv")


def write_aligned(table: "pd.DataFrame", ids: "pd.DataFrame", out: Path) -> None:
    """Write the ids, for their owner alone (mode 0600), and the aligned table; each is complete or not there.

    The file of ids is safe to open in a spreadsheet. The cells of the table are the user's own, which training reads.
    """
    write_whole(map_path(out), for_spreadsheets(ids).to_csv(index=False).encode("utf-8", "surrogatepass"), 0o600)
    write_table(table, out)


def _texts(column: "pd.Series[Any]", party: str) -> Texts:
    if str(column.dtype) == "category":
        column = column.astype(column.cat.categories.dtype)
    if kind_of(column) not in ("whole numbers", "text") and not column.isna().all():
        raise ConfigurationError(
            f"column '{column.name}' of party '{party}' is {column.dtype}; ids are text or whole numbers, so write it "
            "as text"
        )
    missing = column.isna()
    cells: list[str] = column.astype(object).where(~missing, "").astype(str).tolist()
    return [None if lacks else cell for cell, lacks in zip(cells, missing.tolist(), strict=True)]
