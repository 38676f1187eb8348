"""The records of one party to score: a table with its columns, or an array of numbers."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from lightning_vfl.datamodules.records.column_encoder import ColumnEncoder
from lightning_vfl.datamodules.records.column_encoders import check_columns, encoder_of
from lightning_vfl.datamodules.records.column_tables import StoredTable
from lightning_vfl.datamodules.records.modal_columns import PictureColumn, located
from lightning_vfl.datamodules.records.new_records import NewRecords
from lightning_vfl.datamodules.records.number_files import MappedFile, NumberFile
from lightning_vfl.datamodules.records.party_tables import CSVForm, kind_of, listed, plain_ids
from lightning_vfl.datamodules.records.step_chain import Chain
from lightning_vfl.datamodules.records.table_files import TableSource
from lightning_vfl.datamodules.records.work_folders import WorkFolder
from lightning_vfl.errors import ConfigurationError, on_one_line
from lightning_vfl.export.manifest import Manifest, PartyHalf
from lightning_vfl.limits import refuse_growth

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

ARRAYS = (".npy", ".npz")


class PartyData(ABC):
    """The records of one party.

    Args:
        party: its name, for errors.
        index: the ids of its records.
        dtype: of the input of its program.
    """

    def __init__(self, party: str, index: "pd.Index[Any]", dtype: str) -> None:
        self.party = party
        self.index = index
        self.dtype = dtype
        self.new = NewRecords(party)
        """Tells in which columns the records so far are unlike the training records."""

    def places(self, ids: "NDArray[Any]") -> "NDArray[np.int64]":
        """(B,) the place of each of these ids, -1 for those that it does not have; ids are of the kind of its own."""
        return np.asarray(self.index.get_indexer(ids), dtype=np.int64)  # type: ignore[arg-type]  # an array does

    def only(self, ids: "NDArray[Any]") -> "PartyData":
        """The records with these ids, of which it may lack some, before any was asked for; this must not be used then.

        Guarantee: columns are encoded for these records alone, and a note on them is printed once and counts them all.
        """
        return self

    @abstractmethod
    def at(self, places: "NDArray[np.int64]") -> "NDArray[Any]":
        """(B, *S) the numbers of the records at these places."""

    def features(self, places: "NDArray[np.int64]") -> "NDArray[Any]":
        """(B, *S) the input of the program for the records at these places.

        Raises:
            ConfigurationError: for columns and values of another kind than those of the training records, and numbers
                that are not finite.
        """
        given = self.at(places)
        numbers: NDArray[Any] = np.ascontiguousarray(given, dtype=self.dtype)
        if numbers.dtype.kind in "ib" and not np.array_equal(numbers, given):
            raise ConfigurationError(
                f"the features of party '{self.party}' must be {self.dtype}, as those of the training records; give "
                "whole numbers or truths"
            )
        with np.errstate(over="ignore"):
            finite = np.isfinite(numbers.astype(np.float32))  # as the bottom takes them
        if not finite.all():
            record = self.index[places[np.argwhere(~finite)[0, 0]]]
            raise ConfigurationError(
                f"{int((~finite).sum())} numbers of party '{self.party}' are NaN or infinite, first of record {record}"
                "; impute them or remove the records"
            )
        return numbers


class Table(PartyData):
    """A table, whose columns are encoded as in training.

    Args:
        party: its name, for errors.
        table: its columns; the ids are the index.
        encoders: of its columns.
        dtype: of the input of its program.
    """

    def __init__(self, party: str, table: "pd.DataFrame", encoders: Sequence[ColumnEncoder], dtype: str) -> None:
        check_columns(table, encoders, party)
        super().__init__(party, table.index, dtype)
        self._table = table
        self._encoders = encoders

    def only(self, ids: "NDArray[Any]") -> PartyData:
        places = self.places(ids)
        places = places[places >= 0]
        # pictures, of which nothing is noted, would fill the memory: each batch decodes its own
        if not len(places) or any(isinstance(encoder, PictureColumn) for encoder in self._encoders):
            return self
        encoded = Array(self.party, self.index[places], self.features(places), self.dtype)
        encoded.new = self.new
        return encoded

    def at(self, places: "NDArray[np.int64]") -> "NDArray[Any]":
        rows = self._table.iloc[places]
        blocks = [self.new.encode(encoder, rows[encoder.column]) for encoder in self._encoders if encoder.names]
        return np.hstack(blocks) if blocks else np.empty((len(places), 0))


class EncodedTable(PartyData):
    """A table that is encoded on the disk column by column when records are first asked for, in the order of their ids.

    Args:
        table: its columns.
        encoders: of its columns.
        dtype: of the input of its program.
        party: its name, for errors.
        work: the folder of its numbers.
    """

    def __init__(
        self,
        party: str,
        table: StoredTable,
        encoders: Sequence[ColumnEncoder],
        dtype: str,
        work: WorkFolder,
    ) -> None:
        check_columns(table, encoders, party)
        super().__init__(party, table.index, dtype)
        self._encoders = encoders
        self._work = work
        self._keep(table, np.argsort(plain_ids(table.index), kind="stable"))

    def _keep(self, table: StoredTable, rows: "NDArray[np.int64]") -> None:
        """Only these rows of the table, which ascend in their ids."""
        self._table = table.in_order(rows)
        self.index = self._table.index
        self._ids = plain_ids(self.index)

    def only(self, ids: "NDArray[Any]") -> PartyData:
        places = self.places(np.sort(ids))
        if len(kept := places[places >= 0]):
            self._keep(self._table, kept)
        return self

    @cached_property
    def _numbers(self) -> MappedFile:
        numbers = NumberFile(self._work, f"{quote(self.party, safe='')}.numbers", np.float64, (len(self._table),))
        for encoder in self._encoders:
            for column in self.new.encode(encoder, self._table[encoder.column]).T if encoder.names else ():
                numbers.put(column)
        return numbers.turned()

    def places(self, ids: "NDArray[Any]") -> "NDArray[np.int64]":
        places = np.minimum(np.searchsorted(self._ids, ids), len(self._ids) - 1)
        return np.where(self._ids[places] == ids, places, -1)

    def at(self, places: "NDArray[np.int64]") -> "NDArray[Any]":
        return self._numbers.rows(places)


class Array(PartyData):
    """An array of numbers, such as pixels; a byte b stands for b / 255.

    Args:
        party: its name, for errors.
        index: the ids of its records.
        numbers: (N, *S) bytes or numbers.
        dtype: of the input of its program.
    """

    def __init__(self, party: str, index: "pd.Index[Any]", numbers: "NDArray[Any]", dtype: str) -> None:
        super().__init__(party, index, dtype)
        self._numbers = numbers

    def at(self, places: "NDArray[np.int64]") -> "NDArray[Any]":
        numbers = self._numbers[places]
        return numbers.astype(np.float32) / np.float32(255) if numbers.dtype == np.uint8 else numbers


def read_party(
    manifest: Manifest,
    path: Path,
    id_column: str,
    form: CSVForm,
    leave_out: Collection[str] = (),
    grouped: bool = False,
    work: WorkFolder | None = None,
) -> PartyData:
    """The records of a party from its file.

    Args:
        manifest: of the party's half.
        path: CSV or Parquet for a party with columns; ``.npz`` or ``.npy`` for a party with arrays.
        id_column: the column of the ids, or the array of the ids in an ``.npz`` file.
        form: how a CSV file is written.
        leave_out: columns that are no features, such as labels.
        grouped: whether other parties hold the same columns for other records.
        work: folder in which the columns are stored; None: the table is in memory.

    Raises:
        ConfigurationError: for a file that cannot be read, of the other form, or of another shape.
    """
    party = manifest.name
    half = manifest.half
    if not isinstance(half, PartyHalf):
        raise ConfigurationError(f"{path} is given for the server, which has no features; leave it out")
    if half.encoders is None:
        if path.suffix not in ARRAYS:
            raise ConfigurationError(
                f"{path} of party '{party}' is a table, but its features are arrays of shape "
                f"{manifest.inputs[0].shape[1:]}; give an .npz file with arrays features and {id_column}, or an .npy "
                "file"
            )
        return _read_array(manifest, path, id_column)
    if path.suffix in ARRAYS:
        raise ConfigurationError(
            f"{path} of party '{party}' is an array, but it has columns; give a table (CSV, Parquet)"
        )
    encoders = located([encoder_of(state) for state in half.encoders], path.parent)
    # with chosen steps, all columns of a group's tables are read as text: all codes of one table may look like numbers
    stepped = any(not isinstance(encoder, Chain) or len(encoder.steps) > 1 for encoder in encoders)
    text = None if grouped and stepped else [encoder.column for encoder in encoders if encoder.of_texts]
    others = set(leave_out).difference(encoder.column for encoder in encoders)
    source = TableSource(path, party, id_column, form, text)
    if work is not None:
        stored = source.store(work.path)
        stored.columns = [name for name in stored if name not in others]
        _refuse_further(stored.columns, encoders, path, party)
        return EncodedTable(party, stored, encoders, manifest.inputs[0].dtype, work)
    table = source.read()
    table = table.drop(columns=list(others), errors="ignore")
    _refuse_further(table.columns, encoders, path, party)
    return Table(party, table, encoders, manifest.inputs[0].dtype)


def _refuse_further(columns: Iterable[object], encoders: Sequence[ColumnEncoder], path: Path, party: str) -> None:
    """Refuse columns that the model was not trained on, such as labels, if it has all that it was trained on.

    Raises:
        ConfigurationError: naming them.
    """
    given = [str(name) for name in columns]
    needed = {encoder.column for encoder in encoders if encoder.names}
    known = {encoder.column for encoder in encoders}
    if (further := [name for name in given if name not in known]) and needed <= {*given}:
        raise ConfigurationError(
            f"{path} of party '{party}' has columns {listed(further)}, which the model was not trained on; leave "
            f"out what is no feature: --leave_out {' '.join(further)}"
        )


def _read_array(manifest: Manifest, path: Path, id_name: str) -> Array:
    import pandas as pd  # 0.25 s, where it is used

    party = manifest.name
    port = manifest.inputs[0]
    shape = tuple(int(side) for side in port.shape[1:])
    try:
        with path.open("rb") as file:
            content = np.load(file, allow_pickle=False)
            if isinstance(content, np.ndarray):
                numbers = content
                ids = np.arange(len(content))
            else:
                refuse_growth(path, sum(info.file_size for info in content.zip.infolist()))
                numbers = content["features"]
                ids = content[id_name]
    except ConfigurationError:
        raise
    except Exception as error:  # the errors of numpy and zipfile for damaged files have no common class
        reason = on_one_line(error)
        raise ConfigurationError(
            f"{path} of party '{party}' cannot be read ({type(error).__name__}: {reason}); give an .npz file with "
            f"arrays features and {id_name}, or an .npy file"
        ) from error
    if numbers.shape[1:] not in (shape, (prod(shape),)) or ids.shape != numbers.shape[:1] or not len(ids):
        raise ConfigurationError(
            f"{path} of party '{party}' has features of shape {numbers.shape} and {ids.size} ids; give features of "
            f"shape (N, {', '.join(map(str, shape))}) and N ids"
        )
    if numbers.dtype.kind not in "uifb":
        raise ConfigurationError(f"{path} of party '{party}' holds {numbers.dtype}; give bytes or numbers")
    index = pd.Index(ids)
    if kind_of(index) not in ("whole numbers", "text") or index.has_duplicates:
        raise ConfigurationError(f"ids in {path} of party '{party}' must be whole numbers or text, each id once")
    return Array(party, index, numbers.reshape(len(ids), *shape), port.dtype)
