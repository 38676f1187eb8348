"""``lightning-vfl audit``: recipes in, table and files out, errors in one line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from lightning_vfl.audit import Attack, Guesses, Known, LabelsByDirection, Needs, Seen, Target
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
    assert found["MembershipByLoss"].verdict.startswith("NOT SHOWN: ")
    assert found["LabelsByDirection"].success < found["LabelsByDirection"].allowed < 0.6
    assert type(done.model.aggregator).__name__ == "MaskedSum"
    assert done.model.downlink is not None


@dataclass
class Knob(Attack):
    """The attack by directions if it is set well, and noise otherwise."""

    target = Target.CLASSES
    well: bool = False

    @property
    def needs(self) -> Needs:
        return Needs(labels_per_class=1, positives=1)

    def choices(self, epochs: int) -> Sequence[Mapping[str, Any]]:
        return [{"well": False}, {"well": True}]

    def run(self, seen: Seen, known: Known) -> Guesses:
        guesses = LabelsByDirection().run(seen, known)
        noise = torch.rand(len(guesses.ids), generator=torch.Generator().manual_seed(0)).double()
        return guesses if self.well else Guesses(guesses.ids, noise, f"noise for {seen.records} records")


KNOB = ["--attacks", '[{"class_path": "tests.integration.test_audit_command.Knob"}]', "--report", "audit.parquet"]


def test_settings_are_tuned_in_a_shadow_training_that_changes_no_bit_of_the_recipe(folder, capsys):
    bits = []
    names = []
    for seconds in ("0", "100"):
        done = run([*RECIPE, "--attacker", "party:1", *KNOB, "--tune", seconds])
        bits.append(torch.cat([p.detach().flatten() for p in done.model.parameters()]))
        names.append(pd.read_parquet("audit.parquet").attack.item())
    assert names == ["Knob", "Knob(well=True)"]
    assert torch.equal(*bits)
    assert "tuned attacks on a shadow training in" in capsys.readouterr().out


@pytest.mark.slow
def test_a_shadow_training_that_takes_longer_than_its_budget_tunes_nothing(folder, capsys):
    run([*RECIPE, "--attacker", "party:1", *KNOB, "--tune", "0.0001"])
    assert "attacks are not tuned: the shadow training takes more than 0.0001 s" in capsys.readouterr().out
    assert pd.read_parquet("audit.parquet").attack.item() == "Knob"
