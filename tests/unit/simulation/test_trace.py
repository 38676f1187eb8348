import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.simulation import (
    ComputeBound,
    Crashes,
    Faults,
    LogNormal,
    PartyDropout,
    RoundOutcome,
    Stragglers,
    TraceReplay,
)
from lightning_vfl.simulation.trace import record, write
from lightning_vfl.types import Roster

FIELDS = [field.name for field in dataclasses.fields(RoundOutcome)]
both_formats = pytest.mark.parametrize("file", ["trace.csv", "trace.parquet"])


def roster_of(parties, hosts=1):
    return Roster(tuple((m,) for m in range(parties)), hosts=hosts)


def troubles():
    faults = Faults(seed=4)
    for model in (
        Stragglers(0.7, slow=LogNormal(0.1, 3.0)),
        Stragglers(0.3, slow=ComputeBound(1.1, step=0.1)),
        PartyDropout(0.5, 0.4),
        *(Crashes(what, 0.3, 0.4) for what in ("guests", "hosts", "connections")),
    ):
        faults.add(model)
    return faults


def equal(a, b):
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in FIELDS)


def rows(steps=3, parties=2, step="request", **columns):
    """A faultless table, with columns replaced."""
    table = {
        step: np.arange(steps).repeat(parties),
        "party": np.tile(np.arange(parties), steps),
        "delay": 0.0,
        "up": True,
        "down": True,
    }
    return pd.DataFrame({**table, **columns})


def replay(tmp_path, table, name="trace.csv"):
    write(table, str(tmp_path / name))
    return TraceReplay(str(tmp_path / name))


@both_formats
@pytest.mark.parametrize("hosts", [1, 3])
def test_a_replay_gives_the_bits_that_were_recorded(file, hosts, tmp_path):
    faults, roster = troubles(), roster_of(5, hosts)
    recorded = [faults.at(request, roster) for request in range(50)]
    model = replay(tmp_path, record(recorded.__getitem__, 50), file)
    assert all(equal(model.sample(request, roster, seed=0), outcome) for request, outcome in enumerate(recorded))
    assert model.silent
    assert [path.name for path in tmp_path.iterdir()] == [file]


@both_formats
@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=20))
def test_every_float_survives_the_file(file, tmp_path_factory, seconds):
    model = replay(tmp_path_factory.mktemp("t"), rows(len(seconds), 1, delay=seconds), file)
    assert [model.sample(t, roster_of(1), 0).delay.item() for t in range(len(seconds))] == seconds


def test_the_columns_of_a_recording():
    outcome = RoundOutcome.nothing(roster_of(2, hosts=2))
    late = dataclasses.replace(outcome, delay=torch.tensor([0.5, 0.25]).double(), hosts=torch.tensor([True, False]))
    table = record([outcome, outcome, late].__getitem__, 3)
    assert table.columns.tolist() == [
        *("round", "request", "party", "delay", "up", "down", "peer_delay", "slowdown", "announced"),
        *("link_0", "link_1", "host_0", "host_1"),
    ]
    assert table["round"].tolist() == [0, 0, 0, 0, 1, 1]
    assert table["request"].tolist() == [0, 0, 1, 1, 2, 2]
    assert table["party"].tolist() == [0, 1] * 3
    assert table["delay"].tolist() == [0.0] * 4 + [0.5, 0.25]
    assert table["host_1"].tolist() == [True] * 4 + [False, False]


def test_a_row_of_a_round_says_both_its_requests(tmp_path):
    model = replay(tmp_path, rows(2, 2, step="round", delay=[0.1, 0.2, 0.3, 0.4]))
    delays = [model.sample(request, roster_of(2), 0).delay.tolist() for request in range(4)]
    assert delays == [[0.1, 0.2], [0.1, 0.2], [0.3, 0.4], [0.3, 0.4]]
    with pytest.raises(ConfigurationError, match=r"request 4 is past the end .*requests 0 to 3"):
        model.sample(4, roster_of(2), 0)


@given(requests=st.integers(1, 7), step=st.sampled_from(["request", "round"]), at=st.integers(0, 10**6))
def test_a_trace_that_repeats_is_the_same_trace_written_down_often_enough(tmp_path_factory, requests, step, at):
    folder = tmp_path_factory.mktemp("trace")
    delays = [0.1 * i for i in range(2 * requests)]
    write(rows(requests, 2, step=step, delay=delays), str(folder / "trace.csv"))
    once, repeated = (TraceReplay(str(folder / "trace.csv"), repeat=again) for again in (False, True))
    long = requests * (1 if step == "request" else 2)
    assert equal(repeated.sample(at, roster_of(2), 0), once.sample(at % long, roster_of(2), 0))


def test_what_is_not_said_does_not_go_wrong_and_rows_may_come_in_any_order(tmp_path):
    table = rows(3, 2, delay=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]).sample(frac=1.0, random_state=1)
    model, roster = replay(tmp_path, table), roster_of(2, hosts=4)
    for request in range(3):
        delay = torch.tensor([2.0 * request, 2.0 * request + 1], dtype=torch.float64)
        expected = dataclasses.replace(RoundOutcome.nothing(roster), delay=delay)
        assert equal(model.sample(request, roster, 0), expected)
    assert not model.silent


@pytest.mark.parametrize(("column", "silent"), [("up", True), ("down", True), ("link_0", True), ("announced", False)])
def test_messages_are_lost_where_the_table_says_so(column, silent, tmp_path):
    assert replay(tmp_path, rows(**{column: [1, 1, 1, 0, 1, 1]})).silent == silent


def test_the_first_hosts_of_a_trace_with_more(tmp_path):
    model = replay(tmp_path, rows(1, 2, link_0=[1, 0], link_1=[0, 1], host_0=[0, 0], host_1=[1, 1]))
    outcome = model.sample(0, roster_of(2, hosts=1), 0)
    assert (outcome.links.tolist(), outcome.hosts.tolist()) == ([[True], [False]], [False])
    with pytest.raises(ConfigurationError, match="has 2 hosts, but this run has 3"):
        model.sample(0, roster_of(2, hosts=3), 0)


def test_the_end_and_other_parties_are_refused(tmp_path):
    model = replay(tmp_path, rows(40, 4))
    model.sample(39, roster_of(4), 0)
    with pytest.raises(
        ConfigurationError,
        match=r"request 40 is past the end of trace.csv, which has requests 0 to 39 .*; record a longer",
    ):
        model.sample(40, roster_of(4), 0)
    with pytest.raises(ConfigurationError, match="a trace of 4 parties, but this run has 3"):
        model.sample(0, roster_of(3), 0)


@both_formats
@pytest.mark.parametrize(
    ("table", "words"),
    [
        (rows().drop(columns="up"), "no column 'up'"),
        (rows().drop(columns="request"), "no column 'round'"),
        (rows(peer_dealy=0.0), "unknown column 'peer_dealy'"),
        (rows(0), "no rows"),
        (rows().drop(index=3), "request 1 of party 1 not at all"),
        (rows().drop(index=5), "request 2 of party 1 not at all"),
        (rows().drop(index=[0, 1]), "request 0 of party 0 not at all"),
        (rows().iloc[[0, 1, 2, 2, 3, 4, 5]], "request 1 of party 0 twice"),
        (rows().iloc[[0, 1, 2, 3, 4, 5, 5]], "request 2 of party 1 twice"),
        (rows().iloc[[0, 1, 2, 2, 4, 5]], "request 1 of party 0 twice"),
        (rows(party=[0.0, 1.0, 0.0, 1.5, 0.0, 1.0]), "column 'party' .* must have the whole numbers from 0"),
        (rows(party=[-1, 1] * 3), "column 'party' .* must have the whole numbers from 0"),
        (rows(delay=[0.0, 0.0, 0.0, -1.0, 0.0, 0.0]), "delay -1.0 of party 1 at request 1 .* 0 or more"),
        (rows(delay=[0.0, 0.0, np.nan, 0.0, 0.0, 0.0]), "delay nan of party 0 at request 1"),
        (rows(peer_delay=[np.inf] * 6), "peer_delay inf of party 0 at request 0"),
        (rows(slowdown=[1.0, 0.5] * 3), "slowdown 0.5 of party 1 at request 0 .* 1 or more"),
        (rows(up=[1, 1, 2, 1, 1, 1]), "up 2.0 of party 0 at request 1 .* True or False"),
        (rows(up=["yes"] * 6), "'up' .* not a number"),
        (rows(link_1=True), "no column 'link_0'"),
        (rows(host_0=[True, True, False, True, True, True]), "rows of request 1 .* differ in host_0"),
    ],
)
def test_bad_tables_are_refused(table, words, file, tmp_path):
    model = replay(tmp_path, table, file)
    with pytest.raises(ConfigurationError, match=words):
        model.sample(0, roster_of(2), 0)


def test_files_that_cannot_be(tmp_path):
    with pytest.raises(ConfigurationError, match=r"the trace .*missing.csv does not exist; correct the path"):
        TraceReplay(str(tmp_path / "missing.csv")).sample(0, roster_of(2), 0)
    for attempt in (lambda: TraceReplay("trace.json"), lambda: write(rows(), "trace.json")):
        with pytest.raises(ConfigurationError, match="change the ending"):
            attempt()
    for name, content in (("a.csv", "party,delay,up,down,round\n0,long,1,1,0"), ("b.csv", ""), ("c.parquet", "PAR1")):
        (tmp_path / name).write_text(content)
        with pytest.raises(ConfigurationError, match=f"{name} cannot be read .*; correct it"):
            TraceReplay(str(tmp_path / name)).sample(0, roster_of(1), 0)
    with pytest.raises(ConfigurationError, match=r"requests of a trace must be .*; got 0"):
        record(lambda request: RoundOutcome.nothing(roster_of(2)), 0)


def test_the_file_is_read_once_and_when_needed(tmp_path):
    model = TraceReplay(str(tmp_path / "later.csv"))
    write(rows(), model.path)
    first = model.sample(0, roster_of(2), 0)
    (tmp_path / "later.csv").unlink()
    assert equal(model.sample(0, roster_of(2), 0), first)
