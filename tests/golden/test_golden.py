"""The committed digests are those of the cases. `make check` trains the cases (``python -m tests.golden``)."""

import json

from tests.golden.__main__ import FILE, OLD
from tests.golden.cases import cases


def test_every_committed_run_is_a_case():
    assert set(json.loads(FILE.read_text(encoding="utf-8"))["runs"]) == set(cases())


def test_every_checkpoint_of_an_earlier_version_is_of_a_case():
    old = [checkpoint.stem for checkpoint in OLD.glob("*.ckpt")]
    assert old
    assert set(old) <= set(cases())
