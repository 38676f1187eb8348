"""The committed digests are those of the cases. `make check` trains the cases (``python -m tests.golden``)."""

import json

from tests.golden.__main__ import FILE, OLD
from tests.golden.cases import cases

WHOLE = json.loads(FILE.read_text(encoding="utf-8"))


def test_every_committed_run_is_a_case():
    assert set(WHOLE["runs"]) == set(cases())


def test_checkpoints_of_an_earlier_version_go_on_to_the_bits_of_the_whole_run():
    """All but the one of DVFL, which was made with the square roots of one maker's processors."""
    assert set(WHOLE["old"]) == {checkpoint.stem for checkpoint in OLD.glob("*.ckpt")}
    assert {name for name, digest in WHOLE["old"].items() if digest != WHOLE["runs"][name]} == {
        "dvfl, dvfl_guest_crashes"
    }
