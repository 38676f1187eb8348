"""The container of the serving commands: every option exists, no package is missing, and nothing may be written."""

import json
import re
import subprocess
import sys
import urllib.request

import pytest
import yaml

from lightning_vfl.commands.alone import parse_alone
from lightning_vfl.commands.command import loaded
from lightning_vfl.export.manifest import Missing
from tests.packaging.checkout import ROOT
from tests.served import DRAWN, NOISY, PARTIES, Subject
from tests.unit.serving.test_commands import free_port, wait_until_ready, words

CONTAINER = (ROOT / "deploy" / "Containerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
# Fails for a package that is neither installed in the container nor needed by one that is.
ONLY = """
import re, sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

def name_of(requirement):
    return re.sub("[-_.]+", "-", re.match("[A-Za-z0-9._-]+", requirement)[0]).lower()

installed, waiting = {"lightning-vfl"}, [name_of(one) for one in sys.argv.pop(1).split()]
while waiting:
    one = waiting.pop()
    if one not in installed:
        installed.add(one)
        try:
            needed = requires(one) or []
        except PackageNotFoundError:
            needed = []  # for another platform
        waiting += [name_of(other) for other in needed if "extra ==" not in other or one == "jsonargparse"]

hidden = {module for module, names in packages_distributions().items() if not {name_of(n) for n in names} & installed}

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hide())
assert {"torch", "lightning", "sklearn"} <= hidden
from lightning_vfl.commands.light import answer
sys.exit(answer(sys.argv[1:]))
"""


def packages():
    """What the container installs beside the wheel."""
    (words,) = re.findall(r"--constraint \S+ (.*?)&&", CONTAINER.replace("\\\n", " "))
    return words.replace("[signatures]", "").split()


def test_the_processes_are_no_root_and_write_nothing():
    users = re.findall(r"^USER (.*)$", CONTAINER, re.MULTILINE)
    assert users == ["10001"]
    assert CONTAINER.index("USER") < CONTAINER.index("ENTRYPOINT")
    for service in COMPOSE["services"].values():
        assert service["read_only"] is True
        assert service["user"] == "10001"
        assert service["cap_drop"] == ["ALL"]
        writable = [one for one in service["volumes"] if not one.endswith(":ro")]
        assert writable in ([], ["./bank/ledger:/host/ledger"])


def test_the_commands_and_options_exist():
    assert 'ENTRYPOINT ["lightning-vfl"]' in CONTAINER
    parsed = {}
    for service in COMPOSE["services"].values():
        command, *arguments = service["command"]
        parsed[command] = parse_alone(command, "", loaded(command).add_options, arguments)
    assert parsed["gateway"].http == "0.0.0.0:8080"
    assert parsed["endpoint"].work_dir == "/tmp"


def test_the_page_of_the_health_check_exists():
    (service,) = [one for one in COMPOSE["services"].values() if "healthcheck" in one]
    assert "http://127.0.0.1:8080/health" in service["healthcheck"]["test"][-1]
    assert service["ports"] == ["127.0.0.1:8080:8080"]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("protection", [NOISY, DRAWN], ids=["noise", "draws"])
def test_the_packages_of_the_container_are_enough(protection, tmp_path):
    subject = Subject(tmp_path, protection, Missing.SKIP)
    port = free_port()
    started = []
    try:
        for name in (*PARTIES, "server"):
            (tmp_path / f"{name}.seat.yaml").write_text(f"key: keys/{name}.key\nledger: {name}.privacy.jsonl\n")
            options = {"http": f"127.0.0.1:{port}"} if name == "server" else {"work_dir": tmp_path}
            command = [sys.executable, "-c", ONLY, " ".join(packages()), *words(subject, name, **options)]
            started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True))
        wait_until_ready(f"http://127.0.0.1:{port}/ready")
        body = b'{"ids": [7]}'
        request = urllib.request.Request(f"http://127.0.0.1:{port}/predict", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as page:
            answer = json.load(page)
        assert answer["absent"] == []
        assert answer["predictions"][0]["probability"] == pytest.approx(subject.expected([7])[0], abs=0.5)
    finally:
        for process in started:
            process.kill()
            process.communicate()
