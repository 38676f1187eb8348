"""A study that searches over ranges with Optuna, recipe by recipe, in trials that are runs of the study."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.study import table as tables
from lightning_vfl.study.grid import Run, grid
from lightning_vfl.study.spec import Range, Search, Settings, Study
from lightning_vfl.whole_files import whole_path

CarryOut = Callable[[Sequence[Run]], None]


def trial_name(number: int) -> str:
    """The name of a trial, which is an override of its recipe.

    Examples:
        >>> trial_name(7)
        'trial 007'
    """
    return f"trial {number:03}"


def search(study: Study, wanted: Search, out: Path, carry_out: CarryOut) -> tuple[list[Run], pd.DataFrame]:
    """Carry out all trials; returns their runs, and a table with one line a recipe and trial.

    The sampler is a function of its seed and of the results of earlier trials. So the same command asks for the same
    trials again, and finds the results of those that are finished.

    Args:
        study: the study.
        wanted: its ``search``.
        out: the folder of the results.
        carry_out: carries out those of the runs that have no result yet.

    Raises:
        ConfigurationError: if Optuna is not installed, or if no run has measured the metric.
    """
    optuna = _optuna()
    way = "minimize" if wanted.minimises else "maximize"
    runs: list[Run] = []
    lines: list[dict[str, Any]] = []
    samplers = {
        recipe: optuna.create_study(direction=way, sampler=optuna.samplers.TPESampler(seed=wanted.seed))
        for recipe in study.recipes
    }
    for first in range(0, wanted.trials, wanted.at_once):
        numbers = range(first, min(first + wanted.at_once, wanted.trials))
        batch = []
        for number in numbers:
            for recipe, sampler in samplers.items():
                trial = sampler.ask()
                settings = {key: _suggested(trial, key, one) for key, one in wanted.ranges.items()}
                batch.append((recipe, number, trial, settings, list(_runs(study, recipe, number, settings, out))))
        carry_out([run for *_, of_trial in batch for run in of_trial])
        for recipe, number, trial, settings, of_trial in batch:
            value = _value(of_trial, study, wanted)
            state = optuna.trial.TrialState.FAIL if value is None else None
            samplers[recipe].tell(trial, value, state=state)
            lines.append({"recipe": recipe, "trial": number, wanted.metric: value, **settings})
            runs += of_trial
    return runs, pd.DataFrame(lines)


def best(found: pd.DataFrame, study: Study, wanted: Search) -> dict[str, dict[str, Any]]:
    """The best trial of each recipe that has one: its number, its value and its settings, as plain values."""
    told = {}
    for recipe in study.recipes:
        own = found[(found["recipe"] == recipe) & found[wanted.metric].notna()]
        if own.empty:
            continue
        line = own.sort_values(wanted.metric, ascending=wanted.minimises, kind="stable").iloc[0]
        settings = {key: _plain(line[key]) for key in wanted.ranges}
        told[recipe] = {"trial": int(line["trial"]), wanted.metric: float(line[wanted.metric]), "settings": settings}
    return told


def write(found: pd.DataFrame, study: Study, wanted: Search, out: Path) -> list[Path]:
    """Write ``search.csv`` and ``search.parquet`` with all trials, and ``best.yaml``; returns the files to look at."""
    # a column of choices may hold values of several types
    texts = {key: found[key].astype(str) for key, one in wanted.ranges.items() if one.choices}
    tables.write(found.assign(**texts), out, "search")
    path = out / "best.yaml"
    with whole_path(path) as whole:
        whole.write_text(yaml.safe_dump(best(found, study, wanted), sort_keys=False), encoding="utf-8")
    return [out / "search.csv", path]


def of_best(study: Study, out: Path) -> Study:
    """The study with the best trial of each recipe as its overrides, for summary and figures.

    Raises:
        ConfigurationError: if the folder of the results has no ``best.yaml``.
    """
    try:
        told = yaml.safe_load((out / "best.yaml").read_text(encoding="utf-8"))
    except OSError:
        raise ConfigurationError(f"{out} has no best.yaml; run lightning-vfl study again") from None
    names = sorted({trial_name(one["trial"]) for one in told.values()})
    return replace(study, overrides={name: {} for name in names} or {"": {}})


def _runs(study: Study, recipe: str, number: int, settings: Settings, out: Path) -> Iterator[Run]:
    one = replace(
        study,
        recipes={recipe: study.recipes[recipe]},
        overrides={trial_name(number): settings},
        baseline=None,
        figure=replace(study.figure, only=()),
    )
    return grid(one, out)


def _suggested(trial: Any, key: str, one: Range) -> Any:
    if one.choices:  # by number, because Optuna takes no lists and mappings
        return one.choices[trial.suggest_categorical(key, range(len(one.choices)))]
    if one.whole:
        return trial.suggest_int(key, int(one.low), int(one.high), step=int(one.step or 1), log=one.log)
    return trial.suggest_float(key, one.low, one.high, step=one.step, log=one.log)


def _value(runs: Sequence[Run], study: Study, wanted: Search) -> float | None:
    """The mean of the metric's last values over all seeds; None if a seed has no result."""
    if not all(map(tables.is_finished, runs)):
        return None
    table = tables.collect(runs, replace(study, metrics=(), targets={}))
    measured = table[table["metric"] == wanted.metric].sort_values("step", kind="stable")
    if measured.empty:
        there = ", ".join(sorted(table["metric"].unique()))
        raise ConfigurationError(f"search.optuna.metric: no run has measured {wanted.metric}; there are {there}")
    value = float(measured.groupby("seed")["value"].last().mean())
    return value if value == value else None  # NaN of a run that has diverged


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _optuna() -> Any:
    try:
        optuna = import_module("optuna")
    except ModuleNotFoundError:
        raise ConfigurationError("search needs Optuna; install it: pip install 'lightning-vfl[search]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
