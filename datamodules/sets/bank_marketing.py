"""Bank Marketing: one table of the UCI repository."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..partitioners.partition import Partitioner
from ..records.cells import as_table, check_columns, read_names, read_rows
from ..records.labelled import Labelled
from .two_classes import MixedTable

_CATEGORICAL = (
    *("job", "marital", "education", "default", "housing", "loan"),
    *("contact", "day", "month", "poutcome"),
)


class BankMarketing(MixedTable):
    """Calls of a Portuguese bank that advertise a deposit: 45,211 records of 16 columns, 12 % with a subscription.

    The folder holds ``bank-full.csv``: fields between semicolons, a first row of names, columns in any order;
    ``bank-additional-full.csv`` has other columns, not read here. A record's id is its position in the file, label 1 is
    ``yes``, ``unknown`` is a category, and the day of the month is read as a category too, as in vFedSec. ``duration``
    is dropped: how long a call took is known only when its outcome is known.

    The default partition is that of vFedSec, appendix B, into 57, 3 and 20 columns, see ``groups``. Clients of one
    group hold the same columns, so a group is one party here; ``Groups(None, members=[1, 2, 2])`` makes each of the 5
    clients a party. The 5 and 8 partitions of its Table 6, features drawn at random, are ``RandomColumns(5)`` and
    ``RandomColumns(8)``: these draw from the 80 encoded columns, so the categories of one column come to several
    parties; ``NamedColumns`` keeps them together.

    Args:
        partitioner: who gets which columns; None: the default.
        drop: columns that no party gets.
        categorical: columns to encode one-hot; all others must hold numbers.
        expected_records: the number of records that the file must hold, so that a file cut short is noticed; None: any
            number.
        settings: further settings of ``MixedTable`` and ``VerticalDataModule``.

    Guarantee: the splits are stratified by class; categories are those of the training records, see ``MixedTable``.
    Not guaranteed: that the file is the published one; only its form and the number of its records are checked.

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
    folder = "bank_marketing"
    files = ("bank-full.csv",)
    source = "https://archive.ics.uci.edu/dataset/222/bank+marketing"
    label = "y"
    classes = ("no", "yes")
    positive = "with a subscription"

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        *,
        drop: Sequence[str] = ("duration",),
        categorical: Sequence[str] = _CATEGORICAL,
        expected_records: int | None = 45_211,
        **settings: Any,
    ) -> None:
        super().__init__(partitioner, drop=drop, categorical=categorical, expected_records=expected_records, **settings)

    def read(self) -> Labelled:
        path = self.path()
        wanted = (*self.columns, self.label)
        names, rows = read_names(path, read_rows(path, ";", self.source), wanted, 1, self.source)
        check_columns(path, names, wanted, self.source)
        cells = as_table(path, rows, names, self.expected_records, self.source)
        columns = self.read_columns(path, cells)
        labels = self.read_labels(path, cells)
        return self.encode(columns, labels, np.arange(len(labels)), self.draw(labels))
