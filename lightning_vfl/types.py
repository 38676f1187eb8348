"""What every part of the toolkit speaks of: batches, records, rosters, rolls and the names of rounds. Data only.

Letters, the same everywhere: M parties, P parties hosted in this process, N records, B rows of a batch, D embedding
width, S_m the per-record shape of party m's features.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Stage(StrEnum):
    """What a round is part of. A stage equals its word, and streams, logs and printed texts have the word itself."""

    FIT = "fit"
    SANITY_CHECK = "sanity check"
    VALIDATION = "validation"
    TEST = "test"
    PREDICT = "predict"

    def __repr__(self) -> str:
        return repr(self.value)  # streams of random numbers are named by the printed form


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

    def joined_by(self, joiner: int | None) -> "Roster":
        """The roster of a round in which this party joins the embeddings; None: a server joins them.

        In cascade training the joiner is the active party of the event: it holds the labels of the event's batch.
        """
        return self if joiner is None else replace(self, active=joiner)

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


def joint_rows(batch: VerticalBatch) -> Rows:
    """Where this process's rows stand in the joint batch."""
    if batch.joint is None:
        return Rows(batch.record_ids, 0, len(batch.record_ids))
    return Rows(batch.record_ids, batch.joint.start, batch.joint.total)


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
