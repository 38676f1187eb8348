"""Which records are for training, validation and test."""

from collections.abc import Mapping

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import seed_of

from .base import SplitName


def split_rows(
    rows: np.ndarray, seed: int, val: float, test: float, stratify: np.ndarray | None = None
) -> Mapping[SplitName, np.ndarray]:
    """Sorted positions of each split; the seed names the draw. A share of 0 gives no records.

    Raises:
        ConfigurationError: if there are too few records, or too few of a class, for these shares.
    """
    from sklearn.model_selection import train_test_split

    def cut(part: np.ndarray, share: float, what: str) -> tuple[np.ndarray, np.ndarray]:
        if share == 0:
            return part, part[:0]
        by = None if stratify is None else stratify[part]
        try:
            first, second = train_test_split(
                part, test_size=share, random_state=seed_of(seed, what) % 2**32, stratify=by
            )
        except ValueError as error:
            raise ConfigurationError(
                f"{len(part)} records give no {what} of {share:.0%} ({error}); use more records, another share, or "
                "several records of every class"
            ) from error
        return np.sort(first), np.sort(second)

    rest, tests = cut(rows, test, "test split")
    train, vals = cut(rest, val / (1 - test), "validation split")
    return {"train": train, "val": vals, "test": tests, "predict": tests}
