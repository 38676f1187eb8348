"""Parkinson's disease from speech: one table of the UCI repository, three recordings of each person."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lightning_vfl.errors import ConfigurationError

from ..partitioners.partition import ContiguousColumns, Partitioner
from ..records.cells import as_table, number_matrix, read_names, read_rows, refuse
from ..records.labelled import Labelled
from ..records.records import SplitName
from .two_classes import TwoClassTable

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

_ID, _LABEL, _FEATURES = "id", "class", 753


class Parkinson(TwoClassTable):
    """Parkinson's disease from speech: 756 recordings of 252 people, 753 columns, two classes, 75 % with the disease.

    The folder holds ``pd_speech_features.csv``: a row with the names of groups of columns (it may be missing), a row
    with the names of the columns, and three recordings of every person. The columns other than ``id`` and ``class``
    keep their names and their order in the file, ``gender`` first. Label 1 is a person with the disease. A record's id
    is its position in the file. By default there are ten parties, the first three with 76 columns, the others with 75.

    Recordings of one person are alike. If some are for training and others for testing, a model can recognise the
    person, and the accuracy says little about other people. So here all recordings of a person are in one split.
    FedVS takes 70 % of the data for training and does not mention people: ``split="rows"`` does that, and its results
    should be compared with such results only. FedVS keeps no records for validation: ``val_share=0``. FedVS and UCI
    count 754 features, every column but the class; ``id`` identifies the person and is not a feature here.

    Args:
        partitioner: who gets which columns; None: the default.
        test_share: share of the people, or of the rows, for testing (and prediction); 0: none.
        split: ``persons``: all recordings of a person are in one split; ``rows``: every row is drawn by itself.
        expected_records: the number of records that the file must hold; None: any number.
        settings: further settings of ``TwoClassTable`` and ``VerticalDataModule``.

    Guarantee: the splits are stratified by class, over people or over rows. With ``persons`` a person is in one split.
    Not guaranteed: that the file is the published one; only its form and the number of its records are checked.

    Examples:
        >>> Parkinson().default_partitioner()
        ContiguousColumns(parties=10)

    References:
        Sakar et al., "A comparative analysis of speech signal processing algorithms for Parkinson's disease
        classification and the use of the tunable Q-factor wavelet transform", Applied Soft Computing 74, 2019,
        https://doi.org/10.1016/j.asoc.2018.10.022; UCI Machine Learning Repository, https://doi.org/10.24432/C5MS4X.
        Ten parties and 70 %: Li, Yao and Liu, "FedVS", ICML 2023, appendix C (whose description, 31 people and label 0
        for the ill, is of another table of UCI). DVFL uses the same data.
    """

    data_settings = ("split", "val_share", "test_share")
    folder = "parkinson"
    usual_partitioner = ContiguousColumns(10)
    files = ("pd_speech_features.csv",)
    source = "https://archive.ics.uci.edu/dataset/470/parkinson+s+disease+classification"
    label = _LABEL
    positive = "of a person with the disease"

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        *,
        test_share: float = 0.3,
        split: Literal["persons", "rows"] = "persons",
        expected_records: int | None = 756,
        **settings: Any,
    ) -> None:
        super().__init__(partitioner, test_share=test_share, expected_records=expected_records, **settings)
        if split not in ("persons", "rows"):
            raise ConfigurationError(f"split '{split}' is unknown; use persons or rows")
        self.split = split

    def read(self) -> Labelled:
        path = self.path()
        names, rows = read_names(path, read_rows(path, ",", self.source), (_ID, "gender", _LABEL), 2, self.source)
        _check_names(path, names, self.source)
        cells = as_table(path, rows, names, self.expected_records, self.source)
        values = number_matrix(path, cells, "correct or remove the records")
        labels = self.read_labels(path, cells)
        person = np.unique(values[:, names.index(_ID)], return_inverse=True)[1]
        columns = tuple(name for name in names if name not in (_ID, _LABEL))
        features = values[:, [names.index(name) for name in columns]]
        divided = self._divide(path, cells[_ID], person, labels)
        return Labelled(features, labels, np.arange(len(labels)), columns, rows=divided)

    def _divide(
        self, path: Path, ids: "pd.Series[str]", person: "NDArray[np.int64]", labels: "NDArray[np.int64]"
    ) -> "Mapping[SplitName, NDArray[np.int64]]":
        """The rows of each split; ``person`` (N,) numbers the people of the recordings from 0."""
        classes = labels[np.unique(person, return_index=True)[1]]
        fix = "give all recordings of a person one class"
        refuse(path, _ID, ids[classes[person] != labels], "have recordings of both classes", fix)
        if self.split == "rows":
            return self.draw(labels)
        if len(classes) == len(labels):
            raise ConfigurationError(
                f"column '{_ID}' of {path} has another value in every record, so it does not tell which recordings are "
                "of one person; number the people or set split: rows"
            )
        return {name: np.flatnonzero(np.isin(person, own)) for name, own in self.draw(classes).items()}


def _check_names(path: Path, names: Sequence[str], source: str) -> None:
    counts = Counter(names)
    faults = {
        "missing": [name for name in (_ID, "gender", _LABEL) if not counts[name]],
        "more than once": [name for name in counts if name and counts[name] > 1],
        "without a name": [str(counts[""])] if counts[""] else [],
    }
    told = "".join(f"; {what}: {', '.join(which)}" for what, which in faults.items() if which)
    if told or len(names) != _FEATURES + 2:
        raise ConfigurationError(
            f"{path} has {len(names)} columns instead of {_ID}, {_LABEL} and {_FEATURES} features{told}; correct the "
            f"columns or fetch the file again from {source}"
        )
