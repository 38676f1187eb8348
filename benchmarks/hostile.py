"""One hostile sender over mutual TLS: a server's memory and its answers to another party; a party's memory."""

import os
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from struct import pack as pack_numbers
from struct import unpack_from
from threading import Thread
from time import monotonic, sleep
from typing import Any

import torch

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.agreed import MEBIBYTE, Agreed, Limits
from lightning_vfl.federation.charter import Charter
from lightning_vfl.federation.frames import pack
from lightning_vfl.federation.hub import DOOR, At, Hub, Key
from lightning_vfl.federation.identity import load, paths
from lightning_vfl.federation.link import Link
from lightning_vfl.federation.local import found, start

FRAME = 64  # MiB, ``limits.frame`` of the charter: its default
CONNECTIONS, CALLS, IDLE = 4, 60, 1_200
BEGUN = "sending"


def serve(charter: Charter, folder: Path, ready: Path) -> None:
    """The server's process: its desk and its port; requests for public keys are answered, others wait."""
    from lightning_vfl.federation.connections import server_credentials  # grpc, after the processes have parted
    from lightning_vfl.federation.grpc_server import Port

    names = tuple(party.name for party in charter.parties)
    hub = Hub(len(names), Agreed(names, limits=Limits(frame=FRAME)))
    hub.greet = lambda request: pack({"outcome": "go"}) if request.say == "publics" else None
    secret = server_credentials(load(*paths("server", folder / "keys")), charter)
    Port(hub, charter.server.address, lambda shown: charter.holder(shown or b""), secret)
    ready.touch()
    while True:
        sleep(60)


def asks(charter: Charter, folder: Path, took: Path) -> None:
    """Another party's process: one request; the file has the seconds until its answer, or is empty after 8 seconds."""
    from lightning_vfl.federation.connections import party_credentials
    from lightning_vfl.federation.grpc_client import Dialled

    secret = party_credentials(load(*paths("party1", folder / "keys")), charter)
    began = monotonic()
    line = Dialled(charter.server.address, secret, reconnect=8.0, expected="server")
    with suppress(ConfigurationError):
        Link(line).ask(Key(At(-1, 0, 0), 0), "publics")
        took.write_text(str(monotonic() - began))
    line.close()


# ---- what the hostile party sends


@contextmanager
def channels(charter: Charter, folder: Path, number: int) -> Iterator[list[Any]]:
    """Connections of the hostile party."""
    import grpc

    from lightning_vfl.federation.connections import options, party_credentials

    secret = party_credentials(load(*paths("party0", folder / "keys")), charter)
    own = [*options(15.0), ("grpc.ssl_target_name_override", "server"), ("grpc.use_local_subchannel_pool", 1)]
    yield [grpc.secure_channel(charter.server.address, secret, own) for _ in range(number)]


def frames(content: bytes, charter: Charter, folder: Path, begun: Path, piece: int, seconds: float = 3.0) -> None:
    """Send the same frame again and again in pieces, to both methods of every connection at the same time."""
    import grpc

    from lightning_vfl.federation.connections import SERVICE

    def send(method: Callable[..., bytes], end: float) -> None:
        while monotonic() < end:
            with suppress(grpc.RpcError):
                method((content[at : at + piece] for at in range(0, len(content), piece)), timeout=1.0)

    with channels(charter, folder, CONNECTIONS) as opened:
        end = monotonic() + seconds
        methods = [one.stream_unary(f"/{SERVICE}/{name}") for one in opened for name in ("Exchange", "Alive")]
        threads = [Thread(target=send, args=(method, end)) for method in methods]
        for thread in threads:
            thread.start()
        begun.touch()
        for thread in threads:
            thread.join()


def calls(charter: Charter, folder: Path, begun: Path, seconds: float = 3.0) -> None:
    """Open many calls that stay open."""
    from lightning_vfl.federation.connections import SERVICE

    with channels(charter, folder, CALLS // 4) as opened:
        kept = [one.unary_unary(f"/{SERVICE}/Alive").future(b"process") for one in opened * 4]
        sleep(0.5)
        begun.touch()
        sleep(seconds)
        del kept


def connections(charter: Charter, folder: Path, begun: Path, seconds: float = 3.0) -> None:
    """Open many connections that show no certificate."""
    from lightning_vfl.federation.connections import raise_descriptors

    raise_descriptors()
    host, _, port = charter.server.address.rpartition(":")
    kept = [socket.create_connection((host, int(port))) for _ in range(IDLE)]
    begun.touch()
    sleep(seconds)
    del kept


def request(say: str, **more: Any) -> dict[str, Any]:
    """The header of a request."""
    return {"call": 0, "at": [0, 2, 0], "turn": 0, "say": say, **more}


def grown(frame: bytes, size: int, bits: int = 1) -> bytes:
    """A frame of eight packed numbers as one of nearly so many bytes; ``pack`` would need 64 times their memory."""
    (length,) = unpack_from("<I", frame, 8)
    groups = (size - 4096) // bits  # eight numbers of so many bits take as many bytes
    text = frame[12 : 12 + length].replace(b"[8]]", f"[{8 * groups}]]".encode())
    return b"".join((frame[:8], pack_numbers("<I", len(text)), text, bytes(groups * bits)))


LARGE = FRAME * MEBIBYTE
PIECE = MEBIBYTE  # bytes of a piece of a request, as the toolkit's parties send them
UPLOAD = {
    "part": "upload",
    "message": {
        "kind": "embeddings",
        "to": "server",
        "senders": [0],
        "pieces": 1,
        "receivers": None,
        "round": None,
        "relayed": False,
    },
}
SENDERS: Mapping[str, Callable[[], Callable[..., None]]] = {
    "nothing": lambda: calls_of_nobody,
    "packed frame that grows 64 times": lambda: partial(
        frames, grown(pack(request("tell", **UPLOAD), [torch.zeros(8, dtype=torch.int64)], [1]), LARGE), piece=PIECE
    ),
    "frame of the largest size": lambda: partial(
        frames, pack(request("tell", **UPLOAD), [torch.zeros(LARGE - 4096, dtype=torch.uint8)]), piece=PIECE
    ),
    "frame of twice the size": lambda: partial(frames, bytes(2 * LARGE), piece=PIECE),
    "frames that stop half-way": lambda: partial(
        frames,
        pack(request("tell", **UPLOAD), [torch.zeros(LARGE - 4096, dtype=torch.uint8)])[: LARGE // 2],
        piece=PIECE,
    ),
    "frame as one message": lambda: partial(frames, bytes(LARGE), piece=LARGE),
    "declared shape of 1e8": lambda: partial(frames, pack(request("shape", shape=[10**8])), piece=PIECE),
    f"{CALLS} open calls": lambda: calls,
    f"{IDLE:,} idle connections": lambda: connections,
}


def calls_of_nobody(charter: Charter, folder: Path, begun: Path) -> None:
    """No hostile sender."""
    begun.touch()


# ---- a hostile server


def largest_answer() -> bytes:
    """An answer of the size that two parties allow: a frame of each."""
    return pack({"outcome": "go"}, [torch.zeros(2 * LARGE - 4096, dtype=torch.uint8)])


def packed_answer(bits: int, size: int) -> bytes:
    """An answer of nearly so many bytes, of packed numbers."""
    return grown(pack({"outcome": "go"}, [torch.zeros(8, dtype=torch.int64)], [bits]), size, bits)


ANSWERS: Mapping[str, Callable[[], tuple[bytes, int]]] = {  # an answer, and the bytes of a piece of it
    "answer of the largest size": lambda: (largest_answer(), PIECE),
    "packed answer of the largest size": lambda: (packed_answer(63, 2 * LARGE * 63 // 64), PIECE),
    "packed answer that grows 64 times": lambda: (packed_answer(1, 2 * LARGE), PIECE),
    "answer of twice the size": lambda: (bytes(4 * LARGE), PIECE),
    "answer that stops half-way": lambda: (largest_answer()[:LARGE], PIECE),
    "answer as one message": lambda: (largest_answer(), 2 * LARGE),
}
ASKED = 8  # times in which the hostile server is asked


def lies(charter: Charter, folder: Path, ready: Path, made: Callable[[], tuple[bytes, int]], lying: Path) -> None:
    """The hostile server's process: answers are short until the file ``lying`` is there."""
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    from lightning_vfl.federation.connections import SERVICE, options, server_credentials

    content, piece = made()

    def answer(request: Iterator[bytes], _: Any) -> Iterator[bytes]:
        for _piece in request:
            pass
        frame = content if lying.exists() else pack({"outcome": "go"})
        for at in range(0, len(frame), piece):
            yield frame[at : at + piece]

    served = grpc.server(ThreadPoolExecutor(4), options=options(15.0))
    handler = {"Exchange": grpc.stream_stream_rpc_method_handler(answer)}
    served.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handler)])
    served.add_secure_port(charter.server.address, server_credentials(load(*paths("server", folder / "keys")), charter))
    served.start()
    ready.touch()
    while True:
        sleep(60)


def hears(charter: Charter, folder: Path, begun: Path, lying: Path, over: Path) -> None:
    """A party's process: it asks again and again, as the toolkit's parties do, and keeps the last answer."""
    from lightning_vfl.federation.connections import party_credentials
    from lightning_vfl.federation.grpc_client import Dialled

    secret = party_credentials(load(*paths("party0", folder / "keys")), charter)
    line = Dialled(charter.server.address, secret, reconnect=8.0, expected="server")
    link = Link(line, Agreed(tuple(party.name for party in charter.parties), limits=Limits(frame=FRAME)))
    link.ask(DOOR, "publics")
    begun.touch()
    _await(lying)
    kept: Any = None
    for _ in range(ASKED):
        with suppress(ConfigurationError):
            kept = link.ask(DOOR, "publics")
    over.touch()
    sleep(60)
    del kept


# ---- the figures


def measure(sender: str) -> dict[str, Any]:
    """What one hostile sender does to a server: a row of the table.

    Returns:
        By how many MiB the memory of the server's process has grown at most, the same as a multiple of the charter's
        largest frame, and the seconds until another party, which asks meanwhile, has its answer (inf: none).
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        charter = found("hostile", 2, folder)
        ready, begun, took = folder / "ready", folder / BEGUN, folder / "took"
        processes = [start(lambda: serve(charter, folder, ready), folder / "server.txt")]
        try:
            _await(ready)
            asked = start(lambda: asks(charter, folder, took), folder / "first.txt")
            os.waitpid(asked, 0)
            took.unlink()
            before = _resident(processes[0], "VmRSS")
            Path(f"/proc/{processes[0]}/clear_refs").write_text("5")  # the peak is counted from here
            hostile = start(lambda: SENDERS[sender]()(charter, folder, begun), folder / "hostile.txt")
            processes.append(hostile)
            _await(begun)
            os.waitpid(start(lambda: asks(charter, folder, took), folder / "asks.txt"), 0)
            os.waitpid(processes.pop(), 0)
            grown = _resident(processes[0], "VmHWM") - before
        finally:
            for process in processes:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
        seconds = float(took.read_text()) if took.exists() else float("inf")
        return {"hostile sender": sender, "MiB": grown, "of a frame": grown / FRAME, "another's answer, s": seconds}


def measure_party(answer: str) -> dict[str, Any]:
    """What the answers of one hostile server do to a party: a row of the table.

    Returns:
        By how many MiB the memory of the party's process has grown at most, and the same as a multiple of the largest
        answer that the charter allows: a frame of every party.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        charter = found("hostile", 2, folder)
        ready, begun, lying, over = (folder / one for one in ("ready", BEGUN, "lying", "over"))
        processes = [start(lambda: lies(charter, folder, ready, ANSWERS[answer], lying), folder / "server.txt")]
        try:
            _await(ready)
            processes.append(start(lambda: hears(charter, folder, begun, lying, over), folder / "party.txt"))
            _await(begun)
            before = _resident(processes[1], "VmRSS")
            Path(f"/proc/{processes[1]}/clear_refs").write_text("5")
            lying.touch()
            _await(over, 120.0)
            grown_by = _resident(processes[1], "VmHWM") - before
        finally:
            for process in processes:
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
        largest = len(charter.parties) * FRAME
        return {"hostile server": answer, "MiB": grown_by, "of the largest answer": grown_by / largest}


def _await(file: Path, seconds: float = 20.0) -> None:
    end = monotonic() + seconds
    while not file.exists():
        if monotonic() > end:
            raise ConfigurationError(f"{file.name} has not come within {seconds:g} s; see the logs in {file.parent}")
        sleep(0.02)


def _resident(process: int, what: str) -> float:
    """MiB of a process."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{what}:"))
    return int(line.split()[1]) / 1024
