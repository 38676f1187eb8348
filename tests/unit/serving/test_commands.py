"""The commands as processes: they answer, end in order, and refuse what does not fit in one line."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

from lightning_vfl.commands.light import answer
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.manifest import Kind, Missing, Protection
from lightning_vfl.federation.charter import Budget
from tests.served import CLEAR, MASKED, PARTIES, Subject

LIGHT = "import sys; from lightning_vfl.commands.light import answer; "
LIGHT += "status = answer(sys.argv[1:]); print('loaded', *({'torch', 'lightning'} & {*sys.modules})); sys.exit(status)"


@pytest.fixture
def subject(tmp_path):
    made = Subject(tmp_path, missing=Missing.SKIP)  # ready means that all parties are connected
    for name in (*PARTIES, "server"):
        (tmp_path / f"{name}.seat.yaml").write_text(f"key: keys/{name}.key\n")
    return made


def words(subject, name, **options):
    """The command of a host, and its options."""
    folder = subject.folder
    chosen = {"--federation": folder / "federation.yaml", "--seat": folder / f"{name}.seat.yaml"}
    if name != "server":
        chosen["--table"] = folder / f"{name}.csv"
    chosen |= {f"--{key}": value for key, value in options.items()}
    command = "gateway" if name == "server" else "endpoint"
    return [command, str(subject.half(name)), *(str(word) for pair in chosen.items() for word in pair)]


def free_port():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def error_of(arguments, capsys):
    assert answer(arguments) == 1
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_what_does_not_fit_is_refused_in_one_line(subject, capsys):
    bank, server = words(subject, "bank"), words(subject, "server")
    lines = [
        error_of([bank[0], "nowhere", *bank[2:]], capsys),
        error_of([bank[0], str(subject.half("server")), *bank[2:]], capsys),
        error_of([server[0], str(subject.half("bank")), *server[2:]], capsys),
        error_of(words(subject, "bank", seat=subject.folder / "shop.seat.yaml"), capsys),
        error_of(words(subject, "bank", id_column="customer"), capsys),
        error_of(words(subject, "bank", table=subject.folder / "none.csv"), capsys),
        error_of(words(subject, "server", http="8080"), capsys),
        error_of(words(subject, "server", deadline_ms=0), capsys),
    ]
    said = ["nowhere has no manifest.json", "is the server's half", "is the half of a party", "does not belong to"]
    said += ["customer", "none.csv is not a file", "--http must be host:port", "--deadline_ms"]
    for line, part in zip(lines, said, strict=True):
        assert line.startswith("lightning-vfl: error: ")
        assert part in line


@pytest.mark.parametrize("which", ["http", "grpc"])
def test_a_port_in_use_is_refused_in_one_line(which, subject, capsys):
    port = free_port() if which == "http" else int(subject.charter.server.address.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):
        http = port if which == "http" else free_port()
        line = error_of(words(subject, "server", http=f"127.0.0.1:{http}"), capsys)
    assert str(port) in line
    assert "an address that is free" in line


def test_a_seat_decides_about_its_protection(tmp_path):
    hidden = Protection(Kind.CLEAR, "LocalGaussian", consent=True)
    cases = {
        "evaluate: plain in seat.yaml": (hidden, {}),
        "has a budget": (CLEAR, {"budget": Budget(1.0, 1e-5)}),
        "least_members": (MASKED, {"least_members": 4}),
        "a way that production does not offer": (Protection(Kind.UNSERVED, "LagrangeCoded"), {}),
        "export the model again": (None, {}),
    }
    for number, (said, (protection, settings)) in enumerate(cases.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(ConfigurationError, match=said):
            Subject(folder, protection).endpoint("bank", **settings)


LOGGED = {"time", "event", "gateway", "http", "milliseconds", "model", "party", "protection", "reason", "status"}


@pytest.mark.slow
@pytest.mark.processes
def test_processes_answer_without_torch_and_end_in_order(subject, tmp_path):
    port = free_port()
    started = {}
    try:
        for name in (*PARTIES, "server"):
            options = {"http": f"127.0.0.1:{port}"} if name == "server" else {}
            command = [sys.executable, "-c", LIGHT, *words(subject, name, **options)]
            started[name] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        wait_until_ready(f"http://127.0.0.1:{port}/ready")
        body = urllib.request.Request(
            f"http://127.0.0.1:{port}/predict", b'{"ids": [7]}', {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(body, timeout=30) as page:
            (entry,) = json.load(page)["predictions"]
        assert entry["probability"] == pytest.approx(subject.expected([7])[0], abs=1e-5)
        for process in started.values():
            process.send_signal(signal.SIGTERM)
        for name, process in started.items():
            printed, log = process.communicate(timeout=30)
            assert process.returncode == 0, log
            assert "loaded\n" in printed
            events = [json.loads(line) for line in log.splitlines()]
            assert events[-1]["event"] == "stopped", name
            assert {key for line in events for key in line} <= LOGGED
    finally:
        for process in started.values():
            process.kill()
            process.communicate()


def wait_until_ready(url):
    end = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)
