"""The sweep of the docs, as wandb's agent would run it, but without a server: every run offline."""

import itertools
import shlex

import pytest
import yaml

from lightning_vfl.cli import run
from tests.integration.test_loggers import loud
from tests.pages import ROOT

SWEEP = yaml.safe_load((ROOT / "examples" / "wandb_sweep.yaml").read_text(encoding="utf-8"))


def commands():
    """The commands of all runs of the grid: wandb replaces ``${args}`` by one ``--name=value`` for each parameter."""
    values = [given.get("values", [given.get("value")]) for given in SWEEP["parameters"].values()]
    for cell in itertools.product(*values):
        args = [f"--{name}={value}" for name, value in zip(SWEEP["parameters"], cell, strict=True)]
        words = [SWEEP["program"] if word == "${program}" else word for word in SWEEP["command"]]
        yield [piece for word in words for piece in (args if word == "${args}" else [word])]


def test_the_grid_has_every_combination_once():
    lines = {shlex.join(words) for words in commands()}
    assert len(lines) == len(list(commands())) == 4
    assert all(line.startswith("lightning-vfl fit ") for line in lines)


@pytest.mark.slow
@loud
@pytest.mark.usefixtures("wandb_offline")
def test_every_run_of_the_sweep_reports_its_metric_offline(tmp_path, monkeypatch):
    import wandb

    monkeypatch.chdir(tmp_path)
    found = []
    for words in commands():
        done = run([*words[1:], "--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"])
        history = done.trainer.logger.experiment
        width, aggregator = done.model.width, type(done.model.aggregator).__name__
        assert dict(history.config)["data"]["init_args"]["batch_size"] == 64
        found.append((aggregator, width, history.summary[SWEEP["metric"]["name"]]))
        wandb.finish()
    assert [cell[:2] for cell in found] == [("Mean", 16), ("Mean", 64), ("Max", 16), ("Max", 64)]
    assert min(cell[2] for cell in found) > 0.5
