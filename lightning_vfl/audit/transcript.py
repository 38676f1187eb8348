"""Who received which tensor, for which records and in which round."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lightning_vfl.audit.attacker import Attacker
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.simulation.meter import DIRECTION, CommunicationMeter
from lightning_vfl.types import RoundNames, Stage
from lightning_vfl.wire import Message, Tap

AGGREGATES = "aggregates"  # kind of what the server has computed from messages
LIMIT_BYTES = 2**31
Way = Literal["up", "down", "peer", "own"]


@dataclass(frozen=True, eq=False)
class Entry:
    """One tensor that the attacker has received, or that a member of it has sent or computed.

    Args:
        kind: of the message; ``aggregates`` for what the server has computed.
        way: ``up`` to the server, ``down`` from it, ``peer`` between parties, ``own`` for aggregates.
        sender: the party that has sent it; None: the server.
        receiver: the party that has received it; None: the server.
        epoch: 1 for the first epoch; 0 before it.
        round: the number of the round; -1: of no round.
        ids: (B,) int64, positions of its records; empty: it is about no records.
        value: the tensor.
    """

    kind: str
    way: Way
    sender: int | None
    receiver: int | None
    epoch: int
    round: int
    ids: Tensor
    value: Tensor


class Transcript(Tap):
    """The messages of a training as one attacker sees them, and the count of all messages.

    Guarantee: an entry has the values of a tensor that the attacker's members receive, send or (aggregates) compute.
        Entries of one message may share their memory with one another, and those of a ``lasting`` message with the
        training, so do not write to it. The bytes of ALL messages are counted, by kind, direction and party; ``bytes``
        can be compared with the meter's.
    Not guaranteed: messages of evaluation are counted and not kept. Late messages that the simulation does not compute
        are neither counted nor kept.

    Args:
        attacker: whose view it is.
        limit_bytes: the most that the kept tensors may take.

    Raises:
        ConfigurationError: in the round in which the limit is passed.
    """

    def __init__(self, attacker: Attacker, limit_bytes: float = LIMIT_BYTES) -> None:
        self.attacker = attacker
        self.limit_bytes = limit_bytes
        self.epoch = 0
        self.entries: list[Entry] = []
        self.kept_bytes = 0
        self._numbers: dict[tuple[str, str], Counter[tuple[int, int]]] = {}
        self._open: dict[tuple[str, str], tuple[int, dict[int, int]]] = {}

    # ---- what is told

    def sent(self, message: Message, ids: Tensor, at: int | None = None) -> None:
        ids = ids.cpu()
        for part in (message, message.alongside):
            if part is not None:
                self._one(part, ids, at)

    def joined(
        self, value: Tensor, names: RoundNames, ids: Tensor, at: int | None = None, kind: str = AGGREGATES
    ) -> None:
        if names.stage == Stage.FIT and self.attacker.reads(at):
            self._keep(kind, "own", None, at, names.round, ids.cpu(), value, {})

    def _one(self, message: Message, ids: Tensor, at: int | None) -> None:
        fit = message.round is None or message.round.stage == Stage.FIT
        number = -1 if message.round is None else message.round.round
        kind = message.kind if fit or message.round is None else f"{message.round.stage} {message.kind}"
        way = DIRECTION[message.to]
        mine, copies = self.attacker.parties, dict[int, Tensor]()
        whole = message.lasting and self.attacker.reads(at)  # a part would keep the memory of all pieces
        if message.to == "parties":
            receivers = message.receivers or tuple(range(len(message.pieces)))
            for receiver, piece in zip(receivers, message.pieces, strict=True):
                if receiver == at:
                    continue
                self._count(kind, way, receiver, piece.numel(), number)
                if fit and (receiver in mine or self.attacker.reads(at)):
                    self._keep(kind, "down", at, receiver, number, ids, piece, copies, whole)
            return
        for sender, piece in zip(message.senders, message.pieces, strict=True):
            if message.to == "server":
                if sender == at:
                    continue
                self._count(kind, way, sender, piece.numel(), number)
                if fit and (self.attacker.reads(at) or sender in mine):
                    self._keep(kind, "up", sender, at, number, ids, piece, copies, whole)
                continue
            receivers = message.receivers or tuple(range(len(piece)))
            others = [(place, receiver) for place, receiver in enumerate(receivers) if receiver != sender]
            self._count(kind, way, sender, piece.numel() // max(len(receivers), 1) * len(others), number)
            for place, receiver in others if fit else ():
                if receiver in mine or sender in mine:
                    self._keep(kind, "peer", sender, receiver, number, ids, piece[place], {})

    def _keep(
        self,
        kind: str,
        way: Way,
        sender: int | None,
        receiver: int | None,
        number: int,
        ids: Tensor,
        value: Tensor,
        copies: dict[int, Tensor],
        lasting: bool = False,
    ) -> None:
        """Keep a tensor; ``copies`` has those of the same message, in which several receivers may get one tensor."""
        kept = copies.get(id(value))
        if kept is None:
            kept = copies[id(value)] = value.detach().to("cpu", copy=not lasting)
            self.kept_bytes += kept.nbytes
            if self.kept_bytes > self.limit_bytes:
                raise ConfigurationError(
                    f"what {self.attacker} receives takes more than limit_bytes = {self.limit_bytes:.0f} by round "
                    f"{number}; raise limit_bytes, or train fewer epochs"
                )
        self.entries.append(Entry(kind, way, sender, receiver, self.epoch, number, ids, kept))

    # ---- the count

    def _count(self, kind: str, way: str, party: int, numbers: int, number: int) -> None:
        begun = self._open.get((kind, way))
        if begun is None or begun[0] != number:
            self._close(kind, way)
            begun = self._open[kind, way] = number, {}
        counts = begun[1]
        counts[party] = counts.get(party, 0) + numbers

    def _close(self, kind: str, way: str) -> None:
        if (begun := self._open.pop((kind, way), None)) is not None:
            self._numbers.setdefault((kind, way), Counter()).update(begun[1].items())

    def bytes(self, meter: CommunicationMeter) -> dict[tuple[str, str], Tensor]:
        """(M,) int64 bytes by (kind, direction): the counted numbers in the bits that the legs of the meter announce.

        The numbers of one leg in one round are padded to whole bytes, as the meter does. Kinds that the meter does not
        know are left out.
        """
        for kind, way in list(self._open):
            self._close(kind, way)
        found: dict[tuple[str, str], Tensor] = {}
        for key, counts in self._numbers.items():
            if key in meter.bits:
                total = found[key] = torch.zeros(meter.parties, dtype=torch.int64)
                for (party, numbers), times in counts.items():
                    total[party] += times * ((numbers * meter.bits[key] + 7) // 8)
        return found

    def kinds(self) -> frozenset[tuple[str, str]]:
        """The (kind, direction) of all messages."""
        return frozenset({*self._numbers, *self._open})

    # ---- what an attack reads

    def find(
        self,
        kind: str | None = None,
        way: Way | None = None,
        sender: int | None = None,
        receiver: int | None = None,
        epoch: int | None = None,
    ) -> Iterator[Entry]:
        """The entries with these properties, in order; None: any."""
        wanted = {"kind": kind, "way": way, "sender": sender, "receiver": receiver, "epoch": epoch}
        chosen = {name: value for name, value in wanted.items() if value is not None}
        for entry in self.entries:
            if all(getattr(entry, name) == value for name, value in chosen.items()):
                yield entry

    def epochs(self) -> range:
        """The epochs of which there are entries."""
        return range(1, max((entry.epoch for entry in self.entries), default=0) + 1)


def by_record(entries: Iterator[Entry]) -> tuple[Tensor, Tensor]:
    """The rows of these entries (n, W) in float64, with their records (n,) int64; a record's last row counts.

    Entries of another width than the first, and without records, are left out.
    """
    ids, values, width = [], [], None
    for entry in entries:
        flat = entry.value.reshape(len(entry.ids), -1) if len(entry.ids) else None
        if flat is None or not flat.shape[1] or (width is not None and flat.shape[1] != width):
            continue
        width = flat.shape[1]
        ids.append(entry.ids)
        values.append(flat)
    if not ids:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, 0, dtype=torch.float64)
    every, rows = torch.cat(ids), torch.cat(values).double()
    if len(torch.unique(every)) == len(every):
        return every, rows
    last = {record: place for place, record in enumerate(every.tolist())}
    places = torch.tensor(sorted(last.values()))
    return every[places], rows[places]


class Several(Tap):
    """Several listeners to one training.

    Args:
        taps: the listeners.
    """

    def __init__(self, *taps: Tap) -> None:
        self.taps = taps

    def sent(self, message: Message, ids: Tensor, at: int | None = None) -> None:
        for tap in self.taps:
            tap.sent(message, ids, at)

    def joined(
        self, value: Tensor, names: RoundNames, ids: Tensor, at: int | None = None, kind: str = AGGREGATES
    ) -> None:
        for tap in self.taps:
            tap.joined(value, names, ids, at, kind)
