"""Records in several views, one a party: what their data sets share, and files of the user's own."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info

from lightning_vfl.errors import ConfigurationError

from .base import SplitName, VerticalDataModule, absent, data_folder
from .normalise import Normaliser
from .partition import Layout, Partitioner, Views
from .records import Split
from .split import check_shares, split_rows
from .view_files import ViewData, read_views

_ENDINGS = (".mat", ".npz")


class ViewFiles(VerticalDataModule, ABC):
    """Records in several views, usually one a party; a subclass says what the files are and how to read them.

    Args:
        partitioner: who gets which columns; None: one view a party.
        normaliser: how each party scales its features; None: every column to mean 0 and deviation 1.
        batch_size: rows of a batch in each process.
        seed: names the split and the order of the training records.
        drop_last: leave out the last, smaller batch of every training epoch.
        num_workers: worker processes; 0 is fastest for data in memory.
        pin_memory: for a faster way to a GPU.
        data_dir: folder of the files; None: ``$LIGHTNING_VFL_DATA/NAME``, else ``data/NAME``.
        val_share: share of all records for validation, taken from those for training; 0: none.
        test_share: share of the records for testing (and prediction); 0: none.

    Guarantee: the splits are stratified by class. A record's id is its position in the files, and column i of a view is
        called ``view.i``.

    Raises:
        ConfigurationError: if the files are not there, cannot be read, or do not hold these views.
    """

    data_settings: ClassVar[tuple[str, ...]] = ("val_share", "test_share")
    folder: ClassVar[str]
    """Subfolder of the data folder."""

    def __init__(
        self,
        partitioner: Partitioner | None,
        normaliser: Normaliser | None,
        batch_size: int,
        seed: int,
        drop_last: bool,
        num_workers: int,
        pin_memory: bool,
        data_dir: str | Path | None,
        val_share: float,
        test_share: float,
    ) -> None:
        super().__init__(partitioner, normaliser, batch_size, seed, drop_last, num_workers, pin_memory)
        check_shares(val_share, test_share)
        self.data_dir = data_folder(data_dir, self.folder)
        self.val_share = val_share
        self.test_share = test_share

    @abstractmethod
    def read(self) -> ViewData:
        """All records of the files."""

    @property
    def layout(self) -> Layout:
        return self._data.layout

    def default_partitioner(self) -> Partitioner:
        return Views()

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        data = self._data
        split = split_rows(np.arange(len(data.labels)), self.seed, self.val_share, self.test_share, data.labels)
        features, labels = torch.from_numpy(np.hstack([matrix for _, matrix in data.views])), data.labels
        rows = {name: split[name] for name in names if len(split[name])}
        return {name: Split(features[r], torch.from_numpy(labels[r]), r) for name, r in rows.items()}

    # ---- inside

    @cached_property
    def _data(self) -> ViewData:
        data = self.read()
        sizes = np.bincount(data.labels)
        rank_zero_info(
            f"{type(self).__name__}: {len(data.labels)} records in {len(data.views)} views "
            f"({', '.join(name for name, _ in data.views)}), {len(sizes)} classes of {sizes.min()} to {sizes.max()}"
        )
        return data


class MultiView(ViewFiles):
    """Records of your own in several views, one a party: a MATLAB or NumPy file of matrices and labels.

    The folder holds one ``.mat`` file (up to version 7) or one ``.npz`` file; of several, ``file`` names the one. A
    view is a matrix (N, width) with a row for each record, the labels are one number a record: classes from 1, or from
    0, without a gap.

    Args:
        partitioner: who gets which columns; None: one view a party, in the order of ``views``.
        normaliser: how each party scales its features; None: every column to mean 0 and deviation 1.
        batch_size: rows of a batch in each process.
        seed: names the split and the order of the training records.
        drop_last: leave out the last, smaller batch of every training epoch.
        num_workers: worker processes; 0 is fastest for data in memory.
        pin_memory: for a faster way to a GPU.
        data_dir: folder of the file; None: ``$LIGHTNING_VFL_DATA/multi_view``, else ``data/multi_view``.
        file: its name; None: the only ``.mat`` or ``.npz`` file there.
        views: names of the variables that are views, in the order of the parties; a MATLAB cell array stands for all
            its matrices. None: the cell array ``X`` if there is one, else every matrix of the file with a row for each
            label, in its order.
        labels: name of the labels' variable; None: whichever of ``Y``, ``y``, ``gt``, ``label``, ``labels`` is there.
        val_share: share of all records for validation, taken from those for training; 0: none.
        test_share: share of the records for testing (and prediction); 0: none.

    Guarantee: the splits are stratified by class. Nothing of the file is executed: pickled objects are refused. A view
        is called after its variable, one of a cell array ``X0``, ``X1`` and so on; column i of a view ``view.i``. A
        record's id is its position in the file.

    Raises:
        ConfigurationError: if there is no such file, or one that cannot be read or has no such views and labels.

    Examples:
        >>> MultiView(file="mine.npz", views=["voice", "face"], labels="person").default_partitioner()
        Views()
    """

    data_settings = ("views", "labels", "val_share", "test_share")
    folder = "multi_view"

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        normaliser: Normaliser | None = None,
        batch_size: int = 64,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int = 0,
        pin_memory: bool = False,
        data_dir: str | Path | None = None,
        file: str | None = None,
        views: Sequence[str] | None = None,
        labels: str | None = None,
        val_share: float = 0.1,
        test_share: float = 0.2,
    ) -> None:
        super().__init__(
            partitioner,
            normaliser,
            batch_size,
            seed,
            drop_last,
            num_workers,
            pin_memory,
            data_dir,
            val_share,
            test_share,
        )
        if isinstance(views, str):
            raise ConfigurationError(f"views is '{views}' where a list of names is wanted; write [{views}]")
        if views is not None and (not views or len({*views, labels}) <= len(views)):
            raise ConfigurationError(
                f"views {', '.join(views) or '[]'} and labels {labels} do not name each variable once; name every view "
                "once, and the labels apart"
            )
        self.file = file
        self.views = None if views is None else tuple(views)
        self.labels = labels

    @property
    def num_classes(self) -> int:
        return int(self._data.labels.max()) + 1

    def read(self) -> ViewData:
        return read_views(self._path(), self.views, self.labels)

    # ---- inside

    def _path(self) -> Path:
        if self.file is not None:
            found = [self.data_dir / self.file] if (self.data_dir / self.file).is_file() else []
            if found and found[0].suffix not in _ENDINGS:
                raise ConfigurationError(f"{found[0]} is neither a .mat nor a .npz file; save it as one of them")
        else:
            found = sorted(p for p in self.data_dir.glob("[!.]*") if p.suffix in _ENDINGS and p.is_file())
        if not found:
            raise absent(self.data_dir, self.file or ".mat or .npz file", "your file")
        if len(found) > 1:
            raise ConfigurationError(
                f"{self.data_dir.absolute()} holds {', '.join(path.name for path in found)}; name one of them with file"
            )
        return found[0]
