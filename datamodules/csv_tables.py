"""Tables of several parties, one file each, joined on the records' ids."""

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.limits import refuse_large_table, unpacked

from .base import SplitName, VerticalDataModule
from .grouped_tables import alike, check_names, refuse_shared_ids, with_singles
from .normalise import Normaliser
from .one_hot import one_hot
from .partition import Layout, Partitioner, Views
from .records import Split
from .split import check_shares, split_rows

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


@dataclass(frozen=True)
class _Joined:
    """All N records of all parties, and which of them are in which split."""

    ids: "NDArray[np.generic]"
    features: Tensor
    present: Tensor | None
    labels: Tensor
    classes: tuple[int | str, ...]
    layout: Layout
    groups: tuple[tuple[int, ...], ...]
    rows: "Mapping[SplitName, NDArray[np.int64]]"


class CSVTables(VerticalDataModule):
    """One CSV or Parquet file a party, with a column of record ids in each, and the labels at one party.

    Tables of a group hold the same columns for different records: shops of a chain, each with its own customers.

    Records are joined on their ids, in sorted order, so the order of a file's rows changes nothing. Every party's
    features are a view; a party whose file has only ids (and labels) is not a feature party. Columns are called as in
    the files; a name that several parties use becomes ``party.column``, and a category ``column=category``.

    Args:
        tables: party -> its file; ``.parquet`` and ``.pq`` are Parquet, all others are read as CSV with a first row of
            names.
        label_party: the party whose file holds the labels.
        label_column: the column of the labels.
        id_column: the column of the ids, the same in every file; whole numbers or text.
        data_dir: the folder that relative file names start from; None: the working folder.
        task: ``classification``: labels are whole numbers or texts, numbered in sorted order, see ``classes``;
            ``regression``: labels are real numbers.
        overlap: ``inner``: the records that every party holds, or one party of every group. ``keep``: every record of
            the label party; where another party does not hold it, that party's features are zero and ``present`` says
            so. A record without a label is left out either way, because neither a loss nor a metric can be computed of
            it; the counts are printed.
        categorical: columns to encode one-hot, in every file that has them.
        separator: between the fields of a CSV file.
        val_share: share of the records for validation; 0: none.
        test_share: share of the records for testing (and prediction); 0: none.
        partitioner: None: the files decide; another one cuts the joined columns anew (with ``inner`` only, and without
            ``groups``).
        normaliser: how each party scales its features; None: every column to mean 0 and deviation 1.
        batch_size: rows of a batch in each process.
        seed: names the split and the order of the training records.
        drop_last: leave out the last, smaller batch of every training epoch.
        num_workers: worker processes; 0 is fastest for data in memory.
        pin_memory: for a faster way to a GPU.
        groups: tables that form a group, each group a list of names; every other table stands alone, and so does that
            of the label party. Tables of a group need the same columns, in any order: that of the first is taken.
        public_categories: declare the training records' categories public, as ``private_statistics`` asks for.

    Guarantee: categories, like scaling, come from the training rows alone; a category seen only later is encoded as all
        zeros. The tables of a group have the same columns when encoded too: their categories are read as text and come
        from the training rows of all of them. The splits of a classification are stratified by class. No value is
        guessed: what is missing, mixed or ambiguous is refused with its count, as far as joined records are concerned
        (ids: all records).
    Not guaranteed: a private join. All files are read here, and everybody learns which records are in common.

    Raises:
        ConfigurationError: for files that cannot be read or joined, and columns that are not numbers.
    """

    data_settings = ("task", "overlap", "categorical", "val_share", "test_share", "groups")

    def __init__(
        self,
        tables: Mapping[str, str | Path],
        label_party: str,
        label_column: str,
        id_column: str = "id",
        data_dir: str | Path | None = None,
        task: Literal["classification", "regression"] = "classification",
        overlap: Literal["inner", "keep"] = "inner",
        categorical: Sequence[str] = (),
        separator: str = ",",
        val_share: float = 0.1,
        test_share: float = 0.2,
        partitioner: Partitioner | None = None,
        normaliser: Normaliser | None = None,
        batch_size: int = 64,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int = 0,
        pin_memory: bool = False,
        groups: Sequence[Sequence[str]] = (),
        public_categories: bool = False,
    ) -> None:
        super().__init__(partitioner, normaliser, batch_size, seed, drop_last, num_workers, pin_memory)
        if label_party not in tables:
            raise ConfigurationError(f"label_party '{label_party}' has no table; use one of {', '.join(tables)}")
        if task not in ("classification", "regression"):
            raise ConfigurationError(f"task '{task}' is unknown; use classification or regression")
        if overlap not in ("inner", "keep"):
            raise ConfigurationError(f"overlap '{overlap}' is unknown; use inner or keep")
        if overlap == "keep" and not isinstance(self.partitioner, Views):
            raise ConfigurationError(
                "overlap 'keep' says which table holds which record, so the tables must be the parties; "
                f"leave out {type(self.partitioner).__name__} or use overlap: inner"
            )
        self.groups = check_names(groups, tables, label_party)
        if self.groups and not isinstance(self.partitioner, Views):
            raise ConfigurationError(
                "groups says which table holds which record, so the tables must be the parties; leave out "
                f"{type(self.partitioner).__name__} or groups"
            )
        check_shares(val_share, test_share)
        self.tables = {party: Path(data_dir or ".") / path for party, path in tables.items()}
        self.label_party = label_party
        self.label_column = label_column
        self.id_column = id_column
        self.task, self.overlap = task, overlap
        self.categorical = tuple(categorical)
        self.separator = separator
        self.public_categories = public_categories
        self.val_share, self.test_share = val_share, test_share

    @property
    def layout(self) -> Layout:
        return self._joined.layout

    @property
    def classes(self) -> tuple[int | str, ...]:
        """The labels as the file has them: label c of a batch is ``classes[c]``; empty for a regression."""
        return self._joined.classes

    @property
    def num_classes(self) -> int | None:
        return len(self.classes) if self.task == "classification" else None

    @property
    def party_groups(self) -> tuple[tuple[int, ...], ...]:
        return self._joined.groups if self.groups else self.partitioner.groups(len(self.party_shapes))

    def default_partitioner(self) -> Partitioner:
        return Views()

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        joined, splits = self._joined, {}
        for name in names:
            rows = joined.rows[name]
            if len(rows):
                present = None if joined.present is None else joined.present[rows]
                splits[name] = Split(joined.features[rows], joined.labels[rows], joined.ids[rows], present)
        return splits

    # ---- inside

    @cached_property
    def _joined(self) -> _Joined:
        tables = {party: self._read(party) for party in self.tables}
        if self.label_column not in tables[self.label_party]:
            others = [party for party, table in tables.items() if self.label_column in table]
            raise ConfigurationError(
                f"party '{self.label_party}' has no label column '{self.label_column}', only "
                f"{_listed(tables[self.label_party])}; correct label_column"
                + (f", or label_party: '{others[0]}' has such a column" if others else "")
            )
        groups = with_singles(self.groups, tables)
        tables = alike(tables, groups)
        ids = self._common_ids(tables, groups)
        tables = {party: table[table.index.isin(ids)].sort_index() for party, table in tables.items()}
        labels, classes = self._labels(tables[self.label_party].pop(self.label_column))
        stratify = labels if self.task == "classification" else None
        rows = split_rows(np.arange(len(ids)), self.seed, self.val_share, self.test_share, stratify)

        columns_of = Counter(str(column) for table in tables.values() for column in table)
        if unknown := [column for column in self.categorical if column not in columns_of]:
            raise ConfigurationError(
                f"categorical names column '{unknown[0]}', which no party has; they have {_listed(columns_of)}"
            )
        encoded = {}
        for group in groups:
            encoded.update(self._features({party: tables[party] for party in group}, ids[rows["train"]]))
        names: list[str] = []
        blocks, held, views = [], [], {}
        for party, table in tables.items():
            holds = np.isin(ids, _plain(table.index))
            block, own = encoded[party]
            names += [f"{party}.{n}" if columns_of[column] > 1 else n for n, column in own]
            if own:
                padded = np.zeros((len(ids), len(own)))
                padded[holds] = block
                blocks.append(padded)
                held.append(holds)
                views[party] = len(own)
        if not views:
            raise ConfigurationError(f"no party has a column besides '{self.id_column}' and the labels; add features")
        number = {party: m for m, party in enumerate(views)}
        return _Joined(
            ids,
            torch.from_numpy(np.hstack(blocks)).double(),  # scaled first: a timestamp needs more than float32
            torch.from_numpy(np.stack(held, axis=1)) if self.overlap == "keep" or self.groups else None,
            torch.tensor(labels, dtype=torch.int64 if self.task == "classification" else torch.float32),
            classes,
            Layout((len(names),), tuple(names), tuple(views.values()), tuple(views)),
            tuple(tuple(number[party] for party in group) for group in groups if group[0] in number),
            rows,
        )

    def _read(self, party: str) -> "pd.DataFrame":
        """The party's table with its checked ids as the index."""
        import pandas as pd  # 0.5 s, where it is used

        path = self.tables[party]
        # the codes of one file may all look like numbers where another of its group has some that do not: 01 and x1
        text = self.categorical if any(party in group for group in self.groups) else ()
        try:
            if path.suffix in (".parquet", ".pq"):
                refuse_large_table(path)
                table = pd.read_parquet(path)
            else:
                with warnings.catch_warnings(), unpacked(path) as content:
                    # pandas only warns of rows longer than the header, and drops what is too much
                    warnings.simplefilter("error", pd.errors.ParserWarning)
                    table = pd.read_csv(
                        content,
                        sep=self.separator,
                        index_col=False,
                        skipinitialspace=True,
                        low_memory=False,
                        dtype=dict.fromkeys(text, str),
                    )
        except ConfigurationError:
            raise
        except (OSError, ValueError, pd.errors.ParserWarning) as error:
            raise ConfigurationError(
                f"{path} of party '{party}' cannot be read ({error}); correct the path, the file or separator"
            ) from error
        if self.id_column not in table:
            raise ConfigurationError(
                f"{path} of party '{party}' has no id column '{self.id_column}', only {_listed(table)}; "
                "correct id_column or separator"
            )
        ids = table.pop(self.id_column)
        if ids.empty:
            raise ConfigurationError(f"{path} of party '{party}' holds no record; correct tables")
        if missing := int(ids.isna().sum()):
            raise ConfigurationError(f"{missing} records of party '{party}' have no id; add ids or remove the records")
        if _kind(ids) not in ("whole numbers", "text") or (ids.dtype == np.uint64 and int(ids.max()) >= 2**63):
            raise ConfigurationError(
                f"ids of party '{party}' are {ids.dtype} (first {ids.iloc[0]}); write them as text or as whole numbers "
                "of 63 bits"
            )
        twice = ids.duplicated()
        if twice.any():
            raise ConfigurationError(
                f"{int(twice.sum())} ids of party '{party}' are duplicates, first {ids[twice].iloc[0]}; "
                "keep one record of each id"
            )
        return table.set_axis(pd.Index(ids))

    def _common_ids(
        self, tables: Mapping[str, "pd.DataFrame"], groups: Iterable[tuple[str, ...]]
    ) -> "NDArray[np.generic]":
        """The sorted ids of the records that are kept."""
        label_ids = tables[self.label_party].index
        for party, table in tables.items():
            if _kind(table.index) != _kind(label_ids):
                raise ConfigurationError(
                    f"ids of party '{party}' are {_kind(table.index)} but those of party '{self.label_party}' are "
                    f"{_kind(label_ids)}; write them alike in all files"
                )
        refuse_shared_ids(tables, groups)
        needed = [(self.label_party,)] if self.overlap == "keep" else groups
        ids = reduce(
            np.intersect1d, [np.concatenate([_plain(tables[party].index) for party in group]) for group in needed]
        )
        if not len(ids):
            samples = ", ".join(f"{party} {table.index[0]}" for party, table in tables.items())
            raise ConfigurationError(
                f"the tables have no id in common (first ids: {samples}); correct id_column or the ids"
            )
        both = {party: int(table.index.isin(ids).sum()) for party, table in tables.items()}
        counts = [
            f"'{party}' holds {n} of them, {len(tables[party]) - n} more are left out" for party, n in both.items()
        ]
        rank_zero_info(f"{type(self).__name__}: {len(ids)} joined records; {', '.join(counts)}")
        return np.sort(ids)

    def _labels(self, column: "pd.Series[Any]") -> "tuple[NDArray[np.generic], tuple[int | str, ...]]":
        party = self.label_party
        _refuse_missing(column, party)
        if self.task == "regression":
            return _numbers(column, party, "use task: classification"), ()
        values: NDArray[np.generic]
        if _as_numbers(column).isna().all():
            values = column.astype(str).to_numpy(dtype=np.str_)
        else:
            numbers = _numbers(column, party, "write all labels alike")
            if not (np.isfinite(numbers) & (numbers == np.round(numbers))).all():
                raise ConfigurationError(
                    f"labels '{self.label_column}' of party '{party}' are fractions, not classes; use task: regression"
                )
            values = numbers.astype(np.int64)
        classes, labels = np.unique(values, return_inverse=True)
        return labels.astype(np.int64), tuple(classes.tolist())

    def _features(
        self, tables: Mapping[str, "pd.DataFrame"], train_ids: "NDArray[np.generic]"
    ) -> "dict[str, tuple[NDArray[np.float64], list[tuple[str, str]]]]":
        """Each table of a group as numbers, and (name, column of the file) of its columns, the same for all."""
        trained = {party: table.index.isin(train_ids) for party, table in tables.items()}
        if idle := [party for party, rows in trained.items() if not rows.any()]:
            raise ConfigurationError(
                f"party '{idle[0]}' holds none of the {len(train_ids)} training records; use another seed or overlap, "
                "or leave its table out"
            )
        numbers: list[NDArray[np.float64]] = []
        names: list[tuple[str, str]] = []
        for named in zip(*(table.items() for table in tables.values()), strict=True):
            columns = {party: column for party, (_, column) in zip(tables, named, strict=True)}
            for party, column in columns.items():
                _refuse_missing(column, party)
            name = str(named[0][0])
            if name in self.categorical:
                text = np.concatenate([column.astype(str).to_numpy(dtype=np.str_) for column in columns.values()])
                indicators, categories = one_hot(text, np.concatenate([*trained.values()]))
                numbers += [*indicators.T]
                names += [(f"{name}={category}", name) for category in categories]
            else:
                fix = "list the column under categorical"
                numbers.append(np.concatenate([_numbers(column, party, fix) for party, column in columns.items()]))
                names.append((name, name))
        rows = sum(len(table) for table in tables.values())
        block = np.stack(numbers, axis=1) if numbers else np.empty((rows, 0))
        ends = np.cumsum([len(table) for table in tables.values()])
        return {party: (own, names) for party, own in zip(tables, np.split(block, ends[:-1]), strict=True)}


def _kind(ids: "pd.Series[Any] | pd.Index[Any]") -> str:
    from pandas.api.types import is_integer_dtype, is_string_dtype

    return "whole numbers" if is_integer_dtype(ids) else "text" if is_string_dtype(ids) else str(ids.dtype)


def _plain(ids: "pd.Index[Any]") -> "NDArray[np.generic]":
    plain: NDArray[np.generic] = ids.to_numpy(dtype=np.int64 if _kind(ids) == "whole numbers" else np.str_)
    return plain


def _listed(names: Iterable[object]) -> str:
    some = [str(name) for name in names]
    return ", ".join(some[:12]) + (", ..." if len(some) > 12 else "")


def _refuse_missing(column: "pd.Series[Any]", party: str) -> None:
    missing = column.isna()
    if missing.any():
        raise ConfigurationError(
            f"{int(missing.sum())} values of column '{column.name}' of party '{party}' are missing, first of record "
            f"{column.index[missing][0]}; fill them in or remove the records"
        )


def _as_numbers(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """The column's numbers, NaN where it has text (or dates, or anything else)."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(column):
        return column
    return pd.to_numeric(column.astype(str), errors="coerce")


def _numbers(column: "pd.Series[Any]", party: str, fix: str) -> "NDArray[np.float64]":
    numbers = _as_numbers(column)
    text = numbers.isna()
    if text.any():
        first = f"first '{column[text].iloc[0]}' of record {column.index[text][0]}"
        count = int(text.sum())
        what = "is text" if text.all() else f"mixes {len(text) - count} numbers and {count} texts"
        raise ConfigurationError(f"column '{column.name}' of party '{party}' {what} ({first}); correct it or {fix}")
    return numbers.to_numpy(dtype=np.float64)
