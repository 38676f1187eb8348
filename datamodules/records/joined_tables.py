"""Read the tables of all parties, and find the records that they have in common."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_vfl.errors import ConfigurationError

from .grouped_tables import refuse_shared_ids
from .party_tables import common_ids, kind_of, listed, read_table

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray


def read_tables(
    paths: Mapping[str, Path], id_column: str, separator: str, text: Mapping[str, Collection[str] | None]
) -> "dict[str, pd.DataFrame]":
    """Party -> its table, its ids as the index.

    Args:
        paths: party -> its file.
        id_column: the column of the ids.
        separator: between the fields of a CSV file.
        text: party -> columns of a CSV file to read as text; None: all columns.

    Raises:
        ConfigurationError: for files that cannot be read, and ids that are not of the same kind in all of them.
    """
    tables = {party: read_table(path, party, id_column, separator, text[party]) for party, path in paths.items()}
    first = next(iter(tables))
    kind = kind_of(tables[first].index)
    for party, table in tables.items():
        if kind_of(table.index) != kind:
            raise ConfigurationError(
                f"ids of party '{party}' are {kind_of(table.index)} but those of party '{first}' are "
                f"{kind}; write them in the same form in all files"
            )
    return tables


def check_label_column(tables: "Mapping[str, pd.DataFrame]", party: str, column: str) -> None:
    """Accept tables of which the party's has the label column.

    Raises:
        ConfigurationError: if there is no such table, or no such column in it.
    """
    if party not in tables:
        raise ConfigurationError(f"label_party '{party}' has no table; use one of {', '.join(tables)}")
    if column not in tables[party]:
        others = [other for other, table in tables.items() if column in table]
        raise ConfigurationError(
            f"party '{party}' has no label column '{column}', only {listed(tables[party])}; correct label_column"
            + (f", or label_party: '{others[0]}' has such a column" if others else "")
        )


def joined_ids(
    tables: "Mapping[str, pd.DataFrame]", groups: Sequence[tuple[str, ...]], inner: bool, label_party: str
) -> "tuple[NDArray[np.generic], str]":
    """The sorted ids of the joined records, and a text that says how many records each party has.

    Args:
        tables: party -> its table.
        groups: the groups of tables; every table is in one.
        inner: whether a record must be in a table of every group; otherwise in that of the label party.
        label_party: the party with the labels.

    Raises:
        ConfigurationError: for ids in several tables of a group, and tables without an id in common.
    """
    refuse_shared_ids(tables, groups)
    if inner:
        needed = groups
    else:
        needed = ((label_party,),) if label_party in tables else (tuple(tables),)
    ids = common_ids(tables, needed)
    both = {party: int(table.index.isin(ids).sum()) for party, table in tables.items()}
    counts = [f"'{party}' holds {n} of them, {len(tables[party]) - n} more are left out" for party, n in both.items()]
    return ids, f"{len(ids)} joined records; {', '.join(counts)}"
