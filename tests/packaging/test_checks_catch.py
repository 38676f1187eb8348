"""``make check`` is not vacuous: what it is there to refuse is planted in a copy, and refused."""

import re
import sys
from contextlib import contextmanager

import pytest

from .checkout import copy_checkout, run, succeed

pytestmark = [pytest.mark.slow, pytest.mark.processes]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    tree = copy_checkout(tmp_path_factory.mktemp("tree"))
    (tree / ".venv").symlink_to(sys.prefix)
    return tree


@contextmanager
def planted(tree, name, code):
    """The code at the end of a file, for a while."""
    path = tree / name
    before = path.read_text() if path.exists() else None
    path.write_text(f"{before or ''}\n{code}\n")
    try:
        yield
    finally:
        path.unlink() if before is None else path.write_text(before)


def check(tree, tool):
    """Whether the very commands by which ``make check`` runs a tool succeed, and what they print."""
    succeed(["make", ".lint/lightning_vfl"], tree)
    recipe = succeed(["make", "--dry-run", "check"], tree).splitlines()
    ends = [run(["sh", "-c", line], tree) for line in recipe if f".venv/bin/{tool} " in line]
    assert ends
    return all(end.returncode == 0 for end in ends), "".join(end.stdout for end in ends)


@pytest.mark.parametrize("tool", ["lint-imports", "mypy"])
def test_the_tree_passes_as_it_is(tree, tool):
    passed, printed = check(tree, tool)
    assert passed, printed


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        (
            "lightning_vfl/aggregators/plain.py",
            "from lightning_vfl.datamodules import Digits",
            "lightning_vfl.aggregators.plain -> lightning_vfl.datamodules (l.",
        ),
        ("lightning_vfl/unheard_of.py", "from lightning_vfl.datamodules import Digits", "lightning_vfl.unheard_of"),
        (
            "callbacks/progress.py",
            "from ..datamodules import Digits",
            "lightning_vfl.callbacks.progress -> lightning_vfl.datamodules (l.",
        ),
        (
            "datamodules/partitioners/partition.py",
            "from lightning_vfl.callbacks.progress import SparseProgressBar",
            "lightning_vfl.datamodules.partitioners.partition -> lightning_vfl.callbacks.progress (l.",
        ),
        (
            "lightning_vfl/aggregators/base.py",
            "def late():\n    import lightning.pytorch",
            "lightning_vfl.aggregators.base -> lightning (l.",
        ),
    ],
    ids=["core to wing", "core in no layer", "wing to wing", "wing to wing, the other way", "core to lightning"],
)
def test_an_import_the_wrong_way_is_refused(tree, name, code, said):
    with planted(tree, name, code):
        passed, printed = check(tree, "lint-imports")
    assert not passed
    assert said in " ".join(printed.split()), printed  # long lines are broken


@pytest.mark.parametrize("name", ["tests/test_planted.py", "lightning_vfl/cli.py", "datamodules/sets/scikit.py"])
def test_a_type_error_across_the_mapping_is_refused(tree, name):
    with planted(tree, name, 'from lightning_vfl.datamodules import Digits as Planted\n\nPlanted(batch_size="x")'):
        passed, printed = check(tree, "mypy")
    assert not passed
    where = name if name.startswith("tests/") else f".lint/lightning_vfl/{name.removeprefix('lightning_vfl/')}"
    assert re.search(rf'^{re.escape(where)}:\d+: error: Argument "batch_size" to "Digits"', printed, re.M), printed
