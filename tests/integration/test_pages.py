"""Every code block of the README and of the documentation runs; what cannot run is marked in the page, and counted.

Commands that train are cut short: a few batches of one epoch. A block that is not run has a comment before it (or its
page has one) that names the reason; its commands are parsed all the same.
"""

import re
import runpy
import sys
from collections import Counter
from functools import cache
from importlib.util import find_spec

import pytest
import torch
import yaml

from lightning_vfl.cli import run
from lightning_vfl.commands.program import check
from lightning_vfl.study.grid import grid
from lightning_vfl.study.read import read_study
from tests.pages import ROOT, SHELL, blocks
from tests.readme_commands import commands, parse

BLOCKS = blocks()
LANGUAGES = {"python", "yaml", *SHELL}
SHORT = ["--trainer.limit_train_batches=3", "--trainer.limit_val_batches=1", "--trainer.limit_test_batches=1"]
SHORT += ["--trainer.limit_predict_batches=1", "--trainer.max_epochs=1", "--trainer.accelerator=cpu"]
SHORT += ["--trainer.enable_progress_bar=false", "--trainer.num_sanity_val_steps=0"]
DECOUPLED = ["--model.guest_epochs=1", "--trainer.max_epochs=2"]  # each phase once
ONE_SHOT = ["--model.local_epochs=1", "--trainer.max_epochs=3"]
PHASES = {  # by recipe and by class
    "protocol/dvfl": DECOUPLED,
    "DecoupledVFL": DECOUPLED,
    "protocol/one_shot": ONE_SHOT,
    "OneShotVFL": ONE_SHOT,
}
WHOLE = "the test of this page runs it as a whole"
FIRST = ("README.md", "docs/extending.md")
CHECKS = "check_protocol("  # in the block on the laws: two seconds, and tests of their own check the same classes
REASONS = {
    "it installs and tests the package": 2,
    'the test of the page "Get started" runs it': 1,
    "it needs files of a data set": 3,
    "the folder of a run is named by the reader": 1,
    "the tests of the command line run it": 5,
    "it trains for a minute": 2,
    "studies take minutes": 2,
    "the benchmarks take minutes": 8,
    "it is run by a slow test of its own": 8,
    "each line is for a host of its own, and the processes run until they are stopped": 3,
    WHOLE: 25,
    "studies take minutes to hours and need files of data sets": 87,
}


def runnable(*languages):
    """Blocks of these languages; those of the first pages in every run of the tests, the others in the slow ones."""
    found = [block for block in BLOCKS if block.language in languages and block.reason is None]
    quick = [block for block in found if block.page in FIRST and CHECKS not in block.code]
    return [pytest.param(block, marks=() if block in quick else pytest.mark.slow) for block in found]


@cache
def once(command, *options):
    """Run a command, shortened; the checkpoint of a fit. A command that several pages show is run for one of them."""
    if command in ("audit", "fit", "test", "validate", "predict"):
        phases = [word for name, words in PHASES.items() if name in options for word in words]
        options = (*options, *SHORT, *phases)
    done = run([command, *options])
    if command != "fit":
        return None
    assert done.trainer.global_step > 0
    return done.trainer.checkpoint_callback.best_model_path


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    return tmp_path


def make_files(words):
    """Run a file of ``examples`` that makes up tables, with these arguments."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", words)
        runpy.run_path(str(ROOT / words[0]), run_name="__main__")


def test_every_block_is_run_or_says_why_not():
    assert {block.language for block in BLOCKS} <= {"", "text", *LANGUAGES}
    assert all(block.reason is None for block in BLOCKS if block.language not in LANGUAGES)
    assert Counter(block.reason for block in BLOCKS if block.reason) == REASONS


def test_the_architecture_page_is_short():
    assert len((ROOT / "docs/architecture.md").read_text(encoding="utf-8").split()) <= 900


def recipes_of(text):
    """The protocols and policies that a page names."""
    return set(re.findall(r"(?:protocol|policy)/\w+", text))


def test_the_page_that_chooses_a_protocol_has_those_of_the_readme():
    chooser = {block.code for block in BLOCKS if block.page == "docs/guides/choose.md"}
    table = (ROOT / "README.md").read_text(encoding="utf-8").partition("| you need | recipe |")[2].partition("\n\n")[0]
    assert recipes_of(table)
    assert recipes_of(table) <= recipes_of("".join(chooser))


@pytest.mark.parametrize("block", runnable("python"), ids=str)
def test_python_runs(block):
    with torch.random.fork_rng(devices=[]):
        exec(compile(block.code, str(block), "exec"), {"__name__": "page"})


@pytest.mark.parametrize("block", runnable("yaml"), ids=str)
def test_recipes_train_and_studies_can_be_run(block, folder):
    """What a recipe leaves out comes from other recipes, as the pages say."""
    content, file = yaml.safe_load(block.code), folder / "page.yaml"
    if "data_dir: customers" in block.code:
        make_files(["examples/make_customers.py", "customers"])
    file.write_text(block.code)
    if content.keys() & {"data", "model", "trainer"}:
        usual = {"data": "data/digits", "model": "protocol/mean"}
        others = [recipe for key, recipe in usual.items() if "class_path" not in content.get(key, {})]
        phases = PHASES.get(content.get("model", {}).get("class_path"), [])
        arguments = [word for name in (*others, str(file)) for word in ("--config", name)]
        assert run(["fit", *arguments, *SHORT, *phases]).trainer.global_step > 0
        return
    file.write_text(yaml.safe_dump({"recipes": {"Mean": ["data/digits", "protocol/mean"]}, "seeds": [0]} | content))
    for cell in {one.name: one for one in grid(read_study(file), folder)}.values():
        check(cell.arguments)


@pytest.mark.parametrize("block", runnable(*SHELL), ids=str)
def test_commands_run(block):
    """In order; ``FILE`` is the checkpoint of the last fit."""
    checkpoint, ran = "", 0
    run_one = (
        once.__wrapped__ if "--ckpt_path" in block.code else once
    )  # the checkpoint of another test is removed with its folder
    for words in commands(fenced(block)):
        if words[0] != "lightning-vfl":
            assert words[0] == "source" or is_there(words), words
            if words[0] == "python" and words[1].startswith("examples/make_"):
                make_files(words[1:])
            continue
        found = run_one(*(checkpoint if word == "FILE" else word for word in words[1:]))
        checkpoint, ran = found or checkpoint, ran + 1
    assert ran


@pytest.mark.slow
def test_commands_that_are_not_run_are_parsed(folder):
    (folder / "examples").symlink_to(ROOT / "examples")
    for block in BLOCKS:
        if block.language not in SHELL or block.reason in (None, WHOLE):
            continue
        for words in commands(fenced(block)):
            if words[0] == "lightning-vfl":
                if (
                    "--ckpt_path" not in words or "--config" in words
                ):  # else it takes the recipe of a run, and none is here
                    parse(words[1:])
            elif words[0] == "torchrun":
                parse(words[words.index("lightning_vfl") + 1 :])
            else:
                assert words[0] in ("cd", "curl", "head", "pip", "sbatch", "source") or is_there(words), (
                    str(block),
                    words,
                )


def fenced(block):
    return f"```{block.language}\n{block.code}```\n"


def is_there(words):
    """Whether a target of the Makefile, a module or a file of Python is there."""
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        return all(f"\n{target}:" in makefile for target in words[1:])
    if words[0] != "python":
        return False
    return find_spec(words[2]) is not None if words[1] == "-m" else (ROOT / words[1]).is_file()
