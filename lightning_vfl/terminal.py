"""The terminal on which tables are printed."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WIDEST = 100  # columns of a table that still fits beside an editor and into a message
UNFOLDED = 1000  # columns of a pipe or a file, whose lines are read by programs and by viewers that scroll


def console() -> "Console":
    """A terminal of at most ``WIDEST`` columns; in a pipe or a file no row is folded, unless COLUMNS is set."""
    from rich.console import Console

    usual = Console()
    if not (usual.is_terminal or usual.is_jupyter or "COLUMNS" in os.environ):
        return Console(width=UNFOLDED)
    return usual if usual.width <= WIDEST else Console(width=WIDEST)
