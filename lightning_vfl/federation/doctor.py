"""``lightning-vfl doctor``: every step from this host into its federation, tried one after the other.

A step is a method that returns what it has seen, or raises the error with the cure. It sends nothing but certificates
and one empty request.
"""

import json
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from urllib.parse import urlsplit

import grpc

from lightning_vfl.errors import ConfigurationError, printable
from lightning_vfl.federation.charter import Charter, Party, SeatFile, Server, proxy_of_environment
from lightning_vfl.federation.connections import ABOUT, calling, in_words, party_credentials, refuse_taken
from lightning_vfl.federation.identity import Certificate, NotValidToday, load
from lightning_vfl.federation.versions import upgrade
from lightning_vfl.whole_files import refuse_unwritable

SECONDS = 5.0  # for each answer over the network
SKEW = 60.0  # seconds between two clocks that are told
ROOM = 2**30  # bytes that a run should find free

Step = tuple[str, Callable[[], str]]


@dataclass(frozen=True)
class Finding:
    """What a step has found.

    Args:
        step: its name.
        fine: it has not failed.
        line: what was seen, or what is wrong and how it is cured.
    """

    step: str
    fine: bool
    line: str


class Doctor:
    """Tries the steps of one host.

    Args:
        federation: ``federation.yaml``.
        seat: ``seat.yaml`` of this host.
        name: of the party of this host; None: it is the server's.
        folder: where the run writes.
        table: a step that looks at the table of this host; None: no table was named.
    """

    def __init__(
        self, federation: Path, seat: Path, name: str | None, folder: Path, table: Callable[[], str] | None
    ) -> None:
        self._federation = federation
        self._seat_file = seat
        self._name = name
        self._folder = folder
        self._table = table
        self._line: socket.socket | None = None
        self._shown = b""
        self._answer: Mapping[str, Any] = {}

    def findings(self) -> Iterator[Finding]:
        """The findings, as they come. After a failed step, those that need it are left out."""
        here: list[Step] = [("disk", self._disk)]
        if self._table is not None:
            here.append(("table", self._table))
        ways = self._to_the_server if self._name is not None else self._at_the_server
        try:
            for name, step in here:
                yield _tried(name, step)
            for name, step in (*self._files(), *ways()):
                finding = _tried(name, step)
                yield finding
                if not finding.fine:
                    return
        finally:
            if self._line is not None:
                self._line.close()

    def _files(self) -> tuple[Step, ...]:
        return (
            ("federation.yaml", self._read),
            ("certificates", self._certificates),
            ("identity", self._own_identity),
        )

    def _at_the_server(self) -> tuple[Step, ...]:
        return ("name", self._name_of_server), ("port", self._port)

    def _to_the_server(self) -> tuple[Step, ...]:
        return (
            ("proxy", self._proxy),
            ("name", self._name_of_server),
            ("tcp", self._tcp),
            ("tls", self._tls),
            ("server", self._server),
            ("access", self._access),
            ("versions", self._versions),
            ("same file", self._same_charter),
            ("clock", self._clock),
        )

    # ---- this host

    @cached_property
    def _charter(self) -> Charter:
        return Charter.read(self._federation)

    @cached_property
    def _seat(self) -> SeatFile:
        return SeatFile.read(self._seat_file)

    @property
    def _host(self) -> Server | Party:
        """This host, as federation.yaml names it."""
        charter = self._charter
        return charter.server if self._name is None else charter.parties[charter.number(self._name)]

    def _disk(self) -> str:
        refuse_unwritable(self._folder / "doctor")
        place = next(one for one in (self._folder.absolute(), *self._folder.absolute().parents) if one.is_dir())
        free = shutil.disk_usage(place).free
        if free < ROOM:
            raise ConfigurationError(f"{place} has {free / 2**20:,.0f} MiB left; make room, or give another --folder")
        return f"{place} can be written, and has {free / 2**30:,.1f} GiB left"

    def _read(self) -> str:
        return f"{self._charter.federation}: {self._charter.server.name} and {len(self._charter.parties)} parties"

    def _certificates(self) -> str:
        charter = self._charter
        first = charter.ends_first
        ending = charter.ending()
        renew = "" if ending is None else f"; {ending}"
        left = first.certificate.days_left
        return (
            f"all of {1 + len(charter.parties)} are valid; the first ends in {left} days, that of {first.name}{renew}"
        )

    def _own_identity(self) -> str:
        load(self._seat.key, self._host.certificate)
        return f"{self._seat.key} is the key of {self._host.name}"

    # ---- the way to the server

    @property
    def _place(self) -> tuple[str, int]:
        host, _, port = self._charter.server.address.rpartition(":")
        return host.strip("[]"), int(port)

    def _port(self) -> str:
        address = self._charter.server.address
        refuse_taken(address)
        try:
            socket.create_server(self._place, family=socket.getaddrinfo(*self._place)[0][0]).close()
        except OSError as error:
            raise ConfigurationError(
                f"this host cannot listen at {address} ({error.strerror}); run this on the server, or correct "
                "server.address"
            ) from None
        return f"{address} is free; start lightning-vfl serve here, then run doctor at each party"

    def _proxy(self) -> str:
        proxy = self._seat.proxy
        host = self._place[0]
        if proxy is not None:
            return f"{proxy} of seat.yaml"
        named = proxy_of_environment(host)
        if named is None:
            return "none"
        try:
            socket.create_connection(self._place, SECONDS).close()
        except ConnectionRefusedError:  # the host was reached
            pass
        except OSError as error:
            raise ConfigurationError(
                f"{host} is not reached directly ({error.strerror or error}), and the environment names the proxy "
                f"{named}; write proxy: env into seat.yaml"
            ) from None
        return f"the server is called directly, although the environment names {named}"

    def _name_of_server(self) -> str:
        host, port = self._place
        if self._name is not None and self._seat.proxy is not None:
            return f"{host} is left to the proxy"
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ConfigurationError(
                f"the name {host} is not known on this host ({error.strerror}); correct server.address, or the names "
                "that this host knows"
            ) from None
        return f"{host} is {', '.join(dict.fromkeys(str(where[0]) for *_, where in found))}"

    def _tcp(self) -> str:
        try:
            self._opened()
        except (OSError, HTTPException) as error:
            reason = (isinstance(error, OSError) and error.strerror) or str(error)
            raise ConfigurationError(
                f"{self._charter.server.address} is not reached ({reason}); start lightning-vfl serve there, and open "
                "the port in its firewall"
            ) from None
        return f"{self._charter.server.address} accepts connections"

    def _opened(self) -> socket.socket:
        """The connection to the server, which is made once."""
        if self._line is not None:
            return self._line
        if self._seat.proxy is None:
            self._line = socket.create_connection(self._place, SECONDS)
            return self._line
        proxy = urlsplit(self._seat.proxy)
        tunnel = HTTPConnection(str(proxy.hostname), proxy.port, timeout=SECONDS)
        tunnel.set_tunnel(*self._place)
        tunnel.connect()
        self._line = tunnel.sock
        return self._line

    def _tls(self) -> str:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # the next step compares the whole certificate
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        with NamedTemporaryFile() as certificate:  # Python's TLS reads it from a file alone
            certificate.write(self._host.certificate.content)
            certificate.flush()
            context.load_cert_chain(certificate.name, self._seat.key)
        try:
            line = context.wrap_socket(self._opened(), server_hostname=self._charter.server.name)
        except OSError as error:
            raise ConfigurationError(
                f"what listens at {self._charter.server.address} does not speak TLS ({error.strerror or error}); end "
                "that program, or correct server.address"
            ) from None
        self._line = line
        self._shown = line.getpeercert(binary_form=True) or b""
        return str(line.version())

    def _server(self) -> str:
        pinned = self._charter.server
        if self._shown != pinned.certificate.whole:
            shown = Certificate(ssl.DER_cert_to_PEM_cert(self._shown).encode()).fingerprint[:16]
            raise ConfigurationError(
                f"what listens at {pinned.address} shows another certificate (sha256 {shown}...) than that of "
                f"{pinned.name} (sha256 {pinned.certificate.fingerprint[:16]}...); get the certificate that the server "
                "has now"
            )
        return f"shows the certificate of {pinned.name}"

    def _access(self) -> str:
        charter = self._charter
        credentials = party_credentials(load(self._seat.key, self._host.certificate), charter)
        settings = calling(charter.patience.silence, charter.server.name, self._seat.proxy)
        with grpc.secure_channel(charter.server.address, credentials, settings) as channel:
            ask: Callable[..., bytes] = channel.unary_unary(ABOUT)
            try:
                answer = ask(b"", timeout=2 * SECONDS)
            except grpc.RpcError as error:
                details = printable(error.details())
                if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                    raise ConfigurationError(
                        f"{charter.server.name} runs no lightning-vfl serve that answers doctor; start or upgrade it"
                    ) from None
                raise ConfigurationError(
                    f"{charter.server.name} refuses this host: {in_words(details)} ({details[:200]}); give it "
                    f"the certificate of {self._host.name} that this host has, and start it again"
                ) from None
        try:
            self._answer = dict(json.loads(answer))
        except ValueError:
            raise ConfigurationError(f"{charter.server.name} answers in another form; install equal versions") from None
        return f"{charter.server.name} knows {self._host.name}"

    # ---- what the server says

    def _versions(self) -> str:
        theirs = self._answer.get("versions")
        line = upgrade(theirs if isinstance(theirs, Mapping) else {}, "the server", "this host")
        if line is not None:
            raise ConfigurationError(line)
        return f"both have lightning-vfl {dict(theirs or {})['package']}"

    def _same_charter(self) -> str:
        own = self._charter.digest.hex()
        if self._answer.get("digest") != own:
            raise ConfigurationError(
                f"the server has another {self._federation.name} than this host; copy the file and the certificates "
                "of one host to the other"
            )
        return f"the same on both hosts (sha256 {own[:16]}...)"

    def _clock(self) -> str:
        told = self._answer.get("time")
        ahead = time.time() - float(told) if isinstance(told, int | float) else 0.0
        if abs(ahead) > SKEW:
            apart = timedelta(minutes=round(abs(ahead) / 60))
            raise ConfigurationError(
                f"the clock of this host is {apart} {'ahead of' if ahead > 0 else 'behind'} that of the server, so "
                "certificates are valid at different times; correct the clock that is wrong"
            )
        return f"{abs(ahead):.0f} s apart"


def _tried(name: str, step: Callable[[], str]) -> Finding:
    try:
        return Finding(name, True, step())
    except NotValidToday as error:
        return Finding("certificates", False, str(error))
    except ConfigurationError as error:
        return Finding(name, False, str(error))
