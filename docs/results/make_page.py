"""The pages of results, made from page.yaml and tables/STUDY.csv.

``python docs/results/make_page.py`` writes README.md, and all_tables.md with the tables; with ``--check``
it only says whether that would change anything;
with ``--collect FOLDER`` it takes what the page shows out of the folders that ``lightning-vfl study`` has written:
means into tables/STUDY.csv, and the values of single seeds into tables/seeds/STUDY.csv.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from math import floor, isinf, isnan, log10
from pathlib import Path
from typing import Any

import yaml
from collect import collect
from studies import (
    CPU_TIME,
    HERE,
    RUN_TIME,
    Mistake,
    Place,
    Tables,
    Value,
    matching,
    metric_of,
    needs_files,
    packaged,
    refuse_unknown,
    runs_of,
    study_file,
)

SCALES = {"%": 100.0, "number": 1.0, "MB": 1e-6, "GB": 1e-9, "Gbit": 8e-9}
STATES = {
    "at its scale": "data, networks, scale and optimiser as the paper says, as far as it says them",
    "deviates": "at the paper's scale, with a deviation that its line names",
    "shrunk": "fewer epochs, records, seeds or channels, or another goal",
    "missing": "not run",
}


@dataclass(frozen=True)
class Column:
    """A column of a table of the page.

    Args:
        name: what ``{column}`` of the run's name becomes.
        label: its heading.
        metric, study, run: as in Entry, for this column; metric "said": no study has measured it, every row says it.
        unit: one of SCALES.
        digits: after the point; three significant ones where none is said and the unit is not %.
        divide: by this, such as the steps of an epoch.
    """

    name: str
    label: str = ""
    metric: str = ""
    study: str = ""
    run: str = ""
    unit: str = ""
    digits: str = ""
    divide: str = "1"


@dataclass(frozen=True)
class Row:
    """A row of a table of the page.

    Args:
        name: what ``{row}`` of the run's name becomes.
        label: its first cell.
        metric, study, run: as in Entry, for this row.
        paper: the paper's numbers, one a column; empty where it has none.
        said: text by column, in the place of a number.
    """

    name: str
    label: str = ""
    metric: str = ""
    study: str = ""
    run: str = ""
    paper: tuple[str, ...] = ()
    said: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """A table or figure of a paper, as one table of the page.

    Args:
        title: its heading.
        setting: what was run, and what the cells are.
        rows, columns: of its table.
        difference: from the paper, or what the paper shows where it prints no numbers.
        study: packaged study that measured it; a row's or a column's own comes first, here and below.
        metric: what the cells are: ``METRIC``, its last value; ``METRIC at STEP``; ``COST of METRIC``, by that value;
            ``COST to METRIC TARGET``. A COST is one of step, passes, virtual_seconds and bytes.
        run: how a run of the study is called, from ``{row}`` and ``{column}``.
        unit, digits: as in Column, where a column has none.
        corner: heading of the first column.
        details: page that tells more.
        figure: file of the curves.
        optional: "true" leaves the entry out as long as a table is missing.
        over: what the means are over; a ``*`` in a run's name stands for the runs that differ in it alone, and each of
            these counts once, with the mean of its seeds.
    """

    title: str
    setting: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    difference: str = ""
    study: str = ""
    metric: str = "test/accuracy"
    run: str = "{row}"
    unit: str = "%"
    digits: str = ""
    corner: str = ""
    details: str = ""
    figure: str = ""
    optional: str = ""
    over: str = "seeds"

    def place(self, row: Row, column: Column) -> Place:
        run = (row.run or column.run or self.run).replace("{row}", row.name).replace("{column}", column.name)
        return Place(row.study or column.study or self.study, row.metric or column.metric or self.metric, run)

    def places(self) -> Iterator[Place]:
        """Of every cell that no text stands in."""
        for row in self.rows:
            yield from (self.place(row, column) for column in self.columns if column.name not in row.said)

    def studies(self) -> list[str]:
        return list(dict.fromkeys(place.study for place in self.places()))


@dataclass(frozen=True)
class Section:
    """The entries of a paper; ``also`` is said below them."""

    title: str
    entries: tuple[Entry, ...]
    about: str = ""
    also: str = ""


@dataclass(frozen=True)
class Page:
    """The first page, and what stands on the page of all tables.

    Args:
        title, intro: of the first page.
        expect: its table of what to expect; first line: the head.
        sections: the tables.
        reading: how to read the tables.
        artefacts: a line for each table and figure of a paper, whose third cell is one of STATES; first line: the head.
    """

    title: str
    intro: str
    expect: tuple[tuple[str, ...], ...]
    sections: tuple[Section, ...]
    reading: str = ""
    artefacts: tuple[tuple[str, ...], ...] = ()

    def counted(self) -> str:
        """How many artefacts are in each state.

        Raises:
            Mistake: for a state that does not exist.
        """
        for line in self.artefacts[1:]:
            refuse_unknown(line[2], STATES, f"{line[0]}, {line[1]}", "state of an artefact")
        count = Counter(line[2] for line in self.artefacts[1:])
        return ", ".join(f"**{count[state]} {state}** ({said})" for state, said in STATES.items()) + "."


def read_page(folder: Path = HERE) -> Page:
    """What page.yaml says, every name in it checked.

    Raises:
        Mistake: for a key, a study or a run that does not exist.
    """
    # all scalars as they are written: 97.80 is not 97.8
    text = (folder / "page.yaml").read_text(encoding="utf-8")
    try:
        page: Page = _made(Page, yaml.load(text, getattr(yaml, "CBaseLoader", yaml.BaseLoader)), "the page")
    except yaml.YAMLError as error:
        raise Mistake(" ".join(str(error).split())) from None
    sections = []
    for said in page.sections:
        section: Section = _made(Section, said, "a section")
        sections.append(replace(section, entries=tuple(_entry(entry) for entry in section.entries)))
    return replace(page, sections=tuple(sections))


def _entry(said: Any) -> Entry:
    entry: Entry = _made(Entry, said, "an entry")
    where = f"'{entry.title}'"
    rows = tuple(_made(Row, {"name": row} if isinstance(row, str) else row, f"a row of {where}") for row in entry.rows)
    columns = tuple(
        _made(Column, {"name": one} if isinstance(one, str) else one, f"a column of {where}") for one in entry.columns
    )
    entry = replace(entry, rows=rows, columns=columns)
    names = [column.name for column in columns]
    for row in rows:
        for name in row.said:
            refuse_unknown(name, names, f"{where}: {row.name}: said", "column")
        for column in columns:
            if column.metric == "said" and column.name not in row.said:
                raise Mistake(f"{where}: {row.name}: says nothing for '{column.name}'")
        if row.paper and len(row.paper) != len(columns):
            raise Mistake(f"{where}: {row.name}: {len(row.paper)} numbers of the paper for {len(columns)} columns")
    for column in columns:
        refuse_unknown(column.unit or entry.unit, SCALES, f"{where}: {column.name}", "unit")
    for place in entry.places():
        refuse_unknown(place.study, packaged(), where, "packaged study")
        if not matching(place.run, runs := runs_of(place.study)):
            refuse_unknown(place.run, runs, where, f"run of studies/{place.study}")
        if measured := study_file(place.study).get("metrics"):
            refuse_unknown(metric_of(place.quantity), measured, where, f"metric of studies/{place.study}")
    return entry


def _made(kind: type[Any], said: Any, where: str) -> Any:
    """A part of the page from a mapping that has its fields and no others."""
    if not isinstance(said, dict):
        raise Mistake(f"{where}: {said!r} is no mapping")
    known = {one.name: one.default is MISSING and one.default_factory is MISSING for one in fields(kind)}
    where = f"'{said['title']}'" if "title" in said else where
    for key in said:
        refuse_unknown(key, known, where, "key")
    for key, needed in known.items():
        if needed and key not in said:
            raise Mistake(f"{where}: has no {key}")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in said.items()})


MADE = "<!-- made by make_page.py from page.yaml and tables/: change those, then `make results` -->"
ALL = "all_tables.md"


def make(folder: Path = HERE) -> str:
    """The page of all tables as Markdown.

    Raises:
        Mistake: for a mistake in page.yaml, or a table or a line of one that is missing.
    """
    page, tables = read_page(folder), Tables(folder / "tables")
    parts = [MADE, "# All tables", page.reading.strip()]
    for section, shown in _sections(page, tables):
        parts += [f"## {section.title}", section.about.strip()]
        parts += [part for entry in shown for part in _shown(entry, tables)]
        parts.append(section.also.strip())
    return "\n\n".join(part for part in parts if part) + "\n"


def overview(folder: Path = HERE) -> str:
    """The first page as Markdown: what to expect, how near to its paper each table and figure is, where it stands."""
    page, tables = read_page(folder), Tables(folder / "tables")
    parts = [MADE, f"# {page.title}", page.intro.strip(), "## What to expect", _table(page.expect)]
    if page.artefacts:
        parts += ["## Every table and figure of the papers", page.counted(), _table(page.artefacts)]
    parts.append("## The tables")
    for section, shown in _sections(page, tables):
        lines = [f"- [{entry.title}]({ALL}#{_anchor(entry.title)})" for entry in shown]
        parts += [f"### {section.title}", section.about.strip(), "\n".join(lines), section.also.strip()]
    return "\n\n".join(part for part in parts if part) + "\n"


def _sections(page: Page, tables: Tables) -> Iterator[tuple[Section, list[Entry]]]:
    for section in page.sections:
        shown = [one for one in section.entries if one.optional != "true" or all(s in tables for s in one.studies())]
        if shown or section.also:
            yield section, shown


def _anchor(title: str) -> str:
    """As GitHub makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _grid(entry: Entry, tables: Tables) -> str:
    head = [entry.corner, *(column.label or column.name for column in entry.columns)]
    return _table([head, *([row.label or row.name, *_cells(entry, row, tables)] for row in entry.rows)])


def _shown(entry: Entry, tables: Tables) -> Iterator[str]:
    yield f"### {entry.title}"
    yield "\n".join(["```bash", *(_command(study, tables) for study in entry.studies()), "```"])
    seeds = sorted({tables.at(place).seeds for place in entry.places()})
    means = "One seed" if seeds == [1] else f"Mean ± 2 sd of {' or '.join(map(str, seeds))} {entry.over}"
    yield f"{entry.setting.strip()}. {means}."
    yield _grid(entry, tables)
    links = [f"[More]({entry.details})"] if entry.details else []
    links += [f"[Curves]({entry.figure})"] if entry.figure else []
    yield f"{entry.difference.strip()}\n{' · '.join(links)}".strip()


def _command(study: str, tables: Tables) -> str:
    command = f"lightning-vfl study studies/{study}"
    if needs_files(study):
        command = f"LIGHTNING_VFL_DATA=DIR {command}"
    for quantity, of in ((CPU_TIME, " of one core"), (RUN_TIME, "")):
        if time := tables.of(study).get((quantity, "")):
            return f"{command}    # {time.seeds} runs, {_duration(time.seeds * time.mean)}{of}"
    return command


def _cells(entry: Entry, row: Row, tables: Tables) -> Iterator[str]:
    for column, paper in zip(entry.columns, row.paper or [""] * len(entry.columns), strict=True):
        if column.name in row.said:
            ours = row.said[column.name]
        else:
            unit = column.unit or entry.unit
            scale = SCALES[unit] / float(column.divide)
            digits = column.digits or entry.digits or ("1" if unit == "%" else "")
            ours = _number(tables.at(entry.place(row, column)), scale, digits)
        yield f"{ours} *({paper})*" if paper else ours


def _number(value: Value, scale: float, digits: str) -> str:
    if isnan(value.mean):
        return "diverged"
    if isinf(value.mean):
        return "∞"
    mean, after = scale * value.mean, int(digits or 0)
    if not digits and mean:
        after = max(0, 2 - floor(log10(abs(mean))))
    return f"{mean:,.{after}f}" + ("" if isnan(value.sd) else f" ± {2 * scale * value.sd:,.{after}f}")


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _table(lines: Iterable[Iterable[str]]) -> str:
    head, *body = [[" ".join(cell.replace("|", "\\|").split()) for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *body])


def quantities_shown(folder: Path = HERE) -> tuple[dict[str, dict[str, None]], dict[str, dict[str, None]]]:
    """By study, the quantities of the page in its order, and the names with a star."""
    needed: dict[str, dict[str, None]] = {}
    pooled: dict[str, dict[str, None]] = {}
    for section in read_page(folder).sections:
        for place in (place for entry in section.entries for place in entry.places()):
            needed.setdefault(place.study, {})[place.quantity] = None
            if "*" in place.run:
                pooled.setdefault(place.study, {})[place.run] = None
    return needed, pooled


def main(arguments: list[str] | None = None, folder: Path = HERE) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description="Make the page of results from page.yaml and tables/.")
    parser.add_argument("--check", action="store_true", help="only say whether a page would change")
    parser.add_argument("--collect", nargs="+", metavar="WHERE", help="FOLDER of studies, or STUDY=FOLDER: make tables")
    said = parser.parse_args(arguments)
    try:
        if said.collect:
            for line in collect(said.collect, *quantities_shown(folder), folder):
                print(line)
            return 0
        pages = {folder / "README.md": overview(folder), folder / ALL: make(folder)}
    except Mistake as mistake:
        print(f"docs/results: {mistake}", file=sys.stderr)
        return 1
    for file, page in pages.items():
        if not said.check:
            file.write_text(page, encoding="utf-8")
        elif not file.is_file() or file.read_text(encoding="utf-8") != page:
            print(
                f"docs/results/{file.name} is not what page.yaml and tables/ make; run `make results`", file=sys.stderr
            )
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
