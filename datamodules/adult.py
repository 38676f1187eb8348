"""Adult, also called Census Income: two files of the UCI repository, one for training and one for testing."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .base import absent, data_folder
from .cells import as_table, read_rows
from .mixed_table import MixedRecords, MixedTable
from .normalise import Normaliser
from .partition import Partitioner
from .split import check_shares, split_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FILES = ("adult.data", "adult.test")
_CATEGORICAL = (
    *("workclass", "education", "marital-status", "occupation"),
    *("relationship", "race", "sex", "native-country"),
)


class Adult(MixedTable):
    """Who earns more than 50,000 dollars a year: 48,842 records of 14 columns of the US census of 1994, 24 % do.

    The folder holds ``adult.data`` and ``adult.test``: fields between commas, no names; lines that begin with ``|`` are
    comments, and a full stop after a label means nothing. ``adult.test`` is the test split, validation is drawn from
    ``adult.data``. A record's id is its position in its file, label 1 is ``>50K``, and ``?`` (unknown) is a category.
    ``fnlwgt``, which weighs records for estimates of the population, and ``education-num``, which says education again,
    are dropped.

    The usual cut is that of vFedSec, appendix B, into 27, 63 and 16 columns: the active party holds workclass,
    occupation, capital-gain, capital-loss and hours-per-week (and fnlwgt, if it is kept); ``clients_1_2`` age,
    marital-status, relationship, race, sex and native-country; ``clients_3_4`` education (and education-num). Clients
    of one group hold the same columns, so a group is one party here; with ``Groups(None, members=[1, 2, 2])`` each of
    the 5 clients is. The 5 and 8 partitions of its Table 6, features drawn at random, are ``RandomColumns(5)`` and
    ``RandomColumns(8)``: the 106 encoded columns are drawn, so that categories of one column come to several parties;
    ``NamedColumns`` keeps them together.

    Args:
        partitioner: who gets which columns; None: the three parties of vFedSec.
        normaliser: how each party scales its features; None: numbers to mean 0 and deviation 1, categories not at all.
        batch_size: rows of a batch in each process.
        seed: names the validation records and the order of the training records.
        drop_last: leave out the last, smaller batch of every training epoch.
        num_workers: worker processes; 0 is fastest for data in memory.
        pin_memory: for a faster way to a GPU.
        data_dir: folder of the files; None: ``$LIGHTNING_VFL_DATA/adult``, else ``data/adult``.
        val_share: share of the records of ``adult.data`` for validation; 0: none.
        drop: columns that nobody gets.
        categorical: columns to encode one-hot; all others must hold numbers.
        expected_records: records that the two files must hold, so that one cut short is noticed; None: any number.
        public_categories: declare the training records' categories public, as ``private_statistics`` asks for.

    Guarantee: validation is stratified by class. Categories, like scaling, come from the training records alone; one
        that only other records have is encoded as all zeros.
    Not guaranteed: that the files are the published ones; only their form and the numbers of their records are checked.
        63 columns with every seed: one record alone is from Holand-Netherlands, and with the seeds that draw it for
        validation there are 62.

    Raises:
        ConfigurationError: if a file is not there, cannot be read or does not hold these data.

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
    classes = ("<=50K", ">50K")
    label = "income"
    source = "https://archive.ics.uci.edu/dataset/2/adult"

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
        drop: Sequence[str] = ("fnlwgt", "education-num"),
        categorical: Sequence[str] = _CATEGORICAL,
        expected_records: tuple[int, int] | None = (32_561, 16_281),
        public_categories: bool = False,
    ) -> None:
        super().__init__(
            partitioner,
            normaliser,
            batch_size,
            seed,
            drop_last,
            num_workers,
            pin_memory,
            drop,
            categorical,
            public_categories,
        )
        check_shares(val_share)
        self.data_dir = data_folder(data_dir, "adult")
        self.val_share = val_share
        self.expected_records = expected_records

    def read(self) -> MixedRecords:
        if missing := [file for file in _FILES if not (self.data_dir / file).is_file()]:
            what = f"{' and no '.join(missing)} of {type(self).__name__}"
            raise absent(self.data_dir, what, f"'{_FILES[0]}' and '{_FILES[1]}' from {self.source}")
        expected = self.expected_records or (None, None)
        data, test = (self._file(file, number) for file, number in zip(_FILES, expected, strict=True))
        columns = {name: np.concatenate([column, test[0][name]]) for name, column in data[0].items()}
        drawn, tested = np.arange(len(data[1])), np.arange(len(test[1]))
        split = split_rows(drawn, self.seed, self.val_share, 0.0, data[1])
        tests = len(drawn) + tested
        return MixedRecords(
            columns,
            np.concatenate([data[1], test[1]]),
            np.concatenate([drawn, tested]),
            {**split, "test": tests, "predict": tests},
        )

    def _file(self, file: str, expected: int | None) -> "tuple[dict[str, NDArray[Any]], NDArray[np.int64]]":
        path = self.data_dir / file
        rows = [row for row in read_rows(path, ",", self.source) if not row[1][0].startswith("|")]
        cells = as_table(path, rows, (*self.columns, self.label), expected, self.source)
        cells[self.label] = cells[self.label].str.removesuffix(".")
        return self.check(path, cells)
