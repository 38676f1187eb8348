"""The numbers and promises in docs/privacy.md and the README are those that the code gives."""

import re
from pathlib import Path

import pytest

from lightning_vfl.callbacks.run_summary import summary_lines
from lightning_vfl.cli import run
from lightning_vfl.privacy import PoissonBinomialEvent, composed_epsilon, loss_epsilon, shown, worst_figure
from lightning_vfl.privacy.events import ASSUMED, UNITS, against

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs/privacy.md").read_text(encoding="utf-8").split())
QUIET = [f"--trainer.{what}=false" for what in ("logger", "enable_checkpointing", "enable_progress_bar")]


def test_the_assumption_is_in_the_page_as_it_is_printed():
    assert f"They hold **{ASSUMED}**" in PAGE
    told = re.findall(r"\| `(party|record|party-record|record \(paper\)|party \(paper\))` \|", PAGE)
    assert tuple(told) == UNITS
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"ε of a party-record, {ASSUMED}, is 1,036: no protection" in readme
    for claim in ("never below the true", "charges every round to its records, exactly"):
        assert claim not in PAGE + readme


def test_the_summary_and_the_page_tell_what_the_recipe_costs(tmp_path, monkeypatch):
    """The party first, the assumption with every figure of a record, and what colluders take away."""
    monkeypatch.chdir(tmp_path)
    short = ["--trainer.max_epochs", "1", "--trainer.limit_train_batches", "2", "--trainer.accelerator", "cpu"]
    done = run(["fit", "--config", "protocol/pbm", "--config", "data/digits", *QUIET, *short])
    assert repr(done.datamodule.normaliser) == "Given(low=0.0, high=16.0)"  # the data are named last
    module = done.model
    beginning = "privacy ε of a "
    lines = [line for line in summary_lines(done.trainer, module, ("val/",)) if line[0].startswith(beginning)]
    said = [(name.removeprefix(beginning), value.split()[0]) for name, value in lines]
    figures = {unit: figure.epsilon for unit, figure in module.privacy.tightest().items()}
    plain = [(name, value) for name, value in said if "against the server" not in name]
    assert [name.split(", ")[0] for name, _ in plain] == list(UNITS)
    assert [value for _, value in plain] == [shown(figures[unit]) for unit in UNITS]
    for name, _ in said:
        assert (ASSUMED in name) == ("record" in name.split(", ")[0])
    for colluders, words in ((1, "1 party"), (2, "2 parties")):
        told = {name.split(", ")[0]: value for name, value in said if name.endswith(f"the server and {words}")}
        fewer = module.privacy.accountant.against(colluders)
        assert told == {unit: shown(fewer.tightest(1e-5, unit).epsilon) for unit in ("party", "party-record")}
    (event,) = module.possible_events()
    figures_of_ten = [worst_figure([against(event, k)], 10, 10, 1e-5) for k in range(3)]
    server, one, two = (shown(figure.epsilon) for figure in figures_of_ten)
    assert (
        f"ε of a party-record is {server} against the server, {one} against the server and 1 party, and {two} against "
        "the server and 2 parties" in PAGE
    )


@pytest.mark.slow
def test_the_table_of_two_accounts_is_what_the_code_gives():
    page = " ".join((ROOT / "docs/results/epsilon.md").read_text(encoding="utf-8").split())
    table = re.findall(r"\| (\d+) \| ([\d.]+) \| (\d+) \| ((?:[\d.,]+ \| [\d.,]+ \| [\d.]+ % \| ){2})", page)
    assert len(table) == 7
    for levels, beta, parties, cells in table:
        event = PoissonBinomialEvent(int(levels), float(beta), int(parties), 16)
        expected = ""
        for uploads in (1, 30):
            renyi, loss = composed_epsilon({event: uploads}, 1e-5), loss_epsilon([([event], uploads)], 1e-5)
            expected += f"{shown(renyi)} | {shown(loss)} | {100 * (1 - loss / renyi):.1f} % | "
        assert cells == expected
