"""A federation on one machine: its charter, and the end of its processes."""

import os
import signal
import sys
import time

import pytest

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation import local
from lightning_vfl.federation.local import found, start, wait_for


def test_parties_have_the_names_that_are_given(tmp_path):
    charter = found("local", ["bank", "telco"], tmp_path)
    assert [party.name for party in charter.parties] == ["bank", "telco"]
    assert (tmp_path / "keys/telco.key").exists()


@pytest.mark.parametrize(("name", "message"), [("server", "no party may be named 'server'"), ("my bank", "'my bank'")])
def test_other_names_are_refused(name, message, tmp_path):
    with pytest.raises(ConfigurationError, match=message):
        found("local", ["telco", name], tmp_path)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("last", "line"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), r"party was killed by SIGKILL .*: no table of mine \("),
        (lambda: os._exit(3), r"party has failed: no table of mine \("),
    ],
    ids=["killed", "failed"],
)
def test_a_process_that_dies_is_named_and_ends_the_others(tmp_path, monkeypatch, last, line):
    """Also those that do not act on SIGTERM, as a training that waits for the server."""
    monkeypatch.setattr(local, "TOLD", 0.15)
    monkeypatch.setattr(local, "GRACE", 0.15)

    def party():
        os.write(1, b"no table of mine\n")
        last()

    def other():
        signal.signal(signal.SIGTERM, lambda *_: None)
        time.sleep(60)

    logs = {name: tmp_path / f"{name}.txt" for name in ("other", "party")}
    processes = {name: start(role, logs[name]) for name, role in (("other", other), ("party", party))}
    began = time.monotonic()
    with pytest.raises(ConfigurationError, match=line):
        wait_for(processes, logs)
    assert time.monotonic() - began < 30
    assert not _runs(processes["other"])


@pytest.mark.processes
def test_a_process_that_prints_here_says_once_why_it_has_ended(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(local, "TOLD", 0.1)

    def refuses():
        raise ConfigurationError("use another protocol")

    processes = {"server": start(refuses, None), "party": start(lambda: time.sleep(60), tmp_path / "party.txt")}
    with pytest.raises(SystemExit, match="1"):
        wait_for(processes, {"party": tmp_path / "party.txt"})
    said = capfd.readouterr().err.splitlines()
    errors = [line for line in said if "fork_posix" not in line]  # of gRPC, if another test has used it
    assert errors == ["lightning-vfl: error: use another protocol"]
    assert not _runs(processes["party"])


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread looks once in a second")
def test_processes_end_with_the_one_that_has_started_them(tmp_path):
    """Its own end, or a kill, leaves nobody training in the background."""
    read, write = os.pipe()
    launcher = os.fork()
    if not launcher:
        start(lambda: (os.write(write, str(os.getpid()).encode()), time.sleep(60)), tmp_path / "party.txt")
        time.sleep(60)
    party = int(os.read(read, 20))
    os.kill(launcher, signal.SIGKILL)
    os.waitpid(launcher, 0)
    began = time.monotonic()
    while _runs(party):
        assert time.monotonic() - began < 10
        time.sleep(0.01)


def _runs(process):
    try:
        with open(f"/proc/{process}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"  # whoever inherits it may let it wait
    except FileNotFoundError:
        return False
