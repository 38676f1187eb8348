"""Processes of a real federation, watched from their start to their end."""

import json
from contextlib import suppress
from time import monotonic, sleep

import pytest
import yaml

from benchmarks.free_ports import free_ports
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.watch import ask
from tests.integration.federations import BASE, Federation, cut_digits

pytestmark = [pytest.mark.slow, pytest.mark.processes]

NAMES = ("party0", "party1")


def until(address, holds, seconds=90.0):
    """The first state for which ``holds`` is true."""
    end, last = monotonic() + seconds, None
    while monotonic() < end:
        with suppress(ConfigurationError):
            last = ask(address)
            if holds(last):
                return last
        sleep(0.02)
    raise AssertionError(f"{seconds:g} s have passed; last: {last}")


def test_a_federation_is_watched_from_its_start_to_its_end(tmp_path):
    parts = cut_digits(tmp_path / "parts", parties=2)
    recipe = ("--config", str(parts / "csv_tables.yaml"), "--data.data_dir", str(parts), "--config", "protocol/mean")
    one = Federation(tmp_path, NAMES, (*recipe, *BASE, "--trainer.max_epochs", "20"))
    ports = dict(zip(("scorer", *NAMES), free_ports(3), strict=True))
    address = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    for name in address:
        seat = tmp_path / f"{name}.yaml"
        seat.write_text(yaml.safe_dump({**yaml.safe_load(seat.read_text()), "metrics": address[name], "log": "json"}))
    try:
        one.serve()
        one.party("party0")
        joining = until(
            address["scorer"], lambda state: state.peers["party0"].connected and not awaited(state, "party0")
        )
        assert (joining.federation, joining.name, joining.phase) == ("trial", "scorer", "joining")
        assert awaited(joining, "party1")
        assert joining.peers["party1"].since is None
        waiting = until(address["party0"], lambda state: state.peers["scorer"].connected and awaited(state, "scorer"))
        assert waiting.phase == "joining"
        one.party("party1")
        running = until(address["scorer"], lambda state: state.rounds.get("fit", 0) > 3)
        assert running.phase == "running"
        assert all(peer.connected and not peer.losses for peer in running.peers.values())
        assert running.traffic["up/embeddings"] > 0
        assert running.seconds["embeddings"] > 0
        seen = until(address["party1"], lambda state: state.rounds.get("fit", 0) > 3)
        assert seen.phase == "running"
        assert seen.seconds["tell"] > 0
        await_event(one, "connected", "party1")  # what happens between two looks is not logged
        one.kill("party1")
        lost = until(address["scorer"], lambda state: state.peers["party1"].losses == 1)
        assert not lost.peers["party1"].connected
        await_event(one, "disconnected", "party1")
        logged = {name: [(line["event"], line.get("peer")) for line in events(one, name)] for name in address}
        assert logged["scorer"][0] == ("started", None)
        assert {("connected", name) for name in NAMES} | {("disconnected", "party1")} <= {*logged["scorer"]}
        assert ("phase", None) in logged["scorer"]
        assert ("connected", "scorer") in logged["party0"]
    finally:
        one.stop()
    with pytest.raises(ConfigurationError, match="nothing answers at"):
        ask(address["scorer"])


def events(federation, name):
    """The lines of JSON that a process has written; the last may be half a line."""
    lines = [line for line in federation.log(name).splitlines(keepends=True) if line.startswith("{")]
    return [json.loads(line) for line in lines if line.endswith("\n")]


def await_event(federation, event, peer, seconds=60.0):
    """Wait until the server has logged what a party has done."""
    end = monotonic() + seconds
    while not any((line["event"], line.get("peer")) == (event, peer) for line in events(federation, "scorer")):
        assert monotonic() < end
        sleep(0.1)


def awaited(state, name):
    return state.peers[name].awaited
