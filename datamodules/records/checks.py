"""Checks of the records of a split, before they are scaled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError

from .layout import Layout, Part, positions_of
from .records import Split

if TYPE_CHECKING:
    from numpy.typing import NDArray


def check_split(name: str, split: Split, layout: Layout, classes: int | None) -> None:
    """Accept what a data set has loaded, if it is of the form that ``Split`` describes.

    Args:
        name: the split, for the error.
        split: as loaded.
        layout: of a record.
        classes: number of classes of the labels; None: real values.

    Raises:
        ConfigurationError: for features or labels of another kind, columns that are not those of the layout, and ids
            of other records.
    """
    features, labels = split.features, split.labels
    kind = str(features.dtype) if isinstance(features, Tensor) else type(features).__name__
    if not isinstance(features, Tensor) or not (features.is_floating_point() or features.dtype == torch.uint8):
        raise ConfigurationError(
            f"features of the {name} records are {kind}; give a tensor of float32 or float64, or of uint8 for the "
            "bytes of images"
        )
    if (columns := features[:1].numel()) != layout.size and len(features):
        raise ConfigurationError(
            f"features of the {name} records have {columns} numbers for each record, the layout has {layout.size}; "
            "correct load or layout"
        )
    if layout.columns and len(layout.columns) != layout.size:
        raise ConfigurationError(
            f"the layout has {layout.size} numbers for each record and {len(layout.columns)} names of columns; give "
            "each number a name, or none"
        )
    if not hasattr(split.ids, "__len__"):
        raise ConfigurationError(
            f"ids of the {name} records are {split.ids!r}; give an array with an id for each record"
        )
    if len(split.ids) != len(features):
        raise ConfigurationError(f"{len(features)} {name} records have {len(split.ids)} ids; give each record one id")
    if labels is not None and (not isinstance(labels, Tensor) or (classes is not None and labels.is_floating_point())):
        kind = str(labels.dtype) if isinstance(labels, Tensor) else type(labels).__name__
        wanted = "float32" if classes is None else "int64 with the numbers of the classes"
        raise ConfigurationError(f"labels of the {name} records are {kind}; give a tensor of {wanted}")


def check_class_names(names: Sequence[int | str], classes: int | None) -> None:
    """Accept one name for each class, each another, and no names for real values (``classes`` is None).

    Raises:
        ConfigurationError: for other names, which would be found only when predictions are written.
    """
    if len(names) != (classes or 0):
        raise ConfigurationError(
            f"class_names has {len(names)} names for {classes or 'no'} classes; give one name for each class"
            + ("" if classes else ", and none for real values")
        )
    if len({*map(str, names)}) != len(names):
        raise ConfigurationError(f"class_names has a name twice: {', '.join(map(str, names))}; give each class its own")


def check_features(name: str, features: Tensor, split: Split, parts: Sequence[Part], layout: Layout) -> None:
    """Accept features (N, Σ F_m) that are finite in float32, as training uses them.

    Args:
        name: the split, for the error.
        features: the columns of all parties, side by side.
        split: has the ids, for the error.
        parts: the columns of each party.
        layout: has the names of the columns.

    Raises:
        ConfigurationError: for values that are NaN or infinite in float32.
    """
    if not features.is_floating_point():  # bytes are always finite
        return
    # a sum is finite only if all its terms are; for images this takes a tenth of the time
    if torch.isfinite(features.float().sum()) or (found := unusable(features.double().numpy())) is None:
        return
    row, column = np.argwhere(found.where)[0].tolist()
    ends = torch.tensor([part.width for part in parts]).cumsum(0)
    party = int((ends <= column).sum())
    position = int(positions_of(parts)[column])
    raise ConfigurationError(
        f"{int(found.where.sum())} feature values of the {name} records {found.what}, first of party {party}, "
        f"{layout.name_of(position)}, record {split.ids[row]}; {found.fix}"
    )


@dataclass(frozen=True)
class Unusable:
    """Values with which a network cannot be trained.

    Args:
        where: which of the values, in their shape.
        what: what is wrong with them.
        fix: what to do.
    """

    where: "NDArray[np.bool_]"
    what: str
    fix: str = "impute or remove them before training"


def unusable(values: "NDArray[np.floating[Any]]") -> Unusable | None:
    """The values that are NaN or infinite, else those that float32 cannot hold; None: all can be used."""
    bad = ~np.isfinite(values)
    if bad.any():
        return Unusable(bad, "are NaN or infinite")
    with np.errstate(over="ignore"):
        large = ~np.isfinite(values.astype(np.float32))
    if large.any():
        what = f"are too large for float32, which ends at 3.4e38 (the first is {values[large][0]:.4g})"
        return Unusable(large, what, "give them in another unit, or remove them")
    return None


def refuse_infinite(column: "NDArray[np.float64]", party: int, name: str, ids: "NDArray[np.generic]") -> None:
    """Accept a column (N,) that is finite in float32, as training uses it.

    Raises:
        ConfigurationError: for values that are NaN or infinite in float32.
    """
    if (found := unusable(column)) is not None:
        raise ConfigurationError(
            f"{int(found.where.sum())} feature values of the joined records {found.what}, first of party {party}, "
            f"column '{name}', record {ids[found.where.argmax()]}; {found.fix}"
        )


def check_labels(name: str, records: int, split: Split, classes: int | None, targets: int) -> None:
    """Accept one finite label for each record, and class numbers from 0 to ``classes`` - 1 (None: any numbers).

    With ``targets`` above 0, records have so many labels, (N, targets).

    Raises:
        ConfigurationError: for other labels.
    """
    if split.labels is None:
        return
    if len(split.labels) != records:
        raise ConfigurationError(
            f"{records} {name} records have {len(split.labels)} labels; give one label for each record"
        )
    wrong = ~torch.isfinite(split.labels)
    if wrong.any():
        raise ConfigurationError(
            f"{int(wrong.sum())} labels of the {name} records are NaN or infinite, first of record "
            f"{split.ids[int(wrong.nonzero()[0])]}; correct them or remove the records"
        )
    if split.labels.shape[1:] != ((targets,) if targets else ()):
        raise ConfigurationError(
            f"labels of the {name} records have shape {tuple(split.labels.shape)}; give "
            f"{targets or 'one'} number{'s' * bool(targets)} for each record"
        )
    if classes is not None and len(split.labels):
        low, high = int(split.labels.min()), int(split.labels.max())
        if low < 0 or high >= classes:
            raise ConfigurationError(
                f"labels of the {name} records run from {low} to {high}, outside 0..{classes - 1}; "
                "correct num_classes or the labels"
            )
