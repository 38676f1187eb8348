"""Default of credit card clients: one table of the UCI repository."""

from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.errors import ConfigurationError

from ..partitioners.partition import ContiguousColumns, Partitioner
from ..records.cells import Row, as_table, check_columns, number_matrix, numbers, read_names, read_rows, refuse
from ..records.labelled import Labelled
from ..records.layout import Layout
from .two_classes import TwoClassTable

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

_COLUMNS = (
    *("LIMIT_BAL", "SEX", "EDUCATION", "MARRIAGE", "AGE"),
    *("PAY_0", "PAY_2", "PAY_3", "PAY_4", "PAY_5", "PAY_6"),  # UCI's names: there is no PAY_1
    *(f"BILL_AMT{month}" for month in range(1, 7)),
    *(f"PAY_AMT{month}" for month in range(1, 7)),
)
_ID, _LABEL = "ID", "default payment next month"
_CODES = {column: f"X{i}" for i, column in enumerate(_COLUMNS, 1)} | {_LABEL: "Y"}
_OTHERS = {code: column for column, code in _CODES.items()} | {
    "PAY_1": "PAY_0",
    "default.payment.next.month": _LABEL,
}


class CreditDefault(TwoClassTable):
    """Default of credit card clients in Taiwan: 30,000 records of 23 columns, two classes, 22 % with a default.

    The folder holds ``UCI_Credit_Card.csv``, ``default of credit card clients.csv`` or ``default of credit card
    clients.xls``. The columns are called X1 to X23 and Y, or LIMIT_BAL to PAY_AMT6 and ``default payment next month``
    (also with dots), in any order, below one or two rows of names; here they have the long names and UCI's order. Codes
    such as SEX and EDUCATION are read as numbers. A record's id is its ID. The default partition is that of FedVS: 11
    parties, the first with three columns, the others with two.

    Args:
        partitioner: who gets which columns; None: the default.
        expected_records: the number of records that the file must hold; None: any number.
        settings: further settings of ``TwoClassTable`` and ``VerticalDataModule``.

    Guarantee: the splits are stratified by class.
    Not guaranteed: that the file is the published one; only its form and the number of its records are checked.

    Examples:
        >>> len(CreditDefault().party_shapes), CreditDefault().layout.columns[:3]
        (11, ('LIMIT_BAL', 'SEX', 'EDUCATION'))

    References:
        Yeh and Lien, "The comparisons of data mining techniques for the predictive accuracy of probability of default
        of credit card clients", Expert Systems with Applications 36(2), 2009,
        https://doi.org/10.1016/j.eswa.2007.12.020. Eleven parties: Li, Yao and Liu, "FedVS", ICML 2023, appendix C.
    """

    folder = "credit_default"
    usual_partitioner = ContiguousColumns(11)
    layout = Layout((len(_COLUMNS),), _COLUMNS)  # known before the file is read
    files = ("UCI_Credit_Card.csv", "default of credit card clients.csv", "default of credit card clients.xls")
    source = "https://archive.ics.uci.edu/dataset/350/default+of+credit+card+clients"
    label = _LABEL
    positive = "with a default"

    def __init__(
        self, partitioner: Partitioner | None = None, *, expected_records: int | None = 30_000, **settings: Any
    ) -> None:
        super().__init__(partitioner, expected_records=expected_records, **settings)

    def read(self) -> Labelled:
        path = self.path()
        wanted = (_ID, *_COLUMNS, _LABEL)
        rows = read_sheet(path, self.source) if path.suffix == ".xls" else read_rows(path, ",", self.source)
        names, below = read_names(path, rows, wanted, 2, self.source, _OTHERS)
        check_columns(path, names, wanted, self.source, _CODES)
        cells = as_table(path, below, names, self.expected_records, self.source)
        features = number_matrix(path, cells[[*_COLUMNS]], "correct or remove the records")
        return Labelled(features, self.read_labels(path, cells), _ids(path, cells[_ID]), _COLUMNS)


def _ids(path: Path, cells: "pd.Series[str]") -> "NDArray[np.int64]":
    ids = numbers(path, cells, "number the records")
    with np.errstate(invalid="ignore"):  # infinity % 1 is NaN
        wrong = (ids % 1 != 0) | (np.abs(ids) >= 2**53)
    refuse(path, _ID, cells[wrong], "are not whole numbers of 53 bits", "number the records")
    refuse(path, _ID, cells[cells.astype(float).duplicated()], "are duplicates", "keep one record of each ID")
    return ids.astype(np.int64)


def read_sheet(path: Path, source: str) -> list[Row]:
    """The rows of the first sheet as text. xlrd is called directly because pandas is dropping its support for it.

    Raises:
        ConfigurationError: if the file cannot be read, or xlrd is not installed; ``source`` says where to get the file.
    """
    try:
        xlrd = import_module("xlrd")
    except ImportError as error:
        raise ConfigurationError(
            f"{path} is an .xls file, and xlrd, which reads such files, is not installed; pip install xlrd, or "
            f"save the "
            f"sheet as '{path.stem}.csv' in the same folder"
        ) from error
    try:
        sheet = xlrd.open_workbook(path, logfile=StringIO()).sheet_by_index(0)
        # xlrd returns errors, dates and truth values as numbers too
        plain = {xlrd.XL_CELL_EMPTY, xlrd.XL_CELL_BLANK, xlrd.XL_CELL_TEXT, xlrd.XL_CELL_NUMBER}
        cells = [list(zip(sheet.row_values(row), sheet.row_types(row), strict=True)) for row in range(sheet.nrows)]
    except Exception as error:  # xlrd's errors for damaged files have no common class
        raise ConfigurationError(
            f"{path} cannot be read ({type(error).__name__}: {str(error).strip()}); fetch it again from {source}"
        ) from error
    texts = [[str(value) if kind in plain else "neither text nor a number" for value, kind in row] for row in cells]
    return [(line, [text.strip() for text in row]) for line, row in enumerate(texts, 1)]
