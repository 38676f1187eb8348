"""Arrays in memory: one for each party, of any shape."""

import sys
from collections.abc import Mapping
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lightning_vfl.errors import ConfigurationError, reason
from lightning_vfl.trained.fitted import Fitted

from ..base import VerticalDataModule
from ..partitioners.partition import Partitioner, Views
from ..records.layout import Layout
from ..records.normalise import Normaliser, StandardiseViews
from ..records.records import Split, SplitName
from ..split import check_shares, split_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LARGEST = 2**24  # whole numbers up to here are float32 numbers


class Arrays(VerticalDataModule):
    """Records in arrays of your own, such as pictures of one party and a table of another.

    Each array has a row for each record, in the same order. A party's features have the shape of a row, (C, H, W) for a
    picture. Real numbers reach its bottom as float32: a table is scaled by its columns, an array of larger rows as a
    whole, and bytes are divided by 255 first. Whole numbers (tokens, categories) and truths reach it as they are given,
    in their dtype, so that an ``nn.Embedding`` takes them (unsigned ones as int64). Lists of whole numbers of different
    lengths (texts) become one array: the length of each, then its numbers, and zeros up to the longest.

    Args:
        arrays: party -> its array (N, ...) of numpy or torch: numbers or truths; or its N lists of whole numbers; or
            its ``torch.utils.data.Dataset``, whose items are read once: the features of a record, or a pair of features
            and label.
        labels: (N,) whole numbers or texts of the classes, or the real numbers of a regression. None: those of the
            dataset with pairs; if there is none, the records are new.
        ids: (N,) whole numbers or texts; None: positions.
        label_party: whose dataset gives the labels, if several have pairs.
        partitioner: who gets which columns; None: one array for each party.
        task: ``classification`` or ``regression``.
        val_share: share of the records for validation; 0: none.
        test_share: share of the records for testing; 0: none.
        new_records: the model was not trained on these records: all of them are tested. All are predicted in any case.
        loader: further settings of ``VerticalDataModule``.

    Guarantee: the splits of a classification are stratified by class. Labels come back as they were given.

    Raises:
        ConfigurationError: for what is no array of numbers, other numbers of records, frames of pandas whose indexes
            differ, NaN, masked numbers, whole numbers above 2^24, labels that are not of the task, and arrays of other
            parties than those of a trained model.

    Not guaranteed: that the records of datasets match. Item i of each is taken for the same record.

    Examples:
        >>> pictures, ages = np.zeros((20, 3, 8, 8), np.uint8), np.arange(20.0)
        >>> Arrays({"camera": pictures, "clinic": ages[:, None]}, labels=["ill", "well"] * 10).party_shapes
        ((3, 8, 8), (1,))
    """

    data_settings: ClassVar[tuple[str, ...]] = ("task", "val_share", "test_share")

    def __init__(
        self,
        arrays: Mapping[str, Any],
        labels: Any = None,
        ids: Any = None,
        partitioner: Partitioner | None = None,
        *,
        label_party: str | None = None,
        task: Literal["classification", "regression"] = "classification",
        val_share: float = 0.1,
        test_share: float = 0.2,
        new_records: bool = False,
        **loader: Any,
    ) -> None:
        if not isinstance(arrays, Mapping) or not arrays:
            raise ConfigurationError(
                f"arrays must give each party an array, such as {{'camera': pictures}}; got a {type(arrays).__name__}"
            )
        _refuse_other_indexes({**arrays, "labels": labels})
        columns = {str(name): _read(str(name), given) for name, given in arrays.items()}
        self._arrays = {name: _numbers(name, features) for name, (features, _) in columns.items()}
        if labels is None:
            labels = _labels_of({name: own for name, (_, own) in columns.items() if own is not None}, label_party)
        super().__init__(partitioner, **loader)
        check_shares(val_share, test_share)
        if task not in ("classification", "regression"):
            raise ConfigurationError(f"task '{task}' is unknown; use classification or regression")
        self.task = task
        self.val_share = val_share
        self.test_share = test_share
        self.new_records = new_records
        records = {name: len(array) for name, array in self._arrays.items()}
        self._given_labels = None if labels is None else np.asarray(labels)
        self.ids_are_places = ids is None
        self._ids = np.arange(max(records.values())) if ids is None else np.asarray(ids)
        records["ids"] = len(self._ids)
        if self._given_labels is not None:
            records["labels"] = len(self._given_labels)
        if len(set(records.values())) > 1:
            told = ", ".join(f"{name} {count}" for name, count in records.items())
            raise ConfigurationError(f"all arrays must have a row for each record; got {told}")
        if self._ids.dtype.kind not in "iuU" and not (self._ids.dtype.kind == "O" and _texts(self._ids)):
            raise ConfigurationError(f"ids must be whole numbers or texts; got {self._ids.dtype}; convert them")
        if len(np.unique(self._ids)) < len(self._ids):
            raise ConfigurationError("ids are not unique; give each record an id of its own")

    @cached_property
    def layout(self) -> Layout:
        widths = {name: prod(array.shape[1:]) for name, array in self._arrays.items()}
        columns = tuple(f"{name}.{i}" for name, width in widths.items() for i in range(width))
        shapes = tuple(array.shape[1:] or (1,) for array in self._arrays.values())
        dtypes = tuple(_dtype_at_bottom(array) for array in self._arrays.values())
        return Layout((len(columns),), columns, tuple(widths.values()), tuple(widths), shapes, dtypes)

    @property
    def num_classes(self) -> int | None:
        return len(self.class_names) if self.task == "classification" else None

    @property
    def class_names(self) -> tuple[int | str, ...]:
        """The classes as they were given, sorted; those of the trained model, if there is one."""
        return self.fitted.class_names if self.fitted is not None else self._labels[1]

    def default_partitioner(self) -> Partitioner:
        return Views()

    def default_normaliser(self) -> Normaliser:
        whole = [name for name, array in self._arrays.items() if _dtype_at_bottom(array)]
        wide = [name for name, array in self._arrays.items() if array.ndim > 2 and name not in whole]
        return StandardiseViews(unscaled=whole, as_one=wide)

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        if "train" in names and (self.new_records or self._given_labels is None):
            raise ConfigurationError(
                "training needs labels and old records; give labels, and leave new_records out, or give a trained model"
            )
        rows = {name: rows for name, rows in self._rows().items() if name in names and len(rows)}
        return {name: self._split(own, labelled=name != "predict") for name, own in rows.items()}

    def _split(self, rows: "NDArray[np.int64]", labelled: bool) -> Split:
        matrices = [_floats(array[rows]).reshape(len(rows), -1) for array in self._arrays.values()]
        labels = self._labels[0][torch.from_numpy(rows)] if labelled else None
        return Split(torch.from_numpy(np.hstack(matrices)), labels, self._ids[rows])

    def _rows(self) -> "Mapping[SplitName, NDArray[np.int64]]":
        every = np.arange(len(self._ids))
        if self.new_records or self._given_labels is None:
            tested = every if self._given_labels is not None else every[:0]
            return {"train": every[:0], "val": every[:0], "test": tested, "predict": every}
        stratify = self._labels[0].numpy() if self.task == "classification" else None
        drawn = split_rows(every, self.seed, self.val_share, self.test_share, stratify, self.class_names)
        return {**drawn, "predict": every}

    @cached_property
    def _labels(self) -> tuple[Tensor, tuple[int | str, ...]]:
        """(N,) the labels, and the classes; none for a regression."""
        given = self._given_labels
        if given is None:
            raise ConfigurationError("training and tests need labels; give them, or predict these records")
        if self.task == "regression":
            return _real_labels(given), ()
        if given.ndim != 1 or given.dtype.kind not in "iubUSO" or (given.dtype.kind == "O" and not _texts(given)):
            raise ConfigurationError(
                f"labels must be (N,) whole numbers or texts of the classes; got {given.dtype} {given.shape}; convert "
                "them, with astype(int) for example, or use task='regression' for real numbers"
            )
        classes, numbers = np.unique(given, return_inverse=True)
        if self.fitted is None:
            return torch.from_numpy(numbers.astype(np.int64)), tuple(classes.tolist())
        trained = {name: number for number, name in enumerate(self.fitted.class_names)}
        if unknown := [name for name in classes.tolist() if name not in trained]:
            raise ConfigurationError(
                f"label {unknown[0]!r} is not a class of the model; its classes are {', '.join(map(str, trained))}"
            )
        places = np.array([trained[name] for name in classes.tolist()], dtype=np.int64)
        return torch.from_numpy(places[numbers]), self.fitted.class_names

    def own_fitted(self) -> Mapping[str, Any]:
        """The parties' names, in the order of the model's inputs."""
        return {"arrays": [*self._arrays]}

    def use(self, fitted: Fitted | None) -> None:
        names = [*self._arrays] if fitted is None else fitted.own.get("arrays", [*self._arrays])
        if {*names} != {*self._arrays}:
            raise ConfigurationError(
                f"the model was trained with arrays of {', '.join(names)}, these are of {', '.join(self._arrays)}; "
                "give each array under the name of its party"
            )
        if names != [*self._arrays]:
            self.forget()
            self.__dict__.pop("layout", None)
            self._arrays = {name: self._arrays[name] for name in names}
        super().use(fitted)

    def forget(self) -> None:
        super().forget()
        self.__dict__.pop("_labels", None)


def _refuse_other_indexes(given: Mapping[str, Any]) -> None:
    """Accept frames and series of pandas with one index: rows are taken by their place, not by their index.

    Raises:
        ConfigurationError: naming two of them whose indexes differ.
    """
    pandas = sys.modules.get("pandas")  # whoever has a frame has imported it
    if pandas is None:
        return
    framed = {name: one.index for name, one in given.items() if isinstance(one, pandas.DataFrame | pandas.Series)}
    for name, index in framed.items():
        first = next(iter(framed))
        if len(index) == len(framed[first]) and not index.equals(framed[first]):
            raise ConfigurationError(
                f"'{first}' and '{name}' have different indexes, and rows would be joined by their places; give them "
                "one order and reset_index(drop=True), or use CSVTables, which joins on ids"
            )


def _real_labels(given: "NDArray[Any]") -> Tensor:
    """The labels of a regression as float32.

    Raises:
        ConfigurationError: for what is not a number, and for NaN and infinity, in any split.
    """
    try:
        labels = torch.from_numpy(given.astype(np.float32))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"labels of a regression must be numbers: {reason(error)}; correct them") from error
    if given.dtype.kind not in "fiubO":
        raise ConfigurationError(f"labels of a regression must be numbers; got {given.dtype}; convert them")
    if not bool(torch.isfinite(labels).all()):
        place = int((~torch.isfinite(labels)).nonzero()[0, 0])
        raise ConfigurationError(
            f"label {given[place]} of row {place} is NaN or infinite in float32; correct it or remove the record"
        )
    return labels


def _read(party: str, given: Any) -> tuple[Any, list[Any] | None]:
    """The array of a party, and the labels of a dataset that has them."""
    if not isinstance(given, Dataset):
        return given, None
    if not hasattr(given, "__len__"):
        raise ConfigurationError(f"the dataset of party '{party}' has no length; give one with len() and numbers")
    features: list[NDArray[Any]] = []
    labels: list[Any] = []
    for place in range(len(given)):
        item = given[place]
        parts = item if isinstance(item, tuple | list) else (item,)
        if len(parts) not in (1, 2):
            raise ConfigurationError(
                f"items of the dataset of party '{party}' must be features, or a pair of features and label; got "
                f"{len(parts)} parts"
            )
        features.append(_numbers(party, np.asarray(parts[0])[None])[0])
        labels += [np.asarray(label).item() for label in parts[1:]]
        if features[-1].shape != features[0].shape or (labels and len(labels) < len(features)):
            raise ConfigurationError(
                f"items of the dataset of party '{party}' must have one form; item {place} is unlike those before"
            )
    if not features:
        raise ConfigurationError(f"the dataset of party '{party}' has no items; correct arrays")
    return np.stack(features), labels or None


def _labels_of(labels: Mapping[str, list[Any]], party: str | None) -> list[Any] | None:
    """The labels of the datasets' pairs; None: no dataset has pairs."""
    if party is None and len(labels) > 1:
        raise ConfigurationError(f"datasets of {', '.join(labels)} have labels; name one of them as label_party")
    if party is not None and party not in labels:
        raise ConfigurationError(f"the dataset of label_party '{party}' has no labels; its items must be pairs")
    return labels[party or next(iter(labels))] if labels else None


def _numbers(party: str, given: Any) -> "NDArray[Any]":
    if np.ma.is_masked(given):  # numpy would give the numbers under the mask
        raise ConfigurationError(
            f"the array of party '{party}' has {int(np.ma.getmaskarray(given).sum())} masked numbers; fill them in, "
            "with filled(value), or remove the records"
        )
    try:
        array = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(_padded(given))
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"the array of party '{party}' cannot be read: {reason(error)}") from error
    if array.ndim == 0 or array.dtype.kind not in "fiub":
        raise ConfigurationError(
            f"the array of party '{party}' must have a row of numbers for each record; got {array.dtype} "
            f"{array.shape}; encode texts as whole numbers"
        )
    if array.dtype.kind in "iu" and array.size and int(np.abs(array.astype(np.float64)).max()) > _LARGEST:
        raise ConfigurationError(
            f"the array of party '{party}' has whole numbers above 2^24, which float32 rounds; number them anew, or "
            "give floats"
        )
    return array


def _padded(given: Any) -> Any:
    """Lists of whole numbers of different lengths as (N, 1 + longest): the length, the numbers, zeros."""
    if not isinstance(given, list | tuple) or len({len(row) for row in given if isinstance(row, list | tuple)}) < 2:
        return given
    rows = [np.asarray(row if len(row) else np.empty(0, np.int64)) for row in given]
    if any(row.ndim != 1 or row.dtype.kind not in "iu" for row in rows):
        return given
    padded = np.zeros((len(rows), 1 + max(map(len, rows))), np.int64)
    for place, row in enumerate(rows):
        padded[place, 0] = len(row)
        padded[place, 1 : 1 + len(row)] = row
    return padded


def _dtype_at_bottom(array: "NDArray[Any]") -> str:
    """The dtype in which a bottom gets an array; "": float32, as real numbers, and bytes of pictures."""
    if array.dtype.kind in "ib":
        return array.dtype.name
    return "int64" if array.dtype.kind == "u" and array.dtype != np.uint8 else ""


def _floats(array: "NDArray[Any]") -> "NDArray[np.float32]":
    """As float32; bytes become numbers from 0 to 1."""
    floats: NDArray[np.float32] = array.astype(np.float32)
    return floats / np.float32(255) if array.dtype == np.uint8 else floats


def _texts(labels: "NDArray[Any]") -> bool:
    return all(isinstance(label, str) for label in labels)
