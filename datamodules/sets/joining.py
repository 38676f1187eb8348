"""Read the files of tables, join them, and take the columns of the label party that are no features out of them."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from lightning_vfl.errors import ConfigurationError, nearest

from ..records.code_columns import coded_columns
from ..records.column_encoders import of_texts
from ..records.column_tables import ColumnTable, MemoryTable, together
from ..records.grouped_tables import add_singles, align_columns
from ..records.joined_tables import Joined, check_label_column, join, read_tables
from ..records.told_records import ALL

if TYPE_CHECKING:
    import pandas as pd

    from .csv_tables import CSVTables


def join_tables(data: "CSVTables") -> Joined:
    """The joined records of all tables; labels, sample weights and the split column are apart from the features.

    Raises:
        ConfigurationError: for files that cannot be read or joined, and without the columns that the settings name.
    """
    tables = _read_all(data)
    groups = add_singles(data.groups, tables)
    align_columns(tables, groups)
    kept = ALL if ALL in tables else data.label_party
    ids, held, left_out, told = join(tables, groups, data.overlap == "inner", kept)
    data._say(told)
    own = tables.get(data.label_party)
    named = {} if own is None else {name: own.pop(name) for name in data._label_columns if name in own}
    labels = together(named) if len(named) == len(data._label_columns) else None
    beside = {setting: _take(data, own, setting, column) for setting, column in columns_beside(data).items()}
    return Joined(ids, tables, held, groups, labels, beside["split"], beside["sample_weight"], left_out)


def columns_beside(data: "CSVTables") -> dict[str, str | None]:
    """Setting -> the column of the label party that it names, which is neither a feature nor a label; None: none."""
    return {"split": None if data.split is None else data.split.column, "sample_weight": data.sample_weight}


def text_columns(data: "CSVTables", party: str) -> list[str] | None:
    """The columns of the party's file to read as text; None: all."""
    classes = data._label_columns if party == data.label_party and data.task == "classification" else ()
    if data.fitted is None:
        steps = data._preprocess
        if steps is None:
            return [*data.categorical, *classes]
        if steps.decimals.get(party) == ",":
            return None
        others = (data.id_columns[party], *data._label_columns)
        return [*steps.texts(party), *classes, *coded_columns(data.tables[party], data.forms[party], others)]
    return [*classes, *(encoder.column for encoder in data._encoders.get(party, ()) if of_texts(encoder))]


def _take(data: "CSVTables", own: ColumnTable | None, setting: str, column: str | None) -> "pd.Series[Any] | None":
    """The column, taken out of the label party's table.

    New tables may lack it, and so may a process without the labels: then it is None.
    """
    if column is None:
        return None
    if own is not None and column in own:
        return own.pop(column)
    if data.fitted is None and not data._unlabelled:
        raise ConfigurationError(
            f"{setting} names column '{column}', which party '{data.label_party}' does not have; "
            + nearest(column, map(str, own or ()))
        )
    return None


def _read_all(data: "CSVTables") -> dict[str, ColumnTable]:
    """Party -> its table; a table of another process has ids alone."""
    text: dict[str, Collection[str] | None] = {party: text_columns(data, party) for party in data.tables}
    if data._preprocess is not None:  # all codes of one table of a group may look like numbers
        text |= dict.fromkeys((party for group in data.groups for party in group), None)
    folder = None if data._work is None else data._work.path
    tables = read_tables(data.tables, data.id_columns, data.forms, text, folder) if data.tables else {}
    if data._told is not None:
        tables |= {party: MemoryTable(table) for party, table in data._told.tables().items()}
    if data.fitted is None and not data._unlabelled:
        for name in data._label_columns:
            check_label_column(tables, data.label_party, name)
    return tables
