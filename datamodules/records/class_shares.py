"""What is told about the classes of labels before training: their shares in every split, and what is likely wrong."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .party_tables import listed

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEW = 10
"""Fewer records of a class than this are warned of."""
_MOST = 10  # classes whose shares are printed
_COMMON = 0.9  # share of the second of two classes from which on its average precision is near 1 by chance


def class_shares(
    column: str, classes: Sequence[int | str], labels: "NDArray[np.int64]", rows: "Mapping[str, NDArray[np.int64]]"
) -> str:
    """The share of each class in the records of each split, in one line.

    Args:
        column: the name of the label.
        classes: the classes.
        labels: (N,) their numbers.
        rows: split -> the positions of its records.

    Examples:
        >>> class_shares("churn", ["No", "Yes"], np.array([0, 0, 0, 1]), {"train": np.arange(4)})
        'label churn: train (4) No 75 %, Yes 25 %'
    """
    told = []
    for split, own in rows.items():
        counts = np.bincount(labels[own], minlength=len(classes))
        order = range(len(classes)) if len(classes) <= _MOST else np.argsort(-counts, kind="stable")[:_MOST]
        shares = [f"{classes[c]} {100 * counts[c] / max(len(own), 1):.3g} %" for c in order]
        more = f", {len(classes) - _MOST} more classes" if len(classes) > _MOST else ""
        told.append(f"{split} ({len(own)}) {', '.join(shares)}{more}")
    return f"label {column}: {'; '.join(told)}"


def doubts_about_classes(
    column: str, classes: Sequence[int | str], labels: "NDArray[np.int64]", rows: "Mapping[str, NDArray[np.int64]]"
) -> list[str]:
    """Warnings: classes that differ by case or space only or have few records, a rare first one of two, lacking ones.

    Args:
        column: the name of the label.
        classes: the classes.
        labels: (N,) their numbers.
        rows: split -> the positions of its records.
    """
    doubts = []
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault(_plain(str(name)), []).append(f"'{name}'")
    for names in alike.values():
        if len(names) > 1:
            doubts.append(
                f"the classes {' and '.join(names)} of label '{column}' differ by case, space or the form of a number "
                "alone, and are trained as different classes; write them in one form"
            )
    counts = np.bincount(labels, minlength=len(classes))
    if few := [f"{name} ({count})" for name, count in zip(classes, counts, strict=True) if count < FEW]:
        doubts.append(f"label '{column}' has classes of fewer than {FEW} records: {listed(few)}; merge or remove them")
    if len(classes) == 2 and counts[1] > _COMMON * len(labels):
        doubts.append(
            f"average_precision of label '{column}' will be that of class '{classes[1]}', near 1 by chance, because "
            f"{100 * counts[1] / len(labels):.3g} % of the records have it; to have that of '{classes[0]}', rename the "
            f"classes so that '{classes[0]}' is the last in sorted order"
        )
    for split, own in rows.items():
        there = np.bincount(labels[own], minlength=len(classes)) > 0
        if len(own) and (absent := [name for name, some in zip(classes, there, strict=True) if not some]):
            doubts.append(
                f"the {len(own)} {split} records have no record of the class{'es' * (len(absent) > 1)} "
                f"{listed(absent)} of label '{column}'; use another split, seed or share"
            )
    return doubts


def _plain(name: str) -> str:
    """The name without differences of case, spaces and the form of a number."""
    text = "".join(name.split()).casefold()
    try:
        return repr(float(text))
    except ValueError:
        return text
