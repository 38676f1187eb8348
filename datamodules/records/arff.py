"""ARFF files: column names from the head, fields from the body."""

from io import StringIO
from pathlib import Path

from lightning_vfl.errors import ConfigurationError

from .cells import Row


def read_arff(path: Path, source: str) -> tuple[list[str], list[Row]]:
    """The names of the columns, and the rows of the body without blank lines and comments.

    scipy reads the head only: it would drop the surplus of a record that is too long, and its errors about values name
    no line.

    Raises:
        ConfigurationError: if the file cannot be read; ``source`` says where to get it.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}); fetch it again from {source}") from error
    begin = next((i for i, line in enumerate(lines, 1) if line.lower() == "@data"), None)
    if begin is None:
        raise ConfigurationError(f"{path} is not an ARFF file: it has no line '@data'; fetch it again from {source}")
    body = [(number, line) for number, line in enumerate(lines[begin:], begin + 1) if line and line[0] != "%"]
    rows = [(number, [field.strip() for field in line.split(",")]) for number, line in body]
    return _names(path, lines[:begin], source), rows


def _names(path: Path, head: list[str], source: str) -> list[str]:
    """The columns that the head declares, in its order."""
    from scipy.io import arff  # 0.1 s, where it is used

    try:
        data, _ = arff.loadarff(StringIO("\n".join(head) + "\n"))
    except Exception as error:  # scipy's errors for damaged heads have no common class
        raise ConfigurationError(
            f"the head of {path} cannot be read ({type(error).__name__}: {str(error).strip()}); fetch the file again "
            f"from {source}"
        ) from error
    return list(data.dtype.names or ())
