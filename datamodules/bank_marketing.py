"""Bank Marketing: one table of the UCI repository, from its CSV file."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lightning_vfl.errors import ConfigurationError

from .base import absent, data_folder
from .cells import as_table, read_rows
from .mixed_table import MixedRecords, MixedTable
from .normalise import Normaliser
from .partition import Partitioner
from .split import check_shares, split_rows

_FILE, _OTHER = "bank-full.csv", "bank-additional-full.csv"
_SEPARATOR = ";"
_CATEGORICAL = (
    *("job", "marital", "education", "default", "housing", "loan"),
    *("contact", "day", "month", "poutcome"),
)


class BankMarketing(MixedTable):
    """Calls of a Portuguese bank that advertise a deposit: 45,211 records of 16 columns, 12 % of them subscribe.

    The folder holds ``bank-full.csv``: fields between semicolons, a first row of names, columns in any order; the
    columns of ``bank-additional-full.csv`` are others, and it is refused. A record's id is its position in the file,
    label 1 is ``yes``, ``unknown`` is a category, and the day of the month is taken as a category too, as vFedSec does.
    ``duration`` is dropped: how long a call took is known only when its outcome is.

    The usual cut is that of vFedSec, appendix B, into 57, 3 and 20 columns: the active party holds housing, loan,
    contact, day, month, campaign, pdays, previous and poutcome (and duration, if it is kept); ``clients_1_2`` default
    and balance; ``clients_3_4`` age, job, marital and education. Clients of one group hold the same columns, so a group
    is one party here; with ``Groups(None, members=[1, 2, 2])`` each of the 5 clients is. The 5 and 8 partitions of its
    Table 6, features drawn at random, are ``RandomColumns(5)`` and ``RandomColumns(8)``: the 80 encoded columns are
    drawn, so that categories of one column come to several parties; ``NamedColumns`` keeps them together.

    Args:
        partitioner: who gets which columns; None: the three parties of vFedSec.
        normaliser: how each party scales its features; None: numbers to mean 0 and deviation 1, categories not at all.
        batch_size: rows of a batch in each process.
        seed: names the split and the order of the training records.
        drop_last: leave out the last, smaller batch of every training epoch.
        num_workers: worker processes; 0 is fastest for data in memory.
        pin_memory: for a faster way to a GPU.
        data_dir: folder of the file; None: ``$LIGHTNING_VFL_DATA/bank_marketing``, else ``data/bank_marketing``.
        val_share: share of the records for validation; 0: none.
        test_share: share of the records for testing (and prediction); 0: none.
        drop: columns that nobody gets.
        categorical: columns to encode one-hot; all others must hold numbers.
        expected_records: records that the file must hold, so that one cut short is noticed; None: any number.
        public_categories: declare the training records' categories public, as ``private_statistics`` asks for.

    Guarantee: the splits are stratified by class. Categories, like scaling, come from the training records alone; one
        that only other records have is encoded as all zeros.
    Not guaranteed: that the file is the published one; only its form and the number of its records are checked.

    Raises:
        ConfigurationError: if there is no file, or one that cannot be read or does not hold these data.

    Examples:
        >>> BankMarketing().default_partitioner().columns["clients_3_4"]
        ['age', 'job', 'marital', 'education']

    References:
        Moro, Laureano and Cortez, "Using data mining for bank direct marketing", ESM 2011; UCI Machine Learning
        Repository, https://doi.org/10.24432/C5K306. Parties: Qiu et al., "Secure Vertical Federated Learning
        Under Unreliable Connectivity" (vFedSec), https://arxiv.org/abs/2305.16794, appendix B.
    """

    data_settings = ("drop", "categorical", "val_share", "test_share")
    columns = (
        *("age", "job", "marital", "education", "default", "balance", "housing", "loan"),
        *("contact", "day", "month", "duration", "campaign", "pdays", "previous", "poutcome"),
    )
    groups = {  # noqa: RUF012  # read only
        "active": (
            *("housing", "loan", "contact", "day", "month"),
            *("duration", "campaign", "pdays", "previous", "poutcome"),
        ),
        "clients_1_2": ("default", "balance"),
        "clients_3_4": ("age", "job", "marital", "education"),
    }
    classes = ("no", "yes")
    label = "y"
    source = "https://archive.ics.uci.edu/dataset/222/bank+marketing"

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
        test_share: float = 0.2,
        drop: Sequence[str] = ("duration",),
        categorical: Sequence[str] = _CATEGORICAL,
        expected_records: int | None = 45_211,
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
        check_shares(val_share, test_share)
        self.data_dir = data_folder(data_dir, "bank_marketing")
        self.val_share = val_share
        self.test_share = test_share
        self.expected_records = expected_records

    def read(self) -> MixedRecords:
        path = self.data_dir / _FILE
        if not path.is_file():
            other = f" but {_OTHER}, whose columns are others" if (self.data_dir / _OTHER).is_file() else ""
            raise absent(self.data_dir, f"data of {type(self).__name__}{other}", f"'{_FILE}' from {self.source}")
        rows = read_rows(path, _SEPARATOR, self.source)
        names = rows[0][1] if rows else []
        self._check_names(path, names)
        columns, labels = self.check(path, as_table(path, rows[1:], names, self.expected_records, self.source))
        ids = np.arange(len(labels))
        split = split_rows(ids, self.seed, self.val_share, self.test_share, labels)
        return MixedRecords(columns, labels, ids, split)

    def _check_names(self, path: Path, names: Sequence[str]) -> None:
        wanted = (*self.columns, self.label)
        if {*wanted}.isdisjoint(names):
            raise ConfigurationError(
                f"{path} begins with no row of names such as {_SEPARATOR.join(wanted[:3])}; write '{_SEPARATOR}' "
                f"between the fields or fetch it again from {self.source}"
            )
        counts = Counter(names)
        faults = {
            "missing": [name for name in wanted if not counts[name]],
            "unknown": [name or "one without a name" for name in counts if name not in wanted],
            "more than once": [name for name in wanted if counts[name] > 1],
        }
        if told := [f"{what}: {', '.join(which)}" for what, which in faults.items() if which]:
            raise ConfigurationError(
                f"{path} has {len(names)} columns that are not the {len(self.columns)} features and the label "
                f"({'; '.join(told)}); correct its columns or fetch it again from {self.source}"
            )
