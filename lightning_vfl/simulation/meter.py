"""The bytes that a deployment would send, by kind, direction and party."""

from typing import Any

import torch
from torch import Tensor

from lightning_vfl.wire import Leg

DIRECTION = {"server": "up", "peers": "peer", "parties": "down"}


class CommunicationMeter:
    """Counts the bytes of planned legs; the contract test compares legs with the real messages.

    Units: whole bytes, (M,) int64 by (kind, direction): ``up`` to the server, ``down`` from it, ``peer`` to parties.
    Guarantee: exact integers; the state in a checkpoint continues a count without a gap.
    Not guaranteed: headers, retransmission and encryption overhead of a transport.

    Examples:
        >>> meter = CommunicationMeter(2)
        >>> meter.add(Leg("embeddings", "server", torch.tensor([10, 20]), 32, torch.zeros(2)))
        >>> meter.total("up").tolist()
        [40, 80]
    """

    def __init__(self, parties: int) -> None:
        self.parties = parties
        self._bytes: dict[tuple[str, str], Tensor] = {}
        self.bits: dict[tuple[str, str], int] = {}  # of one number, by kind and direction; of legs counted here

    def add(self, leg: Leg, senders: Tensor | None = None) -> None:
        """Count a leg; ``senders`` (M,) bool are the parties whose part is sent, None: all parties."""
        sent = leg.bytes if senders is None else leg.bytes * senders
        key = (leg.kind, DIRECTION[leg.to])
        self.bits[key] = leg.bits
        self._bytes[key] = self._bytes[key] + sent if key in self._bytes else sent.clone()

    def total(self, direction: str, kind: str | None = None) -> Tensor:
        """(M,) int64, each party's bytes in one direction, of one kind or of all kinds."""
        counts = [b for (k, d), b in self._bytes.items() if d == direction and kind in (None, k)]
        return torch.stack(counts).sum(0) if counts else torch.zeros(self.parties, dtype=torch.int64)

    def kinds(self, direction: str) -> tuple[str, ...]:
        """The kinds that have been sent in one direction so far."""
        return tuple(sorted(k for k, d in self._bytes if d == direction))

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint: tensors and strings only, as the safe loader requires."""
        counted = list(self._bytes.items())  # at once: a thread may ask while a leg is added
        return {f"{direction}/{kind}": count for (kind, direction), count in counted}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the counts of ``state_dict``."""
        self._bytes = {}
        for name, count in state.items():
            direction, kind = name.split("/", 1)
            self._bytes[kind, direction] = count.clone()
