"""A study as an array of Slurm jobs: the script that ``sbatch`` takes, in which each task carries out one run."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from lightning_vfl.errors import ConfigurationError

_OURS = ("array", "chdir", "cpus-per-task", "job-name", "output")  # settings that the script has anyway


def array_script(
    name: str,
    study: Path,
    out: Path,
    numbers: Sequence[int],
    threads: int,
    at_once: int | None,
    options: Mapping[str, Any] | None,
) -> str:
    """The text of a job script; the folder ``out`` must exist on all nodes.

    Args:
        name: of the study.
        study: its file.
        out: the folder of its results.
        numbers: of the runs that are left, in increasing order.
        threads: of torch in a run; the task asks for as many cores.
        at_once: tasks at a time; None: as many as Slurm allows.
        options: further settings of ``sbatch``, such as ``{partition: gpu, time: "02:00:00"}``.

    Raises:
        ConfigurationError: for a setting that the script has anyway, or that is none of ``sbatch``.
    """
    asked = {
        "job-name": name,
        "array": ranges(numbers) + ("" if at_once is None else f"%{at_once}"),
        "cpus-per-task": threads,
        "chdir": Path.cwd(),
        "output": out / "slurm-%A_%a.txt",
    }
    for key, value in (options or {}).items():
        if key in _OURS or not key.replace("-", "").isalnum() or not isinstance(value, str | int) or "\n" in str(value):
            raise ConfigurationError(
                f"--backend-options: {key}: {value!r} is not a setting of sbatch that a study takes; give texts "
                f"or whole numbers, and leave out {', '.join(_OURS)}"
            )
        asked[key] = value
    command = [sys.executable, "-m", "lightning_vfl", "study", str(study), "--out", str(out)]
    lines = ["#!/bin/bash", *(f"#SBATCH --{key}={shlex.quote(str(value))}" for key, value in asked.items())]
    lines += [
        "# After the last task, in a job of its own: the same command without --only makes the table, and repeats what",
        "# has failed.",
        "set -euo pipefail",
        f'exec {shlex.join([*command, "--threads", str(threads)])} --only "$SLURM_ARRAY_TASK_ID"',
    ]
    return "\n".join(lines) + "\n"


def ranges(numbers: Sequence[int]) -> str:
    """Increasing numbers as Slurm writes them.

    Examples:
        >>> ranges([0, 1, 2, 5, 7, 8])
        '0-2,5,7-8'
    """
    starts = [numbers[0], *(b for a, b in pairwise(numbers) if b > a + 1)]
    ends = [*(a for a, b in pairwise(numbers) if b > a + 1), numbers[-1]]
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))
