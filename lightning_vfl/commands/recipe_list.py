"""``lightning-vfl list``: the packaged recipes, with a line for each."""

import re
import shutil
import sys
from itertools import takewhile
from typing import TYPE_CHECKING

from lightning_vfl.commands.command import CLI, Command
from lightning_vfl.configs import packaged

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

KINDS = tuple(dict.fromkeys(name.partition("/")[0] for name in packaged()))


def lines(kind: str | None) -> list[str]:
    """The name of each recipe and the first sentence of its comment; cut at the terminal's width.

    Args:
        kind: one of ``KINDS``; None: all of them.
    """
    recipes = {name: file for name, file in packaged().items() if kind in (None, name.partition("/")[0])}
    longest = max(map(len, recipes))
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    said = (f"{name:{longest}}  {about(file.read_text(encoding='utf-8'))}" for name, file in recipes.items())
    return [line if room is None or len(line) <= room else f"{line[: room - 1]}…" for line in said]


def about(recipe: str) -> str:
    r"""The first sentence of the comment that a recipe begins with.

    Examples:
        >>> about("# Digits: 4 parties,\n# two rows each. Files in runs.\ndata: Digits")
        'Digits: 4 parties, two rows each.'
    """
    comment = " ".join(line[1:].strip() for line in takewhile(lambda line: line.startswith("#"), recipe.splitlines()))
    return re.split(r"(?<=\.)\s+(?=[A-Z])", comment, maxsplit=1)[0]


class ListCommand(Command):
    """Print the recipes of one kind, or of all kinds."""

    def add_options(self, parser: "ArgumentParser") -> None:
        parser.add_argument("kind", nargs="?", choices=KINDS, help=f"kind of recipes; default: {', '.join(KINDS)}")

    def run(self, cli: CLI) -> int:
        print(*lines(cli.given.kind), sep="\n")
        return 0
