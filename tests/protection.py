"""The footnotes of the pages on who learns what, and the page of their evidence: ``python -m tests.protection``.

A footnote says what a cell means. The page of evidence says what holds it: tests, rows of results/tables/attacks.json,
and numbers of the tables on the pages of results. Both are described in docs/protection.yaml.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from tests.attacks.__main__ import kept

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = (DOCS / "protection.md", DOCS / "guides" / "federation.md")
EVIDENCE = DOCS / "results" / "evidence.md"
BEGIN, END = "<!-- footnotes: made by python -m tests.protection -->", "<!-- footnotes end -->"
DRIFT = "<!-- drift: made by python -m tests.protection -->", "<!-- drift end -->"
HELPS = "<!-- helps: made by python -m tests.protection -->", "<!-- helps end -->"
RANGE = re.compile(r" \([-0-9.%]+ to [-0-9.%]+\)")
SHORT = (
    ("nearest records right (uploads as they are", "nearest right (uploads"),
    ("a regression on all uploads", "regression"),
)
CELL = re.compile(r"\[\^([a-z-]+)\]")


@dataclass(frozen=True)
class Footnote:
    """What a footnote says and what holds it.

    Args:
        says: a sentence or two.
        tests: ``path::function``, relative to tests/.
        attacks: names of rows of attacks.json.
        numbers: page of results, section, row and column of a table.
    """

    says: str
    tests: tuple[str, ...] = ()
    attacks: tuple[str, ...] = ()
    numbers: tuple[tuple[str, str, str, str], ...] = ()


def footnotes() -> dict[str, Footnote]:
    """All of protection.yaml, by name."""
    said = yaml.safe_load((DOCS / "protection.yaml").read_text(encoding="utf-8"))["footnotes"]
    return {
        name: Footnote(
            one["says"],
            tuple(one.get("tests", ())),
            tuple(one.get("attacks", ())),
            tuple((page, section, row, column) for page, section, row, column in one.get("numbers", ())),
        )
        for name, one in said.items()
    }


def tables() -> dict[str, list[tuple[str, str]]]:
    """The other generated tables: the label and the row of attacks.json of each of their lines."""
    said = yaml.safe_load((DOCS / "protection.yaml").read_text(encoding="utf-8"))
    return {name: [(label, attack) for label, attack in said[name]] for name in ("drift", "helps")}


def functions(path: Path) -> set[str]:
    """The functions of a file of tests."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def attack(name: str) -> tuple[str, str, str]:
    """Success before and now, and chance, of the attack of this name.

    Raises:
        ValueError: if not exactly one row of attacks.json has this name.
    """
    found = [row for rows in kept().values() for row in rows if row.attack == name]
    if len(found) != 1:
        raise ValueError(f"{len(found)} rows of docs/results/tables/attacks.json are named {name!r}")
    return found[0].before, found[0].now, found[0].chance


@cache
def _lines(page: str) -> list[str]:
    return (DOCS / "results" / page).read_text(encoding="utf-8").splitlines()


def number(page: str, section: str, row: str, column: str) -> str:
    """A cell of a table, without its interval; raises as ``cell``."""
    return cell(page, section, row, column).split(" (")[0]


def cell(page: str, section: str, row: str, column: str) -> str:
    """A cell of a table.

    Raises:
        ValueError: if there is no such section, row or column.
    """
    lines = _lines(page)
    heads: list[str] = []
    for line in lines[lines.index(f"### {section}") :]:
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if line.startswith("|") and not heads:
            heads = cells
        if cells[0] == row:
            return cells[heads.index(column)]
    raise ValueError(f"{page}, {section}: no row {row!r}")


def written(name: str, one: Footnote, page: Path) -> str:
    """A footnote in Markdown."""
    if page.parent == DOCS:
        return f"[^{name}]: {one.says} [Evidence](results/{EVIDENCE.name}#{name})."
    return f"[^{name}]: {_from_a_folder(one.says)} [Evidence](../results/{EVIDENCE.name}#{name})."


def _from_a_folder(says: str) -> str:
    """The sentences of a footnote with links as they are from a folder of docs."""
    for link, target in (
        ("](guides/", "](../guides/"),
        ("](#", "](../protection.md#"),
        ("](aggregators", "](../aggregators"),
        ("](labels", "](../labels"),
    ):
        says = says.replace(link, target)
    return says


def evidence() -> str:
    """The page that has, for each footnote, the attacks, numbers and tests that hold it."""
    parts = [
        "# Evidence",
        "What holds each cell of [Who learns what](../protection.md). An attack has its success without the\n"
        "protection, then with it; a function is a test; a number is of a table of results. Made by\n"
        "`python -m tests.protection`.",
    ]
    for name, one in footnotes().items():
        parts += [f"## {name}", _from_a_folder(one.says), "\n".join(f"- {what}" for what in held(one))]
    return "\n\n".join(parts) + "\n"


def held(one: Footnote) -> list[str]:
    """What holds a footnote, a line each."""
    lines = [f"attack *{name}*: {' → '.join(_shown(name))}" for name in one.attacks]
    lines += [
        f"[{page[:-3]}]({page}), {section}, {row}, {column}: {number(page, section, row, column)}"
        for page, section, row, column in one.numbers
    ]
    return lines + [f"`{test.rpartition('/')[2]}`" for test in one.tests]


def _shown(name: str) -> list[str]:
    before, now, _ = attack(name)
    return [before] if now.startswith("the same") or now == before else [before, now]


def used(text: str) -> list[str]:
    """The footnotes that the text of a page uses, in order."""
    return list(dict.fromkeys(CELL.findall(text.partition(BEGIN)[0])))


def table(name: str) -> str:
    """One of the other generated tables, in few words; results/attacks.md has the ranges over seeds too."""
    lines = ["| setting | measured |", "| --- | --- |"]
    lines += [f"| {label} | {_shortened(' → '.join(_shown(attacked)))} |" for label, attacked in tables()[name]]
    return "\n".join(lines)


def _shortened(said: str) -> str:
    for long, short in SHORT:
        said = said.replace(long, short)
    return RANGE.sub("", said).replace(" / ", "/")


def blocks(page: Path, text: str) -> Iterator[tuple[str, str, str]]:
    """Begin, content and end of each generated block of a page."""
    known = footnotes()
    yield BEGIN, "\n".join(written(name, known[name], page) for name in used(text)), END
    for name, (begin, end) in (("drift", DRIFT), ("helps", HELPS)):
        if begin in text:
            yield begin, table(name), end


def made(page: Path) -> str:
    """The page with its generated blocks made anew."""
    text = page.read_text(encoding="utf-8")
    for begin, content, end in blocks(page, text):
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n\n{content}\n\n{end}{rest.partition(end)[2]}"
    return text


def main() -> None:
    """Write the pages."""
    for page in PAGES:
        page.write_text(made(page), encoding="utf-8")
    EVIDENCE.write_text(evidence(), encoding="utf-8")


if __name__ == "__main__":
    main()
