"""The table of what is done with each column, as it is printed before training."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby, zip_longest
from textwrap import wrap

from lightning_vfl.terminal import WIDEST

from .party_tables import listed

_HEADER = ("party", "column", "kind", "missing", "what is done")
_WIDEST_NAMES = 30
_NARROWEST = 30  # of the last column, beside long names


@dataclass(frozen=True)
class TableRow:
    """One column.

    Args:
        party: the party, or the parties of a group.
        column: the name of the column.
        kind: what the training rows hold.
        missing: share of the training rows without a value, or with a text that counts as missing.
        what: what is done with it.
    """

    party: str
    column: str
    kind: str
    missing: float
    what: str


def steps_table(rows: Iterable[TableRow]) -> str:
    """Lines of text; neighbouring columns that differ in nothing else share a row; a long cell goes on below.

    Examples:
        >>> print(steps_table([TableRow("bank", f"x{i}", "numbers", 0.25, "log") for i in range(2)]))
        party  column  kind     missing  what is done
        bank   x0, x1  numbers  25.0 %   log
    """
    cells = [_HEADER]
    for (party, kind, missing, what), alike in groupby(rows, lambda r: (r.party, r.kind, r.missing, r.what)):
        cells.append((party, listed(row.column for row in alike), kind, f"{missing:.1%}".replace("%", " %"), what))
    # only names of columns and what is done are long
    names = [wrap(row[1], _WIDEST_NAMES, break_long_words=False, break_on_hyphens=False) or [""] for row in cells]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    widths[1] = max(len(line) for lines in names for line in lines)
    room = max(WIDEST - sum(width + 2 for width in widths[:-1]), _NARROWEST)
    lines = list[str]()
    for (party, _, kind, missing, what), own_names in zip(cells, names, strict=True):
        parts = wrap(what, room, break_long_words=False, break_on_hyphens=False)
        for row in zip_longest([party], own_names, [kind], [missing], parts, fillvalue=""):
            padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)
