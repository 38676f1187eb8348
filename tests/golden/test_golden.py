"""The committed digests are those of the cases. `make check` trains the cases (``python -m tests.golden``)."""

import json
from copy import deepcopy

from tests.golden.__main__ import FILE, compare
from tests.golden.cases import cases

WHOLE = json.loads(FILE.read_text(encoding="utf-8"))


def test_every_committed_run_is_a_case():
    assert set(WHOLE["runs"]) == set(cases())


def test_the_last_lines_say_what_differs_and_by_how_much(capsys):
    made = deepcopy(WHOLE["runs"])
    assert compare(made, "runs")
    assert capsys.readouterr().out == f"{len(made)} of {len(made)} runs have the committed bits\n"
    name = next(iter(made))
    made[name]["weights"] = "another digest"
    made[name]["numbers"]["weights"] *= 1.25
    assert not compare(made, "runs")
    difference, count = capsys.readouterr().out.splitlines()
    assert difference.startswith(f"{name}: weights differ, at most by 2.5e-01, in weights: ")
    assert count == f"{len(made) - 1} of {len(made)} runs have the committed bits"
