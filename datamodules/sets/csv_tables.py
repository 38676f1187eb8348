"""Tables of several parties, one file for each, joined on the ids of the records."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import proxy

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols.checks import callbacks_of
from lightning_vfl.protocols.hooks import toolkit_hook
from lightning_vfl.trained.fitted import FittedParty
from lightning_vfl.types import Parties

from ..partitioners.partition import Views
from ..record_splits import RecordSplit
from ..records.checks import refuse_infinite
from ..records.column_encoder import ColumnEncoder, Unseen
from ..records.column_tables import ColumnTable
from ..records.feature_stores import FeatureStore
from ..records.frames import Frame, files_of_frames
from ..records.grouped_tables import check_names
from ..records.joined_tables import TableReader, paths_of
from ..records.modal_columns import located, modal_settings
from ..records.normalise import Normaliser, Standardise, StandardiseNumbers
from ..records.party_tables import listed, plain_ids, refuse_unknown_parties
from ..records.preprocess import Preprocess, taken_from
from ..records.records import Split, SplitName
from ..records.weight_of_evidence import PUBLIC
from ..records.work_folders import refuse_stored
from .prepared_tables import PreparedTables, text_columns
from .seated_tables import SeatedTables
from .tables_of_parties import TablesOfParties

if TYPE_CHECKING:
    from numpy.typing import NDArray


class CSVTables(TablesOfParties):
    """One table for each party, a file or a frame, with record ids in each of them, and labels in one.

    Records are joined on their ids, in sorted order, so the order of rows in a file does not matter. The features of
    every party are a view; a party whose file has only ids (and labels) is not a feature party. Columns keep their
    names; a name that several parties use becomes ``party.column``, and a category ``column=category``. Tables of a
    group hold the same columns for different records: for example shops of a chain, each with its own customers.

    Args:
        tables: party -> its file or frame, see ``TablesOfParties``.
        label_party: the party whose file holds the labels.
        label_column: the column of the labels; or several columns, which are true or false (task ``classification``,
            objective ``MultiLabel``) or real numbers (``regression``, objective ``Regression``).
        label_copies: parties whose files have ``label_column`` too; their copies are no features, and must agree with
            the labels of ``label_party``. Between processes, ``EnsembleVFL`` and ``LaserVFL`` need one at every party.
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
        decimal: the decimal mark, ``.`` or ``,``, of numbers as people write them, of all parties or party -> mark;
            the other mark stands for thousands. None: found in each column. Needs ``preprocess``.
        split: a rule that divides the records: ``GivenSplit``, ``GroupedSplit``, ``TimeSplit``, ``StratifiedLabels``,
            ``Folds``; None: at random, stratified by class.
        groups: tables that form a group, each group a list of names; every other table is alone, and so is the table of
            the label party. Tables of a group need the same columns, in any order: the order of the first is used.
        public_categories: declare public what is taken from the training records: categories, and with ``preprocess``
            imputation values and quantiles; see ``private_statistics``.
        label_counts: what other parties than ``label_party`` are given of the labels for the steps ``woe`` of their
            columns: a number, which is ε of all these columns together: counts of labels with noise; ``public``: counts
            in the clear. None: nothing, and such steps are refused.
        new_records: the tables hold records that the model was not trained on: all of them are tested.
        sample_weight: a column of the label party, which is then no feature: how much a training record counts in the
            loss, numbers from 0. They are divided by their mean over the training records. Metrics are not weighted.
        pictures: party -> the column of its table that names picture files (PNG, JPEG) beside the table, or a mapping
            of ``column``, ``size`` (64) and ``colour`` (true). Its features are then pictures (C, size, size).
        texts: party -> the column of its table that is text, or a mapping of ``column``, ``words`` (10000, the most
            frequent of the training records), ``length`` (64 words) and ``vocabulary`` (a file with a word a line).
            Its features are then the numbers of the words (length,); 0 is padding, 1 an unknown word.
        extra: party -> a file or frame of records that the other parties do not have, with the columns of its table; or
            the party's own table again, for its records that are not joined. They need no label, and ``Pretraining``
            alone uses them.
        settings: ``id_column``, ``data_dir``, ``separator``, ``encoding``, ``val_share``, ``test_share`` and
            ``work_dir`` of ``TablesOfParties``, and further settings of ``VerticalDataModule``. Without a
            ``partitioner`` each table is a party; with one the joined columns are divided anew (with ``inner`` only,
            and without ``groups``).

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

    _files: SeatedTables | None = None
    cached = ("_prepared",)
    data_settings = (
        "task",
        "overlap",
        "categorical",
        "val_share",
        "test_share",
        "groups",
        "sample_weight",
        "pictures",
        "texts",
    )

    def __init__(
        self,
        tables: Mapping[str, Any],  # with Frame in it, the command line would read files as tables of tables
        label_party: str,
        label_column: str | list[str],
        *,
        label_copies: Sequence[str] = (),
        task: Literal["classification", "regression"] = "classification",
        overlap: Literal["inner", "keep"] = "inner",
        categorical: Sequence[str] = (),
        unseen: Literal["ignore", "own", "error"] = "ignore",
        preprocess: str | dict[str, Any] | None = None,
        decimal: str | dict[str, str] | None = None,
        split: RecordSplit | None = None,
        groups: Sequence[Sequence[str]] = (),
        public_categories: bool = False,
        label_counts: Literal["public"] | float | None = None,
        new_records: bool = False,
        sample_weight: str | None = None,
        pictures: dict[str, Any] | None = None,
        texts: dict[str, Any] | None = None,
        extra: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        if unseen not in list(Unseen):
            raise ConfigurationError(f"unseen '{unseen}' is unknown; use {', '.join(Unseen)}")
        self.preprocess = preprocess  # before the base class, which asks for the default normaliser
        self.steps = Preprocess.of(preprocess, tables, categorical, Unseen(unseen))
        if decimal is not None:
            if not preprocess:
                raise ConfigurationError(
                    f"decimal {decimal} needs preprocess, which reads numbers; give preprocess: auto"
                )
            self.steps = self.steps.with_decimals(decimal, tables)
        super().__init__(tables, label_party, **settings)
        if not self.id_columns:
            raise ConfigurationError("CSVTables joins tables on their ids; give id_column, or use ParquetTables")
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
        self.pictures = pictures
        self.texts = texts
        self.modal = modal_settings(pictures, texts, tables)
        for party in self.modal:
            if not isinstance(self.partitioner, Views) or any(party in group for group in self.groups):
                raise ConfigurationError(
                    f"pictures and texts of party '{party}' need a table that is a party of its own; leave "
                    "partitioner and groups out"
                )
        self.label_counts = label_counts
        self._check_counted(label_party, label_column, task)
        self.label_column = label_column
        self.label_copies = tuple(label_copies)
        refuse_unknown_parties("label_copies", self.label_copies, tables)
        # pictures lie beside the table that names them; those of a frame in data_dir
        beside = {party: Path(self.data_dir or ".") for party, table in tables.items() if isinstance(table, Frame)}
        self.folders = {party: path.parent for party, path in self.tables.items()} | beside
        if extra is not None and not isinstance(extra, Mapping):
            raise ConfigurationError(
                f"extra must be a dictionary from party to file or frame; got a {type(extra).__name__}"
            )
        again = {
            party: self.tables[party] if isinstance(table, Frame) and table is tables.get(party) else table
            for party, table in (extra or {}).items()
        }
        self._check_extra(again)
        more, self._extra_frames = files_of_frames(again, self.id_columns, self.work_dir, "extra")
        self.extra = paths_of(more, self.data_dir)
        self.task = task
        self.overlap = overlap
        self.categorical = tuple(categorical)
        self.unseen = Unseen(unseen)
        self.new_records = new_records
        self.sample_weight = sample_weight
        self.public_categories = public_categories
        self.split = split
        self._said: set[str] = set()

    @property
    def classes(self) -> tuple[int | str, ...]:
        """The labels as the file has them: label c of a batch is ``classes[c]``; empty for a regression."""
        return self.fitted.class_names if self.fitted is not None else self._source.labels[1]

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
    def left_out(self) -> "Mapping[str, NDArray[np.generic]]":
        return self._source.left_out

    @property
    def everybody_holds(self) -> bool:  # type: ignore[override]  # it follows from the settings
        return self.overlap != "keep" and not self.groups

    @property
    def has_classes(self) -> bool:
        return self.task == "classification"

    @property
    def counted(self) -> Sequence[tuple[str, str]]:
        return self.steps.counted

    @property
    def label_columns(self) -> tuple[str, ...]:
        """The columns of the labels."""
        return self.targets or (str(self.label_column),)

    @property
    def party_names(self) -> tuple[str, ...]:
        return self._source.names

    @property
    def party_groups(self) -> tuple[Parties, ...]:
        return self._prepared.form.groups if self.groups else self.partitioner.groups(len(self.party_shapes))

    def default_normaliser(self) -> Normaliser:
        return StandardiseNumbers() if self.preprocess else Standardise()

    def private_statistics(self) -> tuple[str, ...]:
        found = super().private_statistics()
        if self.sample_weight is not None:
            found += (
                "its sample weights are divided by their mean over the training records; leave sample_weight out",
            )
        if not (self.preprocess or self.texts) or self.public_categories:
            return found
        what = taken_from(self._source.encoders)
        told = (
            f"its preprocessing takes from the training records {what}; declare it public (public_categories: true), "
            "or give steps that take nothing from them: impute: constant, log, date, boolean, ordinal with an order, "
            "vocabulary of texts"
        )
        return (*found, told) if what else found

    def label_statistics(self) -> tuple[str, ...]:
        columns = [f"{party}.{name}" for party, name in self.counted]
        return (f"woe of {', '.join(columns)}; use another step",) if columns else ()

    @toolkit_hook
    def state_dict(self) -> dict[str, Any]:
        return {"preprocess": self.preprocess} | super().state_dict() | {"split": repr(self.split)}

    def own_fitted(self) -> Mapping[str, Any]:
        """Party -> the encoders of its columns, in the order of the model's parties; the names of several labels."""
        encoders = {party: [e.state() for e in own] for party, own in self._source.encoders.items()}
        return {"encoders": encoders} | ({"targets": list(self.targets)} if self.targets else {})

    def forget(self) -> None:
        super().forget()
        self._prepared.forget()

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        """The records of these splits before they are divided, as float64."""
        return {
            name: replace(split, features=self._prepared.encoded[torch.from_numpy(self._prepared.rows_of(name))])
            for name, split in self._prepared.splits(names, list(self._prepared.form.encoders)).items()
        }

    def _open(
        self, names: tuple[SplitName, ...], missing: Sequence[SplitName]
    ) -> tuple[Mapping[SplitName, Split], FeatureStore]:
        """The table of the seat, or all tables themselves if each of them is a party; else all joined columns."""
        if self._files is not None:
            return self._files.splits(names), self._files
        if isinstance(self.partitioner, Views):
            return self._prepared.splits(names, list(self._prepared.form.encoders)), self._prepared
        refuse_stored(self._prepared.work, self.partitioner)
        return super()._open(names, missing)

    @toolkit_hook
    def setup(self, stage: str) -> None:
        super().setup(stage)
        if stage != "fit" or not self.extra or self.trainer is None:
            return
        if not any(getattr(callback, "uses_extra", False) for callback in callbacks_of(self.trainer)):
            rank_zero_warn(
                f"extra records of {', '.join(self.extra)} are given and not used; add the callback Pretraining, or "
                "leave extra out"
            )

    def extra_of(self, party: int) -> Tensor | None:
        name = self.party_names[party]
        if name not in self.extra or self.fitted is None:
            return super().extra_of(party)
        tables = self._prepared if self._files is None else self._files.prepared
        reader = TableReader({name: self.extra[name]}, self.id_columns, self.forms, self.work_dir)
        own = self.extra[name] == self.tables[name]
        read = reader.take(text_columns(self, [name]))[name]
        total = len(read)
        table = not_joined(read, tables.joined.ids, name, own)
        folder = self.folders[name] if own else self.extra[name].parent
        encoders = tables.encoders[name]
        columns = listed(encoder.column for encoder in encoders if encoder.names)
        records = prepared(table, encoders, self.fitted.parties[party], folder, (party, name))
        self.say(
            f"{len(table)} extra records of party '{name}'"
            + (f", {total - len(table)} joined ones are left out" if own else "")
            + f"; prepared as its training records: {columns}"
        )
        return records

    # ---- inside

    def _check_extra(self, extra: Mapping[str, Any]) -> None:
        """Accept extra records of parties that have a table of their own."""
        refuse_unknown_parties("extra", extra, self.id_columns)
        if extra and (self.groups or not isinstance(self.partitioner, Views)):
            raise ConfigurationError(
                "extra records need tables that are parties of their own; leave partitioner and groups out"
            )

    def _check_counted(self, label_party: str, label_column: str | list[str], task: str) -> None:
        """Accept steps that need counts of the labels, if these are classes and may be counted for the parties."""
        release = self.label_counts
        if release is not None and release != PUBLIC and (isinstance(release, str) or not 0 < release < float("inf")):
            raise ConfigurationError(f"label_counts must be an ε above 0, or public; got {release}")
        others = [f"'{name}' of party '{party}'" for party, name in self.counted if party != label_party]
        if self.counted and (task != "classification" or not isinstance(label_column, str)):
            raise ConfigurationError("woe takes one label of two classes; use another step")
        if others and release is None:
            raise ConfigurationError(
                f"woe of column {others[0]} needs counts of the labels, which '{label_party}' has; give label_counts: "
                "an ε such as 1.0 (counts with noise), or public (counts in the clear)"
            )
        if not others and release is not None:
            raise ConfigurationError("label_counts is for steps woe of other parties, and there are none; leave it out")

    def _files_of(self, party_names: Sequence[str] | None) -> SeatedTables:
        return SeatedTables(self, self.party_names if party_names is None else party_names)

    @property
    def _source(self) -> PreparedTables | SeatedTables:
        """The tables of this process."""
        return self._prepared if self._files is None else self._files

    @cached_property
    def _prepared(self) -> PreparedTables:
        """The tables of all parties."""
        # a proxy: without a circle of references, the memory is free with the last reference to this object
        return PreparedTables(proxy(self), TableReader(self.tables, self.id_columns, self.forms, self.work_dir))

    def say(self, text: str) -> None:
        """Print what was done with the tables, once."""
        if text not in self._said:
            rank_zero_info(f"{type(self).__name__}: {text}")
        self._said.add(text)


def not_joined(table: ColumnTable, joined: "NDArray[np.generic]", party: str, own: bool) -> ColumnTable:
    """The records whose ids are not among the joined ones.

    Args:
        table: of the party.
        joined: (N,) the ids of all joined records, also of those for validation and for tests.
        party: its name, for the error.
        own: the table is the one that was joined, so that an id names the same record in both.

    Raises:
        ConfigurationError: for such an id in another table, because features of test records might be trained on, and
            for ids of another kind, among which it would not be found.
    """
    ids = plain_ids(table.index)
    if len(ids) and ids.dtype.kind != joined.dtype.kind:
        kinds = {"i": "whole numbers", "U": "texts"}
        raise ConfigurationError(
            f"the ids of the extra records of party '{party}' are {kinds[ids.dtype.kind]} such as {ids[0]}, and those "
            f"of joined records {kinds[joined.dtype.kind]} such as {joined[0]}; write them in the same form, because "
            "joined records may be for tests"
        )
    shared = np.isin(ids, joined)
    if shared.any() and not own:
        raise ConfigurationError(
            f"{int(shared.sum())} of the {len(ids)} extra records of party '{party}' have ids of joined records, first "
            f"{ids[shared][0]}, which may be for tests; leave them out, or give the party's own table"
        )
    return table.in_order(np.flatnonzero(~shared))


def prepared(
    table: ColumnTable, encoders: Sequence[ColumnEncoder], fitted: FittedParty, folder: Path, party: tuple[int, str]
) -> Tensor:
    """(n, *S_m) float32, the records with the steps and the scaling that were fitted to the training records.

    Args:
        table: of the party; columns without an encoder are not read.
        encoders: of its columns.
        fitted: its scaling.
        folder: in which names of pictures are looked up.
        party: its number and its name.

    Raises:
        ConfigurationError: for columns that are missing, and values that cannot be used.
    """
    used = [encoder for encoder in located(encoders, folder) if encoder.names]
    if missing := [encoder.column for encoder in used if encoder.column not in table]:
        raise ConfigurationError(
            f"the extra records of party '{party[1]}' are without {listed(missing)}, which its table has; give them "
            "the same columns"
        )
    ids = plain_ids(table.index)
    features = torch.empty(len(table), len(fitted.shift))
    place = 0
    for encoder in used:
        encoded = encoder.encode(table[encoder.column], party[1])
        for name, column in zip(encoder.names, encoded.T, strict=True):
            refuse_infinite(column, party[0], name, ids)
            scaled = torch.tensor(column).sub_(fitted.shift[place]).div_(fitted.scale[place])
            features[:, place] = scaled
            place += 1
    return features.view(-1, *fitted.shape)
