"""The code blocks of the README and of all pages of the documentation."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHELL = ("bash", "console", "sh", "shell")
_FENCE = re.compile(r"^[ ]*```(\w*)[^\n]*\n(.*?)^[ ]*```[ ]*$", re.MULTILINE | re.DOTALL)
_BLOCK_REASON = re.compile(r"<!-- not run: ([^\n]+?) -->\n+\Z")
_PAGE_REASON = re.compile(r"^<!-- no block of this page is run: ([^\n]+?) -->$", re.MULTILINE)
_SNIPPET = re.compile(r'^--8<-- "([^"\n]+)"$', re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page.

    Args:
        page: path of the page from the root of the repository.
        line: of the fence.
        language: as the fence says; empty: none, for printed output.
        code: the content, with the files in it that the page includes.
        reason: why the tests do not run it, as the page says in a comment; None: they do.
    """

    page: str
    line: int
    language: str
    code: str
    reason: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def summary_names(text: str) -> list[str]:
    """The first cell of each line of a summary, as it is printed or shown on a page.

    Examples:
        >>> summary_names("Summary of fit\\n│ val/loss │ 0.2 │\\n│ training rounds │ 8")
        ['val/loss', 'training rounds']
    """
    return [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]


def pages() -> list[Path]:
    """The README, CONTRIBUTING and every page of the documentation."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks_of(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, from top to bottom."""
    text = page.read_text(encoding="utf-8")
    everywhere = _PAGE_REASON.search(text)
    for found in _FENCE.finditer(text):
        here = _BLOCK_REASON.search(text, 0, found.start())
        reason = None if found[1] in ("", "text") else here or everywhere  # printed output is not run
        code = _SNIPPET.sub(lambda file: (ROOT / file[1]).read_text(encoding="utf-8"), found[2])
        line = text.count("\n", 0, found.start()) + 1
        name = page.relative_to(ROOT).as_posix()
        yield Block(name, line, found[1], code, reason[1] if reason else None)


def blocks() -> list[Block]:
    """The blocks of all pages."""
    return [block for page in pages() for block in blocks_of(page)]
