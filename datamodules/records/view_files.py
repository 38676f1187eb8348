"""Views of records in files: MATLAB, NumPy and plain text, read without executing anything."""

import warnings
import zipfile
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from lightning_utilities.core.rank_zero import rank_zero_info

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.limits import refuse_growth

from .labelled import Labelled, of_views
from .mat_sizes import declared_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LABELS = ("Y", "y", "gt", "label", "labels")


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
    cells = _cells(path, "X", content["X"])
    labels = _labels(path, content[found[0]])
    return [_matrix(path, str(position), cell, len(labels)) for position, cell in enumerate(cells)], labels


def read_known_mat(path: Path, widths: Mapping[str, int], classes: int, what: str) -> Labelled:
    """As ``read_mat``, for a published file with views of known widths.

    Args:
        path: the file.
        widths: name of each view -> its width.
        classes: the number of classes.
        what: name of the data set, for the error.

    Raises:
        ConfigurationError: also for other views or another number of classes.
    """
    matrices, labels = read_mat(path)
    if (found := int(labels.max()) + 1) != classes:
        raise ConfigurationError(
            f"the labels of {path} have {found} classes instead of {classes}; use the file of {what}"
        )
    return of_views(named_by_width(path, matrices, widths), labels)


def read_text(path: Path, records: int, width: int) -> "NDArray[np.float64]":
    """A view (records, width) from a text file: one line for each record, blanks between the numbers.

    Raises:
        ConfigurationError: if the file cannot be read or has another shape.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about an empty file, which the shape shows too
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
) -> "dict[str, NDArray[np.float64]]":
    """The views with their names, which their widths tell; the order stays.

    Raises:
        ConfigurationError: unless the widths are those of ``widths``, each once.
    """
    names = {width: name for name, width in widths.items()}
    found = [matrix.shape[1] for matrix in matrices]
    if sorted(found) != sorted(names):
        raise ConfigurationError(
            f"the views of {path} are {', '.join(map(str, found)) or 'none'} columns wide; use a file with one view of "
            f"each width: {', '.join(f'{width} ({name})' for name, width in widths.items())}"
        )
    return {names[matrix.shape[1]]: matrix for matrix in matrices}


def read_views(path: Path, views: Sequence[str] | None, labels: str | None) -> Labelled:
    """The views and labels in a MATLAB or NumPy file.

    Args:
        path: the file.
        views: names of the variables that are views; None: found by their form.
        labels: name of the variable with the labels; None: found by its name.

    Raises:
        ConfigurationError: if the file cannot be read, or has no such views and labels.
    """
    content = _npz_variables(path) if path.suffix == ".npz" else _mat_variables(path)
    named = [*(views or ()), *([] if labels is None else [labels])]
    if missing := [name for name in named if name not in content]:
        raise ConfigurationError(
            f"{path} holds no {' and no '.join(missing)}; name variables that it has: {', '.join(content) or 'none'}"
        )
    label = labels or _label_in(path, content)
    classes = _labels(path, content[label])
    matrices: dict[str, Any] = {}
    for name in _views_in(content, label, len(classes)) if views is None else views:
        cells = _cells(path, name, content[name]) if _is_cells(content[name]) else None
        found = {name: content[name]} if cells is None else {f"{name}{i}": cell for i, cell in enumerate(cells)}
        if twice := matrices.keys() & found.keys():
            raise ConfigurationError(
                f"two views of {path} are both called {min(twice)}; give the variables other names"
            )
        matrices |= found
    if not matrices:
        raise ConfigurationError(
            f"{path} holds no matrix with one row for each of the {len(classes)} labels; save one matrix for each view"
        )
    shaped = {name: _matrix(path, f"'{name}'", matrix, len(classes)) for name, matrix in matrices.items()}
    unused = [f"{name} ({_what(one)})" for name, one in content.items() if name != label and name not in matrices]
    if unused and views is None and not _is_cells(content.get("X")):
        told = f"{path}: not taken as views: {', '.join(unused)}"
        rank_zero_info(f"{told}; a view has a row for each of the {len(classes)} labels")
    return of_views(shaped, classes)


def _mat_variables(path: Path, names: Sequence[str] | None = None) -> "dict[str, NDArray[Any]]":
    """Those of the variables with these names that the MATLAB file has; None: all its variables."""
    from scipy.io import loadmat  # 0.1 s, where it is used
    from scipy.io.matlab import MatReadWarning

    try:
        refuse_growth(path, declared_bytes(path))
        with warnings.catch_warnings():
            warnings.simplefilter("error", MatReadWarning)  # for a variable that is repeated or cannot be read
            content = loadmat(path, appendmat=False, variable_names=names)
    except NotImplementedError as error:
        raise ConfigurationError(
            f"{path} is a MATLAB file of version 7.3, which cannot be read; load it in MATLAB and save it with '-v7'"
        ) from error
    except ConfigurationError:
        raise
    except Exception as error:  # scipy's errors for damaged files have no common class
        raise ConfigurationError(
            f"{path} cannot be read as a MATLAB file ({type(error).__name__}: {error}); replace it"
        ) from error
    return {name: value for name, value in content.items() if not name.startswith("__")}


def _npz_variables(path: Path) -> "dict[str, NDArray[Any]]":
    """All variables of the NumPy file."""
    try:
        if zipfile.is_zipfile(path):
            refuse_growth(path, _npz_bytes(path))
        with path.open("rb") as file:  # np.load(path) would leave a damaged file open
            content = np.load(file, allow_pickle=False)
            if not isinstance(content, np.lib.npyio.NpzFile):
                raise ValueError("it holds one array without a name")
            with content:
                return {name: content[name] for name in content.files}
    except ConfigurationError:
        raise
    except Exception as error:  # the errors of numpy and zipfile for damaged files have no common class
        raise ConfigurationError(
            f"{path} cannot be read as a NumPy file ({type(error).__name__}: {error}); save matrices of numbers with "
            "numpy.savez"
        ) from error


def _npz_bytes(path: Path) -> int:
    """Bytes that the arrays of a NumPy file declare, at 8 bytes a number, because they are used as float64.

    For a member that is not an array, its unpacked size is counted.
    """
    total = 0
    with zipfile.ZipFile(path) as members:
        for member in members.infolist():
            with members.open(member) as content:
                try:
                    version = np.lib.format.read_magic(content)
                    header = {
                        (1, 0): np.lib.format.read_array_header_1_0,
                        (2, 0): np.lib.format.read_array_header_2_0,
                    }[version](content)
                    total += prod(header[0]) * max(8, header[2].itemsize)
                except (ValueError, KeyError):
                    total += member.file_size
    return total


def _views_in(content: "Mapping[str, NDArray[Any]]", label: str, records: int) -> Sequence[str]:
    """The names of the variables that are views or cell arrays of views."""
    if _is_cells(content.get("X")):
        return ("X",)
    return [n for n, a in content.items() if n != label and _is_real(a) and a.ndim >= 2 and len(a) == records]


def _label_in(path: Path, content: Mapping[str, Any]) -> str:
    """The name of the labels among the variables of a file."""
    found = [name for name in _LABELS if name in content]
    if len(found) != 1:
        held = " and ".join(found) or f"none of {', '.join(_LABELS)} but {', '.join(content) or 'nothing'}"
        raise ConfigurationError(f"{path} holds {held}; name the variable of the labels with the argument labels")
    return found[0]


def _cells(path: Path, name: str, variable: Any) -> "list[Any]":
    """The contents of a MATLAB cell array in one row or column."""
    if not _is_cells(variable) or max(variable.shape, default=0) != variable.size:
        raise ConfigurationError(
            f"{name} of {path} must be a cell array of views in one row or column; got {_what(variable)}; save a cell "
            "array with one matrix for each view"
        )
    return list(variable.ravel())


def _matrix(path: Path, view: str, matrix: Any, records: int) -> "NDArray[np.float64]":
    if not _is_real(matrix) or matrix.ndim < 2 or len(matrix) != records:
        raise ConfigurationError(
            f"view {view} of {path} is {_what(matrix)}; save a full real matrix with one row for each of the {records} "
            "labels"
        )
    numbers: NDArray[np.float64] = matrix.reshape(records, -1).astype(np.float64)
    return numbers


def _labels(path: Path, labels: Any) -> "NDArray[np.int64]":
    if not _is_real(labels) or max(labels.shape, default=0) != labels.size or not labels.size:
        raise ConfigurationError(f"the labels of {path} are {_what(labels)}; save one number for each record")
    values, numbered = np.unique(labels.ravel(), return_inverse=True)
    if values[0] not in (0, 1) or not np.array_equal(values, values[0] + np.arange(len(values))):
        shown = ", ".join(f"{value:g}" for value in values[:12]) + (", ..." if len(values) > 12 else "")
        raise ConfigurationError(f"the labels of {path} are {shown}; number the classes from 0 or 1 without a gap")
    return numbered.astype(np.int64)


def _is_cells(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype == object


def _is_real(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.dtype.kind in "buif"


def _what(array: Any) -> str:
    """The type and shape of a variable, for errors."""
    shape = " x ".join(str(size) for size in getattr(array, "shape", ()))
    if not isinstance(array, np.ndarray):
        return f"a {type(array).__name__} of {shape}"
    kind = f"{array.dtype} matrix"
    if array.dtype.names:
        kind = "struct"
    elif array.dtype == object:
        kind = "cell array"
    return f"a {kind} of {shape}"
