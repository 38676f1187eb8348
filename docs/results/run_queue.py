"""Run the studies of queue.yaml one after another, in such a way that other work on the machine does not notice them.

``python docs/results/run_queue.py FOLDER [STUDY ...]`` runs ``lightning-vfl study`` for each study, with its results in
FOLDER/STUDY: one process, one thread, the lowest priority. The same command continues a queue that has been
stopped. While the file that ``--pause-file`` names exists, the study stands still; it goes on where it was when the
file has been removed. FOLDER/STUDY/cpu_seconds.csv has a line with the processor time of each start.
"""

import argparse
import csv
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from studies import CPU_FILE, HERE, Mistake, packaged, refuse_unknown

PAUSE_VARIABLE = "RESULTS_PAUSE_FILE"
LOOK_AGAIN = 0.5  # seconds between two looks at the file
NICENESS = 19


def queued(names: Sequence[str], folder: Path = HERE) -> list[str]:
    """The studies to run: those of queue.yaml, in its order, if none is named.

    Raises:
        Mistake: for a study that is not packaged.
    """
    studies = names or yaml.safe_load((folder / "queue.yaml").read_text(encoding="utf-8"))
    for study in studies:
        refuse_unknown(study, packaged(), "the queue", "packaged study")
    return list(studies)


def lower_priority() -> None:
    """Let this process, and those that it starts, run when the processors have nothing else to do."""
    os.nice(NICENESS)
    if hasattr(os, "SCHED_IDLE"):  # Linux alone has it
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def run(command: Sequence[str], pause: Path | None, environment: Mapping[str, str]) -> int:
    """Run a command, standing still while the file ``pause`` exists; returns its exit status.

    Raises:
        KeyboardInterrupt: when the command has been interrupted, too, and has ended.
    """
    interrupts: list[int] = []
    # a handler that raises may do so within poll(), which then never gives its lock back, so that wait() waits for ever
    former = signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number))
    # a session of its own: a stop signal reaches the processes that the command starts
    process = subprocess.Popen(command, env=dict(environment), start_new_session=True)
    stands_still = False
    try:
        while process.poll() is None and not interrupts:
            if stands_still != (pause is not None and pause.exists()):
                stands_still = not stands_still
                os.killpg(process.pid, signal.SIGSTOP if stands_still else signal.SIGCONT)
            time.sleep(LOOK_AGAIN)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            os.killpg(process.pid, signal.SIGCONT)  # a stopped process handles no signal
            process.wait()
        signal.signal(signal.SIGINT, former)
    if interrupts:
        raise KeyboardInterrupt
    return process.returncode


def run_study(study: str, folder: Path, pause: Path | None) -> int:
    """Run a study, or continue it; returns its exit status."""
    out = folder / study
    program = [sys.executable, "-m", "lightning_vfl", "study", f"studies/{study}"]
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    seconds = _processor_seconds()
    try:
        status = run([*program, f"--out={out}", "--jobs=1", "--threads=1"], pause, os.environ | threads)
    finally:
        out.mkdir(parents=True, exist_ok=True)
        with (out / CPU_FILE).open("a", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow([f"{_processor_seconds() - seconds:.3f}"])
    return status


def _processor_seconds() -> float:
    """Of all processes that this one has started, and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 1 if a study failed."""
    parser = argparse.ArgumentParser(description="Run studies one after another, at the lowest priority.")
    parser.add_argument("folder", type=Path, help="of the results, with a folder for each study")
    parser.add_argument("studies", nargs="*", metavar="STUDY", help="packaged studies; default: those of queue.yaml")
    parser.add_argument(
        "--pause-file",
        type=Path,
        default=os.environ.get(PAUSE_VARIABLE) or None,
        help=f"stand still while this file exists; default: ${PAUSE_VARIABLE}",
    )
    said = parser.parse_args(arguments)
    try:
        studies = queued(said.studies)
    except Mistake as mistake:
        print(f"docs/results: {mistake}", file=sys.stderr)
        return 1
    lower_priority()
    # a shell lets its background jobs, and what they start, ignore SIGINT; a handler here ends that for the studies
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.default_int_handler)
    failed = []
    for study in studies:
        print(f"{study}:", flush=True)
        try:
            status = run_study(study, said.folder.resolve(), said.pause_file)
        except KeyboardInterrupt:
            print("docs/results: interrupted; the same command continues the queue", file=sys.stderr)
            return 130
        failed += [study] * (status != 0)
    for study in failed:
        print(f"docs/results: {study} did not end well; the same command tries it again", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
