"""The page "Parties on hosts of their own" runs from top to bottom, with a folder in place of each host."""

import os
import runpy
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from benchmarks.free_ports import free_ports
from lightning_vfl.commands.program import run_or_exit
from lightning_vfl.federation.local import start, wait_for
from tests.integration.federations import prepare
from tests.pages import ROOT, SHELL, blocks_of, summary_names
from tests.readme_commands import commands

pytestmark = [pytest.mark.slow, pytest.mark.processes]
PAGE, FILES = ROOT / "docs/guides/federation.md", ROOT / "examples/federation"
HOSTS = ("scorer", "bank", "telco", "shop")
QUIET = ("--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false")


def shown():
    """Host and words of every command; a comment `at HOST` is above the commands of a host."""
    for block in blocks_of(PAGE):
        host = "scorer"
        for line in block.code.splitlines() if block.language in SHELL else ():
            if line.startswith("# at "):
                host = line.removeprefix("# at ")
            for words in commands(f"```bash\n{line}\n```\n"):
                yield host, words


def together(folder, roles):
    """Run commands at the same time, each in the folder of its host."""
    logs = {host: folder / f"{host}.txt" for host in roles}

    def role(host, words):
        os.chdir(folder / host)
        prepare()
        run_or_exit([*words[1:], *(QUIET if words[1] != "identity" else ())])

    running = {host: start(lambda h=host, w=words: role(h, w), logs[host]) for host, words in roles.items()}
    try:
        wait_for(running, logs)
    except Exception as error:
        raise AssertionError(f"{error}\n" + "\n".join(log.read_text()[-2000:] for log in logs.values())) from error


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation")
    address = f"127.0.0.1:{free_ports(1)[0]}"
    for host in HOSTS:
        (folder / host).mkdir()
        for name, content in (("federation", "federation"), ("loans", "loans"), ("seat", "seat")):
            text = (FILES / f"{content}.yaml").read_text().replace("scorer.example.org:8443", address)
            (folder / host / f"{name}.yaml").write_text(text.replace("keys/bank.key", f"keys/{host}.key"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module", autouse=True)
def ran(folder):
    waiting, done = {}, []
    for host, words in shown():
        done.append(words[:2])
        if words[0] == "python":
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                patch.setattr(sys, "argv", words[1:])
                runpy.run_path(str(ROOT / words[1]), run_name="__main__")
            for table in (folder / "tables").iterdir():
                owner = table.stem.removeprefix("new_").replace("labels", "scorer")
                shutil.copy(table, folder / owner)
        elif words[0] == "lightning-vfl" and words[1] != "federate":  # it has tests of its own
            waiting[host] = words
            if len(waiting) == len(HOSTS) or words[1] == "replay":
                together(folder, waiting)
                if words[1] == "identity":
                    exchange(folder)
                elif "--do" not in words and words[1] != "replay":
                    shutil.copy(folder / "scorer.txt", folder / "fit.txt")
                waiting = {}
    assert not waiting
    return done


def exchange(folder):
    """Send every certificate to every host."""
    for host in HOSTS:
        for other in set(HOSTS) - {host}:
            shutil.copy(folder / host / f"keys/{host}.crt", folder / other / "keys")


def test_the_page_shows_the_way(ran):
    told = [words[1] for words in ran if words[0] == "lightning-vfl"]
    assert told == ["federate", *["identity"] * 4, *["serve", "party", "party", "party"] * 3, "replay"]


def test_the_server_prints_the_lines_of_the_page(folder):
    (told,) = (block.code for block in blocks_of(PAGE) if "SplitVFL with Mean, 3 parties" in block.code)
    printed = iter(summary_names((folder / "fit.txt").read_text()))
    assert len(summary_names(told)) > 2
    assert all(name in printed for name in summary_names(told))  # in this order, some left out


def test_the_server_predicts_every_new_customer(folder):
    predicted = pd.read_csv(folder / "scorer/predictions.csv")
    assert predicted["record"].tolist() == sorted(pd.read_csv(folder / "bank/new_bank.csv")["id"])
    assert not any((folder / host / "predictions.csv").exists() for host in HOSTS[1:])


def test_each_container_has_its_own_host_and_the_parties_do_not_see_each_other():
    compose = yaml.safe_load((FILES / "compose.yaml").read_text())
    services = compose["services"]
    assert set(services) == set(HOSTS)
    for host in HOSTS[1:]:
        assert services[host]["networks"] == [host]
        assert f"--name {host} " in services[host]["command"][2]
    for host in HOSTS:
        assert Path(services[host]["volumes"][0].partition(":")[0]).name == host
