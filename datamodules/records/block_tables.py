"""Tables of any length: read block by block, checked, scaled, and written into files that are mapped into memory."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil
from shutil import disk_usage
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import permutation
from lightning_vfl.trained.fitted import Fitted, FittedParty
from lightning_vfl.types import RecordBlocks

from .block_files import BlockTable, check_classes
from .checks import Unusable, unusable
from .feature_stores import FeatureStore
from .layout import Part
from .normalise import Normaliser
from .number_files import NumberFile, WorkFolder
from .records import Split, SplitName, VerticalRecords
from .row_split import RowSplit

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FIT_BLOCKS = 16  # blocks among which the records are chosen that scaling is fitted to
_LARGEST = float(np.finfo(np.float32).max)
_MEGABYTE = 10**6


class BlockedTables(FeatureStore):
    """The files of all parties; a block of one party is in memory at a time.

    Args:
        tables: the feature parties' files, in the order of the parties.
        columns: the columns of each of them that are features.
        labels: the file with the labels; None: there are no labels.
        label_column: the column of the labels.
        classes: number of classes of the labels; None: real numbers.
        id_column: a column of the first file with the users' ids; None: the number of the row is the id.
        split: which rows belong to a split.
        fit_records: how many training records the scaling is fitted to.
        window_mb: megabytes of features in a window, at least one block.
        work: the folder of the files that are written.

    Units: disk, 4 bytes a feature and 16 a record of the splits that are used. Memory, the pages of a window.
    Guarantee: features are (x - shift) / scale in float64, rounded to float32.
    """

    def __init__(
        self,
        tables: Sequence[BlockTable],
        columns: Sequence[Sequence[str]],
        labels: BlockTable | None,
        label_column: str,
        classes: int | None,
        id_column: str | None,
        split: RowSplit,
        fit_records: int,
        window_mb: int,
        work: WorkFolder,
    ) -> None:
        self.tables = tuple(tables)
        self.columns = tuple(map(tuple, columns))
        often = Counter(name for own in self.columns for name in own)
        self.names = tuple(
            name if often[name] == 1 else f"{table.party}.{name}"
            for table, own in zip(self.tables, self.columns, strict=True)
            for name in own
        )
        self._labels = labels
        self._label_column = label_column
        self._classes = classes
        self._id_column = id_column
        self._split = split
        self._fit_records = fit_records
        self._window_mb = window_mb
        self._work = work
        self._blocks = np.array(self.tables[0].sizes, dtype=np.int64)
        self._starts = np.cumsum(self._blocks) - self._blocks
        self._sizes: dict[SplitName, tuple[int, ...]] = {}  # of the blocks of each split
        self._features: dict[SplitName, NumberFile] = {}

    # ---- labels and ids

    def load(self, names: Sequence[SplitName]) -> dict[SplitName, Split]:
        """Labels and ids of these splits, mapped into memory; features are (N, 0).

        Raises:
            ConfigurationError: for labels that are not classes or numbers, and blocks larger than the window.
        """
        names = [name for name in names if self._split.count(name)]
        ids = {name: NumberFile(self._work, f"{name}.ids", self._id_dtype(), ()) for name in names}
        dtype = np.float32 if self._classes is None else np.int64
        labels = {name: NumberFile(self._work, f"{name}.labels", dtype, ()) for name in names if name != "predict"}
        sizes: dict[SplitName, list[int]] = {name: [] for name in names}
        for block in range(len(self._blocks)):
            own_ids = self._ids(block)
            own_labels = self._labels_of(block) if labels else np.empty(0)
            for name in names:
                rows = self._rows(name, block)
                sizes[name].append(len(rows))
                ids[name].put(own_ids[rows])
                if name in labels:
                    labels[name].put(own_labels[rows])
        self._sizes |= {name: tuple(own) for name, own in sizes.items()}
        if "train" in names:
            self._refuse_large()
        return {
            name: Split(
                torch.empty(self._split.count(name), 0),
                torch.from_numpy(labels[name].array()) if name in labels else None,
                ids[name].array(),
            )
            for name in names
        }

    def _ids(self, block: int) -> "NDArray[np.generic]":
        """(n,) the ids of the rows of a block."""
        if self._id_column is None:
            return np.arange(self._starts[block], self._starts[block] + self._blocks[block])
        (ids,) = self.tables[0].read(block, [self._id_column])
        return ids if ids.dtype.kind in "iuf" else ids.astype(np.str_)

    def _id_dtype(self) -> "np.dtype[np.generic]":
        """The dtype that holds all ids: texts are as long as the longest of them."""
        if self._id_column is None:
            return np.dtype(np.int64)
        dtype: np.dtype[np.generic] = np.result_type(*{self._ids(block).dtype for block in range(len(self._blocks))})
        return dtype

    def _labels_of(self, block: int) -> "NDArray[Any]":
        if self._labels is None:
            raise RuntimeError("there are no labels")
        (labels,) = self._labels.read(block, [self._label_column])
        check_classes(labels, block, self._labels.party, self._classes)
        return labels

    def _rows(self, name: SplitName, block: int) -> "NDArray[np.int64]":
        """The split's rows of a block, counted from its first row."""
        start = int(self._starts[block])
        return self._split.within(name, start, start + int(self._blocks[block])) - start

    def _refuse_large(self) -> None:
        if not self._together("train"):
            largest = 4 * len(self.names) * max(self._sizes["train"])
            raise ConfigurationError(
                f"a row group takes {largest / _MEGABYTE:,.0f} MB in memory, more than window_mb = {self._window_mb}; "
                "write the files with a smaller row_group_size, or raise window_mb"
            )

    def _together(self, name: SplitName) -> int:
        """How many blocks of a split are in a window; splits that are read in their order need one."""
        sizes = self._sizes[name]
        if name != "train":
            return 1
        return min(self._window_mb * _MEGABYTE // (4 * len(self.names) * max(sizes)), len(sizes))

    # ---- features

    def fit(self, normaliser: Normaliser, parts: Sequence[Part], held: Tensor | None) -> tuple[Tensor, Tensor]:
        split = self._split
        every_record = split.count("train") <= self._fit_records
        drawn = permutation(len(self._blocks), split.seed, "scaling", "blocks")[: None if every_record else _FIT_BLOCKS]
        rows = {int(block): self._rows("train", int(block)) for block in drawn}
        share = min(1.0, self._fit_records / sum(map(len, rows.values())))
        for block, own in rows.items():
            some = permutation(len(own), split.seed, "scaling", block)[: ceil(share * len(own))]
            rows[block] = own[np.sort(some)]
        fitted = []
        for party, part in enumerate(parts):
            names = [self.names[i] for i in part.positions.tolist()]
            numbers = np.zeros((1, len(names)))  # a normaliser that is not fitted ignores the values
            if normaliser.fitted:
                numbers = np.concatenate([self._numbers(party, block, own).T for block, own in rows.items()])
            fitted.append(normaliser.of_columns(names, self.names).fit(torch.from_numpy(numbers)))
        return torch.cat([shift for shift, _ in fitted]), torch.cat([scale for _, scale in fitted])

    def trained_ids(self, splits: Mapping[SplitName, Split]) -> "NDArray[np.generic]":
        """None: hashes of all ids take memory for each record."""
        return np.empty(0, np.int64)

    def records(self, name: SplitName, fitted: Fitted, *about: Any) -> VerticalRecords:
        if name not in self._features:
            self._write([other for other in self._sizes if other not in self._features], fitted)
        sizes, together = self._sizes[name], self._together(name)
        window = self._features[name].mapped(together * max(sizes))
        records = VerticalRecords(window, [party.shape for party in fitted.parties], *about)
        records.blocks = RecordBlocks(sizes, together)
        return records

    def _write(self, names: Sequence[SplitName], fitted: Fitted) -> None:
        """Write the scaled features of these splits; each block is read once."""
        width = len(self.names)
        size, free = 4 * width * sum(map(self._split.count, names)), disk_usage(self._work.path).free
        if size > free:
            raise ConfigurationError(
                f"the features take {size / _MEGABYTE:,.0f} MB in {self._work.path}, which has {free / _MEGABYTE:,.0f} "
                "MB; give work_dir, a folder on a larger disk"
            )
        self._features |= {name: NumberFile(self._work, f"{name}.features", np.float32, (width,)) for name in names}
        for block in range(len(self._blocks)):
            rows = [self._rows(name, block) for name in names]
            features = torch.empty(sum(map(len, rows)), width)
            begin = 0
            for party, scaling in enumerate(fitted.parties):
                numbers = self._scaled(party, block, np.concatenate(rows), scaling)
                features[:, begin : begin + numbers.shape[1]] = numbers
                begin += numbers.shape[1]
            for name, own in zip(names, torch.split(features, [*map(len, rows)]), strict=True):
                self._features[name].put(own.numpy())

    def _numbers(self, party: int, block: int, rows: "NDArray[np.int64]") -> "NDArray[np.float64]":
        """(F_m, n): the party's columns in some rows of a block, counted from its first row.

        Raises:
            ConfigurationError: for values that are not finite.
        """
        columns = self.tables[party].read(block, self.columns[party])
        numbers = np.stack([np.take(column, rows).astype(np.float64) for column in columns])
        if not (numbers.size == 0 or (numbers.min() >= -_LARGEST and numbers.max() <= _LARGEST)):
            self._refuse(unusable(numbers), party, block, rows)
        return numbers

    def _scaled(self, party: int, block: int, rows: "NDArray[np.int64]", scaling: FittedParty) -> Tensor:
        """(n, F_m) float32: as ``_numbers``, scaled.

        Raises:
            ConfigurationError: for values that are not finite.
        """
        numbers = torch.from_numpy(self._numbers(party, block, rows))
        scaled = numbers.sub_(scaling.shift[:, None]).div_(scaling.scale[:, None]).float()
        if not (finite := torch.isfinite(scaled)).all():
            what = "are too large for float32 once they are scaled"
            self._refuse(Unusable(~finite.numpy(), what, "correct them"), party, block, rows)
        return scaled.T

    def _refuse(self, found: Unusable | None, party: int, block: int, rows: "NDArray[np.int64]") -> None:
        if found is not None:
            column, row = np.argwhere(found.where)[0]
            raise ConfigurationError(
                f"{int(found.where.sum())} feature values of row group {block} {found.what}, first of party {party}, "
                f"column '{self.columns[party][column]}', row {self._starts[block] + rows[row]:,}; {found.fix}"
            )
