"""``lightning-vfl audit``: recipes in, table and files out, errors in one line."""

import pandas as pd
import pytest

from lightning_vfl.cli import run
from lightning_vfl.commands.program import CommandFailed
from lightning_vfl.commands.usage import UsageError
from lightning_vfl.errors import ConfigurationError

SHORT = [
    "--trainer.max_epochs=1",
    "--trainer.limit_val_batches=1",
    "--trainer.logger=false",
    "--trainer.accelerator=cpu",
]
SHORT += ["--trainer.enable_progress_bar=false", "--trainer.enable_checkpointing=false"]
RECIPE = ["audit", "--config", "data/breast_cancer", "--config", "protocol/mean", "--data.batch_size=64", *SHORT]
DIRECTION = ["--attacks", '[{"class_path": "LabelsByDirection"}]']


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_findings_are_printed_and_written(folder, capsys):
    report = "audit.parquet,pages/audit.md,pages/audit.html"
    features = '{"class_path": "FeatureReconstruction", "init_args": {"known": 100}}'
    attacks = ["--attacks", f'[{{"class_path": "LabelsByDirection"}}, {features}]']
    run([*RECIPE, "--attacker", "party:1", "server", *attacks, "--report", report])
    printed = capsys.readouterr().out
    assert "what party:1 gets" in printed
    assert "what server gets" in printed
    table = pd.read_parquet(folder / "audit.parquet")
    assert table.attack.tolist() == ["LabelsByDirection", "FeatureReconstruction(known=100)"] * 2
    found = table.set_index(["attacker", "attack"])
    assert found.success["party:1", "LabelsByDirection"] > 0.95
    assert found.verdict["party:1", "LabelsByDirection"] == "leaks"
    assert "nothing to attack" in found.verdict["server", "LabelsByDirection"]
    page = (folder / "pages" / "audit.html").read_text()
    assert page.count("<svg") == 1
    assert (folder / "pages" / "audit.md").read_text().startswith("# Audit of SplitVFL with Mean")


@pytest.mark.slow
def test_success_above_a_limit_ends_with_status_1(capsys):
    with pytest.raises(CommandFailed) as failed:
        run([*RECIPE, "--attacker", "party:1", *DIRECTION, "--fail-above", "LabelsByDirection=0.6"])
    assert failed.value.status == 1
    assert "more than 0.6" in capsys.readouterr().out
    run([*RECIPE, "--attacker", "party:1", *DIRECTION, "--fail-above", "LabelsByDirection=1.0"])


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (["--attacker", "guest"], ConfigurationError, "attacker 'guest' is unknown; use server, party:NUMBER"),
        (["--attacker", "party:9", *DIRECTION], ConfigurationError, "there is no party 9"),
        (["--attacker", "server+party:bank"], ConfigurationError, "there is no party 'bank'; use one of 0, 1"),
        (["--attacker", "server", "--fail-above", "x"], UsageError, "--fail-above takes NAME=x"),
        (["--attacker", "server", "--report", "a.txt"], ConfigurationError, "report must end in"),
    ],
)
def test_errors_are_one_line(options, error, text):
    with pytest.raises(error, match=text) as raised:
        run([*RECIPE, *options])
    assert "\n" not in str(raised.value)
