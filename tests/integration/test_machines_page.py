"""The commands of the page "More than one machine" that start several processes, on this machine."""

import os
import subprocess
import sys

import pandas as pd
import pytest

from benchmarks.free_ports import free_ports
from tests.pages import ROOT, SHELL, blocks_of
from tests.readme_commands import commands

pytestmark = [pytest.mark.slow, pytest.mark.processes]
PAGE = ROOT / "docs/guides/machines.md"
SHORT = ["--trainer.max_epochs=1", "--trainer.limit_train_batches=5", "--trainer.enable_progress_bar=false"]
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}


def shown(word):
    """The words of the first command of the page that has this word."""
    text = "".join(f"```bash\n{block.code}```\n" for block in blocks_of(PAGE) if block.language in SHELL)
    return next(words for words in commands(text) if word in words)


def start(folder, words):
    """Start a command in a folder of its own."""
    folder.mkdir()
    return subprocess.Popen([sys.executable, *words], cwd=folder, env=ONE_THREAD)


def measured(folder):
    """The metrics of the only run in a folder, without those that nothing has measured in a row."""
    table = pd.read_csv(folder / "runs/lightning_logs/version_0/metrics.csv")
    return table.groupby("step").max()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local") / "both"
    ended = start(folder, ["-m", "lightning_vfl", *shown("trainer/ddp")[1:], *SHORT]).wait(timeout=240)
    assert ended == 0
    return measured(folder)


def test_two_nodes_have_the_metrics_of_two_local_processes(two_processes, tmp_path):
    words = shown("torchrun")
    words[0:1] = ["-m", "torch.distributed.run"]
    words[words.index("--master_port") + 1] = str(free_ports(1)[0])
    nodes = []
    for rank in ("0", "1"):
        words[words.index("--node_rank") + 1] = rank
        nodes.append(start(tmp_path / rank, [*words, *SHORT]))
    assert [node.wait(timeout=240) for node in nodes] == [0, 0]
    assert not (tmp_path / "1/runs").exists()
    pd.testing.assert_frame_equal(measured(tmp_path / "0"), two_processes, rtol=1e-6)


def test_the_processes_of_a_federation_train(tmp_path):
    words = ["-m", "lightning_vfl", *shown("federate")[1:], *SHORT]
    assert start(tmp_path / "federation", words).wait(timeout=240) == 0
