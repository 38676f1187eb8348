"""Work that is done by one process, and again by two that share every batch.

They are forked from a process that was itself forked when all tests had been imported and none had run: imports take
longer than all that the tests train, and a child of a fork may not use threads that its parent has had.
"""

import multiprocessing
import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from lightning.fabric.plugins.environments.lightning import find_free_network_port
from torch.multiprocessing.spawn import start_processes

Work = Callable[[Path, int], None]
_server: list[Connection] = []


def fork_a_server() -> None:
    """Fork the process that starts others. Call this when the tests have been collected."""
    ours, theirs = multiprocessing.Pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: the thread of pytest-xdist may be there
        child = os.fork()
    if child:
        theirs.close()
        _server[:] = [ours]
        return
    try:
        ours.close()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the tests read files
        _serve(theirs)
    finally:
        os._exit(0)  # nothing of pytest is to end here as well


def cases_asked(request: pytest.FixtureRequest, cases: Iterable[str]) -> list[str]:
    """Those of the cases that this run of pytest asks for, in their order; all if it asks for none."""
    own = [test for test in request.session.items if test.path == request.path]
    asked = {test.callspec.params["case"] for test in own if "case" in getattr(test, "fixturenames", ())}  # type: ignore[attr-defined]
    return [case for case in cases if case in asked or not asked]


def in_one_and_in_two(work: Work, one: Path, two: Path, seconds: float = 300.0) -> None:
    """Let one process do the work in one folder, and two together in the other; ``work`` is a module's function.

    Raises:
        RuntimeError: with the traceback of the process that has failed, or if they wait for each other.
    """
    if not _server:  # not called from pytest
        fork_a_server()
    (server,) = _server
    server.send((work, one, two, seconds))
    if failed := server.recv():
        raise RuntimeError(failed)


def _serve(asked: Connection) -> None:
    """Do what is asked for until the other end is closed; the answer is a traceback, or nothing."""
    while True:
        try:
            given = asked.recv()
        except EOFError:
            return
        try:
            _start(*given)
        except Exception:
            asked.send(traceback.format_exc())
        else:
            asked.send("")


def _start(work: Work, one: Path, two: Path, seconds: float) -> None:
    end = time.monotonic() + seconds
    for folder, devices in ((one, 1), (two, 2)):
        given = (devices, find_free_network_port(), work, folder)
        processes = start_processes(_enter, given, devices, join=False, daemon=True, start_method="fork")
        while not processes.join(end - time.monotonic()):
            if time.monotonic() >= end:
                for process in processes.processes:
                    process.kill()
                raise TimeoutError(f"{devices} processes have not come to an end within {seconds} s")


def _enter(rank: int, devices: int, port: int, work: Work, folder: Path) -> None:
    warnings.resetwarnings()  # those of the tests, which make warnings errors, are not for processes of a training
    torch.set_num_threads(1)
    if devices > 1:  # as a launcher outside would tell Lightning, which then starts no processes of its own
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(rank)}
    work(folder, devices)
    if devices > 1:
        torch.distributed.destroy_process_group()
