"""What travels between the rooms of the toolkit: batches, rounds, views and messages. Data only, no behaviour.

Letters, the same everywhere: M parties, P parties hosted in this process, N records, B rows of a batch, D embedding
width, S_m the per-record shape of party m's features.
"""

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Stage = Literal["fit", "sanity check", "validation", "test", "predict"]


class Event(NamedTuple):
    """What a schedule says about one asynchronous event; plain numbers only (seconds are virtual)."""

    number: int
    party: int
    request: int
    start: float
    end: float
    refresh: tuple[int, ...]


class Joint(NamedTuple):
    """Where a rank's rows stand in the batch that all ranks share: rows [start, start + B) of ``total``.

    ``held`` are the parties that hold at least one row of the joint batch; None: all parties do. ``ids`` (total,) are
    the joint batch's record positions, where several ranks share it.
    """

    start: int
    total: int
    held: tuple[int, ...] | None = None
    ids: "NDArray[np.int64] | None" = None


class VerticalBatch(NamedTuple):
    """One mini-batch of records, cut by columns. A NamedTuple, because Lightning refuses frozen dataclasses.

    Shapes: features[m] (B, *S_m); labels (B,) or (B, C); record_ids (B,) int64; present (B, M) bool. Where every
    participant has records of its own, record_ids (B, M + 1): column m those of party m, the last those of whoever
    joins embeddings; labels and present are None.
    Record ids are POSITIONS in the stage's records; the user's own ids stay in the datamodule.
    """

    features: tuple[Tensor, ...]
    labels: Tensor | None
    record_ids: Tensor
    present: Tensor | None = None
    event: Event | None = None
    joint: Joint | None = None


class RecordSource(Protocol):
    """What a protocol may ask about the records of a stage; the datamodule's records satisfy it."""

    present: Tensor | None
    label_holders: Tensor | None  # (N,) int64, the party that holds a record's label, -1: nobody; None: it is not said

    def __len__(self) -> int:
        """N, the number of records."""
        ...

    def rows(self, ids: Tensor) -> tuple[Tensor, ...]:
        """The features of these positions, (B, *S_m) a party."""
        ...

    def features_of(self, party: int, ids: Tensor) -> Tensor:
        """One party's features of these positions, (B, *S_m)."""
        ...


class PartyRecords(Protocol):
    """The records of a stage, as the hosted parties expand them for ``LinearForms``: what set-up shares out."""

    def __len__(self) -> int:
        """N, the number of records."""
        ...

    def basis(self, party: int, ids: Tensor) -> Tensor:
        """(B, W_m), a hosted party's expanded features of these positions."""
        ...


class RoundNames(NamedTuple):
    """The names under which a round draws its randomness; never a rank."""

    seed: int
    stage: Stage
    round: int


@dataclass(frozen=True)
class Roster:
    """The M parties and their roles.

    Args:
        groups: party numbers; the parties of one group hold the same columns for different records.
        active: the party that holds the labels, None if the labels are held by a server without features.
        hosts: H, how many joiners of embeddings there are; only decoupled training has several.
    """

    groups: tuple[tuple[int, ...], ...]
    active: int | None = None
    hosts: int = 1

    @classmethod
    def singles(cls, parties: int, active: int | None = None) -> "Roster":
        """Every party is a group of its own: conventional VFL."""
        return cls(tuple((m,) for m in range(parties)), active)

    @cached_property
    def parties(self) -> int:
        """M."""
        return sum(len(group) for group in self.groups)

    @cached_property
    def shared(self) -> tuple[tuple[int, ...], ...]:
        """The groups of several parties, which share one bottom."""
        return tuple(group for group in self.groups if len(group) > 1)

    @cached_property
    def passive(self) -> tuple[tuple[int, ...], ...]:
        """The groups without the active party's: C_0 stands apart (vFedSec, section 3.1)."""
        return tuple(group for group in self.groups if self.active not in group)

    def whole(self, parties: Tensor) -> Tensor:
        """(M,) bool: of these parties, those whose whole group is among them."""
        if not self.shared:
            return parties
        complete = parties.clone()
        for group in self.shared:
            complete[list(group)] = bool(parties[list(group)].all())
        return complete


@dataclass(frozen=True)
class Rows:
    """This rank's rows [start, start + len(ids)) of the joint batch of ``total`` rows; ids (B,) int64."""

    ids: Tensor
    start: int
    total: int


@dataclass(frozen=True)
class Roll:
    """Who is what in a round: four (M,) bool masks on the CPU; filled and included are disjoint.

    Args:
        called: known before the round; masks run over these.
        included: a fresh contribution is in the aggregate.
        responders: answered the last leg.
        filled: a stand-in (zeros, a stale embedding) counts in the divisor.
    """

    called: Tensor
    included: Tensor
    responders: Tensor
    filled: Tensor

    @classmethod
    def of(cls, taking_part: Tensor) -> "Roll":
        """These parties, (M,) bool, are called and answer everything; the others are away and nobody stands in."""
        return cls(taking_part, taking_part, taking_part, torch.zeros_like(taking_part))

    @classmethod
    @cache
    def everyone(cls, parties: int) -> "Roll":
        """The faultless round."""
        return cls.of(torch.ones(parties, dtype=torch.bool))

    @cached_property
    def complete(self) -> bool:
        """Whether every party's fresh contribution is in the aggregate."""
        return bool(self.included.all())

    @cached_property
    def included_parties(self) -> tuple[int, ...]:
        """The numbers of the included parties."""
        return tuple(self.included.nonzero().flatten().tolist())

    @cached_property
    def counted(self) -> tuple[int, ...]:
        """The parties that count in the aggregate: included or filled."""
        return tuple((self.included | self.filled).nonzero().flatten().tolist())


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
        gate: who closes the leg: ``all`` called parties, the protocol's waiting ``rule``, or the first n; ``previous``
            travels with the leg before it and is closed with it.
        delay_share: how many times an injected delay falls on this leg; FedVS 6.2 puts (ln² M) / B on sharing models.
    """

    kind: str
    to: Literal["server", "peers", "parties"]
    elements: Tensor
    bits: int
    flops: Tensor
    gate: Literal["all", "rule", "previous"] | int = "rule"
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
    """What several senders put on the wire in one leg: one piece a sender, ragged allowed.

    In a message to peers, axis 0 of a piece is the receiver. The sender's own part is among them; it is never on the
    wire. ``receivers`` names them, where pieces for the others were not made; None: all M. ``alongside`` is what the
    same senders send in the same leg under a kind of its own. ``round`` names the round that it belongs to, set by the
    sender so that a receiver can refuse what is stale; None: the sender has not said.
    """

    kind: str
    to: Literal["server", "peers"]
    senders: tuple[int, ...]
    pieces: tuple[Tensor, ...]
    alongside: "Message | None" = None
    receivers: tuple[int, ...] | None = None
    round: RoundNames | None = None


@dataclass(frozen=True)
class PartyView:
    """All that the P hosted parties may read in a round, besides their own features and weights.

    Args:
        names: names of the round's randomness.
        roster: who takes part in the training.
        parties: the parties hosted here.
        called: (M,) bool.
        rows: this rank's rows.
        memory: what set-up left with the hosted parties (keys, shares), together so that they can be computed with in
            one call; never in a checkpoint.
        present: (B, P) bool, which rows a hosted party holds; None: all.
        agreed: public settings that were settled in set-up, by name.
        receivers: who of the peers will be heard again, None: all; a simulation need not compute the rest.
        notes: what the run writes in its log about the parties' own side, by name; it is never sent.
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
        saved: whatever ``pullback`` needs again.
        corrected: parties whose answers were wrong and have been corrected.
    """

    value: Tensor
    columns: Tensor
    saved: Any = None
    corrected: tuple[int, ...] = ()
