"""The page "From tables to predictions" runs from top to bottom in one folder, and shows what comes out."""

import contextlib
import io
import runpy
import shutil
import sys

import pandas as pd
import pytest

from lightning_vfl.cli import run
from tests.pages import ROOT, SHELL, blocks_of, summary_names
from tests.readme_commands import commands

pytestmark = pytest.mark.slow
PAGE = ROOT / "docs/get-started.md"
QUIET = ["--trainer.enable_progress_bar=false", "--trainer.enable_model_summary=false", "--trainer.accelerator=cpu"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("started")


@pytest.fixture(scope="module", autouse=True)
def ran(folder):
    """Every command of the page but those of the installation; the commands that it shows."""
    patch, shown = pytest.MonkeyPatch(), []
    patch.chdir(folder)
    patch.delenv("PL_GLOBAL_SEED", raising=False)
    (folder / "examples").symlink_to(ROOT / "examples")
    for block in list(blocks_of(PAGE))[1:]:
        for words in commands(f"```bash\n{block.code}```\n") if block.language in SHELL else ():
            shown.append(words[:2])
            if words[0] == "python":
                patch.setattr(sys, "argv", words[1:])
                runpy.run_path(words[1], run_name="__main__")
            elif words[0] == "lightning-vfl":
                with contextlib.redirect_stdout(io.StringIO()) as printed:
                    run([*words[1:], *(QUIET if words[1] in ("fit", "test", "predict") else [])])
                (folder / f"{words[1]}.txt").write_text(printed.getvalue())
            else:
                assert words[0] == "head"
                assert all((folder / file).is_file() for file in words[2:])
    yield shown
    patch.undo()
    shutil.rmtree(folder)


def test_the_page_shows_the_way(ran):
    assert [words[1] for words in ran if words[0] == "lightning-vfl"] == ["fit", "test", "predict", "export", "score"]


def test_the_commands_of_the_readme_are_those_of_the_page():
    shown, *_ = (block for block in blocks_of(ROOT / "README.md") if "Get started" in (block.reason or ""))
    assert len(shown.code.splitlines()) == 2
    assert all(line in PAGE.read_text(encoding="utf-8") for line in shown.code.splitlines())


def test_the_summary_of_the_page_is_the_printed_one(folder):
    (told,) = (block.code for block in blocks_of(PAGE) if "Summary of fit" in block.code)
    printed = (folder / "fit.txt").read_text()
    assert summary_names(told)
    assert summary_names(told) == summary_names(printed)
    assert [line.split()[0] for line in told.splitlines()[:2]] == [line.split()[0] for line in printed.splitlines()[:2]]
    assert told.splitlines()[-1] in printed


def test_every_new_customer_is_predicted_and_scored_alike(folder):
    predicted, scored = pd.read_csv(folder / "predictions.csv"), pd.read_csv(folder / "scores.csv")
    assert predicted["record"].tolist() == sorted(pd.read_csv(folder / "customers/new_bank.csv")["id"])
    assert predicted.columns.tolist() == scored.columns.tolist() == ["record", "probability_yes", "decision"]
    assert abs(predicted["probability_yes"] - scored["probability_yes"]).max() < 1e-5


def test_the_printed_files_are_those_of_the_page(folder):
    printed = [block.code for block in blocks_of(PAGE) if block.language == "text"]
    bank = (folder / "customers/bank.csv").read_text().splitlines()
    assert all(line in printed[0] for line in bank[:3])
    assert printed[-1].splitlines()[0] == (folder / "predictions.csv").read_text().splitlines()[0]
    for text in (printed[-1], next(block.code for block in blocks_of(ROOT / "README.md") if "record," in block.code)):
        told = pd.read_csv(io.StringIO(text), index_col="record")
        found = pd.read_csv(folder / "predictions.csv", index_col="record").loc[told.index]
        assert told["decision"].equals(found["decision"])
        assert abs(told["probability_yes"] - found["probability_yes"]).max() < 1e-3  # other processors round otherwise
