"""``lightning-vfl audit``: recipes in, table and files out, errors in one line."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lightning_vfl.cli import run
from lightning_vfl.commands.one_line import CommandFailed
from lightning_vfl.commands.usage import UsageError
from lightning_vfl.errors import ConfigurationError
from tests.further import further

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
    assert found.verdict["party:1", "LabelsByDirection"] == "leak"
    assert "nothing to attack" in found.verdict["server", "LabelsByDirection"]
    page = (folder / "pages" / "audit.html").read_text()
    assert page.count("<svg") == 1
    assert (folder / "pages" / "audit.md").read_text().startswith("# Audit of SplitVFL with Mean")


def test_an_attacker_is_called_as_on_the_command_line(folder, capsys):
    draw = np.random.default_rng(0)
    for party in ("bank", "tel co"):
        pd.DataFrame({"id": range(200), f"of {party}": draw.normal(size=200), "y": np.arange(200) % 2}).drop(
            columns=["y"] if party == "tel co" else []
        ).to_csv(f"{party}.csv", index=False)
    tables = ["--data", "CSVTables", "--data.tables={bank: bank.csv, tel co: tel co.csv}", "--data.label_party=bank"]
    recipe = ["audit", *tables, "--data.label_column=y", "--config", "protocol/mean", *SHORT]
    recipe[recipe.index("--trainer.logger=false")] = "--trainer.logger=CSVLogger"
    done = run([*recipe, "--attacker", "server+party:tel co", "party:0", *DIRECTION, "--report", "audit.parquet"])
    printed = capsys.readouterr().out
    assert "what server+party:tel co gets" in printed
    assert "what party:0 gets" in printed
    assert pd.read_parquet("audit.parquet").attacker.tolist() == ["server+party:tel co", "party:0"]
    log = (Path(done.trainer.log_dir) / "metrics.csv").read_text()
    assert "audit/server-partytel_co/LabelsByDirection" in log


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
        further(["--attacker", "server+party:bank"], ConfigurationError, "there is no party 'bank'; use one of 0, 1"),
        (["--attacker", "server", "--fail-above", "x"], UsageError, "--fail-above takes NAME=x"),
        (
            ["--attacker", "party:1", "--fail-above", "LabelsByNrm=1"],
            UsageError,
            "'LabelsByNrm', which is not an attack; did you mean LabelsByNorm",
        ),
        (
            ["--attacker", "party:1", *DIRECTION, "--fail-above", "LabelsByNorm=1", "--trainer.max_epochs=0"],
            UsageError,
            "'LabelsByNorm', which is not an attack; did you mean LabelsByDirection|use one of LabelsByDirection",
        ),
        (["--attacker", "server", "--report", "a.txt"], ConfigurationError, "the ending of report must be"),
    ],
)
def test_errors_are_one_line(options, error, text):
    with pytest.raises(error, match=text) as raised:
        run([*RECIPE, *options])
    assert "\n" not in str(raised.value)


PROTECTED = "--model.aggregator=MaskedSum"
HIDDEN_LABELS = "--model.downlink={class_path: GaussianGradients, init_args: {clip: 0.1, sigma: 100, draws: seeded}}"


def verdicts(path):
    table = pd.read_parquet(path)
    return {name.partition("(")[0]: row for name, row in table.set_index("attack").iterrows()}


def test_safety_is_said_where_the_same_attack_succeeds_on_an_unprotected_twin(folder, capsys):
    upload = '{"class_path": "SingleUpload", "init_args": {"known": 150}}'
    others = '{"class_path": "LabelsByDirection"}, {"class_path": "MembershipByLoss"}'
    attacks = ["--attacks", f"[{others}, {upload}]", "--report", "audit.parquet"]
    done = run([*RECIPE, PROTECTED, HIDDEN_LABELS, "--attacker", "server+party:1", *attacks])
    assert "training an unprotected twin, for" in capsys.readouterr().out
    found = verdicts("audit.parquet")
    assert found["LabelsByDirection"].verdict == "no more than without the protocol"
    assert found["LabelsByDirection"].unprotected > 0.95
    assert found["SingleUpload"].verdict == "no more than without the protocol"
    assert found["MembershipByLoss"].verdict.startswith("NOT SHOWN: the attack reaches only 0.")
    assert found["LabelsByDirection"].success < found["LabelsByDirection"].allowed < 0.6
    assert type(done.model.aggregator).__name__ == "MaskedSum"
    assert done.model.downlink is not None
