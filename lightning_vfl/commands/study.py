"""``lightning-vfl study STUDY`` and ``lightning-vfl plot RESULTS``."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import joblib
import yaml
from filelock import FileLock, Timeout
from rich.console import Console

from lightning_vfl.commands.parse_errors import OneLineParser
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.study import table as tables
from lightning_vfl.study.grid import Run, grid
from lightning_vfl.study.report import report
from lightning_vfl.study.runner import Means, carry_out
from lightning_vfl.study.spec import Study, find_study, read_study
from lightning_vfl.study.worker import CommandLine


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The arguments of ``study`` and ``plot``, the word itself first."""
    parser = OneLineParser(prog="lightning-vfl")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=OneLineParser)
    study = commands.add_parser(
        "study",
        description="Run a grid of recipes, overrides and seeds side by side; write one table, a summary and figures. "
        "The same command goes on where it was stopped: finished runs are not repeated.",
    )
    study.add_argument("study", metavar="STUDY", help="YAML file of the study, or a packaged one: studies/NAME")
    study.add_argument("--out", type=Path, help="folder of the results (default: studies/NAME)")
    study.add_argument("--jobs", type=int, help="runs at a time (default: one a core)")
    study.add_argument("--threads", type=int, help="torch threads of a run (default: cores / jobs)")
    study.add_argument(
        "--backend", choices=("loky", "dask", "ray"), default="loky", help="joblib's (default: loky, processes here)"
    )
    study.add_argument(
        "--backend-options", type=_options, default={}, help="of dask: '{scheduler_host: tcp://HOST:8786}'"
    )
    plot = commands.add_parser("plot", description="Draw the summary and figures of a study again, without running it.")
    plot.add_argument("results", metavar="RESULTS", type=Path, help="folder that lightning-vfl study has written")
    plot.add_argument("--metric", help="metric to draw (default: that of study.yaml in the folder)")
    return parser.parse_args(arguments)


def execute(arguments: Sequence[str], command_line: CommandLine, check: Callable[[Sequence[str]], None]) -> int:
    """Do what the arguments say; returns the exit status.

    Args:
        arguments: of ``lightning-vfl``, from ``study`` or ``plot`` on.
        command_line: ``lightning_vfl.cli.run``.
        check: parses the arguments of a run, without running it.

    Raises:
        ConfigurationError: before anything runs, for a study that cannot.
    """
    said = parse(arguments)
    if said.command == "plot":
        study = read_study(said.results / "study.yaml")
        _tell(report(tables.read(said.results), study, said.results, said.metric))
        return 0
    path = find_study(said.study)
    study = read_study(path)
    means = _means(said)
    out = (said.out or Path("studies") / study.name).resolve()
    runs = list(grid(study, out))
    for run in {run.name: run for run in runs}.values():
        try:
            check(run.arguments)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}: {run.name}: {error}") from None
    out.mkdir(parents=True, exist_ok=True)
    lock = out / ".lock"
    try:
        with FileLock(lock, timeout=1):
            _copy(path, out / "study.yaml")
            return _study(study, runs, out, command_line, means)
    except Timeout:
        raise ConfigurationError(
            f"a study is being run in {_short(out)}; wait for its end, or give another --out"
        ) from None


def _study(study: Study, runs: Sequence[Run], out: Path, command_line: CommandLine, means: Means) -> int:
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
            carry_out(todo, command_line, means, str(out / ".lock"), console)
    done = [run for run in runs if tables.is_finished(run)]
    failed = [run for run in runs if run not in done]
    for run in failed:
        print(f"failed: {run.label}: {_reason(run)} (log: {_short(run.log)})", file=sys.stderr)
    if done:
        table = tables.collect(done, study)
        tables.write(table, out, "table")
        _tell([out / "table.parquet", *report(table, study, out)])
    if failed:
        end = "the same command tries them again"
        print(f"lightning-vfl: error: {len(failed)} of {len(runs)} runs failed; {end}", file=sys.stderr)
    return 1 if failed else 0


def _means(said: argparse.Namespace) -> Means:
    cores = joblib.cpu_count()
    for option in ("jobs", "threads"):
        if getattr(said, option) is not None and getattr(said, option) < 1:
            raise ConfigurationError(f"--{option} {getattr(said, option)} does nothing; give 1 or more")
    jobs = said.jobs or cores
    means = Means(jobs, said.threads or max(1, cores // jobs), said.backend, said.backend_options)
    try:
        with means.config():
            return means
    except (ValueError, TypeError, ImportError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(f"--backend {said.backend}: {reason}; leave it out for processes here") from None


def _options(text: str) -> Mapping[str, Any]:
    try:
        options = yaml.safe_load(text)
    except yaml.YAMLError:
        options = None
    if not isinstance(options, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no mapping; write '{{scheduler_host: tcp://HOST:8786}}'")
    return options


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


def _tell(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.suffix != ".svg":
            print(_short(path))


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
