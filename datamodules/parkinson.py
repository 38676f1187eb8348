"""Parkinson's disease from speech: one table of the UCI repository, three recordings a person."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info

from lightning_vfl.errors import ConfigurationError

from .base import SplitName, VerticalDataModule, absent, data_folder
from .cells import Row, as_table, check_classes, numbers, read_rows, refuse
from .divided import Divided
from .normalise import Normaliser
from .partition import ContiguousColumns, Layout, Partitioner
from .records import Split
from .split import check_shares, split_rows

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

_FILE = "pd_speech_features.csv"
_SOURCE = "https://archive.ics.uci.edu/dataset/470/parkinson+s+disease+classification"
_ID, _GENDER, _LABEL = "id", "gender", "class"
_NAMED = (_ID, _GENDER, _LABEL)
_FEATURES = 753


class Parkinson(VerticalDataModule):
    """Parkinson's disease from speech: 756 recordings of 252 people, 753 columns, two classes, 75 % of them ill.

    The folder holds ``pd_speech_features.csv``: a row with the names of groups of columns (it may be missing), a row
    with the names of the columns, and three recordings of every person. The columns but ``id`` and ``class`` keep
    their names and their order in the file, ``gender`` first. Label 1 is a person with the disease, 0 one without it,
    as in the file. A record's id is its position in the file.

    Recordings of one person are much alike. When some are for training and others for testing, a model that knows the
    voice knows the class, and the accuracy says little about people who are new to it. So people are split here, and
    all recordings of a person are in one split. FedVS takes 70 % of the data for training and says nothing of people:
    ``split="rows"`` does that, and figures from it are to be compared with no others. It keeps no records for
    validation, which is ``val_share=0``.

    FedVS counts 754 features, as UCI does. That is every column but the class, ``id`` among them: a number that names
    the person is no feature here. (Its words on the data, 31 people and label 0 for the ill, are about another table of
    UCI; its numbers of records and features are those of this one.) DVFL uses the same data.

    Args:
        partitioner: who gets which columns; None: ten parties, the first three with 76 columns, the others with 75.
        normaliser: how each party scales its features; None: every column to mean 0 and deviation 1.
        batch_size: rows of a batch in each process.
        seed: names the split and the order of the training records.
        drop_last: leave out the last, smaller batch of every training epoch.
        num_workers: worker processes; 0 is fastest for data in memory.
        pin_memory: for a faster way to a GPU.
        data_dir: folder of the file; None: ``$LIGHTNING_VFL_DATA/parkinson``, else ``data/parkinson``.
        val_share: share of the people, or of the rows, for validation; 0: none.
        test_share: share of the people, or of the rows, for testing (and prediction); 0: none.
        split: ``persons``: all recordings of a person are in one split; ``rows``: every row is drawn by itself.
        expected_records: records that the file must hold, so that one cut short is noticed; None: any number.

    Guarantee: the splits are stratified by class, over people or over rows. Nobody is in two splits, unless rows are
        split.
    Not guaranteed: that the file is the published one; only its form and the number of its records are checked.

    Raises:
        ConfigurationError: if there is no file, or one that cannot be read or does not hold these data.

    Examples:
        >>> Parkinson().default_partitioner()
        ContiguousColumns(parties=10)

    References:
        Sakar et al., "A comparative analysis of speech signal processing algorithms for Parkinson's disease
        classification and the use of the tunable Q-factor wavelet transform", Applied Soft Computing 74, 2019,
        https://doi.org/10.1016/j.asoc.2018.10.022; UCI Machine Learning Repository, https://doi.org/10.24432/C5MS4X.
        Ten parties and 70 %: Li, Yao and Liu, "FedVS", ICML 2023, appendix C.
    """

    data_settings = ("split", "val_share", "test_share")

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        normaliser: Normaliser | None = None,
        batch_size: int = 64,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int = 0,
        pin_memory: bool = False,
        data_dir: str | Path | None = None,
        val_share: float = 0.1,
        test_share: float = 0.3,
        split: Literal["persons", "rows"] = "persons",
        expected_records: int | None = 756,
    ) -> None:
        super().__init__(partitioner, normaliser, batch_size, seed, drop_last, num_workers, pin_memory)
        check_shares(val_share, test_share)
        if split not in ("persons", "rows"):
            raise ConfigurationError(f"split '{split}' is unknown; use persons or rows")
        self.data_dir = data_folder(data_dir, "parkinson")
        self.val_share = val_share
        self.test_share = test_share
        self.split = split
        self.expected_records = expected_records

    @property
    def layout(self) -> Layout:
        columns = self._data[0]
        return Layout((len(columns),), columns)

    @property
    def num_classes(self) -> int:
        return 2

    @property
    def pos_weight(self) -> float:
        """Training records of people without the disease for each one with it, to even out the classes.

        Such as ``Binary(torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(data.pos_weight)))``.

        Raises:
            ConfigurationError: if no training record is of a person with the disease.
        """
        return self._data[1].pos_weight(type(self).__name__, "is of a person with the disease")

    def default_partitioner(self) -> Partitioner:
        return ContiguousColumns(10)

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        return self._data[1].splits(names)

    # ---- inside

    @cached_property
    def _data(self) -> tuple[tuple[str, ...], Divided]:
        """The names of the columns, and the records."""
        path = self.data_dir / _FILE
        if not path.is_file():
            raise absent(self.data_dir, f"data of {type(self).__name__}", f"'{_FILE}' from {_SOURCE}")
        rows = read_rows(path, ",", _SOURCE)
        names, heads = _head(path, rows[:2])
        cells = as_table(path, rows[heads:], names, self.expected_records, _SOURCE)
        values = _numbers(path, cells)
        classes = cells[_LABEL][~values[_LABEL].isin((0, 1))]
        refuse(path, _LABEL, classes, "are neither 0 nor 1", "write 1 for a person with the disease, else 0")
        check_classes(path, values[_LABEL], _SOURCE)
        labels = values[_LABEL].to_numpy().astype(np.int64)
        people, person = np.unique(values[_ID].to_numpy(), return_inverse=True)
        by_person = _class_of_each(path, cells[_ID], person, labels)
        if self.split == "persons" and len(people) == len(labels):
            raise ConfigurationError(
                f"column '{_ID}' of {path} has another value in every record, so nothing tells which are of one "
                "person; number the people or set split: rows"
            )
        rank_zero_info(
            f"{type(self).__name__}: {len(labels)} records of {path.name}, {labels.sum()} of them "
            f"({labels.mean():.1%}) of people with the disease; {by_person.sum()} of {len(people)} people"
        )
        columns = [name for name in names if name not in (_ID, _LABEL)]
        features = values[columns].to_numpy(dtype=np.float64, copy=True)
        divided = self._divide(person, by_person, labels)
        return tuple(columns), Divided(
            np.arange(len(labels)), torch.from_numpy(features), torch.from_numpy(labels), divided
        )

    def _divide(
        self, person: "NDArray[np.int64]", by_person: "NDArray[np.int64]", labels: "NDArray[np.int64]"
    ) -> "Mapping[SplitName, NDArray[np.int64]]":
        """The positions of the rows of each split."""
        drawn = by_person if self.split == "persons" else labels
        split = split_rows(np.arange(len(drawn)), self.seed, self.val_share, self.test_share, drawn)
        if self.split == "rows":
            return split
        return {name: np.flatnonzero(np.isin(person, people)) for name, people in split.items()}


def _head(path: Path, top: Sequence[Row]) -> tuple[list[str], int]:
    """The names of the file's columns, and the number of rows above the records: a row of groups may come first."""
    heads = [i for i, (_, fields) in enumerate(top) if not {*fields}.isdisjoint(_NAMED)]
    if not heads:
        raise ConfigurationError(
            f"{path} has no row of names such as {', '.join(_NAMED)} among its first two; use the comma-separated file "
            f"with this name from {_SOURCE}"
        )
    names = top[heads[-1]][1]
    counts = Counter(names)
    faults = {
        "missing": [name for name in _NAMED if not counts[name]],
        "more than once": [name for name in counts if name and counts[name] > 1],
        "without a name": [str(counts[""])] if counts[""] else [],
    }
    told = [f"; {what}: {', '.join(which)}" for what, which in faults.items() if which]
    if told or len(names) != _FEATURES + 2:
        raise ConfigurationError(
            f"{path} has {len(names)} columns instead of {_ID}, {_LABEL} and {_FEATURES} features{''.join(told)}; "
            f"correct its columns or fetch it again from {_SOURCE}"
        )
    return names, heads[-1] + 1


def _numbers(path: Path, cells: "pd.DataFrame") -> "pd.DataFrame":
    """The table as numbers; a text among them is refused."""
    import pandas as pd

    # all cells in one call: 755 calls, one a column, take five times as long
    values = pd.to_numeric(cells.to_numpy(dtype=object).ravel(), errors="coerce").reshape(cells.shape)
    for _, column in np.argwhere(np.isnan(values))[:1]:
        numbers(path, cells[str(cells.columns[column])], "correct or remove the records")
    return pd.DataFrame(values, cells.index, cells.columns)


def _class_of_each(
    path: Path, ids: "pd.Series[str]", person: "NDArray[np.int64]", labels: "NDArray[np.int64]"
) -> "NDArray[np.int64]":
    """The class of every person; one whose recordings are of both is refused."""
    first = np.unique(person, return_index=True)[1]
    by_person: NDArray[np.int64] = labels[first]
    fix = "give all recordings of a person one class"
    refuse(path, _ID, ids[by_person[person] != labels], "have recordings of both classes", fix)
    return by_person
