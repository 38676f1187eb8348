"""The page "Decide for your own setting": its commands run from top to bottom, cut short."""

import runpy
import shutil
import sys

import pytest
import yaml

from lightning_vfl.cli import run
from lightning_vfl.commands.program import check
from lightning_vfl.study.grid import grid
from lightning_vfl.study.read import read_study
from tests.integration.test_pages import SHORT
from tests.pages import ROOT, SHELL, blocks_of
from tests.readme_commands import commands

pytestmark = pytest.mark.slow
PAGE = ROOT / "docs/guides/decide.md"
FILE = "examples/setting/study.yaml"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder, patch = tmp_path_factory.mktemp("decided"), pytest.MonkeyPatch()
    (folder / "examples").symlink_to(ROOT / "examples")
    patch.chdir(folder)
    patch.delenv("PL_GLOBAL_SEED", raising=False)
    yield folder
    patch.undo()
    shutil.rmtree(folder)


def shown():
    """The commands of the page."""
    text = [f"```bash\n{block.code}```\n" for block in blocks_of(PAGE) if block.language in SHELL]
    return list(commands("".join(text)))


def short_study(folder):
    """The study of the page with one seed and a few batches."""
    study = yaml.safe_load((ROOT / FILE).read_text(encoding="utf-8"))
    study["settings"] = {"trainer.max_epochs": 2, "trainer.limit_train_batches": 3, "trainer.limit_val_batches": 2}
    study["recipes"]["decoupled"]["settings"] = {"model.guest_epochs": 1}
    file = folder / "short.yaml"
    file.write_text(yaml.safe_dump({**study, "seeds": [0]}, sort_keys=False))
    return file


def test_the_commands_run(folder):
    ran = []
    for words in shown():
        if words[0] == "python":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sys, "argv", words[1:])
                runpy.run_path(str(ROOT / words[1]), run_name="__main__")
        elif words[1] == "study":
            assert words[2] == FILE
            for cell in {one.name: one for one in grid(read_study(ROOT / FILE), folder)}.values():
                check(cell.arguments)
            run(["study", str(short_study(folder)), "--out", "short", "--jobs", "2"])
        elif words[1] == "federate":
            check(["fit", *words[3:]])  # with real processes: test_federate_tables
        else:
            run([*words[1:], *SHORT])
        ran.append(words[1])
    assert ran[1:] == ["study", "fit", "test", "audit", "federate"]
    names = yaml.safe_load((ROOT / FILE).read_text(encoding="utf-8"))["recipes"]
    summary, page = (folder / "short/summary.md").read_text(encoding="utf-8"), PAGE.read_text(encoding="utf-8")
    for name in names:
        assert f"| test/auroc | {name} | 1 |" in summary
        assert f"\n| {name}" in page
