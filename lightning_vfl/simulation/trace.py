"""Recorded traces: the faults of every party and request, in a table that can be written, edited and replayed.

The table has one row for each party and request. Columns: ``party``, ``delay``, ``up`` (the party sends), ``down`` (the
party receives) and ``request``; or ``round`` instead of ``request``, if a row holds for both requests 2 · round and
2 · round + 1. Optional: ``peer_delay``, ``slowdown``, ``announced``, ``link_h`` (the connection to host h is up) and
``host_h`` (host h is up, repeated in every row of a request). A column that is not in the table means no such fault.
"""

import re
from collections.abc import Callable
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.checks import positive
from lightning_vfl.errors import ConfigurationError, on_one_line
from lightning_vfl.limits import refuse_large_table
from lightning_vfl.simulation.faults import LEAST, FaultModel, RoundOutcome
from lightning_vfl.trained.predictions import write_table
from lightning_vfl.types import Roster

if TYPE_CHECKING:
    import pandas as pd

_FIELDS = {  # column -> the field of RoundOutcome; numbers have one name in both
    "delay": "delay",
    "up": "sends",
    "down": "receives",
    "peer_delay": "peer_delay",
    "slowdown": "slowdown",
    "announced": "announced",
}
_NEEDED = ("party", "delay", "up", "down")
_OF_HOST = re.compile(r"(link|host)_(\d+)")


class TraceReplay(FaultModel):
    """Replays a trace from a file.

    Units: seconds.
    Guarantee: a trace written by ``write`` gives the recorded outcomes, bit for bit. A table with a missing row, a
        repeated row or a value out of range is refused, and so is a request past the end without ``repeat``.
    Not guaranteed: known stragglers. A trace has late messages, but does not name stragglers of the whole run.

    Args:
        path: a ``.csv`` or ``.parquet`` file. It is read once, when first needed.
        repeat: begin again at the start of the trace when it ends: an hour that was measured serves a training of any
            length.

    Raises:
        ConfigurationError: for another ending; later, for missing or invalid values in the file, for a roster with
            another number of parties, for a roster with more hosts than the trace (if it has hosts), and past the end.

    Examples:
        >>> TraceReplay("trace.csv")
        TraceReplay(path='trace.csv', repeat=False)
    """

    stream_name: ClassVar[str] = "RecordedTrace"

    def __init__(self, path: str, repeat: bool = False) -> None:
        file_of(path)
        self.path = path
        self.repeat = repeat

    @cached_property
    def _trace(self) -> "_Trace":
        return _Trace(Path(self.path))

    @property
    def silent(self) -> bool:
        trace = self._trace
        held = trace.values["sends"], trace.values["receives"], trace.links
        return not all(flags is None or bool(flags.all()) for flags in held)

    @property
    def announces(self) -> bool:
        return not bool(self._trace.values["announced"].all())

    def sample(self, request: int, roster: Roster, seed: int) -> RoundOutcome:
        trace = self._trace
        if trace.parties != roster.parties:
            raise ConfigurationError(
                f"{trace.name} is a trace of {trace.parties} parties, but this run has {roster.parties}; use a trace "
                f"of {roster.parties} parties"
            )
        step = request // trace.requests_a_step
        if self.repeat:
            step %= trace.steps
        if step >= trace.steps:
            raise ConfigurationError(
                f"request {request} is past the end of {trace.name}, which has requests 0 to "
                f"{trace.steps * trace.requests_a_step - 1} of every party; record a longer trace, train fewer rounds, "
                "or set repeat: true"
            )
        nothing = RoundOutcome.nothing(roster)
        return RoundOutcome(
            **{field: values[step] for field, values in trace.values.items()},
            hosts=self._of_hosts(trace.hosts, step, nothing.hosts),
            links=self._of_hosts(trace.links, step, nothing.links),
        )

    def hosts(self, request: int, roster: Roster, seed: int) -> Tensor:
        """The hosts' states; a trace without hosts that are down has no end for hosts."""
        if self._trace.hosts is None or bool(self._trace.hosts.all()):
            return RoundOutcome.nothing(roster).hosts
        return self.sample(request, roster, seed).hosts

    def _of_hosts(self, values: Tensor | None, step: int, nothing: Tensor) -> Tensor:
        """States of the first H hosts, or of the links to these hosts; further hosts in the trace are ignored."""
        if values is None:
            return nothing
        hosts = nothing.shape[-1]
        if values.shape[-1] < hosts:
            raise ConfigurationError(
                f"{self._trace.name} has {values.shape[-1]} hosts, but this run has {hosts}; "
                f"use a trace of at least {hosts} hosts"
            )
        return values[step, ..., :hosts]


def record(faults_at: Callable[[int], RoundOutcome], requests: int) -> "pd.DataFrame":
    """The trace of requests 0 to ``requests`` - 1 as a table that ``TraceReplay`` reads.

    Args:
        faults_at: request -> outcome.
        requests: the number of requests.

    Raises:
        ConfigurationError: if ``requests`` is below 1.

    Examples:
        >>> table = record(lambda request: RoundOutcome.nothing(Roster.singles(2)), requests=3)
        >>> table[["round", "request", "party", "delay", "up"]].tail(2).to_dict("list")
        {'round': [1, 1], 'request': [2, 2], 'party': [0, 1], 'delay': [0.0, 0.0], 'up': [True, True]}
    """
    import pandas as pd  # 0.5 s, where it is used

    positive("requests of a trace", requests, whole=True)
    outcomes = [faults_at(request) for request in range(requests)]
    parties = len(outcomes[0].delay)
    request = np.arange(requests).repeat(parties)
    columns = {"round": request // 2, "request": request, "party": np.tile(np.arange(parties), requests)}
    for column, field in _FIELDS.items():
        columns[column] = torch.cat([getattr(outcome, field) for outcome in outcomes]).numpy()
    links = torch.cat([o.links for o in outcomes])
    hosts = torch.stack([o.hosts for o in outcomes])
    columns |= {f"link_{h}": links[:, h].numpy() for h in range(links.shape[1])}
    columns |= {f"host_{h}": hosts[:, h].numpy().repeat(parties) for h in range(hosts.shape[1])}
    return pd.DataFrame(columns)


def write(table: "pd.DataFrame", path: str) -> None:
    """Write a trace to a ``.csv`` or ``.parquet`` file, which appears complete or not at all.

    Raises:
        ConfigurationError: for another ending.
    """
    write_table(table, file_of(path))  # floats in their shortest form that reads back to the same bits


def file_of(path: str) -> Path:
    """The file of a trace.

    Raises:
        ConfigurationError: for an ending without a format.
    """
    if Path(path).suffix not in (".csv", ".parquet"):
        raise ConfigurationError(f"a trace must be a .csv or .parquet file; got '{path}'; change the ending")
    return Path(path)


def _read(path: Path) -> "pd.DataFrame":
    import pandas as pd  # 0.5 s, where it is used

    if not path.is_file():
        raise ConfigurationError(f"the trace {path} does not exist; correct the path, or record it with TraceRecorder")
    try:
        if path.suffix == ".csv":
            return pd.read_csv(path, converters=dict.fromkeys(LEAST, _number))
        refuse_large_table(path)
        return pd.read_parquet(path)
    except ConfigurationError:
        raise
    except (ValueError, OSError) as error:
        said = on_one_line(error)
        raise ConfigurationError(f"{path.name} cannot be read ({said}); correct it, or record a new trace") from error


def _number(text: str) -> float:
    """Read a number with Python, which is exact; pandas may have an error in the last bit."""
    return float(text or "nan")


class _Trace:
    """The table of a file as tensors; every error names the file.

    Args:
        path: of the file.

    Attributes:
        values: by field of RoundOutcome, (R, M) for R steps: requests, or rounds of two requests.
        hosts: (R, H); None: the trace has none.
        links: (R, M, H); None: the trace has none.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        table = _read(path)
        self.step = "request" if "request" in table else "round"
        self.requests_a_step = 1 if self.step == "request" else 2
        self._check_columns(table)
        self.steps = self._count(table, self.step)
        self.parties = self._count(table, "party")
        self.table = table.sort_values([self.step, "party"], ignore_index=True)
        self._check_rectangle()

        nothing = RoundOutcome.nothing(Roster.singles(self.parties))
        self.values: dict[str, Tensor] = {}
        for column, field in _FIELDS.items():
            there = column in self.table
            neutral = getattr(nothing, field).expand(self.steps, self.parties)
            self.values[field] = self._values(column) if there else neutral
        hosts = self._of_hosts("host")
        self.hosts = None if hosts is None else hosts[:, 0]  # all parties' rows have the same value
        self.links = self._of_hosts("link")

    def _check_columns(self, table: "pd.DataFrame") -> None:
        missing = [column for column in (*_NEEDED, self.step) if column not in table]
        if missing:
            raise ConfigurationError(
                f"{self.name} has no column '{missing[0]}'; a trace needs {', '.join(_NEEDED)}, and round or request"
            )
        known = {*_FIELDS, "party", "round", "request"}
        strange = [column for column in table if column not in known and not _OF_HOST.fullmatch(str(column))]
        if strange:
            raise ConfigurationError(f"{self.name} has an unknown column '{strange[0]}'; remove or rename it")

    def _count(self, table: "pd.DataFrame", column: str) -> int:
        """The number of different values in a column that is numbered from 0."""
        if not len(table):
            raise ConfigurationError(f"{self.name} has no rows; record a trace of one request or more")
        numbers = table[column].to_numpy()
        if numbers.dtype.kind not in "iu" or numbers.min() < 0:
            raise ConfigurationError(f"column '{column}' of {self.name} must have the whole numbers from 0")
        return int(numbers.max()) + 1

    def _check_rectangle(self) -> None:
        """Check that the table, which is sorted, has every party at every step exactly once."""
        places = (self.table[self.step] * self.parties + self.table["party"]).to_numpy()
        differing = np.flatnonzero(places != np.arange(len(places)))
        first = int(differing[0]) if len(differing) else len(places)
        if first == len(places) == self.steps * self.parties:
            return
        twice = first < len(places) and places[first] < first
        step, party = divmod(int(places[first]) if twice else first, self.parties)
        problem, fix = ("twice", "remove one") if twice else ("not at all", "add its row")
        raise ConfigurationError(f"{self.name} has {self.step} {step} of party {party} {problem}; {fix}")

    def _values(self, column: str) -> Tensor:
        """A column as (R, M), float64 or bool, after a check of the range."""
        try:
            values = self.table[column].to_numpy(dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"column '{column}' of {self.name} has a value that is not a number; write numbers, or True and False"
            ) from error
        least = LEAST.get(column)
        if least is None:
            fine = (values == 0) | (values == 1)
            fix = "use True or False"
        else:
            fine = (values >= least) & (values < inf)
            fix = f"use a finite number, {least} or more"
        if not fine.all():
            row = int(fine.argmin())
            step, party = divmod(row, self.parties)
            raise ConfigurationError(
                f"{column} {values[row]} of party {party} at {self.step} {step} in {self.name} is out of range; {fix}"
            )
        table = torch.tensor(values).view(self.steps, self.parties)
        return table == 1 if least is None else table

    def _of_hosts(self, kind: str) -> Tensor | None:
        """The columns ``kind``_0, _1, … as (R, M, H)."""
        count = sum(str(column).startswith(f"{kind}_") for column in self.table)
        if not count:
            return None
        for host in range(count):
            if f"{kind}_{host}" not in self.table:
                raise ConfigurationError(f"{self.name} has no column '{kind}_{host}'; number the hosts from 0")
        values = torch.stack([self._values(f"{kind}_{host}") for host in range(count)], dim=-1)
        if kind == "host" and not bool((values == values[:, :1]).all()):
            step, _, host = (values != values[:, :1]).nonzero()[0].tolist()
            raise ConfigurationError(
                f"the parties' rows of {self.step} {step} in {self.name} differ in host_{host}; give all the same value"
            )
        return values
