"""Tables of the pages of results, out of the folders that ``lightning-vfl study`` has written."""

import csv
from collections.abc import Iterable, Iterator, Mapping
from math import inf, isfinite, isnan, nan
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from studies import (
    AT,
    COST,
    CPU_FILE,
    CPU_TIME,
    RUN_TIME,
    TARGET,
    Mistake,
    matching,
    name_of,
    refuse_unknown,
    runs_of,
    study_file,
)

COLUMNS = ("quantity", "run", "seeds", "mean", "sd")
SEED_COLUMNS = ("quantity", "run", "seed", "value")


def collect(
    wheres: Iterable[str], needed: Mapping[str, Iterable[str]], pooled: Mapping[str, Iterable[str]], folder: Path
) -> Iterator[str]:
    """Write tables/STUDY.csv from folders that studies have written; says what was written, and what to look at.

    Args:
        wheres: ``FOLDER`` with a folder for each study, by its name, or ``STUDY=FOLDER``.
        needed: study -> the quantities that are shown, in the order of the page.
        pooled: study -> the names with a star that are shown, each of which stands for several runs.
        folder: of tables/.
    """
    for where in wheres:
        name, _, path = where.rpartition("=")
        if name:
            refuse_unknown(name, needed, where, "study that the page shows")
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
    if match := TARGET.fullmatch(quantity):
        cost, metric, target = match.groups()
        table = _with_runs(pd.read_csv(out / "targets.csv"))
        table = table[(table["metric"] == metric) & (table["target"] == float(target))]
        return {str(run): one.set_index("seed")[cost].fillna(inf) for run, one in table.groupby("run", sort=False)}
    if COST.fullmatch(quantity) or not (out / "table.csv").is_file():
        return {}
    table = pd.read_csv(out / "table.csv")
    if match := AT.fullmatch(quantity):
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
    if not (TARGET.fullmatch(quantity) or AT.fullmatch(quantity)):
        yield from _summarised(out, quantity)
        return
    if not (values := per_seed(out, quantity)):
        raise Mistake(f"{out}: has no {quantity}")
    for run, seeds in values.items():
        whole = bool(seeds.map(isfinite).all())
        mean, sd = (seeds.mean(), seeds.std(ddof=1)) if whole else (inf if seeds.isin([inf]).any() else nan, nan)
        yield _line(quantity, run, len(seeds), mean, sd)


def _summarised(out: Path, quantity: str) -> Iterator[list[object]]:
    cost = COST.fullmatch(quantity)
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
    return table.assign(run=[name_of(*pair) for pair in zip(table["recipe"], overrides, strict=True)])


def _run_times(study: str, out: Path) -> Iterator[list[object]]:
    """Of one run: processor time if the queue has run the study, otherwise from its written settings to its result.

    Nothing if a run is missing, or if the files are copies, which are of one time.
    """
    seeds = [Path(f"seed-{seed}") for seed in study_file(study)["seeds"]]
    runs = [out / "runs" / run / seed for run in runs_of(study).values() for seed in seeds]
    files = [(run / "config.yaml", run / "result.parquet") for run in runs]
    if not all(file.is_file() for pair in files for file in pair):
        return
    if (out / CPU_FILE).is_file():
        seconds = sum(map(float, (out / CPU_FILE).read_text(encoding="utf-8").split()))
        yield [CPU_TIME, "", len(runs), f"{seconds / len(runs):.4g}", ""]
        return
    took = [result.stat().st_mtime - start.stat().st_mtime for start, result in files]
    if min(took) > 0.1:
        yield [RUN_TIME, "", len(took), f"{sum(took) / len(took):.4g}", ""]


def _line(quantity: str, run: str, seeds: Any, mean: float, sd: float) -> list[object]:
    # ten digits: float32 measures have fewer, so the page rounds as the study's own summary does
    return [quantity, run, int(seeds), *("" if isnan(value) else f"{value:.10g}" for value in (mean, sd))]
