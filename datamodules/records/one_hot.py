"""Categories as columns of 0 and 1."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WHOLE = re.compile(r"^(-?\d+)\.0$")


def categories_of(values: "NDArray[np.str_]") -> list[str]:
    """The different texts in sorted order."""
    return sorted(set(values.tolist()))


def one_hot(values: "NDArray[np.str_]", categories: Sequence[str]) -> "NDArray[np.float64]":
    """(N, C) columns of 0 and 1 for N texts and C categories; a text that is no category becomes a row of zeros.

    Examples:
        >>> one_hot(np.array(["b", "a", "c"]), ["a", "b"]).tolist()
        [[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]]
    """
    columns: NDArray[np.bool_] = values[:, None] == np.array(categories, dtype=np.str_)
    return columns.astype(np.float64)


def as_known(values: "NDArray[np.str_]", categories: Sequence[str]) -> "NDArray[np.str_]":
    """The texts, where one that is no category but the same whole number as one is written like it.

    A file whose column has a decimal somewhere is read as 2.0 where another says 2.

    Examples:
        >>> as_known(np.array(["2.0", "3", "02", "v2.0"]), ["2", "3.0", "v2"]).tolist()
        ['2', '3.0', '02', 'v2.0']
    """
    known = set(categories)
    written = {_WHOLE.sub(r"\1", category): category for category in categories}
    texts = [text if text in known else written.get(_WHOLE.sub(r"\1", text), text) for text in values.tolist()]
    return np.array(texts, dtype=np.str_)
