"""Adult, also called Census Income: two files of the UCI repository, one for training and one for testing."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..partitioners.partition import Partitioner
from ..records.cells import as_table, read_rows
from ..records.folders import missing_files
from ..records.labelled import Labelled
from ..split import check_shares, split_rows
from .two_classes import MixedTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FILES = ("adult.data", "adult.test")
_CATEGORICAL = (
    *("workclass", "education", "marital-status", "occupation"),
    *("relationship", "race", "sex", "native-country"),
)


class Adult(MixedTable):
    """Census of 1994: 48,842 records of 14 columns; 24 % of the people have an income above 50,000 dollars a year.

    The folder holds ``adult.data`` and ``adult.test``: fields between commas, no names; lines that begin with ``|`` are
    comments, and a full stop after a label is ignored. ``adult.test`` is the test split, validation is drawn from
    ``adult.data``. A record's id is its position in its file, label 1 is ``>50K``, and ``?`` (unknown) is a category.
    ``fnlwgt``, a weight for estimates of the population, and ``education-num``, education as a number, are dropped.

    The default partition is that of vFedSec, appendix B, into 27, 63 and 16 columns, see ``groups``. Clients of one
    group hold the same columns, so a group is one party here; ``Groups(None, members=[1, 2, 2])`` makes each of the 5
    clients a party. The 5 and 8 partitions of its Table 6, features drawn at random, are ``RandomColumns(5)`` and
    ``RandomColumns(8)``: these draw from the 106 encoded columns, so the categories of one column come to several
    parties; ``NamedColumns`` keeps them together.

    Args:
        partitioner: who gets which columns; None: the default.
        val_share: share of the records of ``adult.data`` for validation; 0: none.
        drop: columns that no party gets.
        categorical: columns to encode one-hot; all others must hold numbers.
        expected_records: the numbers of records that the two files must hold, so that a file cut short is noticed;
            None: any numbers.
        settings: further settings of ``MixedTable`` and ``VerticalDataModule``.

    Guarantee: validation is stratified by class; categories are those of the training records, see ``MixedTable``.
    Not guaranteed: that the files are the published ones; only their form and the numbers of their records are checked.
        63 columns with every seed: a single record is from Holand-Netherlands, and with the seeds that draw it for
        validation there are 62.

    Examples:
        >>> Adult().default_partitioner().columns["clients_3_4"]
        ['education']

    References:
        Kohavi, "Scaling up the accuracy of naive-Bayes classifiers", KDD 1996; Becker and Kohavi, UCI Machine Learning
        Repository, https://doi.org/10.24432/C5XW20. Parties: Qiu et al., "Secure Vertical Federated Learning
        Under Unreliable Connectivity" (vFedSec), https://arxiv.org/abs/2305.16794, appendix B.
    """

    data_settings = ("drop", "categorical", "val_share")
    columns = (
        *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
        *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"),
    )
    groups = {  # noqa: RUF012  # read only
        "active": ("workclass", "fnlwgt", "occupation", "capital-gain", "capital-loss", "hours-per-week"),
        "clients_1_2": ("age", "marital-status", "relationship", "race", "sex", "native-country"),
        "clients_3_4": ("education", "education-num"),
    }
    folder = "adult"
    tests_apart = True
    source = "https://archive.ics.uci.edu/dataset/2/adult"
    label = "income"
    classes = ("<=50K", ">50K")
    positive = "with an income above 50,000 dollars"

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        *,
        val_share: float = 0.1,
        drop: Sequence[str] = ("fnlwgt", "education-num"),
        categorical: Sequence[str] = _CATEGORICAL,
        expected_records: tuple[int, int] | None = (32_561, 16_281),
        **settings: Any,
    ) -> None:
        check_shares(val_share)
        super().__init__(
            partitioner, drop=drop, categorical=categorical, val_share=val_share, test_share=0.0, **settings
        )
        self.expected = expected_records or (None, None)

    def read(self) -> Labelled:
        if missing := [file for file in _FILES if not (self.data_dir / file).is_file()]:
            what = f"{' and no '.join(missing)} of {type(self).__name__}"
            raise missing_files(self.data_dir, what, f"'{_FILES[0]}' and '{_FILES[1]}' from {self.source}")
        (data, drawn), (test, tested) = (self._file(*file) for file in zip(_FILES, self.expected, strict=True))
        columns = {name: np.concatenate([column, test[name]]) for name, column in data.items()}
        ids, test_ids = np.arange(len(drawn)), np.arange(len(tested))
        tests = len(drawn) + test_ids
        rows = {**split_rows(ids, self.seed, self.val_share, 0.0, drawn), "test": tests, "predict": tests}
        return self.encode(columns, np.concatenate([drawn, tested]), np.concatenate([ids, test_ids]), rows)

    def _file(self, file: str, expected: int | None) -> "tuple[dict[str, NDArray[Any]], NDArray[np.int64]]":
        path = self.data_dir / file
        rows = [row for row in read_rows(path, ",", self.source) if not row[1][0].startswith("|")]
        cells = as_table(path, rows, (*self.columns, self.label), expected, self.source)
        cells[self.label] = cells[self.label].str.removesuffix(".")
        return self.read_columns(path, cells), self.read_labels(path, cells)
