"""Records seen in several views, one a party: MATLAB files with a cell array of views, or a file of text a view."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lightning_vfl.errors import ConfigurationError

from .base import SplitName, VerticalDataModule, data_folder
from .normalise import Normaliser
from .partition import Layout, Partitioner, Views
from .records import Split
from .split import check_shares, split_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NUMERALS = {"fac": 216, "fou": 76, "kar": 64, "mor": 6, "pix": 240, "zer": 47}


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
    views, labels = _mat_variables(path)
    if views.dtype != object or max(views.shape, default=0) != views.size:
        raise ConfigurationError(
            f"X of {path} is no list of views but {_what(views)}; save a cell array with one matrix a view"
        )
    values = _labels(path, labels)
    matrices = []
    for position, view in enumerate(views.ravel()):
        if not _is_real(view) or view.ndim != 2 or len(view) != len(values):
            raise ConfigurationError(
                f"view {position} of {path} is {_what(view)}; save a full real matrix with a row for each of the "
                f"{len(values)} labels"
            )
        matrices.append(view.astype(np.float64))
    return matrices, values


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


class Handwritten(VerticalDataModule):
    """Multiple Features: 2,000 handwritten numerals in six views of 649 columns in all, ten classes, a view a party.

    The folder holds ``Handwritten.mat``, a cell array of the views with labels from 1 (or 0), or the six text files
    of UCI, ``mfeat-fac`` to ``mfeat-zer``, whose records are 200 of each numeral in order; the MATLAB file goes
    first. Views are told by their widths: fac 216 (profile correlations), fou 76 (Fourier coefficients), kar 64
    (Karhunen-Loève coefficients), mor 6 (morphological features), pix 240 (pixel averages), zer 47 (Zernike
    moments). Party m has view m of the MATLAB file; of text files, view m in the order above. A label is the
    numeral, a record's id its position in the files, and column i of a view is called ``view.i``.

    Args:
        partitioner: who gets which columns; None: one view a party.
        normaliser: how each party scales its features; None: every column to mean 0 and deviation 1.
        batch_size: rows of a batch in each process.
        seed: names the split and the order of the training records.
        drop_last: leave out the last, smaller batch of every training epoch.
        num_workers: worker processes; 0 is fastest for data in memory.
        pin_memory: for a faster way to a GPU.
        data_dir: folder of the files; None: ``$LIGHTNING_VFL_DATA/handwritten``, else ``data/handwritten``.
        val_share: share of all records for validation, taken from those for training; 0: none.
        test_share: share of the records for testing (and prediction); 0: none.

    Guarantee: the splits are stratified by class.
    Not guaranteed: that the files are the published ones; only their form is checked.

    Raises:
        ConfigurationError: if the files are not there, cannot be read, or do not hold these views.

    References:
        Duin, "Multiple Features", UCI Machine Learning Repository, 1998, https://doi.org/10.24432/C5HC70. 60 % for
        training and 40 % for testing: Li, Yao and Liu, "FedVS", ICML 2023, appendix C.
    """

    data_settings = ("val_share", "test_share")

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
        val_share: float = 0.1,
        test_share: float = 0.4,
    ) -> None:
        super().__init__(partitioner, normaliser, batch_size, seed, drop_last, num_workers, pin_memory)
        check_shares(val_share, test_share)
        self.data_dir = data_folder(data_dir, "handwritten")
        self.val_share = val_share
        self.test_share = test_share

    @property
    def layout(self) -> Layout:
        return self._data.layout

    @property
    def num_classes(self) -> int:
        return 10

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
        mat = self.data_dir / "Handwritten.mat"
        texts = {name: self.data_dir / f"mfeat-{name}" for name in _NUMERALS}
        if mat.is_file():
            matrices, labels = read_mat(mat)
            if (classes := int(labels.max()) + 1) != self.num_classes:
                raise ConfigurationError(
                    f"the labels of {mat} are of {classes} classes instead of {self.num_classes}; use the file of the "
                    "handwritten numerals"
                )
            return ViewData(named_by_width(mat, matrices, _NUMERALS), labels)
        if absent := [path.name for path in texts.values() if not path.is_file()]:
            raise ConfigurationError(
                f"{self.data_dir.absolute()} holds neither Handwritten.mat nor {', '.join(absent)}; put the six text "
                f"files {', '.join(path.name for path in texts.values())} from "
                "https://archive.ics.uci.edu/dataset/72/multiple+features there, or name another folder with data_dir "
                "or LIGHTNING_VFL_DATA"
            )
        views = tuple((name, read_text(texts[name], 2000, width)) for name, width in _NUMERALS.items())
        return ViewData(views, np.repeat(np.arange(self.num_classes), 200))


def _mat_variables(path: Path) -> "tuple[NDArray[Any], NDArray[Any]]":
    """The arrays X and Y (or its other names)."""
    from scipy.io import loadmat  # 0.1 s, where it is used
    from scipy.io.matlab import MatReadWarning

    labels = ("Y", "y", "gt")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", MatReadWarning)  # of a variable twice or unreadable
            content = loadmat(path, appendmat=False, variable_names=("X", *labels))
    except NotImplementedError as error:
        raise ConfigurationError(
            f"{path} is a MATLAB file of version 7.3, which is not read; load it in MATLAB and save it with '-v7'"
        ) from error
    except Exception as error:  # a damaged file trips up scipy in any of a dozen ways
        raise ConfigurationError(
            f"{path} cannot be read as a MATLAB file ({type(error).__name__}: {error}); replace it"
        ) from error
    found = [name for name in labels if name in content]
    if "X" not in content or len(found) != 1:
        raise ConfigurationError(
            f"{path} holds {'an' if 'X' in content else 'no'} X and {' and '.join(found) or 'no Y'}; save the views as "
            "the cell array X and their labels as Y"
        )
    return content["X"], content[found[0]]


def _labels(path: Path, labels: Any) -> "NDArray[np.int64]":
    if not _is_real(labels) or max(labels.shape, default=0) != labels.size or not labels.size:
        raise ConfigurationError(f"the labels of {path} are {_what(labels)}; save one number a record")
    values, numbered = np.unique(labels.ravel(), return_inverse=True)
    if values[0] not in (0, 1) or not np.array_equal(values, values[0] + np.arange(len(values))):
        shown = ", ".join(f"{value:g}" for value in values[:12]) + (", ..." if len(values) > 12 else "")
        raise ConfigurationError(f"the labels of {path} are {shown}; number the classes from 1 without a gap")
    return numbered.astype(np.int64)


def _is_real(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind in "buif"


def _what(array: Any) -> str:
    """A few words on what a variable of a MATLAB file is."""
    shape = " x ".join(str(size) for size in getattr(array, "shape", ()))
    if not isinstance(array, np.ndarray):
        return f"a {type(array).__name__} of {shape}"
    kind = "struct" if array.dtype.names else "cell array" if array.dtype == object else f"{array.dtype} matrix"
    return f"a {kind} of {shape}"
