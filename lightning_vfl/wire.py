"""What parties and server exchange in a round, and what each of them may read. Data only, no behaviour.

The letters are those of ``lightning_vfl.types``.
"""

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal

from torch import Tensor

from lightning_vfl.types import Roll, Roster, RoundNames, Rows


class Gate(StrEnum):
    """When the server stops waiting for the messages of a leg."""

    ALL = "all"  # when every called party has answered, or the waiting rule has lost its patience
    RULE = "rule"  # when the protocol's waiting rule says so
    PREVIOUS = "previous"  # with the leg before this one, in whose messages this leg travels


@dataclass(frozen=True, eq=False)  # tensors have no one truth to compare by
class Leg:
    """Planned traffic, stated from shapes alone before anything is computed.

    Args:
        kind: what it is called in every table, e.g. ``"embeddings"``.
        to: ``server`` and ``peers`` name a leg of the parties; ``parties`` is the server's answer.
        elements: (M,) int64, numbers that a sender puts on the wire IN ALL (for ``parties``: that a party is sent); to
            peers, those for all M - 1 of them.
        bits: wire size of one number.
        flops: (M,) float64, work of the sender before sending (for ``parties``: of the server, per party).
        gate: when the server stops waiting for the leg; a number: after so many answers.
        delay_share: how many times an injected delay falls on this leg; FedVS 6.2 puts (ln² M) / B on sharing models.
    """

    kind: str
    to: Literal["server", "peers", "parties"]
    elements: Tensor
    bits: int
    flops: Tensor
    gate: Gate | int = Gate.RULE
    delay_share: float = 1.0

    def among(self, called: int) -> "Leg":
        """This leg in a round with so many called parties: peers who are not called are sent nothing."""
        parties = len(self.elements)
        if self.to != "peers" or called == parties or parties == 1:
            return self
        return replace(self, elements=self.elements // (parties - 1) * max(called - 1, 0))

    @cached_property
    def bytes(self) -> Tensor:
        """(M,) int64 whole bytes on the wire; a party's last byte of a leg is padded."""
        return (self.elements * self.bits + 7) // 8


@dataclass(frozen=True)
class Message:
    """What several senders put on the wire in one leg, or what the server sends several parties.

    Args:
        kind: what it is called in every table.
        to: ``server``, ``peers``, or ``parties`` for a message of the server, which has no senders.
        senders: the parties that send it.
        pieces: one for each sender, ragged allowed; to ``parties``, one for each receiver. To peers, axis 0 of a piece
            is the receiver; the sender's own part is among them and never on the wire.
        alongside: what the same senders send in the same leg under another kind.
        receivers: the parties that pieces were made for; None: all M.
        round: the round that the sender means it for, so that a receiver can refuse an old message; None: not said.
        relayed: to the server, which hands it on unchanged to the parties that answer, and does not decode it.
    """

    kind: str
    to: Literal["server", "peers", "parties"]
    senders: tuple[int, ...]
    pieces: tuple[Tensor, ...]
    alongside: "Message | None" = None
    receivers: tuple[int, ...] | None = None
    round: RoundNames | None = None
    relayed: bool = False


@dataclass(frozen=True)
class PartyView:
    """All that the P hosted parties may read in a round, besides their own features and weights.

    Args:
        names: names of the round's randomness.
        roster: who takes part in the training.
        parties: the parties hosted here.
        called: (M,) bool.
        rows: this rank's rows.
        memory: the keys or shares that the hosted parties hold after set-up or the beginning of the round. They are
            held together so that one call can compute with all of them; never in a checkpoint.
        present: (B, P) bool, which rows a hosted party holds; None: all.
        agreed: public settings that were settled in set-up, by name.
        receivers: the peers that will answer, None: all; a simulation need not make shares for the others.
        notes: values about the parties' own side that the run logs, by name; never sent.
    """

    names: RoundNames
    roster: Roster
    parties: tuple[int, ...]
    called: Tensor
    rows: Rows
    memory: Any = None
    present: Tensor | None = None
    agreed: Mapping[str, Any] = field(default_factory=dict)
    receivers: tuple[int, ...] | None = None
    notes: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerView:
    """All that the server may read in a round, besides the messages sent to it; it has no memory.

    Args:
        names: names of the round's randomness.
        roster: who takes part in the training.
        rows: this rank's rows.
        roll: who is what in this round.
        widths: embedding width of each party.
        present: (B, M) bool, filled in only for aggregators whose uploads the server reads anyway (``visible``).
        records: N, the number of records of the stage; 0: not known.
        agreed: public settings that were settled in set-up, by name.
    """

    names: RoundNames
    roster: Roster
    rows: Rows
    roll: Roll
    widths: tuple[int, ...]
    present: Tensor | None = None
    records: int = 0
    agreed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Contribution(ABC):
    """What parties bring into a round; ``leaves`` are the tensors that gradients are wanted of."""

    leaves: tuple[Tensor, ...]


@dataclass(frozen=True)
class Embeddings(Contribution):
    """Finished embeddings: leaves[m] = h_m, (B, D_m)."""


@dataclass(frozen=True)
class LinearForms(Contribution):
    """Embeddings not yet multiplied out: h_m = basis[m] @ leaves[m], basis (B, W_m) and weight (W_m, D)."""

    basis: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Aggregate:
    """What the server holds after decode.

    Args:
        value: (B, D_out).
        columns: (D_out,) bool, False where a segment of the joint embedding is absent.
        saved: what the server needs again for its answer.
        corrected: parties whose answers were wrong and have been corrected.
    """

    value: Tensor
    columns: Tensor
    saved: Any = None
    corrected: tuple[int, ...] = ()
