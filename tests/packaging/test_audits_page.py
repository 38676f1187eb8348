"""The matrix of audits: its page is that of the kept rows, and no attack that cannot succeed calls a row safe."""

import importlib
import sys

import pytest

from lightning_vfl.audit.verdicts import LEAK, MARGIN, NO_MORE
from tests.attacks.__main__ import RESULTS

sys.path.append(str(RESULTS))  # for the files beside it
make_audits = importlib.import_module("make_audits")
ROWS = make_audits.read(make_audits.TABLE)


def test_the_page_is_that_of_the_rows():
    text = make_audits.PAGE.read_text(encoding="utf-8")
    assert make_audits.tables(ROWS) in text, "run python docs/results/make_audits.py --page"
    assert make_audits.FIGURE.stat().st_size < 200_000


def test_no_row_is_safe_by_an_attack_that_fails_on_the_unprotected_twin():
    safe = [row for row in ROWS if row["verdict"] == NO_MORE]
    assert safe
    for row in safe:
        guessed = max(float(row["chance"]), float(row["without"] or 0))
        assert float(row["success"]) <= guessed + MARGIN + 0.001  # rounded
        assert float(row["unprotected"]) > guessed + MARGIN
        assert float(row["high"]) <= float(row["unprotected"])


def made_up(**changed):
    row = {
        "attacker": "server",
        "attack": "DriftNeighbours",
        "seed": "0",
        "success": "0.5",
        "low": "0.4",
        "high": "0.6",
    }
    return {**dict.fromkeys(make_audits.COLUMNS, ""), **row, "verdict": NO_MORE, **changed}


def test_a_cell_has_the_mean_the_outermost_ends_and_the_worst_verdict():
    rows = [made_up(), made_up(seed="1", success="0.7", low="0.1", high="0.9", verdict=LEAK)]
    assert make_audits.shown(rows) == "0.60 (0.10 to 0.90) **leak**"
    assert make_audits.shown([made_up(verdict="NOT SHOWN")]) == "0.50 (0.40 to 0.60) not shown"
    assert make_audits.shown([made_up(verdict="not attacked", success="")]) == "not attacked"
    assert make_audits.shown([]) == "-"


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        ("LabelsOverEpochs", "1"),
        ("LabelsOverEpochs(known=0", "0"),
        ("LabelsOverEpochs(known=20", "20"),
        ("DriftFeatures", "8"),
    ],
)
def test_an_attack_is_found_by_its_settings(attack, expected):
    labels = {
        "LabelsOverEpochs(known=0)": "0",
        "LabelsOverEpochs(sizes=True)": "1",
        "LabelsOverEpochs(known=20, sizes=True)": "20",
        "DriftFeatures(party=2, known=4)": "4",
        "DriftFeatures(party=2, known=8)": "8",
    }
    rows = [made_up(attack=label, success=known) for label, known in labels.items()]
    (found,) = make_audits.named(rows, "server", attack)
    assert found["success"] == expected
