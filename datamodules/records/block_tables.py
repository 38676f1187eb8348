"""Tables of any length: read block by block, checked, scaled, and written into files that are mapped into memory."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from shutil import disk_usage
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import permutation
from lightning_vfl.trained.fitted import Fitted, FittedParty
from lightning_vfl.types import RecordBlocks

from .checks import Unusable, unusable
from .feature_stores import FeatureStore
from .layout import Layout, Part
from .normalise import Normaliser
from .number_files import NumberFile
from .parquet_file import ParquetFile, check_classes
from .records import Split, SplitName, VerticalRecords
from .row_split import RowSplit
from .work_folders import WorkFolder

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LARGEST = float(np.finfo(np.float32).max)
_MEGABYTE = 10**6


class Columns(NamedTuple):
    """Some columns of a party's file."""

    file: ParquetFile
    names: tuple[str, ...]


class BlockedTables(FeatureStore):
    """The files of some parties, with the same records in the same order; a block of each is in memory at a time.

    A block is a cell of ``RowSplit``, so the row groups of a file do not matter.

    Args:
        parties: the features of these parties, in their order.
        labels: the file and the column of the labels; None: there are no labels here.
        classes: number of classes of the labels; None: real numbers.
        ids: a file and its column of the users' ids, or all ids (N,); None: the number of the row is the id.
        split: which rows belong to a split.
        fit_records: how many training records the scaling is fitted to.
        window_mb: megabytes of features of all parties in a window, at least one block.
        width: how many features all parties have, also those that are not here.
        work: the folder of the files that are written.

    Units: disk, 4 bytes a feature and 16 a record of the splits that are used. Memory, the pages of a window.
    Guarantee: features are (x - shift) / scale in float64, rounded to float32. They are the same bits whichever other
        parties are here.
    """

    def __init__(
        self,
        parties: Sequence[Columns],
        labels: Columns | None,
        classes: int | None,
        ids: "Columns | NDArray[np.generic] | None",
        split: RowSplit,
        fit_records: int,
        window_mb: int,
        width: int,
        work: WorkFolder,
    ) -> None:
        self.parties = tuple(parties)
        uses = Counter(name for party in self.parties for name in party.names)
        self.names = tuple(
            tuple(name if uses[name] == 1 else f"{party.file.party}.{name}" for name in party.names)
            for party in self.parties
        )
        self.split = split
        self._labels = labels
        self._classes = classes
        self._id_source = ids
        self._fit_records = fit_records
        self._window_mb = window_mb
        self._width = width
        self._work = work
        self._loaded: list[SplitName] = []
        self._features: dict[SplitName, NumberFile] = {}

    @property
    def layout(self) -> Layout:
        """The form of a record of these parties."""
        columns = tuple(name for names in self.names for name in names)
        party_names = tuple(party.file.party for party in self.parties)
        return Layout((len(columns),), columns, tuple(map(len, self.names)), party_names)

    # ---- labels and ids

    def load(self, names: Sequence[SplitName]) -> dict[SplitName, Split]:
        """Labels and ids of these splits, mapped into memory; features are (N, 0).

        Raises:
            ConfigurationError: for labels that are not classes or numbers, and blocks larger than the window.
        """
        names = [name for name in names if self.split.count(name)]
        labelled = [name for name in names if name != "predict" and self._labels is not None]
        self._loaded += [name for name in names if name not in self._loaded]
        if "train" in names:
            self._refuse_large()
        ids = {name: NumberFile(self._work, f"{name}.ids", self._id_dtype(), ()) for name in names}
        for block, own in enumerate(self._ids()):
            for name in names:
                ids[name].put(own[self.split.in_cell(name, block)])
        dtype = np.float32 if self._classes is None else np.int64
        labels = {name: NumberFile(self._work, f"{name}.labels", dtype, ()) for name in labelled}
        for block, own in enumerate(self._labels_by_block()) if labelled else ():
            for name in labelled:
                labels[name].put(own[self.split.in_cell(name, block)])
        return {
            name: Split(
                torch.empty(self.split.count(name), 0),
                torch.from_numpy(labels[name].array()) if name in labels else None,
                ids[name].array(),
            )
            for name in names
        }

    def _ids(self) -> "Iterator[NDArray[np.generic]]":
        """(n,) the ids of the rows of each block."""
        start = 0
        if isinstance(self._id_source, Columns):
            file, columns = self._id_source
            for _, (ids,) in file.blocks(columns, self.split.ends):
                yield ids if ids.dtype.kind in "iuf" else ids.astype(np.str_)
            return
        for end in self.split.ends.tolist():
            yield np.arange(start, end) if self._id_source is None else self._id_source[start:end]
            start = end

    def _id_dtype(self) -> "np.dtype[np.generic]":
        """The dtype that holds all ids: texts are as long as the longest of them."""
        if self._id_source is None:
            return np.dtype(np.int64)
        if isinstance(self._id_source, np.ndarray):
            return self._id_source.dtype
        dtype: np.dtype[np.generic] = np.result_type(*{ids.dtype for ids in self._ids()})
        return dtype

    def _labels_by_block(self) -> "Iterator[NDArray[Any]]":
        if self._labels is None:
            raise RuntimeError("there are no labels")
        file, columns = self._labels
        start = 0
        for _, (labels,) in file.blocks(columns, self.split.ends):
            check_classes(labels, start, file.party, self._classes)
            start += len(labels)
            yield labels

    # ---- blocks

    def blocks(self, name: SplitName) -> RecordBlocks:
        """The sizes of the split's blocks, and how many of them form a window."""
        sizes = self.split.sizes(name)
        if name != "train":  # is read in its order
            return RecordBlocks(sizes, 1)
        return RecordBlocks(sizes, min(self._window_mb * _MEGABYTE // (4 * self._width * max(sizes)), len(sizes)))

    def _refuse_large(self) -> None:
        blocks = self.blocks("train")
        if not blocks.together:
            rows = max(blocks.sizes)
            raise ConfigurationError(
                f"{rows:,} records, which are shuffled together, take {4 * self._width * rows / _MEGABYTE:,.0f} MB, "
                f"more than window_mb = {self._window_mb}; raise window_mb"
            )

    # ---- features

    def fit(self, normaliser: Normaliser, parts: Sequence[Part], held: Tensor | None) -> tuple[Tensor, Tensor]:
        every = [name for names in self.names for name in names]
        fitted = [self._fit_party(party, normaliser.of_columns(names, every)) for party, names in enumerate(self.names)]
        return torch.cat([shift for shift, _ in fitted]), torch.cat([scale for _, scale in fitted])

    def _fit_party(self, party: int, normaliser: Normaliser) -> tuple[Tensor, Tensor]:
        """Shift and scale, each (F_m,), of a party's columns in the training records of some blocks."""
        if not normaliser.fitted:  # the values are ignored
            return normaliser.fit(torch.zeros(1, len(self.names[party]), dtype=torch.float64))
        split = self.split
        enough = -(-self._fit_records // split.sizes("train")[0])
        drawn = permutation(split.cells, split.seed, "scaling", "blocks")[:enough].tolist()
        file, columns = self.parties[party]
        numbers = [
            self._numbers(party, block, values, split.in_cell("train", block)).T
            for block, values in file.blocks(columns, split.ends, drawn)
        ]
        return normaliser.fit(torch.from_numpy(np.concatenate(numbers)))

    def trained_ids(self, splits: Mapping[SplitName, Split]) -> "NDArray[np.generic]":
        """None: hashes of all ids take memory for each record."""
        return np.empty(0, np.int64)

    def records(self, name: SplitName, fitted: Fitted, *about: Any) -> VerticalRecords:
        return self.records_of(name, fitted.parties, *about)

    def records_of(self, name: SplitName, scalings: Sequence[FittedParty], *about: Any) -> VerticalRecords:
        """The scaled records of a split; ``scalings``: what each party here has fitted, ``about``: see ``records``."""
        if name not in self._features:
            self._write([other for other in self._loaded if other not in self._features], scalings)
        blocks = self.blocks(name)
        window = self._features[name].mapped(blocks.together * max(blocks.sizes))
        records = VerticalRecords(window, [party.shape for party in scalings], *about)
        records.blocks = blocks
        return records

    def _write(self, names: Sequence[SplitName], scalings: Sequence[FittedParty]) -> None:
        """Write the scaled features of these splits; each block is read once."""
        width = sum(map(len, self.names))
        size = 4 * width * sum(map(self.split.count, names))
        free = disk_usage(self._work.path).free
        if size > free:
            raise ConfigurationError(
                f"the features take {size / _MEGABYTE:,.0f} MB in {self._work.path}, which has {free / _MEGABYTE:,.0f} "
                "MB; give work_dir, a folder on a larger disk"
            )
        self._features |= {name: NumberFile(self._work, f"{name}.features", np.float32, (width,)) for name in names}
        passes = [file.blocks(columns, self.split.ends) for file, columns in self.parties]
        for block, of_parties in enumerate(zip(*passes, strict=True)):
            rows = [self.split.in_cell(name, block) for name in names]
            features = torch.empty(sum(map(len, rows)), width)
            begin = 0
            for party, (_, values) in enumerate(of_parties):
                numbers = self._numbers(party, block, values, np.concatenate(rows))
                end = begin + len(numbers)
                features[:, begin:end] = self._scaled(numbers, party, block, np.concatenate(rows), scalings[party])
                begin = end
            for name, own in zip(names, torch.split(features, [*map(len, rows)]), strict=True):
                self._features[name].put(own.numpy())

    def _numbers(
        self, party: int, block: int, columns: "Sequence[NDArray[Any]]", rows: "NDArray[np.int64]"
    ) -> "NDArray[np.float64]":
        """(F_m, n): some rows of a block, counted from its first row.

        Raises:
            ConfigurationError: for values that are not finite.
        """
        numbers = np.stack([np.take(column, rows).astype(np.float64) for column in columns])
        if not (numbers.size == 0 or (numbers.min() >= -_LARGEST and numbers.max() <= _LARGEST)):
            self._refuse(unusable(numbers), party, block, rows)
        return numbers

    def _scaled(
        self, numbers: "NDArray[np.float64]", party: int, block: int, rows: "NDArray[np.int64]", scaling: FittedParty
    ) -> Tensor:
        """(n, F_m) float32 of (F_m, n).

        Raises:
            ConfigurationError: for values that are not finite.
        """
        scaled = torch.from_numpy(numbers).sub_(scaling.shift[:, None]).div_(scaling.scale[:, None]).float()
        if not (finite := torch.isfinite(scaled)).all():
            what = "are too large for float32 once they are scaled"
            self._refuse(Unusable(~finite.numpy(), what, "correct them"), party, block, rows)
        return scaled.T

    def _refuse(self, found: Unusable | None, party: int, block: int, rows: "NDArray[np.int64]") -> None:
        if found is None:
            return
        column, row = np.argwhere(found.where)[0]
        start = int(self.split.ends[block - 1]) if block else 0
        last = self.split.ends[block] - 1
        file, names = self.parties[party]
        raise ConfigurationError(
            f"{int(found.where.sum())} feature values of rows {start:,} to {last:,} {found.what}, "
            f"first of party '{file.party}', column '{names[column]}', row {start + rows[row]:,}; {found.fix}"
        )
