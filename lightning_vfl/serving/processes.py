"""The life of the two processes: start, signals, and an orderly end."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.charter import Charter, SeatFile
from lightning_vfl.federation.log import log
from lightning_vfl.federation.spans import exported
from lightning_vfl.federation.watch import Watch
from lightning_vfl.serving.batches import Batches
from lightning_vfl.serving.endpoint import Endpoint, said_of
from lightning_vfl.serving.gateway import Gateway

Read = Callable[[], tuple[Charter, SeatFile]]


async def run_endpoint(endpoint: Endpoint, read: Read, metrics: str | None = None) -> None:
    """Answer the gateway until a signal comes.

    Args:
        endpoint: answers.
        read: reads federation.yaml and seat.yaml again, at SIGHUP.
        metrics: ``host:port`` at which the endpoint shows its state; None: nowhere.

    Raises:
        ConfigurationError: if the gateway refuses this party, and for an address of ``metrics`` that is taken.
    """
    with contextlib.ExitStack() as ends:
        if metrics is not None:
            ends.callback(Watch(metrics, endpoint.state).close)
        ends.enter_context(_at_signals(endpoint.stop, partial(_renew, endpoint, read)))
        await endpoint.run()
    log("stopped")


async def run_gateway(gateway: Gateway, read: Read, listen: str, gather: float, size: int) -> None:
    """Answer requests until a signal comes; those that have begun are answered first.

    Args:
        gateway: asks the parties.
        read: reads federation.yaml and seat.yaml again, at SIGHUP.
        listen: ``host:port`` for HTTP.
        gather: seconds in which requests are joined to a batch.
        size: records of a batch.

    Raises:
        ConfigurationError: for an address that is taken.
    """
    from lightning_vfl.serving.http import HTTPServer, pages  # fastapi and uvicorn, which an endpoint does not need

    with exported("gateway"), _listening(listen) as place:
        await gateway.start()
        app = pages(gateway, Batches(gateway.predict, gather, size))
        server = HTTPServer.of(app)
        for model, version in gateway.versions.items():
            log("gateway", http=listen, model=model, protection=said_of(version.server.protection))
        with _at_signals(server.end, partial(_renew, gateway, read)):
            await server.answer(place)
        await gateway.stop()
    log("stopped")


@contextlib.contextmanager
def _listening(listen: str) -> Iterator[socket.socket]:
    """A socket at an address ``host:port``."""
    host, _, port = listen.rpartition(":")
    try:
        if not host:
            raise ValueError
        place = socket.create_server((host.strip("[]"), int(port)))
    except ValueError:
        raise ConfigurationError(f"--http must be host:port, such as 127.0.0.1:8080; got {listen}") from None
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(f"--http {listen} cannot be used ({reason}); use an address that is free") from None
    place.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # asyncio leaves it off for such a socket: 40 ms
    with place:
        yield place


def _renew(process: Endpoint | Gateway, read: Read) -> None:
    """Take the certificates and the key that the files have now."""
    try:
        process.renew(*read())
    except ConfigurationError as error:
        log("certificates not taken", reason=str(error))
    else:
        log("certificates taken")


@contextlib.contextmanager
def _at_signals(stop: Callable[[], None], renew: Callable[[], None]) -> Iterator[None]:
    """Call ``stop`` at a signal to end, ``renew`` at a hang-up."""
    loop = asyncio.get_running_loop()
    calls = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: renew}
    for one, call in calls.items():
        loop.add_signal_handler(one, call)
    try:
        yield
    finally:
        for one in calls:
            loop.remove_signal_handler(one)
