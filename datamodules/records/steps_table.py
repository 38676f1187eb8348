"""The table of what is done with each column, as it is printed before training."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby

from .party_tables import listed

_HEADER = ("party", "column", "kind", "missing", "what is done")


@dataclass(frozen=True)
class TableRow:
    """One column.

    Args:
        party: the party, or the parties of a group.
        column: the name of the column.
        kind: what the training rows hold.
        missing: share of the training rows without a value.
        what: what is done with it.
    """

    party: str
    column: str
    kind: str
    missing: float
    what: str


def steps_table(rows: Iterable[TableRow]) -> str:
    """Lines of text; neighbouring columns that differ in nothing else share a line.

    Examples:
        >>> print(steps_table([TableRow("bank", f"x{i}", "numbers", 0.25, "log") for i in range(2)]))
        party  column  kind     missing  what is done
        bank   x0, x1  numbers  25.0 %   log
    """
    cells = [_HEADER]
    for (party, kind, missing, what), alike in groupby(rows, lambda r: (r.party, r.kind, r.missing, r.what)):
        cells.append((party, listed(row.column for row in alike), kind, f"{missing:.1%}".replace("%", " %"), what))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells
    )
