"""The files of a federation: ``federation.yaml`` is the same on every host, ``seat.yaml`` a host's own."""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from math import inf, isfinite
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import getproxies, proxy_bypass

from lightning_vfl.align.ids import Step, steps_of
from lightning_vfl.checks import one_of, within
from lightning_vfl.configs import read_yaml
from lightning_vfl.errors import ConfigurationError, nearest
from lightning_vfl.federation.agreed import Agreed, Limits
from lightning_vfl.federation.identity import Certificate, check_name, same_certificate

SOON = 60  # days before the end of a certificate, from which on it is told

T = TypeVar("T")


class Alignment(StrEnum):
    """How the records of the parties find each other."""

    CLEAR = "clear"  # the server gets the ids of every party and joins them
    GIVEN = "given"  # all hosts have the same ids in the same order; a hash is compared
    PSI = "psi"  # private set intersection: the server compares masked ids


class Weights(StrEnum):
    """Where the initial weights of networks, their dropout and the noise of parties come from."""

    SECRET = "secret"  # from the operating system of each host
    SEEDED = "seeded"  # from the seed of the recipe: the server can compute every column


class Log(StrEnum):
    """What a process writes on standard error beside its text."""

    TEXT = "text"  # nothing
    JSON = "json"  # a line of JSON for each event


class Consent(StrEnum):
    """The evaluation to which a party agrees if the aggregator hides embeddings."""

    PROTOCOL = "protocol"  # with the aggregator, as in training
    PLAIN = "plain"  # the server gets every embedding of the validation and test records


@dataclass(frozen=True)
class Patience:
    """How long a process waits for others.

    Units: seconds.

    Args:
        join: for all to join, at the start.
        reconnect: for the server to come back, before a party ends.
        silence: for a sign of life, before a connection counts as gone.
    """

    join: float = 600.0
    reconnect: float = 600.0
    silence: float = 15.0


@dataclass(frozen=True)
class Party:
    """A party of the federation.

    Args:
        name: on the command line and in messages.
        certificate: of its host.
    """

    name: str
    certificate: Certificate


@dataclass(frozen=True)
class Server:
    """The server of the federation.

    Args:
        name: in its certificate and in messages.
        address: host:port, which the parties call.
        certificate: of its host.
    """

    name: str
    address: str
    certificate: Certificate


@dataclass(frozen=True)
class Charter:
    """The content of ``federation.yaml``.

    Args:
        federation: its name.
        server: the process that has the labels.
        parties: the order gives the party numbers.
        alignment: how the records find each other.
        patience: how long processes wait for each other.
        normalise: how ids are made equal that are written in different ways, for ``alignment: psi``.
        weights: where initial weights and the noise of parties come from.
        limits: sizes above which a process refuses what another one sends.
    """

    federation: str
    server: Server
    parties: tuple[Party, ...]
    alignment: Alignment = Alignment.CLEAR
    patience: Patience = field(default_factory=Patience)
    normalise: tuple[Step, ...] = ()
    weights: Weights = Weights.SECRET
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def read(cls, path: str | Path) -> "Charter":
        """The charter in a file; paths of certificates are relative to its folder.

        Raises:
            ConfigurationError: names the file, the key, and what is allowed there.
        """
        return _from_file(path, cls, _CHARTER, needed=("federation", "server", "parties"))

    def __post_init__(self) -> None:
        """Refuse two hosts of one name, also in other letters (files are named after them), or of one certificate."""
        names: set[str] = set()
        certificates: dict[bytes, str] = {}
        for host in self.hosts:
            if host.name.casefold() in names:
                raise ConfigurationError(f"two hosts have the name {host.name}; give each host a name of its own")
            names.add(host.name.casefold())
            other = certificates.setdefault(host.certificate.whole, host.name)
            if other != host.name:
                raise ConfigurationError(f"{other} and {host.name} have the same certificate; every host needs its own")
        if self.normalise and self.alignment != Alignment.PSI:
            raise ConfigurationError(
                f"normalise is for alignment: psi; with alignment: {self.alignment} write the ids equally in all tables"
            )

    @property
    def hosts(self) -> "tuple[Server | Party, ...]":
        """The server and all parties."""
        return self.server, *self.parties

    @property
    def ends_first(self) -> Server | Party:
        """The host whose certificate ends first."""
        return min(self.hosts, key=lambda host: host.certificate.until)

    def ending(self) -> str | None:
        """A line about the certificate that ends first, if it ends soon."""
        host = self.ends_first
        left = host.certificate.days_left
        if left >= SOON:
            return None
        return (
            f"the certificate of {host.name} ends in {left} days; renew it there with lightning-vfl identity "
            f"{host.name} --renew, and give it to all hosts"
        )

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the content: of names, their order, the address, whole certificates and all other settings.

        Paths, comments and the form of the YAML do not matter.
        """
        server = [self.server.name, self.server.address, self.server.certificate.fingerprint]
        parties = [[party.name, party.certificate.fingerprint] for party in self.parties]
        patience = [float(getattr(self.patience, one.name)) for one in fields(Patience)]
        content = ["lightning-vfl federation", self.federation, server, parties, str(self.alignment), patience]
        content += [list(self.normalise)] if self.normalise else []  # a file without it keeps its digest
        content += [f"weights: {self.weights}"] if self.weights != Weights.SECRET else []
        content += (
            [[f"{key}: {value!r}" for key, value in vars(self.limits).items()]] if self.limits != Limits() else []
        )
        return sha256(json.dumps(content).encode()).digest()

    def agreed(self, labels: int | None) -> Agreed:
        """What fields of messages are checked against; ``labels``: the party that has the labels, or None."""
        return Agreed(tuple(party.name for party in self.parties), labels, self.limits)

    def number(self, name: str) -> int:
        """The number of the party with this name.

        Raises:
            ConfigurationError: if there is none.
        """
        names = [party.name for party in self.parties]
        if name not in names:
            raise ConfigurationError(f"no party of {self.federation} has the name '{name}'; {nearest(name, names)}")
        return names.index(name)

    def holder(self, certificate: bytes) -> int:
        """The number of the party with this certificate (PEM, as TLS has shown it), compared as a whole.

        Raises:
            ConfigurationError: if no party has it; names its fingerprint.
        """
        found = self._holders.get(certificate)
        return self._find_holder(certificate) if found is None else found

    @cached_property
    def _holders(self) -> dict[bytes, int]:
        """The numbers of the parties by certificates that have been compared, as every call of a party shows one."""
        return {}

    def _find_holder(self, certificate: bytes) -> int:
        for number, party in enumerate(self.parties):
            if same_certificate(party.certificate.content, certificate):
                self._holders[certificate] = number
                return number
        try:
            shown = f"sha256 {Certificate(certificate).fingerprint[:16]}..."
        except ValueError:
            shown = "unreadable"
        raise ConfigurationError(f"no party of {self.federation} has this certificate ({shown})")


@dataclass(frozen=True)
class Budget:
    """The privacy loss that a party allows itself.

    Args:
        epsilon: above 0.
        delta: above 0 and below 1.
    """

    epsilon: float
    delta: float


@dataclass(frozen=True)
class SeatFile:
    """The content of ``seat.yaml``: what a host decides alone. It is never sent.

    Args:
        key: the file of the private key.
        least_members: the smallest number of parties, this one included, with which this party lets itself be summed.
        budget: training stops before the party's privacy loss exceeds it; None: no budget.
        evaluate: the evaluation to which this party agrees.
        ledger: the file in which every release of this party's records is charged, and every hidden sum of them noted,
            for all its fits, evaluations and predictions; None: beside ``seat.yaml``, with its name.
        subtractable_records: this party ends before an embedding of more records can be computed from hidden sums with
            and without a party; None: a tenth of the training records, or no limit if the recipe has
            ``allow_embeddings_by_subtraction``.
        proxy: ``http://host:port`` through which this party calls the server; ``env``: that of the environment, if it
            names one; None: directly, also if the environment has ``http_proxy``.
        metrics: ``host:port`` at which the process of this host shows its state; None: nowhere.
        log: ``json``: events are lines of JSON too.
    """

    key: Path
    least_members: int = 1
    budget: Budget | None = None
    evaluate: Consent = Consent.PROTOCOL
    ledger: Path | None = None
    subtractable_records: int | None = None
    proxy: str | None = None
    metrics: str | None = None
    log: Log = Log.TEXT

    @classmethod
    def read(cls, path: str | Path) -> "SeatFile":
        """The settings in a file; the paths of the key and the ledger are relative to its folder.

        Raises:
            ConfigurationError: names the file, the key, and what is allowed there.
        """
        seat = _from_file(path, cls, _SEAT, needed=("key",))
        path = Path(path)
        return seat if seat.ledger else replace(seat, ledger=path.with_name(f"{path.stem}.privacy.jsonl"))


def proxy_of_environment(host: str = "") -> str | None:
    """The proxy that the environment names for TLS; None: it names none, or has the host in ``no_proxy``."""
    named = getproxies().get("https") or getproxies().get("http")
    return None if named is None or (host and proxy_bypass(host)) else named.rstrip("/")


Reader = Callable[[Any, str, Path], Any]
"""What a value of a file stands for: given the value, the key for errors, and the folder of the file."""


def _from_file(path: str | Path, kind: type[T], readers: Mapping[str, Reader], needed: Collection[str]) -> T:
    """What a YAML file says, with the file in front of every error."""
    path = Path(path)
    said = read_yaml(path)
    try:
        return _part(kind, readers, needed)(said, "", path.parent)  # type: ignore[no-any-return]
    except ConfigurationError as error:
        raise type(error)(f"{path}: {error}") from None


def _part(kind: type, readers: Mapping[str, Reader], needed: Collection[str] = ()) -> Reader:
    """A mapping with known keys: an object of ``kind``, which has defaults for keys that are left out."""
    keys = ", ".join(readers)

    def read(said: Any, where: str, folder: Path) -> Any:
        if not isinstance(said, Mapping):
            raise ConfigurationError(f"{where or 'the file'} must have the keys {keys}; got {said!r:.60}")
        inside = f"{where}." if where else ""
        for key in said:
            if key not in readers:
                raise ConfigurationError(f"{inside}{key} is not a key of this file; {nearest(str(key), readers)}")
        for key in needed:
            if said.get(key) is None:
                raise ConfigurationError(f"{inside}{key} is missing; {where or 'the file'} has {keys}")
        given = {key: reader for key, reader in readers.items() if key in said}
        return kind(**{key: reader(said[key], f"{inside}{key}", folder) for key, reader in given.items()})

    return read


def _maybe(reader: Reader) -> Reader:
    """As ``reader``, or nothing."""
    return lambda value, where, folder: None if value is None else reader(value, where, folder)


def _choice(kind: type[StrEnum]) -> Reader:
    """A word of an enumeration."""
    return lambda value, where, _: kind(one_of(where, value, map(str, kind)))


def _whole(least: int, most: int | None = None) -> Reader:
    """A whole number."""
    return lambda value, where, _: within(where, value, least, most, whole=True)


def _number(what: str, below: float = inf) -> Reader:
    """A finite number above 0."""

    def read(value: Any, where: str, _: Path) -> float:
        if isinstance(value, str) and re.fullmatch(r"[0-9.]+[eE][+-]?[0-9]+", value):  # YAML 1.1: 1e-5 is a text
            value = float(value)
        if isinstance(value, bool) or not isinstance(value, int | float) or not (0 < value < below and isfinite(value)):
            raise ConfigurationError(f"{where} must be {what}; got {value!r}")
        return float(value)

    return read


def _host(kind: type, readers: Mapping[str, Reader]) -> Reader:
    """A server or a party, whose certificate has its name."""
    read_part = _part(kind, readers, needed=readers)

    def read(said: Any, where: str, folder: Path) -> Any:
        host = read_part(said, where, folder)
        names = host.certificate.names
        if host.name not in names:
            raise ConfigurationError(
                f"{where}.certificate: {folder / said['certificate']} is the certificate of "
                f"{', '.join(names) or 'nobody'}; give that of {host.name}"
            )
        return host

    return read


def _parties(said: Any, where: str, folder: Path) -> tuple[Party, ...]:
    if not isinstance(said, list) or not said:
        raise ConfigurationError(f"{where} must be a list of at least one {{name, certificate}}")
    read = _host(Party, _PARTY)
    return tuple(read(one, f"{where}[{number}]", folder) for number, one in enumerate(said))


def _steps(said: Any, where: str, folder: Path) -> tuple[Step, ...]:
    if not isinstance(said, list):
        raise ConfigurationError(f"{where} must be a list of {', '.join(Step)}; got {said!r}")
    read = _choice(Step)
    return steps_of([read(word, where, folder) for word in said])


def _certificate(value: Any, where: str, folder: Path) -> Certificate:
    path = _path(value, where, folder)
    try:
        return Certificate.read(path)
    except ConfigurationError as error:
        raise type(error)(f"{where}: {error}") from None


def _name(value: Any, where: str, _: Path) -> str:
    if not isinstance(value, str):
        raise ConfigurationError(f"{where} must be a text; got {value!r}")
    try:
        check_name(value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from None
    return value


def _address(value: Any, where: str, _: Path) -> str:
    form = r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})"
    found = re.fullmatch(form, value) if isinstance(value, str) else None
    if found is None or not 1 <= int(found[2]) <= 65535:
        raise ConfigurationError(f"{where} must be host:port, such as scorer.example.org:8443; got {value!r}")
    return found[0]


def _path(value: Any, where: str, folder: Path) -> Path:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{where} must be the path of a file; got {value!r}")
    return folder / value


def _ledger(value: Any, where: str, folder: Path) -> Path:
    path = _path(value, where, folder)
    if path.suffix != ".jsonl":
        raise ConfigurationError(f"{where} must be the path of a file that ends in .jsonl; got {value!r}")
    return path


def _proxy(said: Any, where: str, _: Path) -> str | None:
    proxy = proxy_of_environment() if said == "env" else said
    if proxy is not None and not (isinstance(proxy, str) and re.fullmatch(r"http://\S+:[0-9]{1,5}", proxy)):
        raise ConfigurationError(
            f"{where if said != 'env' else 'the proxy of the environment'} must be http://host:port, such as "
            f"http://proxy.example.org:3128; got {proxy!r}"
        )
    return proxy


_PARTY: Mapping[str, Reader] = {"name": _name, "certificate": _certificate}
_CHARTER: Mapping[str, Reader] = {
    "federation": _name,
    "server": _host(Server, {"name": _name, "address": _address, "certificate": _certificate}),
    "parties": _parties,
    "alignment": _choice(Alignment),
    "patience": _part(Patience, dict.fromkeys(("join", "reconnect", "silence"), _number("seconds above 0"))),
    "normalise": _steps,
    "weights": _choice(Weights),
    "limits": _part(
        Limits,
        {
            "frame": _whole(1, 1024),
            "columns": _whole(1, 2**31),
            "value": _number("a number above 0"),
            "server_ids": _whole(1, 2**31),
        },
    ),
}
_BUDGET: Mapping[str, Reader] = {
    "epsilon": _number("a number above 0"),
    "delta": _number("a number above 0 and below 1", below=1.0),
}
_SEAT: Mapping[str, Reader] = {
    "key": _path,
    "least_members": _whole(1),
    "budget": _maybe(_part(Budget, _BUDGET, needed=_BUDGET)),
    "evaluate": _choice(Consent),
    "ledger": _maybe(_ledger),
    "subtractable_records": _maybe(_whole(0)),
    "proxy": _maybe(_proxy),
    "metrics": _maybe(_address),
    "log": _choice(Log),
}
