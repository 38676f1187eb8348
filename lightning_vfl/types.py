"""Data types of the whole toolkit: batches, records, rosters, rolls and the names of rounds. No behaviour.

Letters with the same meaning everywhere: M parties, P parties hosted in this process, N records, B rows of a batch,
D embedding width, S_m the per-record shape of party m's features.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Parties = tuple[int, ...]
"""Numbers of parties."""

Widths = tuple[int, ...]
"""A width for each party, in the order of their numbers."""

Shape = tuple[int, ...]
"""The sides of a tensor; of features those of one record."""

Tensors = tuple[Tensor, ...]
"""Several tensors, most often one for each party."""


class Stage(StrEnum):
    """The stage to which a round belongs. A stage equals its string; streams, logs and texts use this string."""

    FIT = "fit"
    SANITY_CHECK = "sanity check"
    VALIDATION = "validation"
    TEST = "test"
    PREDICT = "predict"

    __repr__ = str.__repr__  # the printed form is part of the names of random streams


_STAGES = {stage: stage for stage in Stage} | {Stage.SANITY_CHECK: Stage.VALIDATION}
stage_of: Callable[[Stage], Stage] = _STAGES.__getitem__
"""The stage whose records a stage uses: the sanity check runs on validation records."""


class Event(NamedTuple):
    """One asynchronous event of a schedule; plain numbers only (seconds are virtual)."""

    number: int
    party: int
    request: int
    start: float
    end: float
    refresh: Parties


class Joint(NamedTuple):
    """The position of a rank's rows in the joint batch of all ranks: rows [start, start + B) of ``total``.

    ``held`` are the parties that hold at least one row of the joint batch; None: all parties do. ``ids`` (total,) are
    the record positions of the joint batch, if there are several ranks.
    """

    start: int
    total: int
    held: Parties | None = None
    ids: "NDArray[np.int64] | None" = None


class VerticalBatch(NamedTuple):
    """One mini-batch of records, split by columns. A NamedTuple, because Lightning refuses frozen dataclasses.

    Shapes: features[m] (B, *S_m); labels (B,) or (B, C); record_ids (B,) int64; present (B, M) bool, which party holds
    which record; weights (B,), with mean 1 over all training records, None: all weigh the same. If every participant
    has its own records, record_ids is (B, M + 1): column m has the records of party m, the last column has those of the
    participants that join embeddings; labels, present and weights are then None.
    Record ids are POSITIONS in the stage's records; the user's own ids stay in the datamodule.
    """

    features: Tensors
    labels: Tensor | None
    record_ids: Tensor
    present: Tensor | None = None
    event: Event | None = None
    joint: Joint | None = None
    weights: Tensor | None = None


@dataclass(frozen=True)
class RecordBlocks:
    """The blocks in which records are read: the records of a block lie one after the other.

    Args:
        sizes: the number of records of each block, in the order of their positions.
        together: how many blocks are in memory at a time.
    """

    sizes: tuple[int, ...]
    together: int


class RecordSource(Protocol):
    """The interface of a stage's records for protocols; the datamodule's records implement it."""

    blocks: RecordBlocks | None  # None: all records are equally fast to read
    present: Tensor | None
    label_holders: Tensor | None  # (N,) int64, the party that holds a record's label, -1: no party; None: unknown

    def __len__(self) -> int:
        """N, the number of records."""
        ...

    def rows(self, ids: Tensor) -> Tensors:
        """The features of the records at positions ``ids``: for each party (B, *S_m)."""
        ...

    def features_of(self, party: int, ids: Tensor) -> Tensor:
        """One party's features of the records at positions ``ids``, (B, *S_m)."""
        ...


@dataclass(frozen=True)
class Seat:
    """Who is hosted in a process of a federation.

    Args:
        party: the number of the one party that is hosted; None: the process is the server's.
    """

    party: int | None


class SeatedData(Protocol):
    """The interface of data for a process that has one seat; the datamodules implement it.

    Data whose parties have files of their own (``own_files``) are aligned between ``take_seat`` and ``setup``, and no
    method reads a file of another seat: ``own_ids`` of every party goes to the process with the labels, whose
    ``split_records`` makes the common order; ``align`` takes it in every other process; ``own_shape`` of every party
    and the classes go to every process, which takes them in ``told_shapes``. Other data need ``take_seat`` alone.

    After ``setup`` batches have the same records in every process. Features of other parties are NaN, and labels of
    another seat are NaN or, as classes, -2^63.
    """

    @property
    def own_files(self) -> bool:
        """Whether every party has a file of its own, so that the parties may be on different hosts."""
        ...

    @property
    def everybody_holds(self) -> bool:
        """Whether every party holds every record of the common order."""
        ...

    @property
    def party_names(self) -> tuple[str, ...]:
        """The names of the parties, in the order of their numbers."""
        ...

    def take_seat(
        self,
        seat: Seat,
        party_names: Sequence[str] | None = None,
        labels_at: int | None = None,
        copies: bool = False,
    ) -> None:
        """Say which seat this process has, before anything else.

        Args:
            seat: the seat.
            party_names: the names of the parties, in the order of their numbers; None: those of the data.
            labels_at: the party that has the labels (the roster's ``active``); None: the server has them.
            copies: every party has the labels too, in its own table.
        """
        ...

    def own_ids(self) -> "NDArray[np.generic]":
        """(n,) sorted ids of the seat's own table, int64 or text; the file is read at this moment."""
        ...

    def split_records(
        self, ids_by_party: "Mapping[int, Sequence[str] | NDArray[np.generic]]"
    ) -> "Mapping[str, NDArray[np.generic]]":
        """The common ids of each split, in order; called in the process that has the labels.

        Args:
            ids_by_party: ``own_ids`` of the other processes; empty: all have the ids of this process.
        """
        ...

    def align(
        self,
        order: "Mapping[str, Sequence[str] | NDArray[np.generic]]",
        ids_by_party: "Mapping[int, Sequence[str] | NDArray[np.generic]] | None" = None,
    ) -> None:
        """Take the ids of each split, in the common order; the process that made the order needs not call it.

        Args:
            order: the ids of each split. Where a party need not hold every record, an id that its table lacks stands
                for a record that it does not hold, and ``predict`` has all records.
            ids_by_party: at the server, ``own_ids`` of the parties, where they need not hold every record.
        """
        ...

    def own_shape(self) -> Shape:
        """The per-record shape of this party's features, after ``align``."""
        ...

    def told_shapes(
        self,
        shapes: Sequence[Sequence[int]],
        num_classes: int | None = None,
        class_names: Sequence[int | str] | None = None,
    ) -> None:
        """Take the per-record shapes of all parties, and the classes if the labels are elsewhere, before ``setup``."""
        ...

    @property
    def copies(self) -> bool:
        """Whether every party has the labels too."""
        ...

    def labels_digest(self) -> str:
        """What the labels of all divided records are compared by, if every party has them; after ``align``."""
        ...


class PartyRecords(Protocol):
    """The records of a stage, expanded by the hosted parties for ``LinearForms``; the set-up shares these."""

    def __len__(self) -> int:
        """N, the number of records."""
        ...

    def basis(self, party: int, ids: Tensor) -> Tensor:
        """(B, W_m), a hosted party's expanded features of the records at positions ``ids``."""
        ...


def only_held(tables: Tensors, present: Tensor) -> Tensors:
    """Each party's table (B, D_m), with exact zeros in the rows that it does not hold; ``present`` is (B, M) bool."""
    return tuple(torch.where(present[:, m, None], x, x.new_zeros(())) for m, x in enumerate(tables))


def over_rows(numbers: Tensor, like: Tensor) -> Tensor:
    """A number or flag for each row, (B,), in a shape that broadcasts over ``like`` (B, ...)."""
    return numbers.view(-1, *(1,) * (like.dim() - 1))


NO_RECORDS = torch.empty(0, dtype=torch.int64)
"""Positions of no record."""


def numbers_in(flags: Tensor) -> list[int]:
    """Where flags (n,) are True: the numbers of the parties in a mask, or positions of records."""
    numbers: list[int] = flags.nonzero().flatten().tolist()
    return numbers


def places(ids: Tensor, records: int) -> Tensor:
    """(N,) int64, the place of each of N records in ``ids``; -1: it is not there."""
    place = torch.full((records,), -1)
    place[ids] = torch.arange(len(ids))
    return place


def mask_of(parties: Iterable[int], m: int) -> Tensor:
    """(M,) bool, True for these parties."""
    return _mask(frozenset(parties), m).clone()


@lru_cache(maxsize=1024)  # a round asks half a dozen times, nearly always for the same parties
def _mask(parties: frozenset[int], m: int) -> Tensor:
    return torch.tensor([party in parties for party in range(m)])


class RoundNames(NamedTuple):
    """The names of a round's random streams; a rank is never part of them."""

    seed: int
    stage: Stage
    round: int


@dataclass(frozen=True)
class Roster:
    """The M parties and their roles.

    Args:
        groups: the party numbers of each group; the parties of one group hold the same columns for different records.
        active: the party that holds the labels; None if a server without features holds the labels.
        hosts: H, the number of participants that join embeddings; only decoupled training has several.
    """

    groups: tuple[Parties, ...]
    active: int | None = None
    hosts: int = 1

    @classmethod
    @cache
    def singles(cls, parties: int, active: int | None = None) -> "Roster":
        """A roster in which every party is a group of its own: conventional VFL."""
        return cls(tuple((m,) for m in range(parties)), active)

    @cached_property
    def parties(self) -> int:
        """M, the number of parties."""
        return sum(len(group) for group in self.groups)

    @property
    def everybody(self) -> Tensor:
        """(M,) bool, all parties; a new tensor each time."""
        return torch.ones(self.parties, dtype=torch.bool)

    @cached_property
    def shared(self) -> tuple[Parties, ...]:
        """The groups of several parties, which share one bottom."""
        return tuple(group for group in self.groups if len(group) > 1)

    @cached_property
    def passive(self) -> tuple[Parties, ...]:
        """The groups without the group of the active party, C_0 (vFedSec, section 3.1)."""
        return tuple(group for group in self.groups if self.active not in group)

    def joined_by(self, joiner: int | None) -> "Roster":
        """The roster of a round in which this party joins the embeddings; None: a server joins them.

        In cascade training the joiner is the active party of the event: it holds the labels of the event's batch.
        """
        return self if joiner is None else replace(self, active=joiner)

    def whole(self, parties: Tensor) -> Tensor:
        """(M,) bool, the parties whose whole group is in ``parties``."""
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
    """This process's rows of the joint batch."""
    if batch.joint is None:
        return Rows(batch.record_ids, 0, len(batch.record_ids))
    return Rows(batch.record_ids, batch.joint.start, batch.joint.total)


@dataclass(frozen=True)
class Roll:
    """The role of each party in a round: four (M,) bool masks on the CPU; filled and included are disjoint.

    Args:
        called: the party is called; known before the round. Masks are made between the called parties.
        included: the party's new contribution is in the aggregate.
        responders: the party has answered the last leg.
        filled: a replacement (zeros, a stale embedding) counts in the divisor.
    """

    called: Tensor
    included: Tensor
    responders: Tensor
    filled: Tensor

    @classmethod
    def of(cls, taking_part: Tensor) -> "Roll":
        """``taking_part`` (M,) bool are called and answer every leg; the others are absent and not replaced."""
        return cls(taking_part, taking_part, taking_part, torch.zeros_like(taking_part))

    @classmethod
    @cache
    def everyone(cls, parties: int) -> "Roll":
        """The roll of a round without faults."""
        roll = cls.of(torch.ones(parties, dtype=torch.bool))
        _ = roll.complete, roll.included_parties  # torch.export cannot read them from tensors that it traces
        return roll

    @cached_property
    def complete(self) -> bool:
        """Whether every party's new contribution is in the aggregate."""
        return bool(self.included.all())

    @cached_property
    def included_parties(self) -> Parties:
        """The numbers of the included parties."""
        return tuple(numbers_in(self.included))

    @cached_property
    def responding(self) -> Parties:
        """The numbers of the parties that have answered the last leg."""
        return tuple(numbers_in(self.responders))

    def holders(self, like: Tensor, present: Tensor | None) -> Tensor:
        """(B, M) bool, the included parties that hold each record.

        Args:
            like: (B, ...), has the number of records and the device.
            present: (B, M) bool, the parties that hold each record; None: all.
        """
        included = self.included.to(like.device)
        return included.expand(len(like), -1) if present is None else present & included

    @cached_property
    def counted(self) -> Parties:
        """The parties that count in the aggregate: included or filled."""
        return tuple(numbers_in(self.included | self.filled))
