"""Draw the records of training, validation and test."""

from collections.abc import Mapping, Sequence
from math import ceil

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import permutation, seed_of

from .records.records import SplitName


def check_shares(val_share: float, test_share: float | None = None) -> None:
    """Accept shares that leave records for training; ``test_share`` None: the test records are not drawn.

    Raises:
        ConfigurationError: for a share below 0, or shares that add up to 1 or more.
    """
    drawn = {"val_share": val_share} if test_share is None else {"val_share": val_share, "test_share": test_share}
    if not (min(drawn.values()) >= 0 and sum(drawn.values()) < 1):
        named = " and ".join(f"{name} {share}" for name, share in drawn.items())
        raise ConfigurationError(
            f"{named} leave no records for training; use shares from 0 that add up to less than 1"
            if len(drawn) > 1
            else f"{named} leaves no records for training; use a share from 0 to less than 1"
        )


def check_val_records(val_records: int) -> None:
    """Accept a number of validation records.

    Raises:
        ConfigurationError: for a number below 0.
    """
    if val_records < 0:
        raise ConfigurationError(f"val_records must be 0 or more; got {val_records}")


def draw_validation(records: int, val_records: int, seed: int, data: str) -> dict[SplitName, np.ndarray]:
    """Sorted positions of the training and validation records; the seed names the draw.

    Raises:
        ConfigurationError: if no record is left for training.
    """
    if val_records >= records:
        raise ConfigurationError(
            f"val_records {val_records} leaves none of the {records} training records of {data}; lower it to at most "
            f"{records - 1}"
        )
    order = permutation(records, seed, "validation split")
    return {"val": np.sort(order[:val_records]), "train": np.sort(order[val_records:])}


def split_rows(
    rows: np.ndarray,
    seed: int,
    val: float,
    test: float,
    stratify: np.ndarray | None = None,
    classes: Sequence[int | str] = (),
) -> Mapping[SplitName, np.ndarray]:
    """Sorted positions of each split; the seed names the draw. A share of 0 gives no records, others are rounded up.

    Args:
        rows: positions of the records.
        seed: names the draw.
        val: share of the validation records.
        test: share of the test records.
        stratify: (N,) the class numbers of all records; None: the records are drawn without regard to classes.
        classes: the names of the classes, for errors; empty: their numbers.

    Raises:
        ConfigurationError: if there are too few records, or too few of a class, for these shares.
    """
    from sklearn.model_selection import train_test_split

    def cut(part: np.ndarray, share: float, what: str) -> tuple[np.ndarray, np.ndarray]:
        if share == 0:
            return part, part[:0]
        by = None if stratify is None else stratify[part]
        # 0.1 / (1 - 0.4) of 1200 records is 200.00000000000003 in floats: round first, so that 200 are taken
        count = max(1, ceil(round(share * len(part), 6)))
        if too_few := _too_few(len(part), count, by, classes):
            raise ConfigurationError(
                f"{len(part)} records give no {what} of {share:.0%} ({too_few}); use more records, another share, or "
                "several records of every class"
            )
        first, second = train_test_split(part, test_size=count, random_state=seed_of(seed, what) % 2**32, stratify=by)
        return np.sort(first), np.sort(second)

    rest, tests = cut(rows, test, "test split")
    train, vals = cut(rest, val / (1 - test), "validation split")
    return {"train": train, "val": vals, "test": tests, "predict": tests}


def _too_few(records: int, drawn: int, labels: np.ndarray | None, classes: Sequence[int | str]) -> str:
    """Why so many records cannot be drawn of these, with a record of each class on both sides; empty: they can."""
    if drawn >= records:
        return "none would be left"
    if labels is None:
        return ""
    found, counts = np.unique(labels, return_counts=True)
    rarest = int(counts.argmin())
    if counts[rarest] < 2:
        name = classes[int(found[rarest])] if len(classes) else int(found[rarest])
        return f"class '{name}' has one record among them, and both sides need one"
    side, smaller = ("drawn", drawn) if drawn <= records - drawn else ("left", records - drawn)
    if smaller < len(found):
        return f"{smaller} would be {side}, and there are {len(found)} classes"
    return ""
