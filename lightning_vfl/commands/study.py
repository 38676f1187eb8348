"""``lightning-vfl study STUDY``."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import joblib
from filelock import FileLock, Timeout
from jsonargparse import ArgumentParser, Namespace
from jsonargparse.typing import NonNegativeInt, PositiveInt
from rich.console import Console

from lightning_vfl.commands import program
from lightning_vfl.commands.command import CLI, Command
from lightning_vfl.commands.printed_paths import print_files, short
from lightning_vfl.errors import ConfigurationError, on_one_line
from lightning_vfl.study import table as tables
from lightning_vfl.study.figures import out_of_sight
from lightning_vfl.study.grid import Run, grid
from lightning_vfl.study.read import find_study, read_study
from lightning_vfl.study.report import report
from lightning_vfl.study.runner import Means, carry_out
from lightning_vfl.study.search import search, write
from lightning_vfl.study.slurm import array_script
from lightning_vfl.study.spec import Search, Study
from lightning_vfl.study.worker import work

_BACKENDS = Literal["loky", "dask", "ray", "slurm"]
_ABOUT = (
    "Run a grid of recipes, overrides and seeds in parallel; write one table, a summary and figures. After an "
    "interruption, the same command continues the study: finished runs are not repeated."
)


class StudyCommand(Command):
    """Run the study and print the files to look at."""

    about = _ABOUT

    def add_options(self, parser: ArgumentParser) -> None:
        add = parser.add_argument
        add("study", type=str, metavar="STUDY", help="YAML file of the study, or a packaged one: studies/NAME")
        add("--out", type=str, help="folder of the results; default: studies/NAME")
        add("--jobs", type=PositiveInt | None, help="number of runs at a time; default: the number of cores")
        add("--threads", type=PositiveInt | None, help="torch threads of a run; default: cores / jobs")
        add(
            "--backend",
            type=_BACKENDS,
            default="loky",
            help="loky: processes here; slurm: print a job script for sbatch",
        )
        add("--backend-options", type=dict[str, Any], default={}, help="of dask: '{scheduler_host: tcp://HOST:8786}'")
        add("--only", type=NonNegativeInt | None, help="carry out the run of this number alone, and make no table")

    def run(self, cli: CLI) -> int:
        try:
            return _run(cli.given)
        except KeyboardInterrupt as stop:
            raise type(stop)("the same command continues the study") from None


def _run(said: Namespace) -> int:
    path = find_study(said.study)
    study = read_study(path)
    _refuse_search(study, said)
    means = None if said.backend == "slurm" or said.only is not None else _means(said)
    out = Path(said.out or Path("studies") / study.name).resolve()
    runs = list(grid(study, out))
    try:
        _check(runs)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    out.mkdir(parents=True, exist_ok=True)
    if said.only is not None:
        return _carry_out_one(runs, said)
    if means is None:
        _copy(path, out / "study.yaml")
        return _print_script(study, path, runs, out, said)
    lock = out / ".lock"
    try:
        with FileLock(lock, timeout=1):
            _copy(path, out / "study.yaml")
            if study.search is None:
                _carry_out(study, runs, out, means)
                return _report(study, runs, out)
            return _search(study, study.search, out, means)
    except Timeout:
        raise ConfigurationError(
            f"another process is running a study in {short(out)}; wait for its end, or give another --out"
        ) from None


def _refuse_search(study: Study, said: Namespace) -> None:
    """Refuse to carry out the trials of a search by number.

    Raises:
        ConfigurationError: names the option.
    """
    if study.search is not None and (said.backend == "slurm" or said.only is not None):
        given = "--backend slurm" if said.only is None else "--only"
        raise ConfigurationError(
            f"{given} needs runs that are known beforehand, and the trials of a search depend on each other; use "
            "--backend dask or ray"
        )


def _print_script(study: Study, path: Path, runs: Sequence[Run], out: Path, said: Namespace) -> int:
    left = [number for number, run in enumerate(runs) if not tables.is_finished(run)]
    if not left:
        raise ConfigurationError(
            f"all {len(runs)} runs in {short(out)} are finished; leave --backend out for the table"
        )
    script = array_script(
        study.name, Path(path).resolve(), out, left, said.threads or 1, said.jobs, said.backend_options
    )
    print(script, end="")
    return 0


def _carry_out_one(runs: Sequence[Run], said: Namespace) -> int:
    """Carry out one run in this process: a task of an array, which several machines work on at a time."""
    if said.only >= len(runs):
        raise ConfigurationError(f"--only {said.only}: the study has runs 0 to {len(runs) - 1}")
    run = runs[said.only]
    run.folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(run.folder / ".lock", timeout=1):
            if tables.is_finished(run):
                print(f"finished already: {run.label}")
                return 0
            for stale in (run.result, run.failure):
                stale.unlink(missing_ok=True)
            _, outcome = work(run, program.run_or_exit, said.threads or 1)
    except Timeout:
        raise ConfigurationError(f"another process carries out {run.label}; wait for its end") from None
    if outcome == "failed":
        raise ConfigurationError(f"{run.label}: {_reason(run)} (log: {short(run.log)})")
    print(f"finished: {run.label}")
    return 0


def _check(runs: Sequence[Run]) -> None:
    """Parse the arguments of one run of each line."""
    for one in {run.name: run for run in runs}.values():
        try:
            program.check(one.arguments)
        except ConfigurationError as error:
            raise ConfigurationError(f"{one.name}: {error}") from None


def _search(study: Study, wanted: Search, out: Path, means: Means) -> int:
    def carry_out_trials(runs: Sequence[Run]) -> None:
        _check(runs)
        _carry_out(study, runs, out, means)

    runs, found = search(study, wanted, out, carry_out_trials)
    print_files(write(found, study, wanted, out))
    return _report(study, runs, out)


def _carry_out(study: Study, runs: Sequence[Run], out: Path, means: Means) -> None:
    # a stream of its own: runs in this process send standard error to their logs
    with os.fdopen(os.dup(2), "w") as stream:
        console = Console(file=stream)
        states = [tables.is_finished(run) for run in runs]
        if finished := states.count(True):
            console.print(f"{finished} of {len(runs)} runs are finished already", highlight=False)
        if other := states.count(None):
            console.print(
                f"{other} of {len(runs)} results are of other recipes, settings or versions: run again", highlight=False
            )
        todo = [run for run, state in zip(runs, states, strict=True) if not state]
        todo.sort(key=lambda run: study.seeds.index(run.seed))  # every line has its first seed early
        if todo:
            carry_out(todo, program.run_or_exit, means, str(out / ".lock"), console)


def _report(study: Study, runs: Sequence[Run], out: Path) -> int:
    done = [run for run in runs if tables.is_finished(run)]
    failed = [run for run in runs if run not in done]
    for run in failed:
        print(f"failed: {run.label}: {_reason(run)} (log: {short(run.log)})", file=sys.stderr)
    if done:
        table = tables.collect(done, study)
        tables.write(table, out, "table")
        print_files([out / "table.parquet", *report(table, study, out)])
        everything = tables.collect(done, replace(study, metrics=()))
        for line in [*tables.unmeasured(everything, study), *out_of_sight(everything, study)]:
            print(f"lightning-vfl: {line}", file=sys.stderr)
    if failed:
        end = "the same command tries them again"
        print(f"lightning-vfl: error: {len(failed)} of {len(runs)} runs failed; {end}", file=sys.stderr)
    return 1 if failed else 0


def _means(said: Namespace) -> Means:
    cores = joblib.cpu_count()
    jobs = said.jobs or cores
    means = Means(jobs, said.threads or max(1, cores // jobs), said.backend, said.backend_options)
    try:
        _try(means)
    except (ValueError, TypeError, ImportError, OSError) as error:
        reason = on_one_line(error)
        if isinstance(error, ModuleNotFoundError):
            reason += f"; install it: pip install 'lightning-vfl[{said.backend}]'"
        raise ConfigurationError(f"--backend {said.backend}: {reason}; leave it out for processes here") from None
    return means


def _try(means: Means) -> None:
    """Import what the backend needs; connect to the workers that the user has named."""
    if means.backend == "ray":
        import_module("ray")
    elif means.backend == "dask" and "scheduler_host" not in means.options:
        import_module("distributed")
    else:
        with means.config():
            return


def _copy(path: Path, kept: Path) -> None:
    """The study beside its results: ``plot`` needs nothing else."""
    if path.resolve() != kept.resolve():
        part = kept.with_name(f".{kept.name}")
        part.write_bytes(path.read_bytes())
        part.replace(kept)


def _reason(run: Run) -> str:
    try:
        reason: str = json.loads(run.failure.read_text(encoding="utf-8"))["reason"]
    except FileNotFoundError:
        return "left neither a result nor a reason; do the workers see this folder?"
    return reason
