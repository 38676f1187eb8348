"""Carry out one run of a study and write its result, or the reason why it has none."""

import ctypes
import gc
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from math import nan
from pathlib import Path
from typing import Any, Literal, TextIO

import torch
from lightning.pytorch import Callback

from lightning_vfl.callbacks import RunHistory
from lightning_vfl.errors import on_one_line
from lightning_vfl.study.grid import MACHINE, Run
from lightning_vfl.study.table import write_result
from lightning_vfl.whole_files import whole_path

CommandLine = Callable[[Sequence[str], Sequence[Callback]], Any]
"""``lightning_vfl.commands.program.run_or_exit``, as an argument: the commands import this package, not the reverse."""

PROCESS = Path("/proc/self")  # on Linux

Outcome = Literal["finished", "failed"]


def work(run: Run, command_line: CommandLine, threads: int) -> tuple[Run, Outcome]:
    """Carry out a run; returns the run and how it ended.

    Guarantee: ``result.parquet`` and ``failed.json`` are never half-written. Only KeyboardInterrupt is raised.
        SystemExit counts as a failure, since it would end the whole study in a worker.
    """
    gc.collect()  # trainer, module and data of the run before refer to each other; Python would let them pile up
    run.folder.mkdir(parents=True, exist_ok=True)
    run.under_way.touch()
    (run.folder / "config.yaml").unlink(missing_ok=True)  # of an earlier try; the folder is this run's own
    torch.set_num_threads(threads)
    outcome: Outcome = "finished"
    if run.machine:
        _forget_peak()
    began = time.process_time()
    with _logged(run.log) as log:
        try:
            history = RunHistory()
            done = command_line([*run.arguments, f"--trainer.default_root_dir={run.folder}"], [history])
            if run.test:
                done.trainer.test(done.model, datamodule=done.datamodule, verbose=False)
            rows = history.rows()
            if run.machine and rows:
                used = {"cpu_seconds": time.process_time() - began, "peak_bytes": _peak_bytes()}
                rows += [{**rows[-1], "metric": MACHINE + name, "value": value} for name, value in used.items()]
            write_result(rows, run)
        except BaseException as error:
            stop = error if isinstance(error, KeyboardInterrupt) else error.__context__
            if isinstance(stop, KeyboardInterrupt):
                raise stop from None  # the trainer raises SystemExit on Ctrl-C
            traceback.print_exc()
            log.flush()
            record_failure(run, _reason(error, run.log))
            outcome = "failed"
    run.under_way.unlink(missing_ok=True)
    return run, outcome


def _forget_peak() -> None:
    """Let the peak of this process's memory begin anew, where the system can: a process makes many runs."""
    if PROCESS.is_dir():
        with suppress(OSError, AttributeError):  # another C library than glibc
            ctypes.CDLL(None).malloc_trim(0)  # what the run before has freed, and the allocator keeps
        (PROCESS / "clear_refs").write_text("5", encoding="ascii")  # proc_pid_clear_refs(5): resets VmHWM


def _peak_bytes() -> float:
    """The most memory that this process has held since then; NaN where the system does not say."""
    found = re.search(r"VmHWM:\s+(\d+) kB", (PROCESS / "status").read_text("utf-8")) if PROCESS.is_dir() else None
    return 1024.0 * int(found[1]) if found else nan


def record_failure(run: Run, reason: str) -> None:
    """Write down why a run has no result. The next start of the study tries the run again."""
    failure = {"run": run.label, "reason": reason, "fingerprint": run.fingerprint}
    with whole_path(run.failure) as whole:
        whole.write_text(json.dumps(failure, indent=1))


def _reason(error: BaseException, log: Path) -> str:
    """One line: the error of the command line, if the log has one."""
    if isinstance(error, SystemExit):
        said = re.findall(r"^lightning-vfl: error: (.*)$", log.read_text(encoding="utf-8", errors="replace"), re.M)
        return said[-1] if said else f"ended by sys.exit({error.code!r})"
    return f"{type(error).__name__}: {on_one_line(error)}"


@contextmanager
def _logged(path: Path) -> Iterator[TextIO]:
    """Write everything that is printed to the log: by Python, by handlers that hold the old stderr, and by C."""
    with path.open("w", encoding="utf-8", errors="replace") as log:
        kept = [(fd, os.dup(fd)) for fd in (1, 2)]
        try:
            for fd, _ in kept:
                os.dup2(log.fileno(), fd)
            with redirect_stdout(log), redirect_stderr(log):
                yield log
        finally:
            for stream in (log, sys.stdout, sys.stderr):
                stream.flush()
            for fd, copy in kept:
                os.dup2(copy, fd)
                os.close(copy)
