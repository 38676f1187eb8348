"""Fit the encoders of all columns of joined tables to the training records."""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from lightning_vfl.errors import ConfigurationError

from .column_encoder import ColumnEncoder, Unseen
from .column_encoders import fit_encoders
from .joined_tables import Joined
from .modal_columns import ModalSetting, fit_modal
from .party_tables import listed
from .preprocess import Preprocess
from .steps_table import TableRow

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def fit_tables(
    joined: Joined,
    train: "NDArray[np.int64]",
    preprocess: Preprocess | None,
    categorical: Collection[str],
    unseen: Unseen,
    ranges: bool,
    modal: Mapping[str, ModalSetting],
    counts: "Callable[..., NDArray[Any]] | None",
) -> tuple[dict[str, tuple[ColumnEncoder, ...]], list[TableRow]]:
    """Party -> the encoders of its columns, and what is told about them.

    Args:
        joined: the tables.
        train: positions of the training records.
        preprocess: the steps that users have asked for; None: numbers, and one-hot columns of ``categorical``.
        categorical: columns to encode one-hot.
        unseen: what these do with a category that no training row has.
        ranges: whether to keep the ends of numbers and dates, which tell of new tables.
        modal: party -> its column of pictures or text, for parties that have one.
        counts: counts the labels of training rows, see ``Preprocess.fit``.

    Raises:
        ConfigurationError: for columns that no party has, parties without training records, and values that cannot be
            used.
    """
    with_column = {str(column) for table in joined.tables.values() for column in table}
    if unknown := [column for column in categorical if column not in with_column]:
        raise ConfigurationError(
            f"categorical names column '{unknown[0]}', which no party has; they have {listed(sorted(with_column))}"
        )
    trained, told = joined.trained(train), list[TableRow]()
    if preprocess is not None:
        preprocess.check_columns(joined.tables)
    encoders: dict[str, tuple[ColumnEncoder, ...]] = {}
    own: tuple[ColumnEncoder, ...]
    for group in joined.groups:
        tables = {party: joined.tables[party] for party in group}
        if group[0] in modal:
            own = (fit_modal(modal[group[0]], tables[group[0]], trained[group[0]], group[0]),)
        elif preprocess is None:
            own = fit_encoders(tables, trained, categorical, unseen)
        else:
            own, rows = preprocess.fit(tables, trained, ranges, counts)
            told += rows
        encoders.update(dict.fromkeys(group, own))
    return {party: encoders[party] for party in joined.tables}, told
