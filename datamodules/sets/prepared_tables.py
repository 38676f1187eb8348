"""Tables from their files to scaled features: of all parties in a simulation, of one in a federation."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_vfl.errors import ConfigurationError, nearest
from lightning_vfl.trained.fitted import Fitted

from ..record_splits import RecordSplit, ToDivide
from ..records.class_shares import class_shares, doubts_about_classes
from ..records.column_encoder import ColumnEncoder
from ..records.column_encoders import encoder_of
from ..records.column_tables import ColumnTable, MemoryTable, together
from ..records.feature_stores import ColumnsInMemory, FeatureStore
from ..records.grouped_tables import add_singles, align_columns
from ..records.joined_tables import Joined, TableReader, TextColumns, check_label_column, join
from ..records.layout import Layout, Part
from ..records.modal_columns import fit_modal, located
from ..records.normalise import Normaliser
from ..records.number_files import MappedFile, NumberFile
from ..records.party_tables import read_labels, read_targets, read_weights
from ..records.records import SPLITS, Split, SplitName, VerticalRecords
from ..records.scaled_tables import scale_tables
from ..records.steps_table import TableRow, steps_table
from ..records.table_form import TableForm, encode_tables, form_of
from ..records.weight_of_evidence import PUBLIC, LabelCounts
from ..records.work_folders import WorkFolder
from ..split import split_rows

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

ALL = "the federation"
"""Stands for the tables of all others: the records that are used."""


class Features(NamedTuple):
    """The scaled features (N, F) of all joined records, with shift and scale, each (F,), of their columns."""

    table: Tensor | MappedFile
    shift: Tensor
    scale: Tensor


@dataclass(frozen=True)
class ToldRecords:
    """The ids of records in tables of other processes.

    Args:
        ids: name of a table -> its ids; ``ALL`` -> the ids of the records that are used, once they are known.
        order: the ids of each split; None: this process divides the records.
        labels: whether this process has the labels.
    """

    ids: "Mapping[str, NDArray[np.generic]]"
    order: "Mapping[SplitName, NDArray[np.generic]] | None"
    labels: bool

    def tables(self) -> "dict[str, pd.DataFrame]":
        """The tables, without columns."""
        import pandas as pd  # 0.5 s, where it is used

        return {name: pd.DataFrame(index=pd.Index(ids)) for name, ids in self.ids.items()}

    def rows(self, ids: "NDArray[np.generic]") -> "Mapping[SplitName, NDArray[np.int64]] | None":
        """The positions of each split among the sorted ids of all records; None: they were not told."""
        if self.order is None:
            return None
        return {name: np.searchsorted(ids, self.order.get(name, ids[:0])) for name in SPLITS}


class PreparedTables(FeatureStore):
    """Tables that are read, joined, divided into splits, encoded and scaled; a step is done once, when it is asked for.

    Args:
        data: the settings, and what a trained model has fitted.
        reader: reads the files of the tables.
        told: what the other processes have told; None: all tables are here.
        party: the party whose process this is, by number and name; None: all parties, or the server.
        read: gives the tables in place of ``reader``, which is then asked again later.
    """

    def __init__(
        self,
        data: Any,
        reader: TableReader,
        told: ToldRecords | None = None,
        party: tuple[int, str] | None = None,
        read: Callable[[], dict[str, ColumnTable]] | None = None,
    ) -> None:
        self._data = data
        self._reader = reader
        self._told = told
        self._party = party
        self._read = read
        self._columns_used = False

    def forget(self) -> None:
        """Drop what depends on the fitted values; records stay joined while their columns are not encoded yet."""
        for cached in ("labels", "rows", "encoders", "form", "encoded", "features"):
            self.__dict__.pop(cached, None)
        if self._columns_used or not self._reader.has_read(self._text):
            self._columns_used = False
            for cached in ("joined", "names"):
                self.__dict__.pop(cached, None)

    # ---- records

    @cached_property
    def joined(self) -> Joined:
        """The joined records of all tables; labels, sample weights and the split column are apart from the features.

        Raises:
            ConfigurationError: for files that cannot be read or joined, and without the columns that the settings name.
        """
        data = self._data
        tables = self._reader.take(self._text) if self._read is None else self._read()
        if self._told is not None:
            tables |= {party: MemoryTable(table) for party, table in self._told.tables().items()}
        if data.fitted is None and not self._unlabelled:
            for party in (self._labelled, *(data.label_copies if self._told is None else ())):
                for name in data.label_columns:
                    check_label_column(tables, party, name)
        groups = add_singles(data.groups, tables)
        align_columns(tables, groups)
        kept = ALL if ALL in tables else data.label_party
        ids, held, left_out, counts = join(tables, groups, data.overlap == "inner", kept)
        data.say(counts)
        if self._told is not None and self._told.order is not None and len(ids) != len(self._told.ids[ALL]):
            raise ConfigurationError(
                f"the table of party '{', '.join(self._reader.paths)}' has changed since the records were aligned; "
                "align again"
            )
        table = tables.get(data.label_party)
        found = {party: self._label_columns(tables.get(party)) for party in {*data.label_copies, data.label_party}}
        labels = found.pop(self._labelled)
        for party, copy in found.items():
            self._compare(labels, copy, party, held.get(party))
        beside = {setting: self._beside(table, setting, column) for setting, column in columns_beside(data).items()}
        return Joined(ids, tables, held, groups, labels, beside["split"], beside["sample_weight"], left_out)

    @property
    def left_out(self) -> "Mapping[str, NDArray[np.generic]]":
        """Party -> the ids of its records that are not used, because some party lacks them."""
        return self.joined.left_out

    @cached_property
    def labels(self) -> tuple[Tensor, tuple[int | str, ...]]:
        """(N,) the labels of the joined records, and the classes as the file has them."""
        data = self._data
        column = self.joined.labels
        if column is None:
            raise ConfigurationError(
                f"the tables have no label column '{data.label_column}' of label_party '{data.label_party}', which "
                "training and tests need; give it, or predict these records"
            )
        return self._read_labels(column, self._labelled)

    @cached_property
    def rows(self) -> "Mapping[SplitName, NDArray[np.int64]]":
        """The positions of the records of each split; the classes in them are told before a training."""
        data = self._data
        rows = self._divided()
        if data.fitted is None and not self._unlabelled and self._stratified:
            labels, classes = self.labels
            by_split = {str(name): places for name, places in rows.items() if name != "predict" and len(places)}
            about = (str(data.label_column), classes, labels.numpy())
            data.say(class_shares(*about, by_split))
            for doubt in doubts_about_classes(*about, by_split):
                rank_zero_warn(doubt)
        return rows

    def rows_of(self, name: SplitName) -> "NDArray[np.int64]":
        """The positions of the records of a split; all are predicted, in the order of their ids or as it is told."""
        order = None if self._told is None else self._told.order
        if name == "predict" and (order is None or name not in order):
            return np.arange(len(self.joined.ids))
        return self.rows[name]

    def splits(self, names: Sequence[SplitName], parties: Sequence[str]) -> dict[SplitName, Split]:
        """Labels, ids and presence of the records of these splits; features are (0,). No labels if they are elsewhere.

        Args:
            names: of the splits; one without records is left out.
            parties: whose presence is asked for; a party of a federation knows its own.
        """
        ids = self.joined.ids
        splits = dict[SplitName, Split]()
        present = None
        if not self._data.everybody_holds:
            every = np.ones(len(ids), dtype=np.bool_)
            held = [self.joined.held.get(party) for party in parties]
            present = torch.from_numpy(np.stack([every if own is None else own for own in held], axis=1))
        for name in names:
            if len(rows := self.rows_of(name)):
                labels = None if name == "predict" or self._unlabelled else self.labels[0][rows]
                holders = None if present is None else present[rows]
                splits[name] = Split(torch.empty(0), labels, ids[rows], holders, self.weights(name))
        return splits

    def weights(self, name: SplitName) -> Tensor | None:
        """(n,) the sample weights of the training records; None for other splits, and where the labels are not."""
        column = None if name != "train" or self._unlabelled else self.joined.weights
        return (
            None if column is None else torch.from_numpy(read_weights(column, self._data.label_party, self.rows[name]))
        )

    # ---- features

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The tables that have features, by the names of their columns; a table of labels alone is no party."""
        data = self._data
        tables = self.joined.tables if "joined" in self.__dict__ else self._reader.tables(self._text)
        label = data.label_party
        alone = label in tables and not features_beside(data, tables[label])
        return tuple(name for name in data.tables if not (alone and name == label))

    @cached_property
    def encoders(self) -> dict[str, tuple[ColumnEncoder, ...]]:
        """Party -> the encoders of its columns: those of the trained model, or fitted to the training rows."""
        data = self._data
        if data.fitted is not None:
            encoders = self._trained_encoders()
        else:
            self._refuse_tables_of_ids()
            encoders = self._fitted_encoders()
        # pictures lie beside the table that names them
        return {party: located(own, data.folders.get(party, Path())) for party, own in encoders.items()}

    def _trained_encoders(self) -> dict[str, tuple[ColumnEncoder, ...]]:
        """Those of the trained model: of all parties, or in a federation of the party of this process."""
        states_of = self._data.fitted.own["encoders"]
        if self._told is None:
            known = [*states_of]
        else:
            known = [party for party in states_of if self._party is not None and party == self._party[1]]
        return {party: tuple(map(encoder_of, states_of[party])) for party in known}

    def _refuse_tables_of_ids(self) -> None:
        """Accept tables with features; those of the labels, and of groups, may be left out later."""
        data = self._data
        may_be_empty = {data.label_party, *(party for group in data.groups for party in group)}
        for party in self._reader.paths:
            if party not in may_be_empty and not len(self.joined.tables[party].columns):
                raise ConfigurationError(
                    f"the table of party '{party}' has no column besides the ids, and so no feature; leave it out"
                )

    def _fitted_encoders(self) -> dict[str, tuple[ColumnEncoder, ...]]:
        """Those that are fitted to the training rows, which is told."""
        data = self._data
        joined = self.joined
        steps = self._data.steps
        if self._told is not None:  # what the settings say of other parties is theirs to check
            name = None if self._party is None else self._party[1]
            steps = steps.of_party(name, () if name is None else tuple(joined.tables[name]))
        steps.check_columns(joined.tables)
        trained = joined.trained(self.rows["train"])
        ranges = self._normaliser.fitted  # else nothing is to be taken from the records
        counts = None if self._unlabelled else self._counts_for
        encoders: dict[str, tuple[ColumnEncoder, ...]] = {}
        table: list[TableRow] = []
        for group in joined.groups:
            first = group[0]
            if first in data.modal:
                encoders[first] = (fit_modal(data.modal[first], joined.tables[first], trained[first], first),)
                continue
            own, rows = steps.fit({party: joined.tables[party] for party in group}, trained, ranges, counts)
            encoders |= dict.fromkeys(group, own)
            table += rows
        if table and data.preprocess:
            data.say(f"preprocessing, fitted to training records\n{steps_table(table)}")
        return {party: encoders[party] for party in joined.tables}

    @cached_property
    def form(self) -> TableForm:
        """Which party has which columns of numbers, and who holds which record."""
        data = self._data
        known = data.fitted is not None
        evaluated = {} if known else {str(name): self.rows[name] for name in ("val", "test") if len(self.rows[name])}
        return form_of(self.joined, self.encoders, known, evaluated)

    @property
    def layout(self) -> Layout:
        """The form of a record."""
        return self.form.layout

    @cached_property
    def encoded(self) -> Tensor:
        """(N, F) float64, all columns side by side: they are scaled before they are float32, as timestamps need."""
        form = self.form
        self._use_columns()
        return torch.from_numpy(encode_tables(self.joined, form))

    @cached_property
    def features(self) -> Features:
        """The scaled columns of all parties."""
        joined = self.joined
        form = self.form
        fitted = self._data.fitted
        self._use_columns()
        records = len(joined.ids)
        work = self._reader.work
        store = (
            ColumnsInMemory((records, form.layout.size))
            if work is None
            else NumberFile(work, "features", np.float32, (records,))
        )
        known = None if fitted is None else fitted.parties
        if known is not None and self._party is not None:
            known = (known[self._party[0]],)
        train = self.rows["train"] if known is None else np.empty(0, np.int64)
        scaling = scale_tables(joined, form, store, self._normaliser, train, known)
        return Features(store.turned(), *scaling)

    def fit(self, normaliser: Normaliser, parts: Sequence[Part], held: Tensor | None) -> tuple[Tensor, Tensor]:
        features = self.features  # scaled column by column, so that one is in memory at a time
        return features.shift, features.scale

    def records(self, name: SplitName, fitted: Fitted, *about: Any) -> VerticalRecords:
        places = torch.from_numpy(self.rows_of(name))
        shapes = [party.shape for party in fitted.parties]
        return VerticalRecords(self.features.table, shapes, *about, places=places)

    @property
    def work(self) -> WorkFolder | None:
        """The folder in which tables are prepared; None: in memory."""
        return self._reader.work

    # ---- inside

    @property
    def _labelled(self) -> str:
        """The table with the labels: that of the label party, or in the process of another party its copy."""
        own = "" if self._party is None else self._party[1]
        party: str = own if own in self._data.label_copies else self._data.label_party
        return party

    def _label_columns(self, table: ColumnTable | None) -> "pd.DataFrame | None":
        """The columns of the labels, taken out of a table; None: they are not there."""
        names = self._data.label_columns
        named = {} if table is None else {name: table.pop(name) for name in names if name in table}
        return together(named) if len(named) == len(names) else None

    def _read_labels(self, column: "pd.DataFrame", party: str) -> tuple[Tensor, tuple[int | str, ...]]:
        data = self._data
        classification = data.task == "classification"
        if data.targets:
            return torch.from_numpy(read_targets(column, party, classification)), ()
        trained = data.fitted.class_names if data.fitted is not None else ()
        labels, classes = read_labels(column[data.label_columns[0]], party, classification, trained)
        return torch.tensor(labels, dtype=torch.int64 if classification else torch.float32), classes

    def _compare(
        self,
        labels: "pd.DataFrame | None",
        copy: "pd.DataFrame | None",
        party: str,
        held: "NDArray[np.bool_] | None",
    ) -> None:
        """Refuse a party's copy of the labels that differs from those of the label party."""
        if labels is None or copy is None or self._data.fitted is not None:
            return
        numbers, classes = self._read_labels(copy, party)
        true_numbers, true_classes = self._read_labels(labels, self._labelled)
        there = slice(None) if held is None else torch.from_numpy(held)
        if classes != true_classes or not torch.equal(numbers, true_numbers[there]):
            raise ConfigurationError(f"the labels of party '{party}' are not those of '{self._labelled}'; correct one")

    @property
    def _text(self) -> dict[str, TextColumns]:
        return text_columns(self._data, self._reader.paths)

    def _use_columns(self) -> None:
        """Note that each column of the joined tables is forgotten once it is encoded."""
        _ = self.names  # which are found by the columns
        self._columns_used = True

    @property
    def _unlabelled(self) -> bool:
        """Whether the labels are in another process."""
        return self._told is not None and not self._told.labels

    @property
    def _stratified(self) -> bool:
        return self._data.task == "classification" and not self._data.targets

    @property
    def _normaliser(self) -> Normaliser:
        normaliser: Normaliser = self._data.normaliser
        return normaliser if self._party is None else normaliser.of_party(self._party[1])

    @cached_property
    def _label_counts(self) -> LabelCounts:
        """What parties are told of the labels, once: it outlasts ``forget``."""
        data = self._data
        others = [pair for pair in data.counted if pair[0] != data.label_party]
        if others and data.label_counts != PUBLIC:
            if data.trainer is not None and data.trainer.world_size > 1:
                raise ConfigurationError(
                    "label_counts with an ε draws its noise in one process, and this training has "
                    f"{data.trainer.world_size}; use one device"
                )
            data.say(
                f"counts of labels for {len(others)} columns of other parties, with noise: ε = {data.label_counts:g} "
                "of the label of a record, for all of them together"
            )
        elif others:
            data.say(
                f"counts of labels for {len(others)} columns of other parties, in the clear (label_counts: public)"
            )
        return LabelCounts(data.label_party, data.label_counts, len(others))

    def _counts_for(
        self, parties: Sequence[str], column: str, bins: "NDArray[np.int64]", number: int
    ) -> "NDArray[np.int64]":
        """(number,) how many training records of the second class are in each bin, as these parties are told."""
        labels, classes = self.labels
        if len(classes) != 2:
            raise ConfigurationError(f"woe takes labels of two classes; got {len(classes)}; use another step")
        trained = self.joined.trained(self.rows["train"])
        by_party = []
        for party in parties:
            held = self.joined.held[party]
            of_party = labels.numpy() if held is None else labels.numpy()[held]
            by_party.append(of_party[trained[party]])
        return self._label_counts.of("+".join(parties), column, np.concatenate(by_party), bins, number)

    def _divided(self) -> "Mapping[SplitName, NDArray[np.int64]]":
        data = self._data
        joined = self.joined
        if self._told is not None and (rows := self._told.rows(joined.ids)) is not None:
            return rows
        every = np.arange(len(joined.ids))
        if data.new_records:
            if data.fitted is None:
                raise ConfigurationError("new_records: true needs a trained model; give --ckpt_path, or leave it out")
            return {"train": every[:0], "val": every[:0], "test": every, "predict": every}
        labels, classes = self.labels
        stratify = labels.numpy() if self._stratified else None
        shares = (data.seed, data.val_share, data.test_share)
        if data.split is None:
            classes = classes if data.fitted is None else data.fitted.class_names
            return split_rows(every, *shares, stratify, classes)
        flags = labels.numpy() if data.targets and data.task == "classification" else None
        split: RecordSplit = data.split
        return split.rows(ToDivide(len(every), joined.split, data.label_party, stratify, *shares, flags))

    def _beside(self, table: ColumnTable | None, setting: str, column: str | None) -> "pd.Series[Any] | None":
        """The column that a setting names, taken out of the label party's table.

        New tables may lack it, and so may a process without the labels: then it is None.
        """
        if column is None:
            return None
        if table is not None and column in table:
            return table.pop(column)
        if self._data.fitted is None and not self._unlabelled and self._labelled == self._data.label_party:
            raise ConfigurationError(
                f"{setting} names column '{column}', which party '{self._data.label_party}' does not have; "
                + nearest(column, map(str, table or ()))
            )
        return None


def columns_beside(data: Any) -> dict[str, str | None]:
    """Setting -> the column of the label party that it names, which is neither a feature nor a label; None: none."""
    return {"split": None if data.split is None else data.split.column, "sample_weight": data.sample_weight}


def features_beside(data: Any, columns: Collection[Any]) -> list[str]:
    """The columns of the label party's table that are features."""
    others = (data.id_columns[data.label_party], *data.label_columns, *columns_beside(data).values())
    return [str(name) for name in columns if name not in others]


def text_columns(data: Any, parties: Collection[str]) -> dict[str, TextColumns]:
    """Party -> which columns of its file are read as text."""
    grouped = {party for group in data.groups for party in group}
    return {party: _text_columns(data, party, party in grouped) for party in parties}


def _text_columns(data: Any, party: str, grouped: bool) -> TextColumns:
    steps = data.steps
    if steps.auto and grouped:  # all codes of one table of a group may look like numbers
        return TextColumns(None)
    labelled = party in (data.label_party, *data.label_copies)
    classes = data.label_columns if labelled and data.task == "classification" else ()
    if data.fitted is None and party in data.modal:
        return TextColumns((data.modal[party].column, *classes))
    if data.fitted is not None:
        encoders = map(encoder_of, data.fitted.own["encoders"].get(party, ()))
        return TextColumns((*classes, *(encoder.column for encoder in encoders if encoder.of_texts)))
    if steps.decimals.get(party) == ",":
        return TextColumns(None)
    no_codes = (data.id_columns[party], *data.label_columns) if steps.auto else None
    return TextColumns((*steps.texts(party), *classes), no_codes)
