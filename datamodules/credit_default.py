"""Default of credit card clients: one table of the UCI repository, from its spreadsheet or a CSV export of it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info

from lightning_vfl.errors import ConfigurationError

from .base import SplitName, VerticalDataModule, absent, data_folder
from .cells import check_classes, check_count, refuse
from .divided import Divided
from .normalise import Normaliser
from .partition import ContiguousColumns, Layout, Partitioner
from .records import Split
from .split import check_shares, split_rows

if TYPE_CHECKING:
    import pandas as pd

_FILES = ("UCI_Credit_Card.csv", "default of credit card clients.csv", "default of credit card clients.xls")
_SOURCE = "https://archive.ics.uci.edu/dataset/350/default+of+credit+card+clients"
_COLUMNS = (
    *("LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE"),
    *("PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6"),  # UCI's names: there is no PAY_1
    *(f"BILL_AMT{month}" for month in range(1, 7)),
    *(f"PAY_AMT{month}" for month in range(1, 7)),
)
_ID, _LABEL = "ID", "default payment next month"
_WANTED = (_ID, *_COLUMNS, _LABEL)
_CODES = {column: f"X{i}" for i, column in enumerate(_COLUMNS, 1)} | {_LABEL: "Y"}
_OTHER_NAMES = {code: column for column, code in _CODES.items()} | {
    "PAY_1": "PAY_0",
    "default.payment.next.month": _LABEL,
}


class CreditDefault(VerticalDataModule):
    """Default of credit card clients in Taiwan: 30,000 records of 23 columns, two classes, 22 % of them defaults.

    The folder holds ``UCI_Credit_Card.csv``, ``default of credit card clients.csv`` or ``default of credit card
    clients.xls``; the first of these is read. Columns may be called X1 to X23 and Y, or LIMIT_BAL to PAY_AMT6 and
    ``default payment next month`` (also with dots), in any order and below one row of names or two; here they have
    the long names, in UCI's order. Codes such as SEX and EDUCATION are taken as numbers. A record's id is its ID.

    Args:
        partitioner: who gets which columns; None: eleven parties, the first with three columns, the others with two.
        normaliser: how each party scales its features; None: every column to mean 0 and deviation 1.
        batch_size: rows of a batch in each process.
        seed: names the split and the order of the training records.
        drop_last: leave out the last, smaller batch of every training epoch.
        num_workers: worker processes; 0 is fastest for data in memory.
        pin_memory: for a faster way to a GPU.
        data_dir: folder of the file; None: ``$LIGHTNING_VFL_DATA/credit_default``, else ``data/credit_default``.
        val_share: share of the records for validation; 0: none.
        test_share: share of the records for testing (and prediction); 0: none.
        expected_records: records that the file must hold, so that one cut short is noticed; None: any number.

    Guarantee: the splits are stratified by class.
    Not guaranteed: that the file is the published one; only its form and the number of its records are checked.

    Raises:
        ConfigurationError: if there is no file, or one that cannot be read or does not hold these data.

    Examples:
        >>> len(CreditDefault().party_shapes), CreditDefault().layout.columns[:3]
        (11, ('LIMIT_BAL', 'SEX', 'EDUCATION'))

    References:
        Yeh and Lien, "The comparisons of data mining techniques for the predictive accuracy of probability of default
        of credit card clients", Expert Systems with Applications 36(2), 2009,
        https://doi.org/10.1016/j.eswa.2007.12.020. Eleven parties: Li, Yao and Liu, "FedVS", ICML 2023, appendix C.
    """

    data_settings = ("val_share", "test_share")

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
        expected_records: int | None = 30_000,
    ) -> None:
        super().__init__(partitioner, normaliser, batch_size, seed, drop_last, num_workers, pin_memory)
        check_shares(val_share, test_share)
        self.data_dir = data_folder(data_dir, "credit_default")
        self.val_share = val_share
        self.test_share = test_share
        self.expected_records = expected_records

    @property
    def layout(self) -> Layout:
        return Layout((len(_COLUMNS),), _COLUMNS)

    @property
    def num_classes(self) -> int:
        return 2

    @property
    def pos_weight(self) -> float:
        """Training records without a default for each one with it, to even out the classes.

        Such as ``Binary(torch.nn.BCEWithLogitsLoss(pos_weight=torch.tensor(data.pos_weight)))``.

        Raises:
            ConfigurationError: if no training record has a default.
        """
        return self._table.pos_weight(type(self).__name__, "has a default")

    def default_partitioner(self) -> Partitioner:
        return ContiguousColumns(11)

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        return self._table.splits(names)

    # ---- inside

    @cached_property
    def _table(self) -> Divided:
        path = next((self.data_dir / file for file in _FILES if (self.data_dir / file).is_file()), None)
        if path is None:
            named = " or ".join(f"'{file}'" for file in _FILES)
            raise absent(self.data_dir, f"data of {type(self).__name__}", f"{named} from {_SOURCE}")
        numbers = _numbers(path, _cells(path), self.expected_records)
        labels = numbers[_LABEL].to_numpy().astype(np.int64)
        rows = split_rows(np.arange(len(labels)), self.seed, self.val_share, self.test_share, labels)
        rank_zero_info(
            f"{type(self).__name__}: {len(labels)} records of {path.name}, {labels.sum()} of them "
            f"({labels.mean():.1%}) with a default"
        )
        return Divided(
            numbers[_ID].to_numpy().astype(np.int64),
            torch.from_numpy(numbers[list(_COLUMNS)].to_numpy(dtype=np.float64, copy=True)),
            torch.from_numpy(labels),
            rows,
        )


def _cells(path: Path) -> "pd.DataFrame":
    """All cells of the file as text, names included."""
    import pandas as pd  # 0.5 s, where it is used

    try:
        if path.suffix == ".xls":
            return pd.DataFrame(_sheet(path), dtype=str)
        return pd.read_csv(path, header=None, dtype=str, keep_default_na=False)
    except ImportError as error:
        raise ConfigurationError(
            f"{path} is an .xls file, which only xlrd reads, and that is not installed; pip install xlrd, or save the "
            f"sheet as '{_FILES[1]}' in the same folder"
        ) from error
    except Exception as error:  # what xlrd raises of a damaged file has no class in common
        raise ConfigurationError(
            f"{path} cannot be read ({type(error).__name__}: {str(error).strip()}); fetch it again from {_SOURCE}"
        ) from error


def _sheet(path: Path) -> list[list[str]]:
    """The rows of the first sheet, by xlrd itself: pandas is giving up reading such files with it."""
    xlrd = import_module("xlrd")
    sheet = xlrd.open_workbook(path, logfile=StringIO()).sheet_by_index(0)
    # errors, dates and truths are numbers to xlrd
    plain = {xlrd.XL_CELL_EMPTY, xlrd.XL_CELL_BLANK, xlrd.XL_CELL_TEXT, xlrd.XL_CELL_NUMBER}
    return [
        [
            str(value) if kind in plain else "neither text nor a number"
            for value, kind in zip(sheet.row_values(row), sheet.row_types(row), strict=True)
        ]
        for row in range(sheet.nrows)
    ]


def _head(path: Path, top: Sequence[Sequence[str]]) -> tuple[list[str], int]:
    """Our names of the file's columns, and the number of rows that hold names: two in UCI's spreadsheet."""
    rows = [[_OTHER_NAMES.get(cell.strip(), cell.strip()) for cell in row] for row in top]
    heads = [i for i, row in enumerate(rows) if not {*row}.isdisjoint(_WANTED)]
    if not heads:
        raise ConfigurationError(
            f"{path} begins with no row of names such as LIMIT_BAL or X1; use a comma-separated export with names from "
            f"{_SOURCE}"
        )
    names = rows[heads[-1]]
    counts = Counter(names)
    faults = {
        "missing": [f"{name} ({_CODES[name]})" if name in _CODES else name for name in _WANTED if not counts[name]],
        "unknown": [name or "one without a name" for name in counts if name not in _WANTED],
        "more than once": [name for name in _WANTED if counts[name] > 1],
    }
    if told := [f"{what}: {', '.join(which)}" for what, which in faults.items() if which]:
        raise ConfigurationError(
            f"{path} has {len(names)} columns that are not ID, the {len(_COLUMNS)} features and the label "
            f"({'; '.join(told)}); correct its columns or fetch it again from {_SOURCE}"
        )
    return names, heads[-1] + 1


def _numbers(path: Path, cells: "pd.DataFrame", expected: int | None) -> "pd.DataFrame":
    """The checked numbers of the table, its columns called by our names."""
    import pandas as pd

    names, heads = _head(path, cells.iloc[:2].to_numpy().tolist())
    cells = cells.iloc[heads:].set_axis(names, axis=1)
    check_count(path, len(cells), expected, _SOURCE)
    numbers: pd.DataFrame = cells.apply(pd.to_numeric, errors="coerce")
    for name in _WANTED:
        wrong = numbers[name].isna()
        refuse(path, name, cells[name][wrong], "are not numbers", "correct or remove the records")
    ids, labels = numbers[_ID], numbers[_LABEL]
    fraction = (ids % 1 != 0) | (ids.abs() >= 2**53)  # infinity % 1 is NaN
    refuse(path, _ID, cells[_ID][fraction], "are not whole numbers of 53 bits", "number the records")
    refuse(path, _ID, cells[_ID][ids.duplicated()], "are duplicates", "keep one record of each ID")
    refuse(path, _LABEL, cells[_LABEL][~labels.isin((0, 1))], "are neither 0 nor 1", "write 1 for a default, else 0")
    check_classes(path, labels, _SOURCE)
    return numbers
