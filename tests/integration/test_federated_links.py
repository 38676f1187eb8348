"""Parties behind links that are slow, or that break: they take part, and come back after their process was killed."""

import os
import signal
import time

import pytest

from benchmarks.delayed_link import DelayedLink
from benchmarks.free_ports import free_ports
from lightning_vfl.federation.local import start
from tests.integration.kills import NAMES, differing, included

pytestmark = [pytest.mark.slow, pytest.mark.processes]

TRIP = 0.3  # seconds that the link adds to a message and its answer
STALE = ("--config", "protocol/mean", "--model.missing", "Stale", "--model.waiting", "Deadline")
SLOWER, FASTER = (("--model.waiting.seconds", seconds) for seconds in ("1.0", "0.1"))  # than the deadline


class Link:
    """A proxy process between a party and the server."""

    def __init__(self, federation, name):
        (self.port,) = free_ports(1)
        self.server, self.folder = int(federation.address.rpartition(":")[2]), federation.folder
        federation.before[name] = self.redirect
        self.process = start(self.run, self.folder / "link.txt")

    def run(self):
        """The role of the proxy, which goes on when the party's connections have ended."""
        while True:
            DelayedLink(self.port, self.server, TRIP / 2).run(self.folder / "bytes.json")

    def redirect(self):
        """In the party's process: dial the proxy instead of the server."""
        from lightning_vfl.federation import over_grpc
        from lightning_vfl.federation.grpc_client import Dialled

        over_grpc.Dialled = lambda _, *rest, **more: Dialled(f"127.0.0.1:{self.port}", *rest, **more)

    def cut(self, seconds):
        """End all connections; accept new ones after so many seconds."""
        self.end()
        time.sleep(seconds)
        self.process = start(self.run, self.folder / "link.txt")

    def end(self):
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)


@pytest.fixture
def behind_a_link(federation):
    """A federation in which party2 is behind a link."""
    links = []

    def make(recipe, epochs):
        one = federation((*STALE, *recipe), epochs=epochs)
        links.append(Link(one, "party2"))
        one.everybody()
        return one, links[-1]

    yield make
    for link in links:
        link.end()


def await_inclusion(federation, name, after, seconds=120.0):
    end = time.monotonic() + seconds
    while max(included(federation, name), default=-1) <= after:
        assert time.monotonic() < end, f"{name} is not in a round after round {after}"
        time.sleep(0.05)


def test_a_party_behind_a_slow_link_comes_back(behind_a_link):
    one, _ = behind_a_link(SLOWER, epochs=60)
    one.await_round(5)
    assert set(included(one, "party2")) >= {3, 4, 5}
    one.kill("party2")
    killed = int(one.rounds()[-1]["round"])
    one.party("party2")
    await_inclusion(one, "party2", after=killed + 10)
    back = included(one, "party2")[-1]
    joined = next(int(row["round"]) for row in one.rounds() if row["restored"])
    print(f"killed in round {killed}, has joined again in round {joined}, is in round {back}")
    one.kill("party2")  # the rest is faster without it
    assert one.wait(200) == dict.fromkeys(("scorer", "party0", "party1", "party3"), 0)
    assert differing(one, without=(2,)) == []


def test_a_party_that_is_always_late_is_called_again(behind_a_link):
    one, _ = behind_a_link(FASTER, epochs=12)
    assert one.wait(200) == dict.fromkeys(("scorer", *NAMES), 0)
    rows = [row for row in one.rounds() if row["name"] == "party2"]
    called = sum(row["called"] == "1" for row in rows)
    assert len(rows) == 480
    assert called > 3
    assert differing(one) == []
    print(f"party2 was called in {called} of {len(rows)} rounds, and is in {len(included(one, 'party2'))}")


def test_a_connection_that_breaks_is_made_again(behind_a_link):
    one, link = behind_a_link(SLOWER, epochs=60)
    one.await_round(5)
    link.cut(2.0)
    broken = int(one.rounds()[-1]["round"])
    await_inclusion(one, "party2", after=broken)
    one.kill("party2")
    assert one.wait(200) == dict.fromkeys(("scorer", "party0", "party1", "party3"), 0)
    assert differing(one, without=(2,)) == []
