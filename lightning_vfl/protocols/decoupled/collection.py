"""The owner's records: their encodings by the hosts, which are collected once, their traffic, and its audit."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lightning_vfl.protocols.module import VFLModule
from lightning_vfl.simulation.meter import CommunicationMeter
from lightning_vfl.types import RecordSource, RoundNames
from lightning_vfl.wire import Leg, Message, Tap

Features = tuple[Tensor, ...]
_ROWS = 1024  # records encoded at a time


@dataclass
class DecoupledCounts:
    """The counts of DecoupledVFL.

    Args:
        settings: the settings that a resumed fit must share with the checkpoint.
        iterations: iterations of guests and hosts.
        communications: communication rounds, in which guests should send.
        collected: whether the hosts' encodings have been collected.
        host_meter: bytes that the hosts send.
        own_seconds: (M + H,), the seconds in which each guest and host has computed and sent.
        begun: the virtual time at which the training began.
    """

    settings: dict[str, int | str] = field(default_factory=dict)
    iterations: int = 0
    communications: int = 0
    collected: bool = False
    host_meter: CommunicationMeter = field(default_factory=lambda: CommunicationMeter(0))
    own_seconds: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    begun: float = 0.0


def in_parts(data: RecordSource) -> tuple[Tensor, ...]:
    """The records that every guest holds, in parts that are encoded at a time."""
    every = torch.arange(len(data))
    common = every if data.present is None else every[data.present.all(1).cpu()]
    return torch.split(common, _ROWS)


def places_in(parts: Sequence[Tensor], records: int) -> Tensor:
    """(N,) int64, the row of each record in the encodings of parts of them; -1: the record has no row."""
    common = torch.cat(list(parts))
    place = torch.full((records,), -1)
    place[common] = torch.arange(len(common))
    return place


def mean_and_scale(encodings: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the standard deviation (H W_h,) of encodings, in float64; 1 for constant columns."""
    mean = encodings.mean(0, dtype=torch.float64)
    squares = sum(((part - mean) ** 2).sum(0) for part in torch.split(encodings, _ROWS))  # float64, one part at a time
    deviation = (torch.as_tensor(squares) / len(encodings)).sqrt()
    return mean, torch.where(deviation > 1e-6, deviation, 1.0)


def enter_collection(
    module: VFLModule, counts: DecoupledCounts, rows: int, hosts: int, width: int, seconds: float | None
) -> None:
    """Count traffic and time of the final embeddings and encodings of ``rows`` records; there are no faults.

    Args:
        module: the protocol.
        counts: its counts.
        rows: how many records there are.
        hosts: how many hosts there are.
        width: of a host's encodings.
        seconds: that the collection has really taken; None: it is simulated.
    """
    clock = module.clock
    counts.collected = True
    up = embeddings_leg("final embeddings", rows, hosts, module.embedding_widths)
    on = Leg("final encodings", "server", torch.full((hosts,), rows * width), 32)
    module.books.meter.add(up)
    counts.host_meter.add(on)
    simulated = float(clock.transfer(up).max()) + float(clock.transfer(on).max())
    clock.advance(simulated if seconds is None else seconds)


def embeddings_leg(kind: str, rows: int, hosts: int, widths: Sequence[int]) -> Leg:
    """The leg of the embeddings of ``rows`` records, from every guest to every host."""
    return Leg(kind, "server", rows * hosts * torch.tensor(widths), 32)


def tell_of_embeddings(
    tap: Tap | None, hosts: int, kind: str, ids: Tensor, embeddings: Sequence[Tensor], alive: Tensor
) -> None:
    """The embeddings (B, D_m) that the guests who are alive send to every host.

    Args:
        tap: which listens; None: nobody does.
        hosts: how many there are.
        kind: the name in every table.
        ids: the records, (B,), or (B, M or more) with the records of guest m in column m.
        embeddings: of every guest.
        alive: (M,) bool.
    """
    if tap is None:
        return
    for guest in alive.nonzero().flatten().tolist():
        own = ids if ids.dim() == 1 else ids[:, guest]
        message = Message(kind, "server", (guest,), (embeddings[guest].detach(),))
        for _ in range(hosts):
            tap.sent(message, own)


def tell_of_collection(
    module: VFLModule, hosts: int, names: RoundNames, ids: Tensor, embeddings: tuple[Tensor, ...], encodings: Tensor
) -> None:
    """The final embeddings of records ``ids`` (B,), and the encodings (B, H W_h) of them by so many hosts."""
    if module.tap is None:
        return
    everybody = torch.ones(module.roster.parties, dtype=torch.bool)
    tell_of_embeddings(module.tap, hosts, "final embeddings", ids, embeddings, everybody)
    pieces = encodings.tensor_split(hosts, 1)
    module.tap.sent(Message("final encodings", "server", tuple(range(hosts)), pieces), ids)
    module.tap.joined(encodings, names, ids)
