"""Predictions as a table that a person can read: the record, the probabilities by class, and the decision."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.whole_files import whole_path

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


def prediction_table(
    ids: "NDArray[np.generic]",
    values: "NDArray[np.floating]",
    class_names: Sequence[int | str],
    targets: Sequence[str] = (),
    probabilities: bool = False,
) -> "pd.DataFrame":
    """One row for each record.

    Columns: ``record``, the user's own id; ``probability_NAME`` for each class, of two classes only the second, and
    ``decision``, the name of the likeliest class; or ``value`` for real-valued labels. Of several labels
    ``probability_NAME`` and ``decision_NAME``, 0 or 1, or ``value_NAME`` for each.

    Args:
        ids: (N,) the users' ids.
        values: (N, C) probabilities, (N,) probabilities of the second of two classes, or (N,) values.
        class_names: the names of the classes; empty for real-valued labels.
        targets: the names of the labels if a record has several; values are (N, targets).
        probabilities: whether the values of several labels are probabilities.

    Raises:
        ConfigurationError: if the number of names is not the number of classes.

    Examples:
        >>> print(prediction_table(np.array(["a7", "b2"]), np.array([0.25, 0.5]), ["no", "yes"]).to_string(index=False))
        record  probability_yes decision
            a7             0.25       no
            b2             0.50      yes
    """
    import pandas as pd  # imported here, because the import takes 0.5 s

    table = pd.DataFrame({"record": ids})
    if targets:
        for target, of_target in zip(targets, values.T, strict=True):
            table[f"{'probability' if probabilities else 'value'}_{target}"] = of_target
            if probabilities:
                table[f"decision_{target}"] = (of_target >= 0.5).astype(np.int64)
        return table
    if not class_names:
        return table.assign(value=values)
    classes = 2 if values.ndim == 1 else values.shape[1]
    if classes != len(class_names):
        raise ConfigurationError(f"{len(class_names)} class names for {classes} classes; give one name for each class")
    columns = values[:, None] if values.ndim == 1 else values
    for name, column in zip(class_names[-columns.shape[1] :], columns.T, strict=True):
        table[f"probability_{name}"] = column
    decided = (values >= 0.5).astype(np.int64) if values.ndim == 1 else values.argmax(1)
    table["decision"] = np.array(class_names)[decided]
    return table


def with_parties(table: "pd.DataFrame", parties: "NDArray[np.bool_]", names: Sequence[str] = ()) -> "pd.DataFrame":
    """The table with a column ``parties``, the names of those that took part in each prediction.

    Args:
        table: of ``prediction_table``.
        parties: (N, M), whether party m took part in the prediction of record n. Records without a party lose their
            decision.
        names: of the M parties; empty: their numbers.

    Examples:
        >>> table = prediction_table(np.array([7, 8]), np.array([0.25, np.nan]), ["no", "yes"])
        >>> with_parties(table, np.array([[True, True], [False, False]]), ["bank", "shop"]).values.tolist()
        [[7, 0.25, 'no', 'bank shop'], [8, nan, '', '']]
    """
    told = _named(parties, names)
    decisions = {
        name: [str(value) if some else "" for value, some in zip(table[name], told, strict=True)]
        for name in map(str, table)
        if name.split("_")[0] == "decision"
    }
    return table.assign(**decisions, parties=told)


def with_absent(table: "pd.DataFrame", parties: "NDArray[np.bool_]", names: Sequence[str] = ()) -> "pd.DataFrame":
    """The table with a column ``absent``, the names of the parties that took no part in each prediction.

    Args:
        table: of ``prediction_table``.
        parties: (N, M), whether party m took part in the prediction of record n.
        names: of the M parties; empty: their numbers.

    Examples:
        >>> table = prediction_table(np.array([7, 8]), np.array([0.25, 0.5]), ["no", "yes"])
        >>> with_absent(table, np.array([[True, True], [False, True]]), ["bank", "shop"])["absent"].tolist()
        ['', 'bank']
    """
    return table.assign(absent=_named(~parties & parties.any(axis=1, keepdims=True), names))


def left_out_table(ids_of: "Mapping[str, NDArray[np.generic]]") -> "pd.DataFrame":
    """The records that are not predicted, one row for each: ``record``, and ``parties``, which have it.

    Args:
        ids_of: party -> the ids of its records that are left out.

    Examples:
        >>> left_out_table({"bank": np.array([7, 9]), "shop": np.array([8, 9])}).values.tolist()
        [[7, 'bank'], [8, 'shop'], [9, 'bank shop']]
    """
    import pandas as pd

    ids = np.unique(np.concatenate([*ids_of.values()]))
    held = np.stack([np.isin(ids, own) for own in ids_of.values()], axis=1)
    return pd.DataFrame({"record": ids, "parties": _named(held, list(ids_of))})


def tell_left_out(ids_of: "Mapping[str, NDArray[np.generic]]", path: Path | None) -> None:
    """Print how many records are left out and write them into a file beside the predictions, if there are any.

    Args:
        ids_of: party -> the ids of its records that are left out.
        path: of the predictions; the file is ``NAME.left_out.csv`` beside it. One of an earlier prediction is removed.
            None: there is no file.
    """
    file = None if path is None else path.with_name(f"{path.stem}.left_out{path.suffix}")
    ids_of = {party: ids for party, ids in ids_of.items() if len(ids)}
    if not ids_of:
        if file is not None:
            file.unlink(missing_ok=True)
        return
    table = left_out_table(ids_of)
    counts = ", ".join(f"{len(ids):,} of {party}" for party, ids in ids_of.items())
    told = f"{len(table):,} records are left out, which some party lacks ({counts})"
    if file is not None:
        write_predictions(table, file)
        told += f": {file}"
    print(told)


def _named(held: "NDArray[np.bool_]", names: Sequence[str]) -> list[str]:
    """The names of the parties that are true in each row (N, M); without names their numbers."""
    names = names or [str(m) for m in range(held.shape[1])]
    patterns, rows = np.unique(held, axis=0, return_inverse=True)
    texts = [" ".join(names[m] for m, there in enumerate(pattern) if there) for pattern in patterns]
    return [texts[row] for row in rows.ravel()]


_FORMULA = r"^[=+\-@\t\r]"  # with which a cell begins that a spreadsheet computes
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"


def for_spreadsheets(table: "pd.DataFrame") -> "pd.DataFrame":
    """The table with an apostrophe before each text that a spreadsheet would take for a formula.

    These are texts that begin with =, +, -, @, a tab or a carriage return, also names of columns. Numbers, and texts
    that are numbers such as -5, stay as they are. A carriage return becomes a line break, which ``to_csv`` quotes.

    Examples:
        >>> import pandas as pd
        >>> for_spreadsheets(pd.DataFrame({"record": ["=1+1", "-5", "a"], "value": [-1.0, 0.5, 2.0]})).values.tolist()
        [["'=1+1", -1.0], ['-5', 0.5], ['a', 2.0]]

    References:
        OWASP, "CSV Injection".
    """
    import pandas as pd

    safe = table.copy(deep=False)
    for position, kind in enumerate(table.dtypes):
        if pd.api.types.is_numeric_dtype(kind) or pd.api.types.is_datetime64_any_dtype(kind):
            continue
        column = table.iloc[:, position]
        texts = column.astype("object")
        whole = texts.astype(str)
        is_text = texts.map(lambda cell: isinstance(cell, str))
        formula = is_text & whole.str.match(_FORMULA) & ~whole.str.match(_NUMBER)
        quoted = texts.where(~formula, "'" + whole).replace("\r", "\n", regex=True)
        safe.isetitem(position, quoted.tolist())
    names = pd.Series([str(name) for name in table.columns], dtype="object")
    formula = names.str.match(_FORMULA) & ~names.str.match(_NUMBER)
    return safe.set_axis(names.where(~formula, "'" + names).tolist(), axis=1) if formula.any() else safe


def write_predictions(table: "pd.DataFrame", path: Path) -> None:
    """Write predictions; a ``.csv`` file is safe to open in a spreadsheet, see ``for_spreadsheets``.

    Raises:
        ConfigurationError: for an ending other than ``.csv`` or ``.parquet``.
    """
    write_table(for_spreadsheets(table) if path.suffix == ".csv" else table, path)


def write_table(table: "pd.DataFrame", path: Path) -> None:
    """Write a ``.csv`` or ``.parquet`` file, which appears complete or not at all.

    Raises:
        ConfigurationError: for another ending, and a path that cannot be written.
    """
    check_ending(path)
    with whole_path(path) as part:
        if path.suffix == ".csv":
            table.to_csv(part, index=False)
        else:
            table.to_parquet(part, index=False)


def check_ending(path: Path) -> None:
    """Accept a ``.csv`` or ``.parquet`` file.

    Raises:
        ConfigurationError: for any other ending.
    """
    if path.suffix not in (".csv", ".parquet"):
        raise ConfigurationError(f"predictions need a .csv or .parquet file; got '{path}'; change the ending")
