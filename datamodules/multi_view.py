"""Records seen in several views, one a party: MATLAB files, NumPy files, or a file of text a view."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info

from lightning_vfl.errors import ConfigurationError

from .base import SplitName, VerticalDataModule, data_folder
from .normalise import Normaliser
from .partition import Layout, Partitioner, Views
from .records import Split
from .split import check_shares, split_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ENDINGS = (".mat", ".npz")
_LABELS = ("Y", "y", "gt", "label", "labels")


@dataclass(frozen=True)
class ViewData:
    """N records as their files have them.

    Args:
        views: name and (N, width) float64 of each view, in the order of the parties.
        labels: (N,) int64 from 0.
    """

    views: "tuple[tuple[str, NDArray[np.float64]], ...]"
    labels: "NDArray[np.int64]"

    @property
    def layout(self) -> Layout:
        """The views side by side; column i of a view is called ``view.i``."""
        widths = {name: matrix.shape[1] for name, matrix in self.views}
        columns = tuple(f"{name}.{i}" for name, width in widths.items() for i in range(width))
        return Layout((len(columns),), columns, tuple(widths.values()), tuple(widths))


def read_mat(path: Path) -> "tuple[list[NDArray[np.float64]], NDArray[np.int64]]":
    """The views in the cell array ``X``, in its order, and the labels ``Y`` (or ``y``, ``gt``) from 0 of a MATLAB file.

    Shapes: X (1, V) or (V, 1) of (N, width); Y (N, 1) or (1, N), every one of 1..C or of 0..C-1 at least once.
    Guarantee: nothing of the file is executed, and no other variable of it is read.

    Raises:
        ConfigurationError: if the file cannot be read or holds something else.
    """
    names = ("Y", "y", "gt")
    content = _mat_variables(path, ("X", *names))
    found = [name for name in names if name in content]
    if "X" not in content or len(found) != 1:
        raise ConfigurationError(
            f"{path} holds {'an' if 'X' in content else 'no'} X and {' and '.join(found) or 'no Y'}; save the views as "
            "the cell array X and their labels as Y"
        )
    cells, labels = _cells(path, "X", content["X"]), _labels(path, content[found[0]])
    return [_matrix(path, str(position), cell, len(labels)) for position, cell in enumerate(cells)], labels


def read_known_mat(path: Path, widths: Mapping[str, int], classes: int, what: str) -> ViewData:
    """As ``read_mat``, of a file that is known to have views of these widths and so many classes.

    Raises:
        ConfigurationError: also for other views or classes; ``what`` says which file is wanted.
    """
    matrices, labels = read_mat(path)
    if (found := int(labels.max()) + 1) != classes:
        raise ConfigurationError(
            f"the labels of {path} are of {found} classes instead of {classes}; use the file of {what}"
        )
    return ViewData(named_by_width(path, matrices, widths), labels)


def read_text(path: Path, records: int, width: int) -> "NDArray[np.float64]":
    """A view (records, width) from lines of numbers with blanks between them.

    Raises:
        ConfigurationError: if the file cannot be read or has another shape.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of an empty file, which the shape tells
            matrix: NDArray[np.float64] = np.loadtxt(path, ndmin=2, comments=None, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}); replace it with the published file") from error
    if matrix.shape != (records, width):
        raise ConfigurationError(
            f"{path} holds {len(matrix)} lines of {matrix.shape[1]} numbers instead of {records} lines of {width}; "
            "replace it with the published file"
        )
    return matrix


def named_by_width(
    path: Path, matrices: "Sequence[NDArray[np.float64]]", widths: Mapping[str, int]
) -> "tuple[tuple[str, NDArray[np.float64]], ...]":
    """The views with the names that belong to their widths, in the order given.

    Raises:
        ConfigurationError: unless every view of ``widths`` is there, once, and no other.
    """
    names = {width: name for name, width in widths.items()}
    found = [matrix.shape[1] for matrix in matrices]
    if sorted(found) != sorted(names):
        raise ConfigurationError(
            f"the views of {path} are {', '.join(map(str, found)) or 'none'} columns wide; use a file with one view of "
            f"each width: {', '.join(f'{width} ({name})' for name, width in widths.items())}"
        )
    return tuple((names[matrix.shape[1]], matrix) for matrix in matrices)


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

    Example:
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
        path = self._path()
        content = _npz_variables(path) if path.suffix == ".npz" else _mat_variables(path)
        named = [*(self.views or ()), *([] if self.labels is None else [self.labels])]
        if absent := [name for name in named if name not in content]:
            raise ConfigurationError(
                f"{path} holds no {' and no '.join(absent)}; name variables that it has: {', '.join(content) or 'none'}"
            )
        label = self.labels or _label_in(path, content)
        labels = _labels(path, content[label])
        matrices: dict[str, Any] = {}
        for name in self._views_in(content, label, len(labels)):
            cells = _cells(path, name, content[name]) if _is_cells(content[name]) else None
            found = {name: content[name]} if cells is None else {f"{name}{i}": cell for i, cell in enumerate(cells)}
            if twice := matrices.keys() & found.keys():
                raise ConfigurationError(f"two views of {path} are called {min(twice)}; give the variables other names")
            matrices |= found
        if not matrices:
            raise ConfigurationError(
                f"{path} holds no matrix with a row for each of the {len(labels)} labels; save one a view"
            )
        views = ((name, _matrix(path, f"'{name}'", matrix, len(labels))) for name, matrix in matrices.items())
        return ViewData(tuple(views), labels)

    # ---- inside

    def _path(self) -> Path:
        if self.file is not None:
            found = [self.data_dir / self.file] if (self.data_dir / self.file).is_file() else []
            if found and found[0].suffix not in _ENDINGS:
                raise ConfigurationError(f"{found[0]} is neither a .mat nor a .npz file; save it as one of them")
        else:
            found = sorted(p for p in self.data_dir.glob("[!.]*") if p.suffix in _ENDINGS and p.is_file())
        if not found:
            raise ConfigurationError(
                f"{self.data_dir.absolute()} holds no {self.file or '.mat or .npz file'}; put your file there, or name "
                "another folder with data_dir or LIGHTNING_VFL_DATA"
            )
        if len(found) > 1:
            raise ConfigurationError(
                f"{self.data_dir.absolute()} holds {', '.join(path.name for path in found)}; name one of them with file"
            )
        return found[0]

    def _views_in(self, content: "Mapping[str, NDArray[Any]]", label: str, records: int) -> Sequence[str]:
        """The names of the variables that are views or cell arrays of views."""
        if self.views is not None:
            return self.views
        if _is_cells(content.get("X")):
            return ("X",)
        return [n for n, a in content.items() if n != label and _is_real(a) and a.ndim == 2 and len(a) == records]


def _mat_variables(path: Path, names: Sequence[str] | None = None) -> "dict[str, NDArray[Any]]":
    """The variables with these names, as far as the MATLAB file has them; None: all."""
    from scipy.io import loadmat  # 0.1 s, where it is used
    from scipy.io.matlab import MatReadWarning

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", MatReadWarning)  # of a variable twice or unreadable
            content = loadmat(path, appendmat=False, variable_names=names)
    except NotImplementedError as error:
        raise ConfigurationError(
            f"{path} is a MATLAB file of version 7.3, which is not read; load it in MATLAB and save it with '-v7'"
        ) from error
    except Exception as error:  # a damaged file trips up scipy in any of a dozen ways
        raise ConfigurationError(
            f"{path} cannot be read as a MATLAB file ({type(error).__name__}: {error}); replace it"
        ) from error
    return {name: value for name, value in content.items() if not name.startswith("__")}


def _npz_variables(path: Path) -> "dict[str, NDArray[Any]]":
    """All variables of the NumPy file."""
    try:
        with path.open("rb") as file:  # of a damaged file that numpy opens itself, it leaves the handle open
            content = np.load(file, allow_pickle=False)
            if not isinstance(content, np.lib.npyio.NpzFile):
                raise ValueError("one array without a name")
            with content:
                return {name: content[name] for name in content.files}
    except Exception as error:  # a damaged file trips up numpy and zipfile in any of a dozen ways
        raise ConfigurationError(
            f"{path} cannot be read as a NumPy file ({type(error).__name__}: {error}); save matrices of numbers with "
            "numpy.savez"
        ) from error


def _label_in(path: Path, content: Mapping[str, Any]) -> str:
    """The name of the labels among the variables of a file."""
    found = [name for name in _LABELS if name in content]
    if len(found) != 1:
        held = " and ".join(found) or f"none of {', '.join(_LABELS)} but {', '.join(content) or 'nothing'}"
        raise ConfigurationError(f"{path} holds {held}; say with labels which variable the labels are")
    return found[0]


def _cells(path: Path, name: str, variable: Any) -> "list[Any]":
    """What the cells of a list hold."""
    if not _is_cells(variable) or max(variable.shape, default=0) != variable.size:
        raise ConfigurationError(
            f"{name} of {path} is no list of views but {_what(variable)}; save a cell array with one matrix a view"
        )
    return list(variable.ravel())


def _matrix(path: Path, view: str, matrix: Any, records: int) -> "NDArray[np.float64]":
    if not _is_real(matrix) or matrix.ndim != 2 or len(matrix) != records:
        raise ConfigurationError(
            f"view {view} of {path} is {_what(matrix)}; save a full real matrix with a row for each of the {records} "
            "labels"
        )
    numbers: NDArray[np.float64] = matrix.astype(np.float64)
    return numbers


def _labels(path: Path, labels: Any) -> "NDArray[np.int64]":
    if not _is_real(labels) or max(labels.shape, default=0) != labels.size or not labels.size:
        raise ConfigurationError(f"the labels of {path} are {_what(labels)}; save one number a record")
    values, numbered = np.unique(labels.ravel(), return_inverse=True)
    if values[0] not in (0, 1) or not np.array_equal(values, values[0] + np.arange(len(values))):
        shown = ", ".join(f"{value:g}" for value in values[:12]) + (", ..." if len(values) > 12 else "")
        raise ConfigurationError(f"the labels of {path} are {shown}; number the classes from 1 without a gap")
    return numbered.astype(np.int64)


def _is_cells(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype == object


def _is_real(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind in "buif"


def _what(array: Any) -> str:
    """A few words on what a variable of a MATLAB file is."""
    shape = " x ".join(str(size) for size in getattr(array, "shape", ()))
    if not isinstance(array, np.ndarray):
        return f"a {type(array).__name__} of {shape}"
    kind = "struct" if array.dtype.names else "cell array" if array.dtype == object else f"{array.dtype} matrix"
    return f"a {kind} of {shape}"
