"""The terminal on which tables are printed."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WIDEST = 100  # columns of a table that still fits beside an editor and into a message


def console() -> "Console":
    """A terminal of at most ``WIDEST`` columns."""
    from rich.console import Console

    usual = Console()
    return usual if usual.width <= WIDEST else Console(width=WIDEST)
