"""Who received which tensor, for which records and in which round."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_vfl.audit.attacker import Attacker
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols import VFLModule
from lightning_vfl.simulation.meter import DIRECTION, CommunicationMeter
from lightning_vfl.types import NO_RECORDS, RoundNames, Stage, places
from lightning_vfl.wire import Message, Tap

AGGREGATES = "aggregates"  # kind of what the server has computed from messages
LIMIT_BYTES = 2**31


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
    way: str
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

    Attributes:
        wanted: of kind, way, sender and epoch, whether such an entry is kept; of all others the bytes are counted.

    Raises:
        ConfigurationError: in the round in which the limit is passed.
    """

    def __init__(self, attacker: Attacker, limit_bytes: float = LIMIT_BYTES) -> None:
        self.attacker = attacker
        self.limit_bytes = limit_bytes
        self.epoch = 0
        self.entries: list[Entry] = []
        self.wanted: Callable[[str, str, int | None, int], bool] = lambda kind, way, sender, epoch: True
        self.kept_bytes = 0
        # by kind, direction, party, epoch and round, because the meter pads a leg of one round to whole bytes
        self._numbers: Counter[tuple[str, str, int, int, int]] = Counter()

    # ---- what a training tells

    def sent(self, message: Message, ids: Tensor, at: int | None = None) -> None:
        ids = ids.cpu()
        for part in (message, message.alongside):
            if part is not None:
                self._hear(part, ids, at)

    def joined(
        self, value: Tensor, names: RoundNames, ids: Tensor, at: int | None = None, kind: str = AGGREGATES
    ) -> None:
        if names.stage == Stage.FIT and self.attacker.reads(at) and self.wanted(kind, "own", None, self.epoch):
            value = self._copy(value, names.round)
            self.entries.append(Entry(kind, "own", None, at, self.epoch, names.round, ids.cpu(), value))

    def _hear(self, message: Message, ids: Tensor, at: int | None) -> None:
        names = message.round
        kind = message.kind
        number = -1 if names is None else names.round
        fit = names is None or names.stage == Stage.FIT
        if names is not None and not fit:
            kind = f"{names.stage} {kind}"
        way = DIRECTION[message.to]
        copies: dict[int, Tensor] = {}  # several receivers may get one tensor
        lasting = message.lasting and self.attacker.reads(at)  # a part would keep the memory of all pieces
        for party, sender, receiver, piece in list(_deliveries(message, at)):
            if sender == receiver:
                continue
            self._numbers[kind, way, party, self.epoch, number] += piece.numel()
            heard = fit and (self.attacker.reads(sender) or self.attacker.reads(receiver))
            if heard and self.wanted(kind, way, sender, self.epoch):
                if id(piece) not in copies:
                    copies[id(piece)] = self._copy(piece, number, lasting)
                entry = Entry(kind, way, sender, receiver, self.epoch, number, ids, copies[id(piece)])
                self.entries.append(entry)

    def _copy(self, value: Tensor, number: int, lasting: bool = False) -> Tensor:
        kept = value.detach().to("cpu", copy=not lasting)
        self.kept_bytes += kept.nbytes
        if self.kept_bytes > self.limit_bytes:
            raise ConfigurationError(
                f"what {self.attacker} receives takes more than limit_bytes = {self.limit_bytes:.0f} by round "
                f"{number}; raise limit_bytes, or train fewer epochs"
            )
        return kept

    def bytes(self, meter: CommunicationMeter) -> dict[tuple[str, str], Tensor]:
        """(M,) int64 bytes by (kind, direction): the counted numbers in the bits that the legs of the meter announce.

        The numbers of one leg in one round are padded to whole bytes, as the meter does. Kinds that the meter does not
        know are left out.
        """
        totals: dict[tuple[str, str], list[int]] = {}
        for (kind, way, party, *_), numbers in self._numbers.items():
            if (kind, way) in meter.bits:
                total = totals.setdefault((kind, way), [0] * meter.parties)
                total[party] += (numbers * meter.bits[kind, way] + 7) // 8
        return {key: torch.tensor(total) for key, total in totals.items()}

    def kinds(self) -> frozenset[tuple[str, str]]:
        """The (kind, direction) of all messages."""
        return frozenset((kind, way) for kind, way, *_ in self._numbers)

    # ---- what an attack reads

    def find(
        self,
        kind: str | None = None,
        way: str | None = None,
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


def _deliveries(message: Message, at: int | None) -> Iterator[tuple[int, int | None, int | None, Tensor]]:
    """Of each part of a message: the party that is charged for it, sender, receiver, and the tensor.

    None: the server, if no party plays it (``at``).
    """
    if message.to == "parties":
        receivers = message.receivers or range(len(message.pieces))
        for receiver, piece in zip(receivers, message.pieces, strict=True):
            yield receiver, at, receiver, piece
        return
    for sender, piece in zip(message.senders, message.pieces, strict=True):
        if message.to == "server":
            yield sender, sender, at, piece
        else:
            for receiver, part in zip(message.receivers or range(len(piece)), piece, strict=True):
                yield sender, sender, receiver, part


def by_record(entries: Iterator[Entry]) -> tuple[Tensor, Tensor]:
    """The rows of these entries (n, W) in float64, with their records (n,) int64; a record's last row counts.

    Entries of another width than the first, and without records, are left out.
    """
    ids = []
    values = []
    width = None
    for entry in entries:
        by_rows = len(entry.ids) and entry.value.numel() % len(entry.ids) == 0  # not one number for a batch
        flat = entry.value.reshape(len(entry.ids), -1) if by_rows else None
        if flat is None or not flat.shape[1] or (width is not None and flat.shape[1] != width):
            continue
        width = flat.shape[1]
        ids.append(entry.ids)
        values.append(flat)
    if not ids:
        return NO_RECORDS, torch.empty(0, 0, dtype=torch.float64)
    every = torch.cat(ids)
    last = {record: place for place, record in enumerate(every.tolist())}
    kept = torch.tensor(sorted(last.values()))
    return every[kept], torch.cat(values).double()[kept]


def side_by_side(tables: Sequence[tuple[Tensor, Tensor]], records: int) -> tuple[Tensor, Tensor]:
    """The records (n,) that are in all of one or more tables of ids and rows, ascending, and their rows joined."""
    place = torch.stack([places(ids, records) for ids, _ in tables])
    common = (place >= 0).all(0).nonzero().flatten()
    joined = [rows[kept] for (_, rows), kept in zip(tables, place[:, common], strict=True)]
    return common, torch.cat(joined, 1)


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


def both_counts(module: VFLModule, transcript: Transcript) -> dict[tuple[str, str], tuple[Tensor, Tensor]]:
    """(heard, metered) bytes (M,) by (kind, direction), of every kind that a meter has: of the parties, or of hosts."""
    counts: dict[tuple[str, str], tuple[Tensor, Tensor]] = {}
    of_hosts: CommunicationMeter | None = getattr(module.books.own, "host_meter", None)
    for meter in filter(None, (module.books.meter, of_hosts)):
        heard = transcript.bytes(meter)
        for kind, way in meter.bits:
            metered = meter.total(way, kind)
            counts[kind, way] = heard.get((kind, way), torch.zeros_like(metered)), metered
    return counts


def differences(module: VFLModule, transcript: Transcript) -> list[str]:
    """What the meter has counted and the transcript has not heard, and the reverse, in a sentence for each kind."""
    counts = both_counts(module, transcript)
    sentences = []
    for (kind, _), (heard, metered) in counts.items():
        if lacking := int((metered - heard).clamp(min=0).sum()):
            sentences.append(
                f"the audit has not heard {lacking:,} bytes of '{kind}': the simulation has not computed them"
            )
        if more := int((heard - metered).clamp(min=0).sum()):
            sentences.append(f"the audit has heard {more:,} bytes of '{kind}' more than its legs announce")
    for kind, way in sorted(transcript.kinds() - counts.keys()):
        sentences.append(f"the audit has heard messages '{kind}' ({way}), which no leg announces: nobody counts them")
    return sentences
