"""Categories as columns of 0 and 1."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def one_hot(
    values: "NDArray[np.str_]", trained: "NDArray[np.int64] | NDArray[np.bool_]"
) -> "tuple[NDArray[np.float64], list[str]]":
    """(N, C) columns of 0 and 1 for N values, and the C categories of the training records in sorted order.

    A value whose category no training record has becomes a row of zeros.

    Args:
        values: (N,) texts.
        trained: the training records, as positions or as (N,) truth values.

    Examples:
        >>> columns, categories = one_hot(np.array(["b", "a", "c"]), np.array([0, 1]))
        >>> columns.tolist(), categories
        ([[0.0, 1.0], [1.0, 0.0], [0.0, 0.0]], ['a', 'b'])
    """
    categories = np.unique(values[trained])
    return (values[:, None] == categories).astype(np.float64), categories.tolist()
