"""Categories as columns of 0 and 1."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def categories_of(values: "NDArray[np.str_]") -> list[str]:
    """The different texts in sorted order."""
    categories: list[str] = np.unique(values).tolist()
    return categories


def one_hot(values: "NDArray[np.str_]", categories: Sequence[str]) -> "NDArray[np.float64]":
    """(N, C) columns of 0 and 1 for N texts and C categories; a text that is no category becomes a row of zeros.

    Examples:
        >>> one_hot(np.array(["b", "a", "c"]), ["a", "b"]).tolist()
        [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]
    """
    columns: NDArray[np.bool_] = values[:, None] == np.array(categories, dtype=np.str_)
    return columns.astype(np.float64)
