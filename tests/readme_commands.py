"""Commands of the README and of the first pages are parsed, not run, and local links followed.

Run by ``python -m tests.readme_commands``.
"""

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from itertools import dropwhile, groupby, pairwise
from pathlib import Path

from lightning_vfl.commands.vfl_cli import VFLCLI
from lightning_vfl.errors import ConfigurationError

ROOT = Path(__file__).parents[1]
_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[ \t]*(\w*)[^\n]*\n(.*?)^[ \t]*\1[ \t]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"""(?:\]\(<?|\b(?:src|href)=["']|^\[[^\]]+\]:\s*)(?!#|\w+:)([^)\s>"'#]+)""", re.MULTILINE)
_SHELL = ("", "bash", "console", "sh", "shell")


class Broken(Exception):
    """A command or a link of the README that does not hold."""


def commands(text: str) -> Iterator[list[str]]:
    """The words of every command in the fenced shell blocks; where lines have a prompt, the others are output."""
    for _, language, block in _FENCE.findall(text):
        lines = [line.strip() for line in block.replace("\\\n", " ").splitlines()] if language in _SHELL else []
        for line in [line[2:] for line in lines if line.startswith("$ ")] or lines:
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            try:
                parts = [list(words) for _, words in groupby(lexer, lambda w: not w.strip("();<>|&"))]
            except ValueError as error:
                raise Broken(f"{line}: {error}") from None
            for mark, part in pairwise([[""], *parts]):
                command = part[1:] if mark[-1][-1:] in ("<", ">") else part  # without the file that it reads or writes
                words = list(dropwhile(re.compile(r"\w+=").match, command))  # without variables of its own
                if words and words[0].strip("();<>|&"):
                    yield [Path(words[0]).name, *words[1:]]


def parse(arguments: list[str]) -> None:
    """Parse arguments of ``lightning-vfl``, and go no further."""
    said = StringIO()
    try:
        with redirect_stdout(StringIO()), redirect_stderr(said):
            VFLCLI(arguments)
    except (ConfigurationError, SystemExit) as end:
        if not isinstance(end, SystemExit) or end.code:
            raise Broken(f"lightning-vfl {shlex.join(arguments)}: {end} {said.getvalue().strip()}") from None


def check(readme: Path) -> Iterator[str]:
    """One line for each command and local link that holds; raises Broken at the first that does not."""
    text = readme.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for words in commands(text):
        if words[0] == "make":
            named = {word for word in words[1:] if not word.startswith("-") and "=" not in word}
            if named - targets:
                raise Broken(f"{shlex.join(words)}: the Makefile has no target {min(named - targets)}")
        elif words[0] == "lightning-vfl":
            parse(words[1:])
        elif "lightning_vfl" in words and words[words.index("lightning_vfl") - 1] == "-m":
            parse(words[words.index("lightning_vfl") + 1 :])
        else:
            continue
        yield shlex.join(words)
    for path in _LINK.findall(_FENCE.sub("", text)):
        if not (readme.parent / path).exists():
            raise Broken(f"link to {path}: no such file")
        yield f"link to {path}"


if __name__ == "__main__":
    for page in ("README.md", "docs/index.md", "docs/guides/choose.md", "docs/guides/machines.md"):
        try:
            for line in check(ROOT / page):
                print(line)
        except Broken as broken:
            sys.exit(f"{page}: {broken}")
