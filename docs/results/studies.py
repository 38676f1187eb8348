"""The packaged studies, as the pages of results name them, and the tables that were collected from their folders."""

import csv
import difflib
import re
from collections.abc import Iterable
from functools import cache
from math import nan
from pathlib import Path
from typing import Any, NamedTuple

import yaml

HERE = Path(__file__).parent
STUDIES = HERE.parents[1] / "configs" / "studies"
WITH_SCIKIT = {"digits", "breast_cancer"}  # whose files need not be fetched
RUN_TIME = "seconds"  # of one run: mean over all runs of a study
CPU_TIME = "processor seconds"  # the same, where the queue has run the study
CPU_FILE = "cpu_seconds.csv"  # in the folder of a study: a line for each start by the queue
TARGET = re.compile(r"(step|passes|virtual_seconds|bytes) to (\S+) (\S+)")
COST = re.compile(r"(step|passes|virtual_seconds|bytes) of (\S+)")
AT = re.compile(r"(\S+) at (\d+)")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C: ten times as fast


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


def refuse_unknown(name: str, known: Iterable[str], where: str, what: str) -> None:
    """Refuse a name that is not known, with the nearest one that is."""
    if name not in (names := list(known)):
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        raise Mistake(f"{where}: '{name}' is no {what}" + (f"; did you mean {near[0]}?" if near else ""))


def metric_of(quantity: str) -> str:
    """The metric that a quantity is taken from."""
    for pattern, group in ((TARGET, 2), (COST, 2), (AT, 1)):
        if match := pattern.fullmatch(quantity):
            return match[group]
    return quantity


@cache
def packaged() -> tuple[str, ...]:
    """The studies that ship with the package."""
    return tuple(sorted(path.stem for path in STUDIES.glob("*.yaml")))


@cache
def study_file(study: str) -> Any:
    """What a packaged study says."""
    return yaml.load((STUDIES / f"{study}.yaml").read_text(encoding="utf-8"), LOADER)


@cache
def runs_of(study: str) -> dict[str, Path]:
    """The names of a study's runs, as its tables have them, and their folders below runs/."""
    recipes, overrides = study_file(study)["recipes"], study_file(study).get("overrides") or [""]
    return {name_of(recipe, one): Path(str(recipe), str(one)) for recipe in recipes for one in overrides}


def matching(run: str, runs: Iterable[str]) -> list[str]:
    """The runs that a name stands for: itself, or with one ``*`` those that have anything in its place."""
    before, star, after = run.partition("*")
    if not star:
        return [one for one in runs if one == run]
    return [one for one in runs if one.startswith(before) and one.endswith(after) and len(one) > len(run) - 1]


def name_of(recipe: object, override: object) -> str:
    """The name of a run in the tables of its study."""
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
