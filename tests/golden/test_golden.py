"""The committed digests are those of the cases. `make check` trains the cases (``python -m tests.golden``)."""

import json

from tests.golden.__main__ import FILE
from tests.golden.cases import cases

WHOLE = json.loads(FILE.read_text(encoding="utf-8"))


def test_every_committed_run_is_a_case():
    assert set(WHOLE["runs"]) == set(cases())
