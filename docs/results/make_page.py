"""The page of results, made from page.yaml and tables/STUDY.csv.

``python docs/results/make_page.py`` writes README.md; with ``--check`` it only says whether that would change anything;
with ``--collect FOLDER`` it takes what the page shows out of the folders that ``lightning-vfl study`` has written:
means into tables/STUDY.csv, and the values of single seeds into tables/seeds/STUDY.csv.
"""

import argparse
import csv
import difflib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from math import floor, inf, isfinite, isinf, isnan, log10, nan
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml

HERE = Path(__file__).parent
STUDIES = HERE.parents[1] / "configs" / "studies"
SCALES = {"%": 100.0, "number": 1.0, "MB": 1e-6, "GB": 1e-9, "Gbit": 8e-9}
WITH_SCIKIT = {"digits", "breast_cancer"}  # whose files need not be fetched
RUN_TIME = "seconds"  # of one run: mean over all runs of a study
BEGIN, END = "<!-- made by make results: -->", "<!-- until here -->"
COLUMNS = ("quantity", "run", "seeds", "mean", "sd")
SEED_COLUMNS = ("quantity", "run", "seed", "value")
_TARGET = re.compile(r"(step|passes|virtual_seconds|bytes) to (\S+) (\S+)")
_COST = re.compile(r"(step|passes|virtual_seconds|bytes) of (\S+)")
_AT = re.compile(r"(\S+) at (\d+)")


class Mistake(Exception):
    """What keeps the page from being made, in one line."""


class Value(NamedTuple):
    """One line of a table: a quantity of a run, over so many seeds; ``inf``: not every seed got there."""

    seeds: int
    mean: float
    sd: float


class Place(NamedTuple):
    """Where a cell of the page stands in the tables."""

    study: str
    quantity: str
    run: str


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
        short: "true" puts its table into the project's README too, between the marks there.
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
    short: str = ""
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
    """Heading, what comes before the sections, a table of what to expect (first line: its head), sections."""

    title: str
    intro: str
    expect: tuple[tuple[str, ...], ...]
    sections: tuple[Section, ...]


def read_page(folder: Path = HERE) -> Page:
    """What page.yaml says, every name in it checked.

    Raises:
        Mistake: for a key, a study or a run that does not exist.
    """
    # all scalars as they are written: 97.80 is not 97.8
    text = (folder / "page.yaml").read_text(encoding="utf-8")
    try:
        page: Page = _made(Page, yaml.load(text, yaml.BaseLoader), "the page")
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
            _known(name, names, f"{where}: {row.name}: said", "column")
        for column in columns:
            if column.metric == "said" and column.name not in row.said:
                raise Mistake(f"{where}: {row.name}: says nothing for '{column.name}'")
        if row.paper and len(row.paper) != len(columns):
            raise Mistake(f"{where}: {row.name}: {len(row.paper)} numbers of the paper for {len(columns)} columns")
    for column in columns:
        _known(column.unit or entry.unit, SCALES, f"{where}: {column.name}", "unit")
    for place in entry.places():
        _known(place.study, packaged(), where, "packaged study")
        if not matching(place.run, runs := runs_of(place.study)):
            _known(place.run, runs, where, f"run of studies/{place.study}")
        if measured := study_file(place.study).get("metrics"):
            _known(_metric(place.quantity), measured, where, f"metric of studies/{place.study}")
    return entry


def _made(kind: type[Any], said: Any, where: str) -> Any:
    """A part of the page from a mapping that has its fields and no others."""
    if not isinstance(said, dict):
        raise Mistake(f"{where}: {said!r} is no mapping")
    known = {one.name: one.default is MISSING and one.default_factory is MISSING for one in fields(kind)}
    where = f"'{said['title']}'" if "title" in said else where
    for key in said:
        _known(key, known, where, "key")
    for key, needed in known.items():
        if needed and key not in said:
            raise Mistake(f"{where}: has no {key}")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in said.items()})


def _known(name: str, known: Iterable[str], where: str, what: str) -> None:
    if name not in (names := list(known)):
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        raise Mistake(f"{where}: '{name}' is no {what}" + (f"; did you mean {near[0]}?" if near else ""))


def _metric(quantity: str) -> str:
    for pattern, group in ((_TARGET, 2), (_COST, 2), (_AT, 1)):
        if match := pattern.fullmatch(quantity):
            return match[group]
    return quantity


def packaged() -> list[str]:
    """The studies that ship with the package."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


@cache
def study_file(study: str) -> Any:
    """What a packaged study says."""
    return yaml.safe_load((STUDIES / f"{study}.yaml").read_text(encoding="utf-8"))


def runs_of(study: str) -> dict[str, Path]:
    """The names of a study's runs, as its tables have them, and their folders below runs/."""
    recipes, overrides = study_file(study)["recipes"], study_file(study).get("overrides") or [""]
    return {_run(recipe, one): Path(str(recipe), str(one)) for recipe in recipes for one in overrides}


def matching(run: str, runs: Iterable[str]) -> list[str]:
    """The runs that a name stands for: itself, or with one ``*`` those that have anything in its place."""
    before, star, after = run.partition("*")
    if not star:
        return [one for one in runs if one == run]
    return [one for one in runs if one.startswith(before) and one.endswith(after) and len(one) > len(run) - 1]


def _run(recipe: object, override: object) -> str:
    return f"{recipe}, {override}" if override else str(recipe)


def needs_files(study: str) -> bool:
    """Whether a study reads data that do not come with the dependencies."""
    recipes = re.findall(r"\bdata/(\w+)", (STUDIES / f"{study}.yaml").read_text(encoding="utf-8"))
    return bool(set(recipes) - WITH_SCIKIT)


class Tables:
    """The lines of tables/STUDY.csv."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[str, dict[tuple[str, str], Value]] = {}

    def __contains__(self, study: str) -> bool:
        return (self.folder / f"{study}.csv").is_file()

    def of(self, study: str) -> dict[tuple[str, str], Value]:
        if study not in self._read:
            if study not in self:
                raise Mistake(f"tables/{study}.csv: no such table; collect it from the study's folder with --collect")
            with (self.folder / f"{study}.csv").open(encoding="utf-8", newline="") as lines:
                self._read[study] = {
                    (line["quantity"], line["run"]): Value(
                        int(line["seeds"]), float(line["mean"] or nan), float(line["sd"] or nan)
                    )
                    for line in csv.DictReader(lines)
                }
        return self._read[study]

    def at(self, place: Place) -> Value:
        table = self.of(place.study)
        if (place.quantity, place.run) not in table:
            raise Mistake(f"tables/{place.study}.csv: no {place.quantity} of '{place.run}'; collect it with --collect")
        return table[place.quantity, place.run]


def make(folder: Path = HERE) -> str:
    """The page as Markdown.

    Raises:
        Mistake: for a mistake in page.yaml, or a table or a line of one that is missing.
    """
    page, tables = read_page(folder), Tables(folder / "tables")
    parts = ["<!-- made by make_page.py from page.yaml and tables/: change those, then `make results` -->"]
    parts += [f"# {page.title}", page.intro.strip(), "## What to expect", _table(page.expect)]
    for section in page.sections:
        shown = [one for one in section.entries if one.optional != "true" or all(s in tables for s in one.studies())]
        if not shown and not section.also:
            continue
        parts += [f"## {section.title}", section.about.strip()]
        parts += [part for entry in shown for part in _shown(entry, tables)]
        parts.append(section.also.strip())
    return "\n\n".join(part for part in parts if part) + "\n"


def in_short(text: str, folder: Path = HERE) -> str:
    """The project's README with the tables of the entries that are ``short`` between its marks."""
    if BEGIN not in text:
        return text
    page, tables = read_page(folder), Tables(folder / "tables")
    entries = [entry for section in page.sections for entry in section.entries if entry.short == "true"]
    shown = [f"{entry.setting.strip()}.\n\n{_grid(entry, tables)}" for entry in entries]
    before, rest = text.split(BEGIN, 1)
    return "\n\n".join((before + BEGIN, *shown, END + rest.split(END, 1)[1]))


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
    time = tables.of(study).get((RUN_TIME, ""))
    return f"{command}    # {time.seeds} runs, {_duration(time.seeds * time.mean)}" if time else command


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


def collect(wheres: Iterable[str], folder: Path = HERE) -> Iterator[str]:
    """Write tables/STUDY.csv from folders that studies have written; says what was written, and what to look at.

    Args:
        wheres: ``FOLDER`` with a folder for each study, by its name, or ``STUDY=FOLDER``.
        folder: of page.yaml and tables/.
    """
    needed: dict[str, dict[str, None]] = {}  # study -> its quantities, in the order of the page
    pooled: dict[str, dict[str, None]] = {}  # study -> its names with a star
    for section in read_page(folder).sections:
        for place in (place for entry in section.entries for place in entry.places()):
            needed.setdefault(place.study, {})[place.quantity] = None
            if "*" in place.run:
                pooled.setdefault(place.study, {})[place.run] = None
    for where in wheres:
        name, _, path = where.rpartition("=")
        if name:
            _known(name, needed, where, "study that the page shows")
        found = {name: Path(path)} if name else {study: Path(path) / study for study in needed}
        found = {study: out for study, out in found.items() if (out / "summary.csv").is_file()}
        if not found:
            raise Mistake(f"{where}: no summary.csv of a study that the page shows")
        for study, out in found.items():
            single = {quantity: values for quantity in needed[study] if (values := per_seed(out, quantity))}
            lines = list(_run_times(study, out))
            if study in pooled:
                lines += [_pooled(single[quantity], quantity, run) for quantity in single for run in pooled[study]]
            else:
                lines += [line for quantity in needed[study] for line in _collected(out, quantity)]
            _write(folder / "tables" / f"{study}.csv", COLUMNS, lines)
            each = (
                [quantity, run, str(seed), f"{value:.7g}"]
                for quantity, runs in single.items()
                for run, seeds in runs.items()
                for seed, value in seeds.items()
            )
            _write(folder / "tables" / "seeds" / f"{study}.csv", SEED_COLUMNS, each)
            yield f"tables/{study}.csv: {len(lines)} lines"
            kept = out / "study.yaml"
            if not kept.is_file() or yaml.safe_load(kept.read_text(encoding="utf-8")) != study_file(study):
                yield f"tables/{study}.csv: {out} is of another version of studies/{study}, or does not say of which"


def _write(file: Path, head: Iterable[str], lines: Iterable[Iterable[object]]) -> None:
    file.parent.mkdir(exist_ok=True)
    with file.open("w", encoding="utf-8", newline="") as opened:
        csv.writer(opened, lineterminator="\n").writerows([head, *lines])


def per_seed(out: Path, quantity: str) -> dict[str, "pd.Series[float]"]:
    """Run -> seed -> value, ``inf`` where a seed never got there; nothing for a cost, or without the study's tables."""
    if match := _TARGET.fullmatch(quantity):
        cost, metric, target = match.groups()
        table = _with_runs(pd.read_csv(out / "targets.csv"))
        table = table[(table["metric"] == metric) & (table["target"] == float(target))]
        return {str(run): one.set_index("seed")[cost].fillna(inf) for run, one in table.groupby("run", sort=False)}
    if _COST.fullmatch(quantity) or not (out / "table.csv").is_file():
        return {}
    table = pd.read_csv(out / "table.csv")
    if match := _AT.fullmatch(quantity):
        metric, step = match.groups()
        table = table[(table["metric"] == metric) & (table["step"] == int(step))]
    else:
        table = _last(table, quantity)
    return {str(run): one.set_index("seed")["value"] for run, one in table.groupby("run", sort=False)}


def _pooled(values: Mapping[str, "pd.Series[float]"], quantity: str, run: str) -> list[object]:
    """One line for a name with a star: every run that it stands for counts once, with the mean of its seeds."""
    means = pd.Series([values[one].mean(skipna=False) for one in matching(run, values)])
    if means.isna().any():
        return _line(quantity, run, len(means), nan, nan)
    return _line(quantity, run, len(means), means.mean(), means.std(ddof=1))


def _collected(out: Path, quantity: str) -> Iterator[list[object]]:
    if not (_TARGET.fullmatch(quantity) or _AT.fullmatch(quantity)):
        yield from _summarised(out, quantity)
        return
    if not (values := per_seed(out, quantity)):
        raise Mistake(f"{out}: has no {quantity}")
    for run, seeds in values.items():
        whole = bool(seeds.map(isfinite).all())
        mean, sd = (seeds.mean(), seeds.std(ddof=1)) if whole else (inf if seeds.isin([inf]).any() else nan, nan)
        yield _line(quantity, run, len(seeds), mean, sd)


def _summarised(out: Path, quantity: str) -> Iterator[list[object]]:
    cost = _COST.fullmatch(quantity)
    metric = cost[2] if cost else quantity
    summary = pd.read_csv(out / "summary.csv")
    summary = summary[summary["metric"] == metric]
    if summary.empty:
        raise Mistake(f"{out}: has no {quantity}")
    lost = _diverged(out, metric)
    for line in summary.to_dict("records"):
        if cost:
            mean, sd = line[cost[1]], nan
        else:
            mean, sd = (nan, nan) if line["run"] in lost else (line["mean"], line["sd"])
        yield _line(quantity, line["run"], line["seeds"], mean, sd)


def _diverged(out: Path, metric: str) -> set[str]:
    """Runs of which a seed ended without a number: means of the other seeds would flatter."""
    if not (out / "table.csv").is_file():
        return set()
    last = _last(pd.read_csv(out / "table.csv"), metric)
    return {str(run) for run in last[last["value"].isna()]["run"]}


def _last(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The last line of every run and seed."""
    table = table[table["metric"] == metric].sort_values("step", kind="stable")
    return table.groupby(["run", "seed"], sort=False).tail(1)


def _with_runs(table: pd.DataFrame) -> pd.DataFrame:
    """With a column of the runs' names; a study without overrides leaves theirs empty."""
    overrides = table["override"].astype(object).fillna("")
    return table.assign(run=[_run(*pair) for pair in zip(table["recipe"], overrides, strict=True)])


def _run_times(study: str, out: Path) -> Iterator[list[object]]:
    """From when a fit wrote its settings down to its result; nothing if a run is missing, or copies are of one time."""
    seeds = [Path(f"seed-{seed}") for seed in study_file(study)["seeds"]]
    runs = [out / "runs" / run / seed for run in runs_of(study).values() for seed in seeds]
    files = [(run / "config.yaml", run / "result.parquet") for run in runs]
    if all(file.is_file() for pair in files for file in pair):
        took = [result.stat().st_mtime - start.stat().st_mtime for start, result in files]
        if min(took) > 0.1:
            yield [RUN_TIME, "", len(took), f"{sum(took) / len(took):.4g}", ""]


def _line(quantity: str, run: str, seeds: Any, mean: float, sd: float) -> list[object]:
    # ten digits: float32 measures have fewer, so the page rounds as the study's own summary does
    return [quantity, run, int(seeds), *("" if isnan(value) else f"{value:.10g}" for value in (mean, sd))]


def main(arguments: list[str] | None = None, folder: Path = HERE) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description="Make the page of results from page.yaml and tables/.")
    parser.add_argument("--check", action="store_true", help="only say whether README.md would change")
    parser.add_argument("--collect", nargs="+", metavar="WHERE", help="FOLDER of studies, or STUDY=FOLDER: make tables")
    said = parser.parse_args(arguments)
    try:
        if said.collect:
            for line in collect(said.collect, folder):
                print(line)
            return 0
        pages = {folder / "README.md": make(folder)}
        if (root := folder.parents[1] / "README.md").is_file():
            pages[root] = in_short(root.read_text(encoding="utf-8"), folder)
    except Mistake as mistake:
        print(f"docs/results: {mistake}", file=sys.stderr)
        return 1
    for file, page in pages.items():
        if not said.check:
            file.write_text(page, encoding="utf-8")
        elif not file.is_file() or file.read_text(encoding="utf-8") != page:
            where = "docs/results/README.md" if file.parent == folder else "README.md"
            print(f"{where} is not what page.yaml and tables/ make; run `make results`", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
