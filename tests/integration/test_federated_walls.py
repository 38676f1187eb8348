"""What a federation refuses, with one line that names who is meant; the others go on."""

import os
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread

import pytest
import torch
import yaml
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from benchmarks.free_ports import free_ports
from benchmarks.hostile import UPLOAD
from benchmarks.hostile import request as request_of
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.alignment import RollCall, align
from lightning_vfl.federation.at_party import join
from lightning_vfl.federation.charter import Alignment, Charter
from lightning_vfl.federation.frames import pack, unpack, unpack_pieces
from lightning_vfl.federation.hub import At, Hub, Key
from lightning_vfl.federation.identity import Certificate, load, make_identity, paths
from lightning_vfl.federation.link import Link, Transport
from lightning_vfl.federation.local import start
from lightning_vfl.federation.reception import Reception
from lightning_vfl.federation.rounds_at_party import RoundsAtParty
from tests.integration.federations import prepare
from tests.unit.federation.certificates import issued

NAMES = ("bank", "telco")


def apart(role, log: Path, seconds: float = 120.0) -> None:
    """Run a role in a process of its own, whose threads of gRPC end with it."""
    process, end = start(role, log), time.monotonic() + seconds
    while not (ended := os.waitpid(process, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            pytest.fail(f"it has not ended within {seconds:g} s: {log.read_text()}")
        time.sleep(0.01)
    assert ended[1] == 0, log.read_text()


def await_true(true: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            pytest.fail(f"it has not come true within {seconds:g} s")
        time.sleep(0.01)


def await_file(path: Path) -> str:
    """Wait until another process has written a file; its content."""
    await_true(lambda: path.exists() and bool(path.read_text()))
    return path.read_text()


@pytest.fixture
def charter(tmp_path):
    for name in ("scorer", *NAMES):
        make_identity(name, tmp_path)
    said = {
        "federation": "trial",
        "server": {"name": "scorer", "address": "127.0.0.1:1", "certificate": "scorer.crt"},
        "parties": [{"name": name, "certificate": f"{name}.crt"} for name in NAMES],
    }
    (tmp_path / "federation.yaml").write_text(yaml.safe_dump(said))
    return Charter.read(tmp_path / "federation.yaml")


# ---- who may call


@pytest.mark.processes
@pytest.mark.slow  # 4 s of waiting; tests/unit/federation/test_connections.py is the quick one
def test_only_the_certificates_of_the_charter_come_in(charter, tmp_path):
    key = load_pem_private_key(paths("bank", tmp_path)[0].read_bytes(), None)
    (tmp_path / "false.crt").write_bytes(issued(key, "telco", issuer="bank"))  # signed with bank's own key
    make_identity("stranger", tmp_path)

    def role():
        import grpc

        from lightning_vfl.federation.connections import SERVICE, options, party_credentials, server_credentials
        from lightning_vfl.federation.grpc_client import Dialled
        from lightning_vfl.federation.grpc_server import Port
        from lightning_vfl.federation.over_grpc import OverGRPC

        prepare()
        hub, met = Hub(2), []

        def greet(request):
            met.append(request.party)
            return pack({"outcome": "go", "number": request.party})

        hub.greet = greet
        own = load(*paths("scorer", tmp_path))
        port = Port(hub, "127.0.0.1:0", OverGRPC(charter, own)._holder, server_credentials(own, charter))
        address = f"127.0.0.1:{port.port}"

        def asks(credentials, server="scorer", reconnect=20.0):
            line = Dialled(address, credentials, reconnect=reconnect, expected=server)
            try:
                return Link(line).ask(Key(At(-1, 0, 0), 0), "publics").header["number"]
            finally:
                line.close()

        def of(name, certificate=None):
            return load(paths(name, tmp_path)[0], tmp_path / (certificate or f"{name}.crt"))

        for number, name in enumerate(NAMES):
            assert asks(party_credentials(of(name), charter)) == number
        met.clear()
        false = replace(of("bank"), certificate=Certificate((tmp_path / "false.crt").read_bytes()))
        for credentials in (party_credentials(of("stranger"), charter), party_credentials(false, charter), None):
            with pytest.raises(ConfigurationError, match=r"no party of trial has this certificate|has not answered"):
                asks(credentials, reconnect=0.3)
        elsewhere = replace(charter, server=replace(charter.server, certificate=of("stranger").certificate))
        with pytest.raises(ConfigurationError, match="has not answered"):  # another server than that of the charter
            asks(party_credentials(of("bank"), elsewhere), reconnect=0.3)
        assert met == []

        settings = [*options(15.0), ("grpc.ssl_target_name_override", "scorer")]
        with grpc.secure_channel(address, party_credentials(of("telco"), charter), settings) as channel:
            exchange = channel.unary_unary(f"/{SERVICE}/Exchange")
            request = pack({"call": 1, "at": [0, 0, 0], "turn": 0, "say": "tell"})
            frames = (b"", b"GET / HTTP/1.1", request[:-3], request + b"\0", b"LVFL\2\0" + request[6:], pack({}))
            for frame in frames:
                with pytest.raises(grpc.RpcError) as refused:
                    exchange(frame, timeout=20)
                assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT, refused.value.details()
                assert "frame" in refused.value.details()
        assert met == []
        assert asks(party_credentials(of("bank"), charter)) == 0  # the others do not notice

        secret = party_credentials(of("telco"), charter)
        many = [*settings, ("grpc.use_local_subchannel_pool", 1)]
        channels = [grpc.secure_channel(address, secret, many) for _ in range(8)]
        alive = [one.unary_unary(f"/{SERVICE}/Alive").future(b"") for one in channels * 4]
        await_true(lambda: sum(not call.done() for call in alive) <= 2 + 8)  # two are open, others are on their way
        assert asks(party_credentials(of("bank"), charter)) == 0  # 32 calls of telco leave threads for bank
        idle = [socket.create_connection(("127.0.0.1", port.port)) for _ in range(100)]
        for one in idle:
            one.setblocking(False)

        def ended(one):
            with suppress(BlockingIOError):
                return one.recv(1) == b""

        await_true(lambda: sum(map(bool, map(ended, idle))) >= 30)  # 64 of an address may shake hands
        assert asks(party_credentials(of("bank"), charter)) == 0
        port.close()

    apart(role, tmp_path / "role.txt")


@pytest.mark.processes
def test_a_frozen_process_is_noticed_within_the_silence_while_calls_are_made(tmp_path):
    silence = 1.0

    def party(port):
        from lightning_vfl.federation.grpc_client import Dialled

        line = Dialled(f"127.0.0.1:{port}", silence=silence)
        while True:
            Link(line).ask(Key(At(-1, 0, 0), 0), "publics")

    def role():
        from lightning_vfl.federation.grpc_server import Port

        hub, requests = Hub(1), []

        def greet(request):
            requests.append(request)
            return pack({"outcome": "go"})

        hub.greet = greet
        port = Port(hub, "127.0.0.1:0", lambda _: 0, silence=silence)
        (tmp_path / "port").write_text(str(port.port))
        while len(requests) < 20:
            time.sleep(0.01)
        (tmp_path / "calls").write_text(str(len(requests)))
        began = time.monotonic()
        while hub.present(0):
            time.sleep(0.01)
        (tmp_path / "noticed").write_text(str(time.monotonic() - began))
        port.close()

    server = start(role, tmp_path / "server.txt")
    address = await_file(tmp_path / "port")
    caller = start(lambda: party(address), tmp_path / "party.txt")
    try:
        await_file(tmp_path / "calls")
        os.kill(caller, signal.SIGSTOP)
        seconds = float(await_file(tmp_path / "noticed"))
    finally:
        for process in (caller, server):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
    assert seconds < silence + 5.0  # 15 s are usual


def listening(answer):
    """The port of another program, which reads what comes and answers with ``answer``; None: never."""
    other = socket.create_server(("127.0.0.1", 0))

    def run():
        kept = []
        while True:
            kept.append(other.accept()[0])
            if answer is not None:
                kept[-1].recv(4096)
                kept.pop().sendall(answer)

    Thread(target=run, daemon=True).start()
    return other.getsockname()[1]


@pytest.mark.processes
def test_a_party_that_meets_no_federation_says_so_within_reconnect(charter, tmp_path):
    def role():
        from lightning_vfl.federation.connections import party_credentials
        from lightning_vfl.federation.grpc_client import Dialled

        prepare()
        secret = party_credentials(load(*paths("bank", tmp_path)), charter)
        ports = {listening(None): "does not answer as a server of this federation"}
        ports[listening(b"HTTP/1.1 400 Bad Request\r\n\r\n")] = "does not answer as a server of this federation"
        ports[free_ports(1)[0]] = "nothing listens there"

        def ask(port):
            began = time.monotonic()
            line = Dialled(f"127.0.0.1:{port}", secret, reconnect=1.0, expected="scorer")
            with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port} has not answered for 1 s: .*{ports[port]}"):
                Link(line).ask(Key(At(-1, 0, 0), 0), "publics")
            line.close()
            return time.monotonic() - began

        with ThreadPoolExecutor(3) as pool:
            assert max(pool.map(ask, ports)) < 10.0  # 600 s are usual

    apart(role, tmp_path / "role.txt")


@pytest.mark.processes
def test_a_port_that_another_program_holds_is_refused(tmp_path):
    def role():
        from lightning_vfl.federation.grpc_server import Port

        prepare()
        for held, hosts in (("0.0.0.0", ("localhost", "127.0.0.1")), ("127.0.0.1", ("localhost",))):
            with socket.create_server((held, 0)) as other:
                for host in hosts:
                    address = f"{host}:{other.getsockname()[1]}"
                    with pytest.raises(ConfigurationError, match=f"cannot listen at {address}: another program"):
                        Port(Hub(1), address, lambda _: 0)

    apart(role, tmp_path / "role.txt")


@pytest.mark.processes
def test_the_proxy_of_the_seat_is_used_and_that_of_the_environment_is_not(tmp_path, monkeypatch):
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_ports(1)[0]}")  # nobody is there
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)

    def role():
        from lightning_vfl.federation.grpc_client import Dialled
        from lightning_vfl.federation.grpc_server import Port

        prepare()
        hub, asked = Hub(1), []
        hub.greet = lambda request: pack({"outcome": "go"})
        port = Port(hub, "127.0.0.1:0", lambda _: 0)
        proxy = listening(b"HTTP/1.1 403 Forbidden\r\n\r\n")
        for through in (None, f"http://127.0.0.1:{proxy}"):
            line = Dialled(f"127.0.0.1:{port.port}", reconnect=0.5 if through else 5.0, proxy=through)
            try:
                asked.append(Link(line).ask(Key(At(-1, 0, 0), 0), "publics").header["outcome"])
            except ConfigurationError as error:
                asked.append(str(error))
            line.close()
        assert asked[0] == "go"
        assert f"for 0.5 s through the proxy http://127.0.0.1:{proxy}: the proxy does not connect" in asked[1]
        port.close()

    apart(role, tmp_path / "role.txt")


@pytest.mark.processes
def test_a_long_wait_says_for_whom_it_is_and_what_was_tried(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_vfl.federation.long_waits.LONG", 0.3)

    def role():
        from lightning_vfl.federation.grpc_client import Dialled
        from lightning_vfl.federation.grpc_server import Port

        prepare()
        hub = Hub(2)
        port = Port(hub, "127.0.0.1:0", lambda _: 0)
        addresses = [f"127.0.0.1:{port.port}", f"127.0.0.1:{free_ports(1)[0]}"]
        lines = [Dialled(address, reconnect=1.1) for address in addresses]
        with ThreadPoolExecutor(3) as pool:
            asked = [pool.submit(Link(line).ask, Key(At(0, 2, 0), 0), "ready") for line in lines]
            end = time.monotonic() + 0.9
            hub.wait(lambda: None, lambda: end)
            with pytest.raises(ConfigurationError):
                Reception(("bank", "telco"), {}, lambda *_: None).await_all(0.4)
            hub.end({"outcome": "go"})
            assert asked[0].result().header["outcome"] == "go"
        for line in lines:
            line.close()
        port.close()

    apart(role, tmp_path / "role.txt")
    said = (tmp_path / "role.txt").read_text()
    assert "for the server at 127.0.0.1:" in said
    assert "it is connected, and may wait for other parties" in said
    assert "which is called directly, without a proxy: nothing listens there" in said
    assert "for party 1, which has no connection" in said
    assert "for bank, telco to join; start lightning-vfl party there" in said


@pytest.mark.processes
def test_a_request_and_an_answer_in_pieces_arrive_as_they_were_sent(tmp_path):
    def role():
        import grpc

        from lightning_vfl.federation.connections import SERVICE
        from lightning_vfl.federation.grpc_client import Dialled
        from lightning_vfl.federation.grpc_server import Port

        prepare()
        hub = Hub(1)
        hub.greet = lambda request: pack({"outcome": "go"}, request.frame.tensors)
        port = Port(hub, "127.0.0.1:0", lambda _: 0)
        address = f"127.0.0.1:{port.port}"
        for call, size in enumerate((1, 2**20 - 200, 2**20, 2**20 + 1, 5 * 2**20 + 17)):
            numbers = (torch.arange(size) % 251).to(torch.uint8)
            request = pack({**request_of("tell", **UPLOAD), "call": call}, [numbers])
            line = Dialled(address, reconnect=1.0)
            (tensor,) = line.exchange(request, partial(unpack_pieces, limit=2**24)).tensors
            assert torch.equal(tensor, numbers)
            line.close()
            if size > 2**20:  # as one message it would be held several times
                with grpc.insecure_channel(address) as channel, pytest.raises(grpc.RpcError) as refused:
                    channel.unary_unary(f"/{SERVICE}/Exchange")(request, timeout=5)
                assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        port.close()

    apart(role, tmp_path / "role.txt")


@pytest.mark.processes
def test_an_answer_that_breaks_off_between_two_pieces_is_asked_for_again(tmp_path):
    numbers = torch.arange(5 * 2**20) % 251
    frame = pack({"outcome": "go"}, [numbers.to(torch.uint8)])

    def role():
        import grpc

        from lightning_vfl.federation.connections import PIECE, SERVICE
        from lightning_vfl.federation.grpc_client import Dialled
        from lightning_vfl.federation.grpc_server import pieces

        prepare()
        asked = []

        def answer(request, context):
            asked.append(b"".join(request))
            for number, piece in enumerate(pieces(frame)):
                if len(asked) < 3 and number == len(asked):
                    context.abort(grpc.StatusCode.UNAVAILABLE, "the connection has ended")
                assert len(piece) <= PIECE
                yield piece

        served = grpc.server(ThreadPoolExecutor(2))
        handler = {"Exchange": grpc.stream_stream_rpc_method_handler(answer)}
        served.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handler)])
        port = served.add_insecure_port("127.0.0.1:0")
        served.start()
        line = Dialled(f"127.0.0.1:{port}", reconnect=5.0)
        (tensor,) = Link(line).ask(Key(At(-1, 0, 0), 0), "publics").tensors
        assert torch.equal(tensor, numbers.to(torch.uint8))
        assert len(asked) == 3
        assert len({*asked}) == 1
        line.close()
        served.stop(grace=None)

    apart(role, tmp_path / "role.txt")


# ---- who joins, and which records there are; without a network


class Straight(Transport):
    """Calls the server's desk without a network; ``changed`` replaces its answers."""

    def __init__(self, hub, party, changed=lambda header: header):
        self.hub, self.party, self.changed = hub, party, changed

    def exchange(self, frame, read):
        answer = unpack(self.hub.call(self.party, frame))
        return read([pack(self.changed(dict(answer.header)), answer.tensors)])

    def close(self):
        pass


def joined(charter, tmp_path, changed=lambda header: header, differs=lambda party, hello: None):
    """The places of two parties, or the errors that they end with; ``changed`` is what the server tells bank."""
    from lightning_vfl.crypto import verified

    hub = Hub(2)
    hub.greet = Reception(NAMES, {}, differs).answer

    def one(party):
        identity = load(*paths(NAMES[party], tmp_path))

        def check(other, public, signature):
            if not verified(charter.parties[other].certificate.public, signature, "keys", other, public):
                raise ConfigurationError(f"the key of {NAMES[other]} is not signed")

        line = Straight(hub, party, changed if party == 0 else lambda header: header)
        try:
            sign = lambda public: identity.signer.sign("keys", party, public)  # noqa: E731  # one line
            return join(RoundsAtParty, Link(line), party, charter.digest, {"rounds": 0}, False, sign, check)
        except ConfigurationError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))


def test_all_that_are_welcome_learn_the_keys_of_each_other(charter, tmp_path):
    bank, telco = joined(charter, tmp_path)
    assert bank.seals.publics == {1: telco.seals.pair.public}
    assert telco.seals.publics == {0: bank.seals.pair.public}


@pytest.mark.parametrize(
    ("party", "line"),
    [(1, "the key of telco is not signed"), (0, "another key for sealed messages than this party's own")],
)
def test_a_server_that_replaces_a_key_is_caught(charter, tmp_path, party, line):
    from lightning_vfl.crypto import KeyPair

    own = load(*paths("bank", tmp_path)).signer

    def replaced(header):
        public, publics = KeyPair().public, dict(header["publics"])
        signature = own.sign("keys", 0, public).hex() if party == 0 else publics["1"][1]
        return {**header, "publics": {**publics, str(party): [public.hex(), signature]}}

    bank, _ = joined(charter, tmp_path, replaced)
    assert isinstance(bank, ConfigurationError)
    assert line in str(bank)


def test_what_is_wrong_with_one_party_is_told_to_all(charter, tmp_path):
    line = "party telco has data.batch_size 64, the server 32; use the same recipe"
    both = joined(charter, tmp_path, differs=lambda party, hello: line if party == 1 else None)
    assert [str(one) for one in both] == [line, line]


class Ids:
    """The part of a datamodule that the roll call needs; the server's has the labels of some records."""

    num_classes, class_names = 2, (0, 1)
    everybody_holds = True

    def __init__(self, ids, digest=None):
        self.ids, self.digest = torch.tensor(ids).numpy(), digest
        self.copies = digest is not None

    def own_ids(self):
        return self.ids

    def split_records(self, ids):
        import numpy as np

        common = self.ids
        for one in ids.values():
            common = np.intersect1d(common, one)
        if not len(common):
            raise ConfigurationError("the parties have no record in common")
        return {"train": common}

    def align(self, order, ids_by_party=None):
        self.order = order

    def own_shape(self):
        return (3,)

    def labels_digest(self):
        return self.digest

    def told_shapes(self, shapes, num_classes, class_names):
        self.told = shapes, num_classes, class_names


@pytest.mark.parametrize("kind", [Alignment.CLEAR, Alignment.GIVEN])
@pytest.mark.parametrize("ids", [[7, 8, 9], [1, 2, 3]])
def test_the_roll_call_ends_for_all_with_the_common_records_or_with_one_line(kind, ids):
    hub, roll = Hub(2), RollCall(Ids([1, 2, 3]), NAMES, kind)
    hub.greet = roll.answer
    data = [Ids([1, 2, 3]), Ids(ids)]

    def seat(party):
        try:
            if party == 2:
                return roll.finish(10.0)
            return align(Link(Straight(hub, party)), data[party], kind)
        except ConfigurationError as error:
            return str(error)

    with ThreadPoolExecutor(3) as pool:
        ended = list(pool.map(seat, range(3)))
    if ids == [1, 2, 3]:
        assert ended == [None] * 3
        assert data[0].order["train"].tolist() == [1, 2, 3]
        for shapes, classes, _ in (one.told for one in data):  # all know how many columns and classes there are
            assert ([*map(tuple, shapes)], classes) == ([(3,), (3,)], 2)
    else:
        assert len(set(ended)) == 1
        assert ("telco" if kind == Alignment.GIVEN else "no record in common") in ended[0]


@pytest.mark.parametrize("kind", [Alignment.CLEAR, Alignment.GIVEN])
def test_a_party_that_comes_back_with_something_else_is_refused_alone(kind):
    """Once all are aligned, its requests end nobody else's return."""
    hub, roll = Hub(2), RollCall(Ids([1, 2, 3]), NAMES, kind)
    hub.greet = roll.answer

    def seat(party):
        return roll.finish(10.0) if party == 2 else align(Link(Straight(hub, party)), Ids([1, 2, 3]), kind)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(seat, range(3))) == [None] * 3
    wrong = {Alignment.CLEAR: ({}, []), Alignment.GIVEN: ({"count": 1, "sha256": "00" * 32}, [])}[kind]
    with pytest.raises(ConfigurationError):
        Link(Straight(hub, 0)).knock("ids", *wrong)
    with pytest.raises(ConfigurationError):
        Link(Straight(hub, 0)).knock("failed")
    again = Ids([1, 2, 3])
    align(Link(Straight(hub, 1)), again, kind)
    assert again.order["train"].tolist() == [1, 2, 3]


def test_a_copy_of_the_labels_that_differs_ends_the_roll_call_for_all():
    hub, roll = Hub(2), RollCall(Ids([1], "aa" * 32), NAMES, Alignment.CLEAR)
    hub.greet = roll.answer
    data = [Ids([1], "aa" * 32), Ids([1], "bb" * 32)]

    def seat(party):
        try:
            return roll.finish(10.0) if party == 2 else align(Link(Straight(hub, party)), data[party], Alignment.CLEAR)
        except ConfigurationError as error:
            return str(error)

    with ThreadPoolExecutor(3) as pool:
        ended = set(pool.map(seat, range(3)))
    assert ended == {"the labels of party telco are not those of the server for the same records; correct one of them"}


def test_a_party_that_is_lost_in_the_roll_call_ends_it():
    hub, roll = Hub(2), RollCall(Ids([1]), NAMES, Alignment.CLEAR)
    hub.greet = roll.answer
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(align, Link(Straight(hub, 0)), Ids([1]), Alignment.CLEAR)
        with pytest.raises(ConfigurationError, match=r"telco (has|have) not told"):
            roll.finish(0.2)
        with pytest.raises(ConfigurationError, match="telco"):
            told.result(5)


@pytest.mark.parametrize("kind", [Alignment.CLEAR, Alignment.GIVEN])
@pytest.mark.parametrize("step", ["own_ids", "align", "own_shape"])
def test_a_party_whose_records_cannot_be_aligned_ends_it_for_all_at_once(kind, step):
    """The reason may name records, and stays at the party."""
    hub, roll = Hub(2), RollCall(Ids([1, 2]), NAMES, kind)
    hub.greet = roll.answer
    data = [Ids([1, 2]), Ids([1, 2])]

    def fails(*_):
        raise ConfigurationError("record 2 has no id")

    setattr(data[1], step, fails)

    def seat(party):
        try:
            return roll.finish(60.0) if party == 2 else align(Link(Straight(hub, party)), data[party], kind)
        except ConfigurationError as error:
            return str(error)

    began = time.monotonic()
    with ThreadPoolExecutor(3) as pool:
        bank, telco, server = pool.map(seat, range(3))
    assert telco == "record 2 has no id"
    assert bank == server == "party telco cannot align its records; what it has printed says why"
    assert time.monotonic() - began < 30
