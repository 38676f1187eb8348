"""Frames through a relay that repeats, swaps and changes what it carries: sealed end to end, and answered once."""

import socket as sockets
from contextlib import suppress
from multiprocessing.connection import Client
from threading import Event, Thread

import pytest

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.frames import pack, unpack
from lightning_vfl.federation.hub import Hub, Key
from lightning_vfl.federation.identity import load, paths
from lightning_vfl.federation.link import START, Link
from lightning_vfl.federation.local import found
from lightning_vfl.federation.relay import Relayed, RelayPort
from lightning_vfl.federation.sealed_line import Greeting, number_of, welcome

SECRET = "what party 0 says to the server alone"


@pytest.fixture(scope="module")
def charter(tmp_path_factory):
    return found("relayed", 2, tmp_path_factory.mktemp("relayed"))


@pytest.fixture(scope="module")
def identities(charter, tmp_path_factory):
    keys = tmp_path_factory.getbasetemp() / "relayed0" / "keys"
    return {name: load(*paths(name, keys)) for name in ("server", "party0", "party1")}


class Carrier(Thread):
    """A relay between two sockets, which does to every message what it is told to do."""

    def __init__(self, party, server, meddle=lambda way, content: [content]):
        super().__init__(daemon=True)
        self.party, self.server, self.meddle = party, server, meddle
        self.seen, self.over = [], Event()
        self.start()

    def run(self):
        asked, line = b"", None
        answers = [b""]
        while not self.over.is_set():
            answer = answers.pop(0) if answers else b""
            with suppress(OSError, EOFError), Client(str(self.party), "AF_UNIX") as call:
                call.send_bytes(answer)
                content = call.recv_bytes()
                if not content or content == asked:
                    self.over.wait(0.01)
                    continue
                asked = content
                if line is None:
                    line = Client(str(self.server), "AF_UNIX")
                for one in self.meddle("up", content):
                    self.seen.append(one)
                    line.send_bytes(one)
                    told = line.recv_bytes()
                    self.seen.append(told)
                    answers += self.meddle("down", told)


@pytest.fixture
def ends(charter, identities, tmp_path):
    """A hub that echoes, behind a port, and the transport of party 0; the relay meddles as it is told."""
    opened = []

    def make(meddle=lambda way, content: [content]):
        hub = Hub(2)
        hub.greet = lambda request: pack({"outcome": "go", "why": request.frame.header["why"], "by": request.party})
        port = RelayPort(hub, tmp_path / "server.sock", identities["server"], charter)
        transport = Relayed(tmp_path / "party.sock", 0, identities["party0"], charter)
        carrier = Carrier(transport.socket, port.socket, meddle)
        opened.extend([carrier, transport, port])
        return Link(transport), hub, carrier

    yield make
    for one in opened:
        one.over.set() if isinstance(one, Carrier) else one.close()


def echoed(link, text=SECRET):
    frame = link.ask(Key(START, 0), "psi", {"step": "failed", "why": text})
    return frame.header["why"], frame.header["by"]


def test_every_request_gets_its_own_answer_and_the_relay_reads_nothing(ends):
    link, hub, carrier = ends()
    assert [echoed(link, f"{SECRET} {number}") for number in range(5)] == [(f"{SECRET} {n}", 0) for n in range(5)]
    assert [hub.present(party) for party in range(2)] == [True, False]
    assert len(carrier.seen) == 2 + 2 * 5
    assert not any(b"party" in content or b"failed" in content for content in carrier.seen)


def twice(way, content):
    return [content, content]


def changed(way, content):
    return [content, content[:1] + bytes(40), content[:-1] + b"?"] if content[:1] in b"fa" else [content]


def forgotten(way, content):
    return [b"u"] if (way, content[:1]) == ("down", b"a") and content[12] % 2 == 1 else [content]  # every other number


@pytest.mark.parametrize("meddle", [twice, changed, forgotten])
def test_what_a_relay_does_to_messages_changes_no_answer(ends, meddle):
    link, _, carrier = ends(meddle)
    assert [echoed(link, str(number)) for number in range(4)] == [(str(n), 0) for n in range(4)]
    assert len(carrier.seen) > 2 + 2 * 4


def test_a_frame_that_comes_twice_reaches_the_hub_once(charter, identities, tmp_path):
    asked, hub = [], Hub(2)
    hub.greet = lambda request: asked.append(request) or pack({"outcome": "go"})
    port = RelayPort(hub, tmp_path / "server.sock", identities["server"], charter)
    greeting = Greeting(0, bytes(16), identities["party0"], charter)
    with Client(str(port.socket), "AF_UNIX") as line:
        line.send_bytes(greeting.content)
        sealed = greeting.accept(line.recv_bytes())
        frame = pack({"call": 0, "at": [0, 0, -1], "turn": 0, "say": "ready"})
        content = b"f" + sealed.sends.seal(frame, 0)
        answers = set()
        for _ in range(3):
            line.send_bytes(content)
            answers.add(line.recv_bytes())
        assert len(asked) == len(answers) == 1
        assert unpack(sealed.hears.open(answers.pop()[1:], 0)[1:]).header == {"outcome": "go"}
        assert hub.present(0)
    port.close()
    while hub.present(0):  # the port has not read the end yet
        pass


def test_a_hello_is_of_the_party_whose_certificate_has_signed_it(charter, identities):
    thief = Greeting(0, bytes(16), identities["party1"], charter)
    with pytest.raises(ConfigurationError, match="the hello of party party0 is not signed by its certificate"):
        welcome(thief.content, identities["server"], charter)
    for party, line in ((7, "has no party number 7"), (1, "party1 is not signed")):
        content = Greeting(0, bytes(16), identities["party0"], charter).content
        with pytest.raises(ConfigurationError, match=line):
            welcome(content[:1] + party.to_bytes(2, "big") + content[3:], identities["server"], charter)
    with pytest.raises(ConfigurationError, match="another length"):
        welcome(thief.content + b"?", identities["server"], charter)


def test_a_welcome_is_of_the_server_and_of_this_hello(charter, identities):
    one, other = (Greeting(0, bytes(16), identities["party0"], charter) for _ in range(2))
    assert one.accept(welcome(one.content, identities["party1"], charter)[0]) is None
    assert one.accept(welcome(other.content, identities["server"], charter)[0]) is None
    content, there = welcome(one.content, identities["server"], charter)
    here = one.accept(content)
    sealed = here.sends.seal(b"frame", 3)
    assert number_of(sealed) == 3
    assert there.hears.open(sealed, 3) == b"frame"
    assert here.hears.open(there.sends.seal(b"answer", 3), 3) == b"answer"


def test_a_refused_hello_and_a_silent_relay_end_in_one_line(charter, identities, tmp_path):
    port = RelayPort(Hub(2), tmp_path / "server.sock", identities["server"], charter)
    transport = Relayed(tmp_path / "party.sock", 0, identities["party1"], charter)
    carrier = Carrier(transport.socket, port.socket)
    with pytest.raises(ConfigurationError, match="the server refuses this party: the hello of party party0"):
        transport.exchange(b"frame", bytes)
    carrier.over.set()
    transport.close()
    port.close()
    silent = Relayed(tmp_path / "silent.sock", 0, identities["party0"], charter)
    silent._reconnect = 0.0
    with pytest.raises(ConfigurationError, match=r"the relay has not called at .*silent.sock for 0 s"):
        silent.exchange(b"frame", bytes)
    silent.close()


def test_a_socket_that_a_dead_process_has_left_is_replaced_and_a_file_is_not(charter, identities, tmp_path):
    with sockets.socket(sockets.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "left.sock"))
    RelayPort(Hub(2), tmp_path / "left.sock", identities["server"], charter).close()
    (tmp_path / "file").write_text("kept")
    for path in (tmp_path / "file", tmp_path / "none" / "s.sock"):
        with pytest.raises(ConfigurationError, match=r"cannot be listened at .*; give a path"):
            RelayPort(Hub(2), path, identities["server"], charter)
    assert (tmp_path / "file").read_text() == "kept"
