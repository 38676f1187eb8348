"""A federation does not know how its frames travel: one module imports each engine, and the command chooses."""

import re
import sys
from functools import cache
from pathlib import Path
from threading import Thread
from types import ModuleType

import pytest

import lightning_vfl
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.relay import listen

PACKAGE = Path(lightning_vfl.__file__).parent
NVFLARE: list[tuple[str, ...]] = [
    ("nvflare.apis.controller_spec", "Task"),
    ("nvflare.apis.executor", "Executor"),
    ("nvflare.apis.fl_constant", "ReturnCode"),
    ("nvflare.apis.fl_context", "FLContext"),
    ("nvflare.apis.impl.controller", "Controller"),
    ("nvflare.apis.shareable", "Shareable", "make_reply"),
    ("nvflare.apis.signal", "Signal"),
]


@cache
def sources():
    """The text of every module of the package."""
    return {str(path.relative_to(PACKAGE).with_suffix("")): path.read_text() for path in PACKAGE.rglob("*.py")}


def importers(name):
    """The modules of the package that import a module, or anything of it, anywhere in their text."""
    pattern = re.compile(rf"^\s*(?:from|import) {re.escape(name)}[ .\n]", re.MULTILINE)
    return {module for module, text in sources().items() if pattern.search(text)}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvflare", {"federation/nvflare_job"}),
        ("lightning_vfl.federation.nvflare_job", set()),
        ("lightning_vfl.federation.relay", {"commands/federation"}),
        ("lightning_vfl.federation.over_grpc", {"commands/federation"}),
        ("lightning_vfl.federation.grpc_client", {"federation/over_grpc"}),
        ("lightning_vfl.federation.grpc_server", {"federation/over_grpc", "federation/grpc_client"}),
    ],
)
def test_one_module_imports_a_transport(name, expected):
    assert importers(name) == expected


def test_grpc_is_a_matter_of_its_connections_the_doctor_and_serving():
    federation = {one for one in importers("grpc") if one.startswith("federation/")}
    assert federation == {f"federation/{name}" for name in ("connections", "doctor", "grpc_client", "grpc_server")}
    assert importers("grpc") - federation == {"serving/endpoint", "serving/gateway"}


@pytest.fixture
def job(monkeypatch):
    """The module of NVFlare's job, with stand-ins for the classes of NVFlare, which need not be installed."""
    for module, *names in NVFLARE:
        made = ModuleType(module)
        for name in names:
            setattr(made, name, type(name, (), {}))
        for parent in ("nvflare", "nvflare.apis", "nvflare.apis.impl"):
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
        monkeypatch.setitem(sys.modules, module, made)
    monkeypatch.delitem(sys.modules, "lightning_vfl.federation.nvflare_job", raising=False)
    import lightning_vfl.federation.nvflare_job as module

    yield module
    del sys.modules["lightning_vfl.federation.nvflare_job"]


@pytest.mark.parametrize("name", ["../other.yaml", "/etc/passwd", "--seat=x", "a b", "", ".", 3])
def test_a_job_cannot_name_files_outside_of_the_sites_folder(job, name):
    for names in ((name, "recipe.yaml", "fit"), ("federation.yaml", name, "fit"), ("federation.yaml", "x", name)):
        with pytest.raises(ConfigurationError, match="a job names a file of the site's folder or a method; got"):
            job._Seat(*names)
    assert job._Seat("federation.yaml", "loans_2.yaml", "predict").arguments(Path("s")) == [
        *("federation.yaml", "--config", "loans_2.yaml", "--do", "predict", "--relay", "s")
    ]


class Echo(Thread):
    """A server at a socket, which answers what it is told to, each in time of its own."""

    def __init__(self, socket, answers):
        super().__init__(daemon=True)
        self.listener, self.answers, self.received = listen(socket), answers, []
        self.threads = []
        self.start()

    def run(self):
        while True:
            try:
                call = self.listener.accept()
            except OSError:  # the test is over
                return
            self.received.append([])
            self.threads.append(Thread(target=self.attend, args=(call, self.received[-1]), daemon=True))
            self.threads[-1].start()

    def attend(self, call, received):
        try:
            while True:
                received.append(call.recv_bytes())
                if received[-1] in self.answers:
                    call.send_bytes(self.answers[received[-1]])
        except EOFError:
            received.append(None)


def test_a_line_asks_once_and_hangs_up_for_a_party_that_has_left(job, tmp_path, monkeypatch):
    monkeypatch.setattr(job, "HOLD", 0.1)
    monkeypatch.setattr(job, "LOOK", 0.01)
    line = job._Line(tmp_path / "server")
    assert line.ask(b"one") == b""  # nobody listens yet
    server = Echo(tmp_path / "server", {b"one": b"1", b"three": b"3"})
    assert line.ask(b"one") == b"1"
    assert [line.ask(b"two") for _ in range(3)] == [b""] * 3  # the server takes its time, and is asked once
    assert server.received == [[b"one", b"two"]]
    assert line.ask(b"three") == b"3"  # of another process: an answer to the request before is not taken for its own
    assert [line.ask(b"two"), line.leave(), line.ask(b"one")] == [b"", None, b"1"]
    server.threads[1].join(5.0)
    assert server.received[1:] == [[b"three", b"two", None], [b"one"]]
    assert [line.ask(b""), line.silent] == [b"", False]
    monkeypatch.setattr(job, "SILENCE", -1.0)
    assert [line.silent, line.leave(), line.silent] == [True, None, False]
    server.threads[2].join(5.0)
    assert server.received[2] == [b"one", None]
    server.listener.close()
