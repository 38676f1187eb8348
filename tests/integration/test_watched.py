"""Processes of a real federation, watched from their start to their end."""

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
        seat.write_text(yaml.safe_dump({**yaml.safe_load(seat.read_text()), "metrics": address[name]}))
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
        assert until(address["party1"], lambda state: state.rounds.get("fit", 0) > 3).phase == "running"
        one.kill("party1")
        lost = until(address["scorer"], lambda state: state.peers["party1"].losses == 1)
        assert not lost.peers["party1"].connected
    finally:
        one.stop()
    with pytest.raises(ConfigurationError, match="nothing answers at"):
        ask(address["scorer"])


def awaited(state, name):
    return state.peers[name].awaited
