"""The page of the papers' claims, made from claims.yaml and the tables of the studies.

``python docs/results/make_claims.py`` writes claims.md; ``--check`` only says whether that would change anything.
Every claim is a difference that must lie above 0, or within a margin of 0. Its 95 % interval decides: confirmed if the
whole interval is where the claim says, refuted if no part of it is, open otherwise. A claim whose study has other data,
networks, scale or optimisers than the paper says is not tested, whatever its interval.
"""

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import inf, isfinite, isnan, nan, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import yaml
from scipy.stats import t as student
from studies import HERE, LOADER, Mistake

SCALES = {"%": 100.0, "number": 1.0, "epoch": 1 / 89}  # epoch: of Phishing, in rounds
HEAD = """<!-- made by make_claims.py from claims.yaml and tables/: change those, then `make results` -->

# The papers' claims, one by one

<!-- no block of this page is run: it has none -->

**Of {count} claims, {verdicts}.**

Each line is a claim of a paper as a difference between two of our runs, or between a run and a number. The rule:

- **Not tested**: our runs have other data, other networks, another scale (records, epochs, parties) or another
  optimiser than the paper says. The verdict names what is other. The interval says what our runs show at their own
  setting, and nothing about the paper.
- Otherwise the 95 % interval of the difference decides: **confirmed** if it lies where the claim says (above 0, or
  within the margin that the line names), **refuted** if it lies outside, **open** if it covers both. One seed has no
  interval, and its claim is open; a run that diverges is not ahead.

The interval is Student's t over differences of pairs (of one seed, or of one partition of the columns) where the values
of single seeds are in [tables/seeds](tables/seeds), and Welch's over means and deviations elsewhere. An interval is for
one claim alone: among so many, some miss by chance. Where a paper leaves a setting open, ours stands below its claims:
a verdict holds for these settings.
"""
VERDICTS = "confirmed", "refuted", "open", "not tested"


class Interval(NamedTuple):
    """A mean difference, the ends of its 95 % interval, and how many values or pairs it is from."""

    mean: float
    low: float
    high: float
    size: int


@dataclass(frozen=True)
class Claim:
    """A claim of a paper.

    Args:
        paper: heading under which it stands.
        where: its table, figure or section in the paper.
        says: the claim.
        study: packaged study that tests it.
        quantity: as in page.yaml.
        run: the run that is to be larger, or smaller with ``smaller``; a ``*`` pools the runs that differ in it alone.
        than: the run that it is compared with; or a number, such as the paper's, in the unit.
        margin: None: the difference is above 0. A number: its absolute value is below this.
        smaller: the claim is that ``run`` is smaller.
        unit: one of SCALES; ``%``: the differences are points of percent.
        digits: after the point.
        note: what the reader has to know.
        other: what its runs have otherwise than the paper says, beyond that of the whole study: it is not tested.
    """

    paper: str
    where: str
    says: str
    study: str
    run: str
    than: str | float
    quantity: str = "test/accuracy"
    margin: float | None = None
    smaller: bool = False
    unit: str = "%"
    digits: int = 1
    note: str = ""
    other: str = ""


@dataclass(frozen=True)
class Setting:
    """How a study stands to its paper.

    Args:
        other: what it has otherwise than the paper says, of data, networks, scale and optimisers; empty: nothing.
        ours: what it has where the paper says nothing.
    """

    other: str = ""
    ours: str = ""


def read_settings(folder: Path = HERE) -> dict[str, Setting]:
    """Of every study of claims.yaml.

    Raises:
        Mistake: for a key that does not exist.
    """
    said = yaml.load((folder / "claims.yaml").read_text(encoding="utf-8"), LOADER)["settings"]
    try:
        return {study: Setting(**one) for study, one in said.items()}
    except TypeError as error:
        raise Mistake(f"claims.yaml: settings: {error}") from None


def read_claims(folder: Path = HERE) -> list[Claim]:
    """What claims.yaml says, with what the study of each claim has otherwise than the paper.

    Raises:
        Mistake: for a key that does not exist, or one that is missing, and for a study without settings.
    """
    said = yaml.load((folder / "claims.yaml").read_text(encoding="utf-8"), LOADER)["claims"]
    settings = read_settings(folder)
    known = {one.name for one in fields(Claim)}
    claims = []
    for paper, entries in said.items():
        for entry in entries:
            if unknown := set(entry) - known:
                raise Mistake(f"claims.yaml: '{entry.get('says', '?')}': '{min(unknown)}' is no key")
            try:
                claim = Claim(paper=paper, **entry)
            except TypeError as error:
                raise Mistake(f"claims.yaml: '{entry.get('says', '?')}': {error}") from None
            if claim.study not in settings:
                raise Mistake(
                    f"claims.yaml: settings: nothing about {claim.study}; say what is other, and what is ours"
                )
            other = "; ".join(part for part in (settings[claim.study].other, claim.other) if part)
            claims.append(replace(claim, other=other))
    return claims


def interval(claim: Claim, folder: Path = HERE) -> Interval:
    """Of ``run`` minus ``than``, times the unit's scale; turned round if the claim is that ``run`` is smaller."""
    scale = SCALES[claim.unit] * (-1 if claim.smaller else 1)
    ours = _seeds(claim, claim.run, folder)
    if not isinstance(claim.than, str):
        number = scale * claim.than / SCALES[claim.unit]
        if ours:
            return _paired([scale * value - number for value in ours.values()])
        seeds, mean, sd = _line(claim, claim.run, folder)
        return _spread(scale * mean - number, abs(scale) * sd / sqrt(seeds), seeds - 1, seeds)
    theirs = _seeds(claim, claim.than, folder)
    pairs = sorted(set(ours) & set(theirs))
    one, other = ours or _line(claim, claim.run, folder), theirs or _line(claim, claim.than, folder)
    if not _finite(other):
        raise Mistake(f"claims.yaml: '{claim.says}': '{claim.than}' has no finite mean to compare with")
    if not _finite(one):
        return Interval(nan, -inf, inf, len(ours) or _line(claim, claim.run, folder)[0])
    if pairs:
        return _paired([scale * (ours[key] - theirs[key]) for key in pairs])
    return _welch(_line(claim, claim.run, folder), _line(claim, claim.than, folder), scale)


def _finite(values: Mapping[str, float] | tuple[int, float, float]) -> bool:
    """Whether every seed, or the mean of a table's line, is a number."""
    return all(isfinite(value) for value in values.values()) if isinstance(values, Mapping) else isfinite(values[1])


def verdict(claim: Claim, found: Interval) -> str:
    """One of VERDICTS; a run that has diverged refutes that it is ahead."""
    if claim.other:
        return "not tested"
    if isnan(found.mean):
        return "refuted"
    if claim.margin is None:
        return "confirmed" if found.low > 0 else "refuted" if found.high < 0 else "open"
    if -claim.margin < found.low and found.high < claim.margin:
        return "confirmed"
    return "refuted" if found.low > claim.margin or found.high < -claim.margin else "open"


def _paired(differences: list[float]) -> Interval:
    count = len(differences)
    error = stdev(differences) / sqrt(count) if count > 1 else inf
    return _spread(fmean(differences), error, count - 1, count)


def _welch(one: tuple[int, float, float], other: tuple[int, float, float], scale: float) -> Interval:
    """For independent samples of unequal variance."""
    (n, mean, sd), (m, against, spread) = one, other
    a, b = (scale * sd) ** 2 / n, (scale * spread) ** 2 / m
    if n == 1 or m == 1:
        return Interval(scale * (mean - against), -inf, inf, min(n, m))
    degrees = (a + b) ** 2 / (a**2 / (n - 1) + b**2 / (m - 1)) if a + b else n + m - 2
    return _spread(scale * (mean - against), sqrt(a + b), degrees, min(n, m))


def _spread(mean: float, error: float, degrees: float, count: int) -> Interval:
    if count == 1:
        return Interval(mean, -inf, inf, 1)
    half = float(student.ppf(0.975, degrees)) * error
    return Interval(mean, mean - half, mean + half, count)


def _seeds(claim: Claim, run: str, folder: Path) -> dict[str, float]:
    """Seed -> value of a run; for a name with a star, what stands in its place -> the mean of its seeds."""
    path = folder / "tables" / "seeds" / f"{claim.study}.csv"
    if not path.is_file():
        return {}
    before, star, after = run.partition("*")
    gathered: dict[str, list[float]] = {}
    with path.open(encoding="utf-8", newline="") as lines:
        for line in csv.DictReader(lines):
            name = line["run"]
            matches = (
                name.startswith(before) and name.endswith(after) and len(name) >= len(run) if star else name == run
            )
            if matches and line["quantity"] == claim.quantity:
                key = name[len(before) : len(name) - len(after)] if star else line["seed"]
                gathered.setdefault(key, []).append(float(line["value"]))
    return {key: fmean(values) for key, values in gathered.items()}


def _line(claim: Claim, run: str, folder: Path) -> tuple[int, float, float]:
    """Seeds, mean and standard deviation of a run, from the study's table."""
    path = folder / "tables" / f"{claim.study}.csv"
    if not path.is_file():
        raise Mistake(f"tables/{claim.study}.csv: no such table; collect it with make_page.py --collect")
    with path.open(encoding="utf-8", newline="") as lines:
        for line in csv.DictReader(lines):
            if line["quantity"] == claim.quantity and line["run"] == run:
                return int(line["seeds"]), float(line["mean"] or "nan"), float(line["sd"] or 0.0)
    raise Mistake(f"tables/{claim.study}.csv: no {claim.quantity} of '{run}'")


def make(folder: Path = HERE) -> str:
    """The page as Markdown."""
    claims = read_claims(folder)
    found = [(claim, interval(claim, folder)) for claim in claims]
    counted = Counter(verdict(*one) for one in found)
    said = ", ".join(f"{counted[one]} {one}" for one in VERDICTS)
    lines = [HEAD.format(count=len(claims), verdicts=said)]
    settings = read_settings(folder)
    for paper in dict.fromkeys(claim.paper for claim in claims):
        here = [one for one in found if one[0].paper == paper]
        lines += ["", f"## {paper}", ""]
        lines += ["| where | claim | difference | 95 % interval | seeds or pairs | verdict |", "| " + "--- | " * 6]
        lines += [_row(*one) for one in here]
        ours = {study: settings[study].ours for study in dict.fromkeys(claim.study for claim, _ in here)}
        if any(ours.values()):
            lines += ["", "Where the paper says nothing:", ""]
            lines += [f"- `{study}`: {said}." for study, said in ours.items() if said]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _row(claim: Claim, found: Interval) -> str:
    mean = "diverges" if isnan(found.mean) else f"{found.mean:+.{claim.digits}f}"
    ends = f"{found.low:+.{claim.digits}f} to {found.high:+.{claim.digits}f}" if isfinite(found.low) else "none"
    rule = "above 0" if claim.margin is None else f"within {claim.margin:g}"
    note = f" {claim.note}" if claim.note else ""
    study = f"`{claim.study}`"
    says = f"{claim.says} ({rule}): {study}.{note}"
    because = f": {claim.other}" if claim.other else ""
    return f"| {claim.where} | {says} | {mean} | {ends} | {found.size} | **{verdict(claim, found)}**{because} |"


def main(arguments: list[str] | None = None, folder: Path = HERE) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(description="Make the page of claims from claims.yaml and tables/.")
    parser.add_argument("--check", action="store_true", help="only say whether claims.md would change")
    said = parser.parse_args(arguments)
    try:
        page = make(folder)
    except Mistake as mistake:
        print(f"docs/results: {mistake}", file=sys.stderr)
        return 1
    file = folder / "claims.md"
    if not said.check:
        file.write_text(page, encoding="utf-8")
    elif not file.is_file() or file.read_text(encoding="utf-8") != page:
        print("docs/results/claims.md is not what claims.yaml and tables/ make; run `make results`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
