"""The messages of a round, and the views of parties and server: the data that each may read. No behaviour.

Letters as in ``lightning_vfl.types``.
"""

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_vfl.types import Parties, Roll, Roster, RoundNames, Rows, Stage, Tensors, Widths


class Gate(StrEnum):
    """When the server stops waiting for the messages of a leg."""

    ALL = "all"  # when every called party has answered, or after the patience of the waiting rule
    RULE = "rule"  # when the protocol's waiting rule closes the leg
    PREVIOUS = "previous"  # with the leg before this one, in whose messages this leg is sent


_NO_WORK = torch.empty(0)  # stands for M zeros


@dataclass(frozen=True, eq=False)  # comparing tensors gives no single truth value
class Leg:
    """Planned traffic, computed from shapes alone before any message.

    Args:
        kind: the name in every table, for example ``"embeddings"``.
        to: ``server`` and ``peers`` name a leg of the parties; ``parties`` is the server's answer.
        elements: (M,) int64, numbers that a sender sends IN ALL (for ``parties``: that a party receives); to peers: the
            numbers for all M - 1 peers together.
        bits: the size of one number on the wire.
        flops: (M,) float64, the work of the sender before sending (for ``parties``: of the server, per party); default:
            none.
        gate: when the server stops waiting for the leg; a number: after so many answers.
        delay_share: the factor of an injected delay on this leg; FedVS 6.2 uses (ln² M) / B for sharing models.
    """

    kind: str
    to: Literal["server", "peers", "parties"]
    elements: Tensor
    bits: int
    flops: Tensor = _NO_WORK
    gate: Gate | int = Gate.RULE
    delay_share: float = 1.0

    def __post_init__(self) -> None:
        if self.flops is _NO_WORK:
            object.__setattr__(self, "flops", torch.zeros(len(self.elements), dtype=torch.float64))

    def among(self, called: int) -> "Leg":
        """This leg in a round with ``called`` called parties: no message goes to peers that are not called."""
        parties = len(self.elements)
        if self.to != "peers" or called == parties or parties == 1:
            return self
        return replace(self, elements=self.elements // (parties - 1) * max(called - 1, 0))

    def of_stage(self, stage: Stage) -> "Leg":
        """This leg in a round of a stage: the legs of evaluations have kinds of their own."""
        return self if stage == Stage.FIT else replace(self, kind=f"{stage} {self.kind}")

    @cached_property
    def bytes(self) -> Tensor:
        """(M,) int64, whole bytes on the wire; the last byte of a party's leg is padded."""
        return (self.elements * self.bits + 7) // 8


@dataclass(frozen=True)
class Message:
    """The messages of several senders in one leg, or the messages of the server to several parties.

    Args:
        kind: the name in every table.
        to: ``server``, ``peers``, or ``parties`` for a message of the server, which has no senders.
        senders: the parties that send it.
        pieces: one for each sender, of any sizes; to ``parties``, one for each receiver. To peers, axis 0 of a piece is
            the receiver; the piece includes the sender's own part, which is never sent.
        alongside: a message of another kind that the same senders send in the same leg.
        receivers: the parties for which pieces were made; None: all M.
        round: the number of the message's round, so that a receiver can refuse an old message; None: not stated.
        relayed: whether the server forwards the message unchanged to the parties that answer, without decoding it.
        lasting: whether nobody will write into the pieces again, and all of the memory behind them is theirs: who
            keeps all of them needs no copy.
    """

    kind: str
    to: Literal["server", "peers", "parties"]
    senders: Parties
    pieces: Tensors
    alongside: "Message | None" = None
    receivers: Parties | None = None
    round: RoundNames | None = None
    relayed: bool = False
    lasting: bool = False

    @property
    def by_sender(self) -> dict[int, Tensor]:
        """The piece of each sender."""
        return dict(zip(self.senders, self.pieces, strict=True))


@dataclass(frozen=True)
class PartyView:
    """All data that the P hosted parties may read in a round, besides their own features and weights.

    Args:
        names: the names of the round's random streams.
        roster: the parties of the training.
        parties: the parties hosted in this process.
        called: (M,) bool, the called parties.
        rows: this rank's rows.
        memory: the keys or shares of the hosted parties after the set-up or the opening of the round. They are stored
            together so that one call can compute with all of them. They are never in a checkpoint.
        present: (B, P) bool, the rows that a hosted party holds; None: all rows.
        agreed: public settings that the set-up has fixed, by name.
        receivers: the peers that will answer; None: all. A simulation makes shares only for these peers.
        notes: values about the parties' side that the run logs, by name; never sent.
        renew: whether keys are renewed in this round; None: as the number of the round says.
    """

    names: RoundNames
    roster: Roster
    parties: Parties
    called: Tensor
    rows: Rows
    memory: Any = None
    present: Tensor | None = None
    agreed: Mapping[str, Any] = field(default_factory=dict)
    receivers: Parties | None = None
    notes: dict[str, float] = field(default_factory=dict)
    renew: bool | None = None

    @property
    def called_places(self) -> list[int]:
        """The places among the hosted parties of those that are called."""
        return [place for place, party in enumerate(self.parties) if self.called[party]]


@dataclass(frozen=True)
class ServerView:
    """All data that the server may read in a round, besides the messages sent to it; the server has no memory.

    Args:
        names: the names of the round's random streams.
        roster: the parties of the training.
        rows: this rank's rows.
        roll: the role of each party in this round.
        widths: the embedding width of each party.
        present: (B, M) bool, which party holds which row; set only for aggregators whose uploads the server can read
            (``visible``).
        records: N, the number of records of the stage; 0: unknown.
        agreed: public settings that the set-up has fixed, by name.
        joiner: the party that plays the server in this round; None: the server itself.
    """

    names: RoundNames
    roster: Roster
    rows: Rows
    roll: Roll
    widths: Widths
    present: Tensor | None = None
    records: int = 0
    agreed: Mapping[str, Any] = field(default_factory=dict)
    joiner: int | None = None


@dataclass(frozen=True)
class Contribution(ABC):
    """The parties' contribution to a round; ``leaves`` are the tensors that receive gradients."""

    leaves: Tensors


@dataclass(frozen=True)
class Embeddings(Contribution):
    """Computed embeddings: leaves[m] = h_m, (B, D_m)."""


@dataclass(frozen=True)
class LinearForms(Contribution):
    """Embeddings as products that are not computed yet: h_m = basis[m] @ leaves[m], basis (B, W_m), leaf (W_m, D)."""

    basis: Tensors = ()

    @cached_property
    def side_by_side(self) -> Tensor:
        """(B, Σ W_m), the bases of all hosted parties; joined once, for work on all of them in one call."""
        return torch.cat(self.basis, dim=1)


@dataclass(frozen=True)
class Aggregate:
    """The server's result after decoding.

    Args:
        value: (B, D_out).
        saved: the values that the server needs for its answer.
        corrected: the parties whose answers were wrong and were corrected.
    """

    value: Tensor
    saved: Any = None
    corrected: Parties = ()
