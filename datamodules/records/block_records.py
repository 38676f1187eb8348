"""Records of which a few blocks are in memory, read from the files of the parties."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.trained.fitted import FittedParty
from lightning_vfl.types import RecordBlocks

from .block_buffer import BlockBuffer
from .block_files import BlockTable
from .checks import Unusable, unusable
from .records import Records, SplitName
from .row_split import RowSplit

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LARGEST = float(np.finfo(np.float32).max)


class BlockedTables:
    """The files of all parties, and what is read from them.

    Args:
        tables: the feature parties' files, in the order of the parties.
        columns: the columns of each of them that are features.
        labels: the file with the labels; None: there are no labels.
        label_column: the column of the labels.
        classes: whether labels are classes.
        id_column: a column of the first file with the users' ids; None: the number of the row is the id.
    """

    def __init__(
        self,
        tables: Sequence[BlockTable],
        columns: Sequence[Sequence[str]],
        labels: BlockTable | None,
        label_column: str,
        classes: bool,
        id_column: str | None,
    ) -> None:
        self.tables = tuple(tables)
        self.columns = tuple(map(tuple, columns))
        self.labels = labels
        self.label_column = label_column
        self.label_dtype = torch.int64 if classes else torch.float32
        self.id_column = id_column
        self.sizes = np.array(self.tables[0].sizes, dtype=np.int64)
        self.starts = np.cumsum(self.sizes) - self.sizes

    def rows_of(self, split: RowSplit, name: SplitName, block: int) -> "NDArray[np.int64]":
        """The split's rows of a block, counted from its first row."""
        start = int(self.starts[block])
        return split.within(name, start, start + int(self.sizes[block])) - start

    def features(self, party: int, block: int, rows: "NDArray[np.int64]") -> "NDArray[np.float64]":
        """(F_m, n): the party's columns in some rows of a block, counted from its first row.

        Raises:
            ConfigurationError: for values that are not finite.
        """
        numbers = np.stack(list(self._columns(party, block, rows)))
        if not (numbers.size == 0 or (numbers.min() >= -_LARGEST and numbers.max() <= _LARGEST)):
            self._refuse(unusable(numbers), party, block, rows)
        return numbers

    def scaled(self, party: int, block: int, rows: "NDArray[np.int64]", scaling: FittedParty) -> "NDArray[np.float32]":
        """(F_m, n): as ``features``, scaled: (x - shift) / scale in float64, rounded to float32.

        Raises:
            ConfigurationError: for values that are not finite.
        """
        numbers = np.empty((len(self.columns[party]), len(rows)), dtype=np.float32)
        pairs = zip(scaling.shift.tolist(), scaling.scale.tolist(), strict=True)
        with np.errstate(over="ignore", invalid="ignore"):
            for own, column, (shift, scale) in zip(numbers, self._columns(party, block, rows), pairs, strict=True):
                column -= shift  # column by column: it stays in the processor's cache
                column /= scale
                own[:] = column
            finite = bool(np.isfinite(numbers.sum()))  # a sum is finite only if all its terms are
        if not finite and not np.isfinite(numbers).all():
            self.features(party, block, rows)  # refuses those that are wrong in the file
            large = Unusable(~np.isfinite(numbers), "are too large for float32 once they are scaled", "correct them")
            self._refuse(large, party, block, rows)
        return numbers

    def _columns(self, party: int, block: int, rows: "NDArray[np.int64]") -> "Iterator[NDArray[np.float64]]":
        """The party's columns in these rows of a block, each a copy."""
        for column in self.tables[party].read(block, self.columns[party]):
            yield np.take(column, rows).astype(np.float64)

    def _refuse(self, found: Unusable | None, party: int, block: int, rows: "NDArray[np.int64]") -> None:
        if found is not None:
            column, row = np.argwhere(found.where)[0]
            raise ConfigurationError(
                f"{int(found.where.sum())} feature values of row group {block} {found.what}, first of party {party}, "
                f"column '{self.columns[party][column]}', row {self.starts[block] + rows[row]:,}; {found.fix}"
            )

    def ids(self, rows: "NDArray[np.int64]") -> "NDArray[np.generic]":
        """(n,) the users' ids of these rows of the tables, which are sorted."""
        if self.id_column is None:
            return rows
        found = [np.empty(0, dtype=np.int64)] if not len(rows) else []
        blocks = np.searchsorted(self.starts + self.sizes, rows, side="right")
        for block in np.unique(blocks).tolist():
            (own,) = self.tables[0].read(block, [self.id_column])
            found.append(own[rows[blocks == block] - self.starts[block]])
        return np.concatenate(found)


class RecordIds:
    """(N,) the users' ids of a split's records, read when they are asked for.

    Args:
        tables: the files.
        split: which rows belong to a split.
        name: the split.
    """

    def __init__(self, tables: BlockedTables, split: RowSplit, name: SplitName) -> None:
        self._tables, self._split, self._name = tables, split, name

    def __len__(self) -> int:
        return self._split.count(self._name)

    def __getitem__(self, positions: "NDArray[np.int64] | int | slice") -> "NDArray[np.generic] | np.generic":
        if isinstance(positions, slice):
            positions = np.arange(len(self))[positions]
        chosen = np.atleast_1d(np.asarray(positions, dtype=np.int64))
        if len(chosen) and not 0 <= chosen.min() <= chosen.max() < len(self):
            raise IndexError(f"positions must be from 0 to {len(self) - 1}; got {chosen.min()} to {chosen.max()}")
        rows, back = np.unique(self._split.at(self._name, chosen), return_inverse=True)
        ids = self._tables.ids(rows)[back]
        return ids[0] if np.ndim(positions) == 0 else ids

    def __array__(self, dtype: "np.dtype[np.generic] | None" = None, copy: bool | None = None) -> "NDArray[np.generic]":
        every = np.asarray(self[np.arange(len(self))])
        return every if dtype is None else every.astype(dtype)


class BlockRecords(Records):
    """The records of a split, of which the last blocks that were read are in memory.

    Args:
        tables: the files.
        split: which rows belong to a split.
        name: the split.
        parties: the scaling of each party.
        slots: how many blocks are in memory.
        with_labels: whether batches have labels.

    Units: memory, ``slots`` times the largest block, and while a block is read 16 bytes for each number of one party in
        it.
    Guarantee: features are (x - shift) / scale in float64, rounded to float32: bit for bit the same in any order, batch
        and window.
    Not guaranteed: speed in an order over all blocks, see ``BlockBuffer``. ``labels`` and ``ids`` as a whole take
        8 bytes a record, and are read anew each time.
    """

    def __init__(
        self,
        tables: BlockedTables,
        split: RowSplit,
        name: SplitName,
        parties: Sequence[FittedParty],
        slots: int,
        with_labels: bool,
    ) -> None:
        ids: NDArray[np.generic] = RecordIds(tables, split, name)  # type: ignore[assignment]  # as much of an array as is used
        super().__init__([party.shape for party in parties], None, ids)
        self._tables, self._split, self._name = tables, split, name
        self._parties = tuple(parties)
        edges = [split.before(name, int(row)) for row in (*tables.starts, split.rows)]
        sizes = np.diff(edges)
        self.blocks = RecordBlocks(tuple(sizes.tolist()), slots)
        self._features = BlockBuffer(sizes, slots, (sum(self.widths),), torch.float32, self._read)
        self._read_labels = with_labels and tables.labels is not None
        self._classes = BlockBuffer(sizes, slots, (), tables.label_dtype, self._read_classes)

    @property
    def labels(self) -> Tensor | None:
        return self.labels_at(torch.arange(len(self)))

    def labels_at(self, ids: Tensor) -> Tensor | None:
        return self._classes.gather(ids.numpy()) if self._read_labels else None

    def rows(self, ids: Tensor) -> tuple[Tensor, ...]:
        return self._cut(self._features.gather(ids.numpy()))

    def features_of(self, party: int, ids: Tensor) -> Tensor:
        return self.rows(ids)[party]

    def only(self, positions: "NDArray[np.int64]") -> "BlockRecords":
        raise ConfigurationError("records that are read in blocks cannot be left out one by one; use CSVTables")

    def _read(self, block: int, into: Tensor) -> None:
        rows, begin = self._tables.rows_of(self._split, self._name, block), 0
        for party, scaling in enumerate(self._parties):
            numbers = self._tables.scaled(party, block, rows, scaling)
            into[:, begin : begin + len(numbers)] = torch.from_numpy(numbers).T.contiguous()
            begin += len(numbers)

    def _read_classes(self, block: int, into: Tensor) -> None:
        if self._tables.labels is None:
            raise RuntimeError("there are no labels")
        (labels,) = self._tables.labels.read(block, [self._tables.label_column])
        into.copy_(torch.from_numpy(np.array(labels)[self._tables.rows_of(self._split, self._name, block)]))
