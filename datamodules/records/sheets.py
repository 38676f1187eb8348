"""Spreadsheets in the old ``.xls`` format."""

from importlib import import_module
from io import StringIO
from pathlib import Path

from lightning_vfl.errors import ConfigurationError

from .cells import Row


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
