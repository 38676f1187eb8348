"""Carry out the runs of a study in parallel processes; a run that fails or dies does not end the others."""

import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import joblib
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from lightning_vfl.study.clusters import is_death, workers
from lightning_vfl.study.grid import Run
from lightning_vfl.study.ready import get_ready
from lightning_vfl.study.table import is_finished
from lightning_vfl.study.worker import CommandLine, Outcome, record_failure, work

_DEATHS = 3  # deaths of its process after which a run has failed


@dataclass(frozen=True)
class Means:
    """How a study is carried out: processes, torch threads of each, and joblib's backend with its options."""

    jobs: int
    threads: int
    backend: str = "loky"
    options: Mapping[str, Any] = field(default_factory=dict)

    def config(self, runs: int = 1, **more: Any) -> AbstractContextManager[Any]:
        """The settings for joblib, for so many runs.

        There are at least two processes unless the user has asked for one: with one, joblib carries out the runs in
        this process, and a run that dies would end the study.
        """
        config: AbstractContextManager[Any] = joblib.parallel_config(
            self.backend, n_jobs=min(self.jobs, max(2, runs)), **self.options, **more
        )
        return config

    def workers(self, runs: int = 1) -> AbstractContextManager[None]:
        """The backend's workers, for so many runs; see ``clusters``."""
        return workers(self.backend, min(self.jobs, runs), self.options)


def carry_out(runs: Sequence[Run], command_line: CommandLine, means: Means, lock: str, console: Console) -> None:
    """Carry out runs; afterwards each has a result or a recorded failure.

    When a worker dies, loky and ray end the other workers of the pool too, and dask gives its run to another worker.
    The runs of all workers that have ended are tried again. A run that was under way at two deaths is
    tried alone, so that a third death is certainly its own.

    Args:
        runs: in the order in which they are started.
        command_line: carries out the arguments of a run; ``lightning_vfl.commands.program.run_or_exit``.
        means: processes and threads.
        lock: file that this process holds locked as long as it lives.
        console: to draw the progress bar on.
    """
    for run in runs:
        for stale in (run.result, run.failure, run.under_way, *run.folder.glob(".*")):  # hidden files are half-written
            stale.unlink(missing_ok=True)
    left = list(runs)
    deaths = Counter[str]()
    failed = 0
    with means.workers(len(left)), _bar(console) as bar:
        task = bar.add_task("runs", total=len(left), failed="")

        def tell(run: Run, outcome: Outcome) -> None:
            nonlocal failed
            left.remove(run)
            failed += outcome == "failed"
            if outcome == "failed" or not console.is_terminal:
                bar.console.print(f"{outcome}: {run.label}", highlight=False)
            bar.update(task, advance=1, failed=f"[red]{failed} failed" if failed else "")

        while left:
            batch = [run for run in left if deaths[run.label] < _DEATHS - 1] or left[:1]
            try:
                for run, outcome in _parallel(batch, command_line, means, lock):
                    tell(run, outcome)
            except Exception as error:
                if not is_death(error):
                    raise
                for run in [run for run in batch if run in left]:  # results that joblib could not return any more
                    if is_finished(run) or run.failure.exists():
                        tell(run, "failed" if run.failure.exists() else "finished")
                remaining = [run for run in batch if run in left]
                for run in [run for run in remaining if run.under_way.exists()] or remaining[:1]:
                    deaths[run.label] += 1
                    run.under_way.unlink(missing_ok=True)
                    if deaths[run.label] == _DEATHS:
                        record_failure(
                            run, f"its process died {_DEATHS} times; it was killed from outside, or ran out of memory"
                        )
                        tell(run, "failed")
                    else:
                        bar.console.print(f"a process died, again: {run.label}", highlight=False)


def _parallel(runs: Sequence[Run], command_line: CommandLine, means: Means, lock: str) -> Iterator[tuple[Run, Outcome]]:
    local: dict[str, Any] = {}
    if means.backend == "loky":  # workers of other backends are not children of this process
        local = {"inner_max_num_threads": means.threads, "initializer": get_ready}
        local["initargs"] = (os.getpid(), lock, command_line.__module__)
    with warnings.catch_warnings(), means.config(len(runs), **local):
        warnings.filterwarnings("ignore", message="A worker stopped while some jobs")  # loky renews large workers
        # the backend of ray is a multiprocessing pool, which returns all results at once
        returned = "list" if means.backend == "ray" else "generator_unordered"
        parallel = joblib.Parallel(return_as=returned, batch_size=1)
        yield from parallel(joblib.delayed(work)(run, command_line, means.threads) for run in runs)


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
    )
