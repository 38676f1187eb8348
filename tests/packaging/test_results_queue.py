"""The queue of studies: it gives way to other work, has one thread, and ends what it has started."""

import importlib.util
import signal
import subprocess
import sys
import time

import pytest

from .checkout import ROOT

RESULTS = ROOT / "docs" / "results"
sys.path.append(str(RESULTS))  # for the files beside it
SPEC = importlib.util.spec_from_file_location("run_queue", RESULTS / "run_queue.py")
assert SPEC is not None
assert SPEC.loader is not None
run_queue = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(run_queue)

COUNTER = """
import os, sys, time
with open(sys.argv[1], "w") as file:
    while not os.path.exists(sys.argv[2]):
        file.write("x")
        file.flush()
        time.sleep(0.01)
"""


def waited_for(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def length(path):
    return path.stat().st_size if path.exists() else 0


def stands_still(path):
    """Whether a file has not grown for a while."""
    before = length(path)
    time.sleep(0.2)
    return length(path) == before


def queue_that_counts(counted, pause, end):
    """A process in which the queue runs a command that writes a letter every 10 ms until the file ``end`` exists."""
    command = f"[sys.executable, '-c', {COUNTER!r}, {str(counted)!r}, {str(end)!r}]"
    driver = (
        f"import os, signal, sys; from pathlib import Path; sys.path.append({str(RESULTS)!r}); import run_queue\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a suite in the background ignores it
        "run_queue.LOOK_AGAIN = 0.02\n"
        f"sys.exit(run_queue.run({command}, Path({str(pause)!r}), os.environ))"
    )
    return subprocess.Popen([sys.executable, "-c", driver], stderr=subprocess.DEVNULL)


def test_a_command_stands_still_while_the_file_exists_and_then_goes_on(tmp_path):
    counted, pause, end = tmp_path / "counted", tmp_path / "pause", tmp_path / "end"
    with queue_that_counts(counted, pause, end) as queue:
        waited_for(lambda: length(counted) > 5)
        pause.touch()
        waited_for(lambda: stands_still(counted))
        before = length(counted)
        pause.unlink()
        waited_for(lambda: length(counted) > before + 5)
        end.touch()
        assert queue.wait(20) == 0


@pytest.mark.parametrize("paused", [False, True])
def test_an_interrupted_queue_ends_its_study_also_while_it_stands_still(paused, tmp_path):
    counted, pause = tmp_path / "counted", tmp_path / "pause"
    with queue_that_counts(counted, pause, tmp_path / "never") as queue:
        waited_for(lambda: length(counted) > 5)
        if paused:
            pause.touch()
            waited_for(lambda: stands_still(counted))
        queue.send_signal(signal.SIGINT)
        queue.wait(20)
    assert stands_still(counted)


def test_a_study_has_one_thread_and_the_lowest_priority_and_its_time_is_kept(tmp_path):
    fake = tmp_path / "python"
    # a shell, as little work as there can be: at the lowest priority a second takes a minute beside other programs
    fake.write_text(
        "#!/bin/sh\n"
        'for word; do case "$word" in --out=*) out="${word#--out=}";; esac; done\n'
        'mkdir -p "$out" && echo "$OMP_NUM_THREADS $(nice) $*" > "$out/seen"\n'
    )
    fake.chmod(0o755)
    driver = (
        f"import sys; sys.path.append({str(RESULTS)!r}); import run_queue; sys.executable = {str(fake)!r}; "
        f"run_queue.LOOK_AGAIN = 0.02; words = [{str(tmp_path / 'out')!r}, 'fedvs_digits']; "
        "sys.exit(run_queue.main(words) or run_queue.main(words))"
    )
    subprocess.run([sys.executable, "-c", driver], check=True, capture_output=True)
    seconds = (tmp_path / "out" / "fedvs_digits" / run_queue.CPU_FILE).read_text().split()
    assert len(seconds) == 2  # one line a start
    assert min(map(float, seconds)) > 0
    threads, niceness, *arguments = (tmp_path / "out" / "fedvs_digits" / "seen").read_text().split()
    assert (threads, niceness) == ("1", "19")
    assert arguments[:4] == ["-m", "lightning_vfl", "study", "studies/fedvs_digits"]
    assert {"--jobs=1", "--threads=1"} <= set(arguments)


def test_every_study_of_the_queue_is_packaged_and_others_are_refused(capsys):
    assert run_queue.queued([]) == list(dict.fromkeys(run_queue.queued([])))
    assert run_queue.main(["out", "fedvs_digit"]) == 1
    assert "'fedvs_digit' is no packaged study; did you mean fedvs_digits?" in capsys.readouterr().err
