"""The table of docs/guides/federation.md on who learns what, against every answer that parties get."""

import csv
import json
from base64 import b64decode, b64encode

import pytest

from lightning_vfl.federation.fields import ANSWERS
from lightning_vfl.federation.frames import unpack
from tests.integration.federations import tap
from tests.integration.kills import NAMES

pytestmark = [pytest.mark.slow, pytest.mark.processes]

EXPECTED = {  # the fields of all answers, by what they tell
    "who was there": {"standing", "plan"},
    "number of columns, names of classes": {"shapes", "num_classes", "class_names"},
    "metrics of an evaluation": {"metrics"},
    "ids": {"splits"},
    "the party's own gradients": {"message", "final"},
    "public keys": {"publics"},
    "how the federation runs": {"outcome", "why", "injected", "number", "clock"},
}


def heard(path):
    """What a process does that keeps every answer it gets as a line of a file."""

    def keep(frame, answer):
        with path.open("ab") as file:
            file.write(b64encode(answer) + b"\n")

    return tap(keep)


def test_a_party_is_told_what_the_table_says_and_nothing_else(federation, tmp_path):
    one = federation(("--config", "protocol/mean"), epochs=1)
    for name in NAMES:
        one.before[name] = heard(tmp_path / f"{name}.heard")
    one.everybody()
    assert set(one.wait(150).values()) == {0}
    with one.events.open(newline="") as file:
        record = list(csv.DictReader(file))
    told = {
        name: [unpack(b64decode(line)) for line in (tmp_path / f"{name}.heard").read_bytes().split()] for name in NAMES
    }
    allowed = set().union(*EXPECTED.values())
    assert allowed <= ANSWERS.rules.keys()
    for party, name in enumerate(NAMES):
        headers = [frame.header for frame in told[name]]
        assert set().union(*headers) <= allowed
        # columns and classes: of every party, and the names of the classes
        (shapes,) = (header for header in headers if "shapes" in header)
        assert [tuple(shape) for shape in shapes["shapes"]] == [(16,)] * 4
        assert (shapes["num_classes"], shapes["class_names"]) == (10, list(range(10)))
        # metrics: those of the server
        metrics = [header["metrics"] for header in headers if "metrics" in header]
        assert {"val/loss", "val/accuracy"} <= set().union(*metrics)
        # who was there: who is called, and of every round who was in it and how long it took
        plans = [header["plan"] for header in headers if "plan" in header]
        rounds = [record[at : at + 4] for at in range(0, len(record), 4)]
        assert [plan["included"] for plan in plans] == [
            [int(row["party"]) for row in rows if row["included"] == "1"] for rows in rounds
        ]
        assert all(plan["seconds"] == float(rows[0]["seconds"]) for plan, rows in zip(plans, rounds, strict=True))
        assert all(header["standing"]["called"] == [0, 1, 2, 3] for header in headers if "plan" in header)
        # columns, embeddings and labels of others: a message is the gradient of this party's own embeddings
        messages = [frame for frame in told[name] if "message" in frame.header]
        assert len(messages) == len(rounds)
        for frame in messages:
            assert frame.header["message"]["receivers"] == [party]
            (gradient,) = frame.tensors
            assert gradient.shape[1] == 64
        # ids: the lists of the splits, which are of common records alone
        (aligned,) = (frame for frame in told[name] if "splits" in frame.header)
        assert len(aligned.tensors) == len(aligned.header["splits"])
        rest = [frame for frame in told[name] if frame.tensors and frame not in (*messages, aligned)]
        assert rest == [], json.dumps([dict(frame.header) for frame in rest])[:2000]
