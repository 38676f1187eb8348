"""Tables of several parties, one file for each, joined on the ids of the records."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from lightning_vfl.errors import ConfigurationError, nearest
from lightning_vfl.trained.fitted import Fitted
from lightning_vfl.types import Seat

from ..base import VerticalDataModule
from ..partitioners.partition import Partitioner, Views
from ..record_splits import RecordSplit, ToDivide
from ..records.column_encoder import ColumnEncoder, Unseen
from ..records.column_encoders import encode_table, encoder_of, fit_encoders, of_texts, training_rows
from ..records.grouped_tables import add_singles, align_columns, check_names
from ..records.joined_tables import check_label_column, joined_ids, read_tables
from ..records.layout import Layout
from ..records.normalise import Normaliser, Standardise, StandardiseNumbers
from ..records.party_tables import listed, plain_ids, read_labels, read_targets
from ..records.preprocess import Preprocess, taken_from
from ..records.records import Split, SplitName
from ..records.steps_table import TableRow, steps_table
from ..records.told_records import ToldRecords
from ..split import check_shares, split_rows
from .seated_parties import find_parties
from .seated_tables import SeatedTables

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


@dataclass(frozen=True)
class _Joined:
    """The records of all parties: N sorted ids, the tables of the parties, labels and split column as in the file."""

    ids: "NDArray[np.generic]"
    tables: "dict[str, pd.DataFrame]"
    groups: tuple[tuple[str, ...], ...]
    labels: "pd.DataFrame | None"
    split: "pd.Series[Any] | None"


@dataclass(frozen=True)
class _Encoded:
    """The features of all parties as numbers; who holds which record."""

    features: Tensor
    present: Tensor | None
    layout: Layout
    groups: tuple[tuple[int, ...], ...]


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
        label_column: the column of the labels; or several columns, which are true or false (task ``classification``,
            objective ``MultiLabel``) or real numbers (``regression``, objective ``Regression``).
        id_column: the column of the ids, the same in every file; whole numbers or text.
        data_dir: the folder in which relative file names are looked up; None: the working folder.
        task: ``classification``: labels are whole numbers or texts, numbered in sorted order, see ``classes``;
            ``regression``: labels are real numbers.
        overlap: ``inner``: only records that every party holds, or one party of every group. ``keep``: every record of
            the label party; if another party does not hold a record, that party's features are zero and ``present``
            is False. A record without a label is left out in both cases, because neither a loss nor a metric can be
            computed for it; the counts are printed.
        categorical: columns to encode one-hot, in every file that has them.
        unseen: what to do with a category that no training record has: ``ignore`` encodes it as zeros, ``own`` as a
            column of its own, ``error`` refuses it.
        preprocess: how columns become numbers. ``auto`` chooses by the training rows, see ``choose_steps``; party ->
            column -> steps, see ``read_steps``, where other columns are ``auto``. What is done is printed. None: all
            columns but those of ``categorical`` must be numbers, and missing values are refused.
        separator: the character between the fields of a CSV file.
        val_share: share of the records for validation; 0: none.
        test_share: share of the records for testing (and prediction); 0: none.
        split: a rule that divides the records: ``GivenSplit``, ``GroupedSplit``, ``TimeSplit``, ``Folds``; None: at
            random, stratified by class.
        groups: tables that form a group, each group a list of names; every other table is alone, and so is the table of
            the label party. Tables of a group need the same columns, in any order: the order of the first is used.
        public_categories: declare public what is taken from the training records: categories, and with ``preprocess``
            imputation values and quantiles; see ``private_statistics``.
        new_records: the tables hold records that the model was not trained on: all of them are tested.
        loader: further settings of ``VerticalDataModule``. Without a ``partitioner`` each table is a party; with one
            the joined columns are divided anew (with ``inner`` only, and without ``groups``).

    A trained model takes new tables: columns in any order, and it predicts ALL their records. The label column, and a
    table that holds only labels, may be missing then. Rows without a label are predicted too.

    Guarantee: categories, like scaling, come from the training rows alone, and belong to the trained model: new tables
        are encoded and scaled with them, whatever other records stand beside a record. The number of records of other
        categories is printed. The tables of a group have the same columns after encoding too: their categories come
        from the training rows of all of them. The splits of a classification are stratified by class. Without
        ``preprocess`` no value is guessed: missing, mixed or ambiguous values are refused with their count, in joined
        records (ids: in all records). With it every step is fitted to the training rows alone.
    Not guaranteed: a private join. All files are read here, and every party learns which records they have in common.

    Raises:
        ConfigurationError: for files that cannot be read or joined, columns that are not numbers, and tables with other
            columns or classes than those that the model was trained on.
    """

    own_files = True
    _files: SeatedTables | None = None
    _told: ToldRecords | None = None  # in a process that reads one of the tables
    data_settings = ("task", "overlap", "categorical", "val_share", "test_share", "groups")

    def __init__(
        self,
        tables: Mapping[str, str | Path],
        label_party: str,
        label_column: str | list[str],
        *,
        id_column: str = "id",
        data_dir: str | Path | None = None,
        task: Literal["classification", "regression"] = "classification",
        overlap: Literal["inner", "keep"] = "inner",
        categorical: Sequence[str] = (),
        unseen: Literal["ignore", "own", "error"] = "ignore",
        preprocess: str | dict[str, Any] | None = None,
        separator: str = ",",
        val_share: float = 0.1,
        test_share: float = 0.2,
        split: RecordSplit | None = None,
        groups: Sequence[Sequence[str]] = (),
        public_categories: bool = False,
        new_records: bool = False,
        **loader: Any,
    ) -> None:
        if unseen not in list(Unseen):
            raise ConfigurationError(f"unseen '{unseen}' is unknown; use {', '.join(Unseen)}")
        self.preprocess = preprocess  # before the base class, which asks for the default normaliser
        self._preprocess = Preprocess.of(preprocess, tables, categorical, Unseen(unseen)) if preprocess else None
        super().__init__(**loader)
        if task not in ("classification", "regression"):
            raise ConfigurationError(f"task '{task}' is unknown; use classification or regression")
        if overlap not in ("inner", "keep"):
            raise ConfigurationError(f"overlap '{overlap}' is unknown; use inner or keep")
        if overlap == "keep" and not isinstance(self.partitioner, Views):
            raise ConfigurationError(
                f"with overlap 'keep' the tables must be the parties; leave out {type(self.partitioner).__name__} or "
                "use overlap: inner"
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
        self.unseen = Unseen(unseen)
        self.separator = separator
        self.new_records = new_records
        self.public_categories = public_categories
        self.val_share = val_share
        self.test_share = test_share
        self.split = split

    @property
    def layout(self) -> Layout:
        return self._encoded.layout if self._files is None else self._files.layout

    @property
    def classes(self) -> tuple[int | str, ...]:
        """The labels as the file has them: label c of a batch is ``classes[c]``; empty for a regression."""
        return self.fitted.class_names if self.fitted is not None else self._labels[1]

    @property
    def class_names(self) -> tuple[int | str, ...]:
        return self.classes

    @property
    def num_classes(self) -> int | None:
        return len(self.classes) if self.task == "classification" and not self.targets else None

    @property
    def targets(self) -> tuple[str, ...]:
        return () if isinstance(self.label_column, str) else tuple(self.label_column)

    @property
    def _label_columns(self) -> tuple[str, ...]:
        return self.targets or (str(self.label_column),)

    @property
    def party_names(self) -> tuple[str, ...]:
        return find_parties(self) if self._files is None else self._files.names

    @property
    def party_groups(self) -> tuple[tuple[int, ...], ...]:
        return self._encoded.groups if self.groups else self.partitioner.groups(len(self.party_shapes))

    def default_partitioner(self) -> Partitioner:
        return Views()

    def default_normaliser(self) -> Normaliser:
        return StandardiseNumbers() if self.preprocess else Standardise()

    def private_statistics(self) -> tuple[str, ...]:
        found = super().private_statistics()
        if not self.preprocess or self.public_categories:
            return found
        what = taken_from(self._encoders)
        told = (
            f"its preprocessing takes from the training records {what}; declare it public (public_categories: true), "
            "or give steps that take nothing from them: impute: constant, log, date, boolean, ordinal with an order"
        )
        return (*found, told) if what else found

    def use(self, fitted: Fitted | None) -> None:
        if fitted is not None and "encoders" in fitted.own:
            trained = {state["kind"] for states in fitted.own["encoders"].values() for state in states}
            stepped = not trained.isdisjoint(("chain", "left_out"))
            if trained and stepped != bool(self.preprocess):
                told = ("with preprocess", "without it") if stepped else ("without preprocess", "with it")
                raise ConfigurationError(
                    f"the model was trained {told[0]}, these tables are read {told[1]}; give the same preprocess"
                )
        super().use(fitted)

    def state_dict(self) -> dict[str, Any]:
        return {"preprocess": self.preprocess} | super().state_dict() | {"split": repr(self.split)}

    def own_fitted(self) -> Mapping[str, Any]:
        """Party -> the encoders of its columns, in the order of the model's parties; the names of several labels."""
        encoders = {party: [e.state() for e in own] for party, own in self._encoders.items()}
        return {"encoders": encoders} | ({"targets": list(self.targets)} if self.targets else {})

    def forget(self) -> None:
        super().forget()
        for cached in ("_joined", "_labels", "_rows", "_encoders", "_encoded"):
            self.__dict__.pop(cached, None)

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        joined, encoded, splits = self._joined, self._encoded, {}
        for name in names:
            whole = name == "predict"
            rows = np.arange(len(joined.ids)) if whole else self._rows[name]
            if len(rows):
                labels = None if whole or self._unlabelled else self._labels[0][rows]
                present = None if encoded.present is None else encoded.present[rows]
                splits[name] = Split(encoded.features[rows], labels, joined.ids[rows], present)
        return splits

    # ---- inside

    def _files_of(self, seat: Seat, party_names: Sequence[str] | None) -> SeatedTables:
        return SeatedTables(self, seat, self.party_names if party_names is None else party_names, self.labels_at)

    @property
    def _unlabelled(self) -> bool:
        """Whether the labels are in another process."""
        return self._told is not None and not self._told.labels

    @cached_property
    def _joined(self) -> _Joined:
        tables = self._read_all()
        groups = add_singles(self.groups, tables)
        tables = align_columns(tables, groups)
        ids, told = joined_ids(tables, groups, self.overlap == "inner", self.label_party)
        rank_zero_info(f"{type(self).__name__}: {told}")
        for party in list(tables):  # one after the other: the memory of the table in the file's order is free again
            tables[party] = tables[party][tables[party].index.isin(ids)].sort_index()
        own = tables.get(self.label_party)
        named = [name for name in self._label_columns if own is not None and name in own]
        labels = None if own is None or len(named) < len(self._label_columns) else own[named]
        if own is not None and named:
            tables[self.label_party] = own = own.drop(columns=named)
        column = None if self.split is None else self.split.column
        optional = self.fitted is not None or self._unlabelled
        if column is None or (optional and (own is None or column not in own)):
            return _Joined(ids, tables, groups, labels, None)
        if own is None or column not in own:
            there = () if own is None else map(str, own)
            raise ConfigurationError(
                f"split names column '{column}', which party '{self.label_party}' does not have; "
                + nearest(column, there)
            )
        return _Joined(ids, tables, groups, labels, own.pop(column))

    @cached_property
    def _labels(self) -> tuple[Tensor, tuple[int | str, ...]]:
        """(N,) the labels of the joined records, and the classes as the file has them."""
        if self._files is not None:
            return self._files.labels
        if self._told is not None and not self._told.labels:
            return torch.empty(0), self._told.classes
        column, classification = self._joined.labels, self.task == "classification"
        if column is None:
            raise ConfigurationError(
                f"the tables have no label column '{self.label_column}' of label_party '{self.label_party}', which "
                "training and tests need; give it, or predict these records"
            )
        if self.targets:
            return torch.from_numpy(read_targets(column, self.label_party, classification)), ()
        trained = self.fitted.class_names if self.fitted is not None else ()
        labels, classes = read_labels(column[self._label_columns[0]], self.label_party, classification, trained)
        return torch.tensor(labels, dtype=torch.int64 if classification else torch.float32), classes

    @cached_property
    def _rows(self) -> "Mapping[SplitName, NDArray[np.int64]]":
        """The positions of the records of each split."""
        if self._told is not None and (rows := self._told.rows(self._joined.ids)) is not None:
            return rows
        every = np.arange(len(self._joined.ids))
        if self.new_records:
            if self.fitted is None:
                raise ConfigurationError(
                    "new_records: true needs a trained model, because nothing can be fitted to new records; give "
                    "--ckpt_path, or leave new_records out"
                )
            return {"train": every[:0], "val": every[:0], "test": every, "predict": every}
        stratify = self._labels[0].numpy() if self.num_classes is not None else None
        if self.split is None:
            return split_rows(every, self.seed, self.val_share, self.test_share, stratify)
        shares = (self.seed, self.val_share, self.test_share)
        return self.split.rows(ToDivide(len(every), self._joined.split, self.label_party, stratify, *shares))

    @cached_property
    def _encoders(self) -> dict[str, tuple[ColumnEncoder, ...]]:
        """Party -> the encoders of its columns: those of the trained model, or fitted to the training rows."""
        if self.fitted is not None:
            own = self.fitted.own["encoders"]
            return {party: tuple(encoder_of(state) for state in states) for party, states in own.items()}
        if self._files is not None:
            return self._files.encoders
        joined, encoders = self._joined, {}
        with_column = {str(column) for table in joined.tables.values() for column in table}
        if unknown := [column for column in self.categorical if column not in with_column]:
            raise ConfigurationError(
                f"categorical names column '{unknown[0]}', which no party has; they have {listed(sorted(with_column))}"
            )
        train, rows = joined.ids[self._rows["train"]], list[TableRow]()
        if self._preprocess is not None:
            self._preprocess.check_columns(joined.tables)
        for group in joined.groups:
            tables = {party: joined.tables[party] for party in group}
            if self._preprocess is None:
                own = fit_encoders(tables, train, self.categorical, self.unseen)
            else:
                own, told = self._preprocess.fit(tables, training_rows(tables, train))
                rows += told
            encoders.update(dict.fromkeys(group, own))
        if rows:
            rank_zero_info(f"{type(self).__name__}: preprocessing, fitted to training records\n{steps_table(rows)}")
        return {party: encoders[party] for party in joined.tables}

    @cached_property
    def _encoded(self) -> _Encoded:
        used = {party: [encoder for encoder in own if encoder.names] for party, own in self._encoders.items()}
        joined, encoders = self._joined, {party: own for party, own in self._encoders.items() if used[party]}
        if absent := [party for party in encoders if party not in joined.tables]:
            raise ConfigurationError(
                f"the model was trained with a table of party '{absent[0]}', which is not among tables; give the "
                f"tables of {', '.join(encoders)}"
            )
        if more := [
            party for party, table in joined.tables.items() if not self._encoders.get(party) and len(table.columns)
        ]:
            raise ConfigurationError(
                f"the model was trained without features of party '{more[0]}'; leave its table out, or its columns"
            )
        if not encoders:
            raise ConfigurationError(f"no party has a column besides '{self.id_column}' and the labels; add features")
        uses = Counter(encoder.column for own in self._encoders.values() for encoder in own)
        names: list[str] = []
        held, views = [], {}
        records, width = len(joined.ids), sum(len(encoder.names) for own in encoders.values() for encoder in own)
        features = np.zeros((records, width))  # scaled before it is float32: timestamps need the precision
        for party, own in encoders.items():
            table = joined.tables[party]
            holds = np.ones(records, bool) if len(table) == records else np.isin(joined.ids, plain_ids(table.index))
            views[party] = sum(len(encoder.names) for encoder in own)
            features[holds, len(names) : len(names) + views[party]] = encode_table(table, own, party)
            joined.tables[party] = table[[]]  # the memory of its columns is free again
            held.append(holds)
            names += [
                f"{party}.{name}" if uses[encoder.column] > 1 else name for encoder in own for name in encoder.names
            ]
        number = {party: m for m, party in enumerate(views)}
        return _Encoded(
            torch.from_numpy(features),
            torch.from_numpy(np.stack(held, axis=1)) if self.overlap == "keep" or self.groups else None,
            Layout((len(names),), tuple(names), tuple(views.values()), tuple(views)),
            tuple(tuple(number[party] for party in group) for group in joined.groups if group[0] in number),
        )

    def _read_all(self) -> "dict[str, pd.DataFrame]":
        """Party -> its table, its ids as the index."""
        text: dict[str, Collection[str] | None] = {party: self._texts(party) for party in self.tables}
        if self._preprocess is not None:  # all codes of one table of a group may look like numbers
            text |= dict.fromkeys((party for group in self.groups for party in group), None)
        tables = read_tables(self.tables, self.id_column, self.separator, text) if self.tables else {}
        tables |= self._told.tables() if self._told is not None else {}
        if self.fitted is None and not self._unlabelled:
            for name in self._label_columns:
                check_label_column(tables, self.label_party, name)
        return tables

    def _texts(self, party: str) -> list[str]:
        """The columns to read as text."""
        if self.fitted is None:
            return [*self.categorical, *(self._preprocess.texts(party) if self._preprocess else ())]
        return [*(encoder.column for encoder in self._encoders.get(party, ()) if of_texts(encoder))]
