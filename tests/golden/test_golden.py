"""The golden runs have the committed bits, and checkpoints of an earlier version go on to the same bits."""

import json
import subprocess
import sys

import pytest

from tests.golden.__main__ import FILE, OLD
from tests.golden.cases import cases

WHOLE = json.loads(FILE.read_text(encoding="utf-8"))
COMMITTED = WHOLE["runs"]


@pytest.fixture(scope="module")
def digests():
    """Made in a process of its own: the environment chooses kernels that are alike on every processor."""
    done = subprocess.run([sys.executable, "-m", "tests.golden", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", cases())
def test_a_golden_run_has_the_committed_bits(digests, name):
    assert digests["runs"][name] == COMMITTED[name]


@pytest.mark.parametrize("name", [checkpoint.stem for checkpoint in sorted(OLD.glob("*.ckpt"))])
def test_a_checkpoint_of_an_earlier_version_goes_on_to_the_same_bits(digests, name):
    """Of the whole run; the one of DVFL was made with the square roots of one processor, and has its own."""
    assert digests["old"][name] == WHOLE["old"][name]
    assert (WHOLE["old"][name] == COMMITTED[name]) == (name != "dvfl, dvfl_guest_crashes")


def test_every_committed_run_is_a_case():
    assert set(COMMITTED) == set(cases())
