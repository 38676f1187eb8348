"""Tables of several parties, one file for each, joined on the ids of the records."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lightning_vfl.errors import ConfigurationError

from ..base import VerticalDataModule
from ..partitioners.partition import Partitioner, Views
from ..records.grouped_tables import add_singles, align_columns, check_names, refuse_shared_ids
from ..records.layout import Layout
from ..records.party_tables import common_ids, encode_group, kind_of, listed, plain_ids, read_labels, read_table
from ..records.records import Split, SplitName
from ..split import check_shares, split_rows

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


@dataclass(frozen=True)
class _Joined:
    """All N records of all parties, and the positions of the records of each split."""

    ids: "NDArray[np.generic]"
    features: Tensor
    present: Tensor | None
    labels: Tensor
    classes: tuple[int | str, ...]
    layout: Layout
    groups: tuple[tuple[int, ...], ...]
    rows: "Mapping[SplitName, NDArray[np.int64]]"


class CSVTables(VerticalDataModule):
    """One CSV or Parquet file for each party, with record ids in each of them, and labels in one.

    Records are joined on their ids, in sorted order, so the order of rows in a file does not matter. The features of
    every party are a view; a party whose file has only ids (and labels) is not a feature party. Columns keep their
    names; a name that several parties use becomes ``party.column``, and a category ``column=category``. Tables of a
    group hold the same columns for different records: for example shops of a chain, each with its own customers.

    Args:
        tables: party -> its file; ``.parquet`` and ``.pq`` are Parquet, all others are read as CSV with a first row of
            names.
        label_party: the party whose file holds the labels.
        label_column: the column of the labels.
        id_column: the column of the ids, the same in every file; whole numbers or text.
        data_dir: the folder in which relative file names are looked up; None: the working folder.
        task: ``classification``: labels are whole numbers or texts, numbered in sorted order, see ``classes``;
            ``regression``: labels are real numbers.
        overlap: ``inner``: only records that every party holds, or one party of every group. ``keep``: every record of
            the label party; if another party does not hold a record, that party's features are zero and ``present``
            is False. A record without a label is left out in both cases, because neither a loss nor a metric can be
            computed for it; the counts are printed.
        categorical: columns to encode one-hot, in every file that has them.
        separator: the character between the fields of a CSV file.
        val_share: share of the records for validation; 0: none.
        test_share: share of the records for testing (and prediction); 0: none.
        groups: tables that form a group, each group a list of names; every other table is alone, and so is the table of
            the label party. Tables of a group need the same columns, in any order: the order of the first is used.
        public_categories: declare the training records' categories public, see ``private_statistics``.
        loader: further settings of ``VerticalDataModule``. Without a ``partitioner`` each table is a party; with one
            the joined columns are divided anew (with ``inner`` only, and without ``groups``).

    Guarantee: categories, like scaling, come from the training rows alone; a category that only other rows have is
        encoded as zeros. The tables of a group have the same columns after encoding too: their categories are read as
        text and come from the training rows of all of them. The splits of a classification are stratified by class.
        No value is guessed: missing, mixed or ambiguous values are refused with their count, in joined records (ids:
        in all records).
    Not guaranteed: a private join. All files are read here, and every party learns which records they have in common.

    Raises:
        ConfigurationError: for files that cannot be read or joined, and columns that are not numbers.
    """

    data_settings = ("task", "overlap", "categorical", "val_share", "test_share", "groups")

    def __init__(
        self,
        tables: Mapping[str, str | Path],
        label_party: str,
        label_column: str,
        *,
        id_column: str = "id",
        data_dir: str | Path | None = None,
        task: Literal["classification", "regression"] = "classification",
        overlap: Literal["inner", "keep"] = "inner",
        categorical: Sequence[str] = (),
        separator: str = ",",
        val_share: float = 0.1,
        test_share: float = 0.2,
        groups: Sequence[Sequence[str]] = (),
        public_categories: bool = False,
        **loader: Any,
    ) -> None:
        super().__init__(**loader)
        if label_party not in tables:
            raise ConfigurationError(f"label_party '{label_party}' has no table; use one of {', '.join(tables)}")
        if task not in ("classification", "regression"):
            raise ConfigurationError(f"task '{task}' is unknown; use classification or regression")
        if overlap not in ("inner", "keep"):
            raise ConfigurationError(f"overlap '{overlap}' is unknown; use inner or keep")
        if overlap == "keep" and not isinstance(self.partitioner, Views):
            raise ConfigurationError(
                f"with overlap 'keep' the tables must be the parties; leave out {type(self.partitioner).__name__} "
                f"or use "
                "overlap: inner"
            )
        self.groups = check_names(groups, tables, label_party)
        if self.groups and not isinstance(self.partitioner, Views):
            raise ConfigurationError(
                f"with groups the tables must be the parties; leave out {type(self.partitioner).__name__} or groups"
            )
        check_shares(val_share, test_share)
        self.tables = {party: Path(data_dir or ".") / path for party, path in tables.items()}
        self.label_party = label_party
        self.label_column = label_column
        self.id_column = id_column
        self.task = task
        self.overlap = overlap
        self.categorical = tuple(categorical)
        self.separator = separator
        self.public_categories = public_categories
        self.val_share = val_share
        self.test_share = test_share

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
        tables = self._read_all()
        groups = add_singles(self.groups, tables)
        tables = align_columns(tables, groups)
        ids = self._common_ids(tables, groups)
        tables = {party: table[table.index.isin(ids)].sort_index() for party, table in tables.items()}
        column = tables[self.label_party].pop(self.label_column)
        labels, classes = read_labels(column, self.label_party, self.task == "classification")
        stratify = labels if self.task == "classification" else None
        rows = split_rows(np.arange(len(ids)), self.seed, self.val_share, self.test_share, stratify)

        tables_with = Counter(str(column) for table in tables.values() for column in table)
        if unknown := [column for column in self.categorical if column not in tables_with]:
            raise ConfigurationError(
                f"categorical names column '{unknown[0]}', which no party has; they have {listed(tables_with)}"
            )
        encoded = {}
        for group in groups:
            own = {party: tables[party] for party in group}
            encoded.update(encode_group(own, ids[rows["train"]], self.categorical))
        names: list[str] = []
        blocks, held, views = [], [], {}
        for party, table in tables.items():
            holds = np.isin(ids, plain_ids(table.index))
            block, columns = encoded[party]
            names += [f"{party}.{name}" if tables_with[column] > 1 else name for name, column in columns]
            if columns:
                padded = np.zeros((len(ids), len(columns)))
                padded[holds] = block
                blocks.append(padded)
                held.append(holds)
                views[party] = len(columns)
        if not views:
            raise ConfigurationError(f"no party has a column besides '{self.id_column}' and the labels; add features")
        number = {party: m for m, party in enumerate(views)}
        return _Joined(
            ids,
            torch.from_numpy(np.hstack(blocks)).double(),  # scaled before it is float32: timestamps need the precision
            torch.from_numpy(np.stack(held, axis=1)) if self.overlap == "keep" or self.groups else None,
            torch.tensor(labels, dtype=torch.int64 if self.task == "classification" else torch.float32),
            classes,
            Layout((len(names),), tuple(names), tuple(views.values()), tuple(views)),
            tuple(tuple(number[party] for party in group) for group in groups if group[0] in number),
            rows,
        )

    def _read_all(self) -> "dict[str, pd.DataFrame]":
        """Party -> its table, its ids as the index."""
        tables = {}
        for party, path in self.tables.items():
            # in one file of a group all codes may look like numbers, in another not: 01 and x1
            text = self.categorical if any(party in group for group in self.groups) else ()
            tables[party] = read_table(path, party, self.id_column, self.separator, text)
        if self.label_column not in tables[self.label_party]:
            others = [party for party, table in tables.items() if self.label_column in table]
            raise ConfigurationError(
                f"party '{self.label_party}' has no label column '{self.label_column}', only "
                f"{listed(tables[self.label_party])}; correct label_column"
                + (f", or label_party: '{others[0]}' has such a column" if others else "")
            )
        kind = kind_of(tables[self.label_party].index)
        for party, table in tables.items():
            if kind_of(table.index) != kind:
                raise ConfigurationError(
                    f"ids of party '{party}' are {kind_of(table.index)} but those of party '{self.label_party}' are "
                    f"{kind}; write them in the same form in all files"
                )
        return tables

    def _common_ids(
        self, tables: "Mapping[str, pd.DataFrame]", groups: Sequence[tuple[str, ...]]
    ) -> "NDArray[np.generic]":
        """The sorted ids of the joined records; prints how many records each party has."""
        refuse_shared_ids(tables, groups)
        ids = common_ids(tables, [(self.label_party,)] if self.overlap == "keep" else groups)
        both = {party: int(table.index.isin(ids).sum()) for party, table in tables.items()}
        counts = [
            f"'{party}' holds {n} of them, {len(tables[party]) - n} more are left out" for party, n in both.items()
        ]
        rank_zero_info(f"{type(self).__name__}: {len(ids)} joined records; {', '.join(counts)}")
        return ids
