"""What a process shows to those who watch it: who is there and awaited, and nothing of the records."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from time import monotonic, sleep, time
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
import torch

from benchmarks.free_ports import free_ports
from lightning_vfl.commands.light import answer
from lightning_vfl.commands.status import lines
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.charter import Log, SeatFile
from lightning_vfl.federation.frames import pack
from lightning_vfl.federation.hub import At, Hub
from lightning_vfl.federation.local import found
from lightning_vfl.federation.watch import Peer, State, Watch, ask, changes, counts, watched
from lightning_vfl.protocols.accounts.books import PrivacyBooks
from lightning_vfl.protocols.books import Books
from lightning_vfl.simulation.clock import VirtualClock
from lightning_vfl.wire import Leg

AT = At(3, 2, 0)
SECRET = "customer-4711"
STATE = State(
    "loans",
    "scorer",
    1_700_000_000.0,
    "running",
    12.0,
    {
        "bank": Peer(1_700_000_100.0, True, False),
        "shop": Peer(1_700_000_200.0, False, True, 2),
        "telco": Peer(None, None, True),
    },
    {"fit": 1200},
    3,
    {"up/masked embeddings": 4096},
    {"embeddings": 1.5},
    2.5,
    5.5,
)


def books():
    counted = Books(VirtualClock())
    counted.begin(2)
    counted.rounds["fit"] = 7
    counted.meter.add(Leg("embeddings", "server", torch.tensor([10, 20]), 32, torch.zeros(2)))
    return counted


@pytest.fixture
def watch():
    made = []

    def make(state):
        (port,) = free_ports(1)
        made.append(Watch(f"127.0.0.1:{port}", state))
        return made[-1]

    yield make
    for one in made:
        one.close()


def read(watch, page):
    with urlopen(f"http://{watch.address}{page}", timeout=5) as answer:
        return answer.read().decode()


def samples(text):
    """By name and label, as the text format of Prometheus has them; every line is one of these or the type of one."""
    numbers, kinds = {}, {}
    for line in text.splitlines():
        kind = re.fullmatch(r"# TYPE (\w+) (counter|gauge)", line)
        if kind:
            kinds[kind[1]] = kind[2]
            continue
        name, label, value = re.fullmatch(r'(\w+)(\{\w+="[^"]*"\})? (\S+)', line).groups()
        assert name in kinds, line
        numbers[name.removeprefix("lightning_vfl_federation_") + (label or "")] = float(value)
    return numbers


def test_a_state_comes_back_as_it_was_shown(watch):
    assert ask(watch(lambda: STATE).address) == STATE


def test_metrics_are_the_numbers_of_the_state(watch):
    assert samples(read(watch(lambda: STATE), "/metrics")) == {
        "started_seconds": 1.7e9,
        "waiting_seconds": 12.0,
        'peer_connected{peer="bank"}': 1,
        'peer_connected{peer="shop"}': 0,
        'peer_awaited{peer="bank"}': 0,
        'peer_awaited{peer="shop"}': 1,
        'peer_awaited{peer="telco"}': 1,
        'peer_losses_total{peer="bank"}': 0,
        'peer_losses_total{peer="shop"}': 2,
        'peer_losses_total{peer="telco"}': 0,
        'rounds_total{stage="fit"}': 1200,
        "rounds_given_up_total": 3,
        'leg_bytes_total{leg="up/masked embeddings"}': 4096,
        'leg_seconds_total{leg="embeddings"}': 1.5,
        "epsilon": 2.5,
        "epsilon_left": 5.5,
    }
    assert "epsilon" not in replace(STATE, epsilon=None, epsilon_left=None).metrics()


def test_an_address_of_ipv6_is_listened_at():
    (port,) = free_ports(1)
    one = Watch(f"[::1]:{port}", lambda: STATE)
    try:
        assert ask(one.address) == STATE
    finally:
        one.close()


def test_other_pages_are_not_found(watch):
    one = watch(lambda: STATE)
    for page in ("/", "/health?x=1", "/../federation.yaml"):
        with pytest.raises(HTTPError, match="404"):
            read(one, page)


def test_an_address_that_is_taken_is_refused_in_one_line(watch):
    one = watch(lambda: STATE)
    with pytest.raises(ConfigurationError, match=rf"metrics of seat.yaml cannot listen at {one.address}: "):
        Watch(one.address, lambda: STATE)


def test_the_hub_says_who_has_come_gone_and_is_awaited():
    hub = Hub(3)
    began = time()
    assert hub.peers() == [Peer(None, False, False)] * 3
    hub.joined(0, b"a")
    hub.joined(1, b"b")
    hub.joined(1, b"b")
    hub.left(1, b"b")
    assert [one.connected for one in hub.peers()] == [True, True, False]  # one of two connections is left
    hub.left(1, b"b")
    shown = hub.peers()
    assert [(one.connected, one.losses) for one in shown] == [(True, 0), (False, 1), (False, 0)]
    assert all(began <= one.since <= time() for one in shown[:2])
    assert hub.waited() is None
    arrived = []
    with ThreadPoolExecutor(2) as pool:
        call = pool.submit(hub.call, 0, pack({"call": 0, "at": list(AT), "turn": 0, "say": "tell"}))
        wait = pool.submit(hub.wait, lambda: arrived or None, lambda: monotonic() + 60)
        until = monotonic() + 60
        while (hub.waiting(0) is None or hub.waited() is None) and monotonic() < until:
            sleep(0.001)
        during, waited = hub.peers(), hub.waited()
        arrived.append("what it waits for")
        hub.joined(2)
        wait.result(60)
        after = hub.peers()
        hub.end({"outcome": "over"})
        call.result(60)
    assert [one.awaited for one in during] == [False, True, True]
    assert 0 <= waited < 60
    assert not any(one.awaited for one in after)


def leaves(shown):
    """All numbers and words of a state, and the keys of its tables."""
    if isinstance(shown, dict):
        return [leaf for key, one in shown.items() for leaf in (key, *leaves(one))]
    return [shown]


def test_nothing_of_records_is_shown_or_logged(watch, capfd):
    """All that a party tells passes the hub, and none of its words and numbers is in what is shown and logged."""
    hub, model = Hub(2), SimpleNamespace(books=books(), privacy=PrivacyBooks(target=8.0, shown=2.5))
    hub.joined(0, b"process")
    values = torch.arange(4711.0, 4731.0)
    header = {"call": 0, "at": list(AT), "turn": 0, "say": "tell"}
    names = ("bank", "shop")

    def state():
        peers = dict(zip(names, hub.peers(), strict=True))
        return State("loans", "scorer", time(), "running", hub.waited(), peers, **counts(model, hub.seconds))

    with ThreadPoolExecutor(1) as pool, watched(SeatFile(Path("key"), log=Log.JSON), state):
        call = pool.submit(hub.call, 0, pack(header, [values]))
        hub.wait(lambda: hub.waiting(0), lambda: monotonic() + 5, "embeddings")
        with pytest.raises(ValueError, match="party 1"):
            hub.call(1, pack({**header, "say": SECRET}))
        hub.joined(1, b"process")
        hub.left(0, b"process")
        one = watch(state)
        health, metrics = read(one, "/health"), read(one, "/metrics")
        hub.end({"outcome": "over"})
        with suppress(ValueError):
            call.result(5)
    logged = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]
    assert [line.pop("event") for line in logged] == ["started", "disconnected", "connected", "ended"]
    assert all(datetime.fromisoformat(line.pop("time")) for line in logged)
    assert SECRET not in health + metrics + str(logged)
    fields = {*State.__dataclass_fields__, *Peer.__dataclass_fields__, "peer", "bytes", "error"}
    words = {"loans", "scorer", *names, "running", "fit", "up/embeddings", "embeddings"}
    for shown in ([json.loads(health)], logged):
        found = [leaf for one in shown for leaf in leaves(one)]
        assert {leaf for leaf in found if isinstance(leaf, str)} <= fields | words
        assert not {*values.tolist()} & {leaf for leaf in found if isinstance(leaf, float | int)}
    (waited,) = hub.seconds.values()
    assert 0 <= waited < 5
    assert counts(model, hub.seconds) == {
        "rounds": {"fit": 7},
        "given_up": 0,
        "traffic": {"up/embeddings": 4 * 30},
        "seconds": {"embeddings": waited},
        "epsilon": 2.5,
        "epsilon_left": 5.5,
    }


def test_the_events_of_a_log_are_what_has_changed():
    def events(before, after):
        return [(event, *values.values()) for event, values in changes(before, after)]

    assert events(STATE, STATE) == []
    quiet = replace(STATE, peers={"bank": Peer(1.0, True, False), "shop": Peer(None, False, True)}, waited=1.0)
    later = {"bank": Peer(2.0, False, True, 1), "shop": Peer(2.0, True, False)}
    assert events(quiet, replace(quiet, peers=later)) == [("disconnected", "bank", 1), ("connected", "shop")]
    back = {"bank": Peer(3.0, True, False, 2), "shop": Peer(2.0, True, False)}  # two losses between two looks
    assert events(quiet, replace(quiet, peers={**back, "shop": quiet.peers["shop"]})) == [
        ("disconnected", "bank", 2),
        ("connected", "bank"),
    ]
    assert events(quiet, replace(quiet, phase="over", given_up=5)) == [("phase", "over"), ("rounds given up", 2)]
    assert events(quiet, replace(quiet, waited=19.0)) == []
    assert events(replace(quiet, waited=19.0), replace(quiet, waited=21.0)) == [("waiting", 20.0, ["shop"])]
    assert events(replace(quiet, waited=21.0), replace(quiet, waited=22.0)) == []
    relayed = replace(quiet, peers={"scorer": Peer(None, None, True)})
    assert events(relayed, relayed) == []


def test_the_last_line_names_the_kind_of_an_error_and_not_its_words(capfd):
    with pytest.raises(ConfigurationError), watched(SeatFile(Path("key"), log=Log.JSON), lambda: STATE):
        raise ConfigurationError(SECRET)
    *_, last = capfd.readouterr().err.splitlines()
    assert SECRET not in last
    ended = json.loads(last)
    assert (ended["event"], ended["error"], ended["rounds"], ended["bytes"]) == (
        *("ended", "ConfigurationError", {"fit": 1200}, 4096),
    )


def test_a_text_log_has_no_events(capfd):
    with watched(SeatFile(Path("key")), lambda: STATE):
        pass
    assert capfd.readouterr().err == ""


def test_the_lines_of_a_state():
    said = lines(STATE)
    assert said[0].startswith("scorer of loans: running since 20")
    assert said[0].endswith(", waiting for 12 s; rounds: 1,200 of fit")
    assert re.fullmatch(r"bank: connected since \S+ \S+", said[1])
    assert re.fullmatch(r"shop: GONE since \S+ \S+, lost 2 times before, awaited", said[2])
    assert said[3] == "telco: behind a relay, awaited"
    joining = replace(STATE, peers={"bank": Peer(None, False, True)}, rounds={})
    assert lines(joining)[1:] == ["bank: has not come yet, awaited"]
    assert lines(joining)[0].endswith("rounds: none")


def test_status_asks_the_process_of_this_host(tmp_path, watch, capsys):
    charter = found("trial", ["bank"], tmp_path)
    one = watch(lambda: replace(STATE, federation=charter.federation))

    def status(said):
        (tmp_path / "seat.yaml").write_text(said)
        outcome = answer(["status", str(tmp_path / "federation.yaml"), "--seat", str(tmp_path / "seat.yaml")])
        printed = capsys.readouterr()
        return outcome, printed.out + printed.err

    assert status(f"{{key: k, metrics: '{one.address}'}}")[0] == 0
    other = watch(lambda: STATE)
    assert "is of the federation loans, not of" in status(f"{{key: k, metrics: '{other.address}'}}")[1]
    assert "add metrics: 127.0.0.1:9100" in status("key: k")[1]
    (port,) = free_ports(1)
    assert "nothing answers at" in status(f"{{key: k, metrics: '127.0.0.1:{port}'}}")[1]
