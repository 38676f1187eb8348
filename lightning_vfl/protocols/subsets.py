"""Which subsets of the parties a training batch is computed for, so that the top also learns to predict without some.

A subset of the parties is a row mask: the batch is repeated K times, and ``present`` (K·B, M) says whose embedding
enters which row. The parties compute and send the B embeddings of the batch once, as without subsets. All copies go
through the aggregator and the top in one call.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import cache
from math import comb
from typing import Literal

import torch
from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import MissingPolicy
from lightning_vfl.rebuildable import Rebuildable
from lightning_vfl.simulation.draws import uniforms
from lightning_vfl.simulation.faults import FaultModel, RoundOutcome
from lightning_vfl.streams import stream, uniform
from lightning_vfl.types import Roll, Roster, RoundNames, Rows, VerticalBatch, joint_rows


class TaskWeights(StrEnum):
    """The weight of a subset in the loss of ``TaskSampling``."""

    TASKS = "tasks"  # each of the 2^n - 1 subsets counts the same
    RECORDS = "records"  # each copy of a record counts the same, hence each size


class DropBy(StrEnum):
    """What ``DropParties`` draws for."""

    RECORD = "record"
    ROUND = "round"


class Subsets(Rebuildable, ABC):
    """The subsets of the parties that a training batch is computed for.

    Laws, tested for every subclass: the draws are a function of (seed, stage, round) and of the position in the joint
    batch; every row has at least one party that is included and holds the record, if there is one; no party enters a
    row that it does not hold.
    """

    @abstractmethod
    def rows(self, batch: VerticalBatch, names: RoundNames, roll: Roll, roster: Roster) -> VerticalBatch:
        """The batch that the server computes: (K·B) rows with their own ``present`` and ``weights``.

        Args:
            batch: this process's part of the joint batch, B rows.
            names: the names of the round.
            roll: the parties of the round; a row has included parties only.
            roster: the parties and their roles.
        """

    @abstractmethod
    def check(self, aggregator: Aggregator, missing: MissingPolicy, roster: Roster) -> None:
        """Refuse an aggregator, a policy or parties that these subsets do not work with.

        Raises:
            ConfigurationError: before training, with what works.
        """

    @property
    @abstractmethod
    def repeats(self) -> bool:
        """Whether ``rows`` computes a record several times, so that it has several gradients in a round."""

    @property
    @abstractmethod
    def absences(self) -> tuple[FaultModel, ...]:
        """Absences that the server announces in training, for subsets of whole rounds."""

    def __repr__(self) -> str:
        settings = ", ".join(f"{k}={v!r}" for k, v in vars(self).items() if not k.startswith("_"))
        return f"{type(self).__name__}({settings})"


class Everybody(Subsets):
    """No subsets: every batch is computed once, with all parties that take part in the round."""

    def rows(self, batch: VerticalBatch, names: RoundNames, roll: Roll, roster: Roster) -> VerticalBatch:
        return batch

    def check(self, aggregator: Aggregator, missing: MissingPolicy, roster: Roster) -> None:
        return

    @property
    def repeats(self) -> bool:
        return False

    @property
    def absences(self) -> tuple[FaultModel, ...]:
        return ()


class DropParties(Subsets):
    """Leave out each party with probability p, in training only.

    Args:
        p: the probability, in [0, 1).
        keep: the parties that are never left out; None: the active party, if there is one. If a draw would leave out
            all parties, one of them stays, drawn evenly.
        by: ``record``: the server draws for every record, after the uploads; uploads and bytes do not change.
            ``round``: the server draws for the whole round and does not call these parties, which works with every
            aggregator that works without a party; these parties do not learn in the round and send no bytes.

    Raises:
        ConfigurationError: for p outside [0, 1), an unknown ``by``, and, before training, for a number in ``keep`` that
            no party has, and for an aggregator that hides uploads with ``by: record``.

    Examples:
        >>> DropParties(0.3, keep=[0])
        DropParties(p=0.3, keep=(0,), by='record')
    """

    def __init__(self, p: float, keep: Sequence[int] | None = None, by: Literal["record", "round"] = "record") -> None:
        self.p = drop_probability("p", p)
        self.keep = None if keep is None else tuple(int(party) for party in keep)
        if by not in tuple(DropBy):
            raise ConfigurationError(f"by of DropParties must be 'record' or 'round'; got {by!r}")
        self.by = str(by)
        self._rounds = (DroppedRounds(self.p, self.keep),) if self.by == DropBy.ROUND else ()

    def rows(self, batch: VerticalBatch, names: RoundNames, roll: Roll, roster: Roster) -> VerticalBatch:
        if self.by == DropBy.ROUND:
            return batch
        there = roll.holders(batch.record_ids, batch.present)
        kept = torch.zeros(there.shape[1], dtype=torch.bool, device=there.device)
        kept[list(always_kept(self.keep, roster))] = True
        drawn = draws(names, joint_rows(batch), there.shape[1], "drop").to(there.device)
        present = there & ((drawn >= self.p) | kept)
        # if all would be left out, the party with the largest draw stays: it is uniform among those that are there
        stays = drawn.masked_fill(~there, -1.0).argmax(1, keepdim=True)
        alone = torch.zeros_like(there).scatter(1, stays, True) & there
        return batch._replace(present=torch.where(present.any(1, keepdim=True), present, alone))

    def check(self, aggregator: Aggregator, missing: MissingPolicy, roster: Roster) -> None:
        if strange := [party for party in self.keep or () if not 0 <= party < roster.parties]:
            raise ConfigurationError(
                f"keep of DropParties names party {strange[0]}, but the parties are 0 to {roster.parties - 1}; correct "
                "its number"
            )
        if self.by == DropBy.RECORD:
            _refuse_hidden(self, aggregator, "DropParties with by: round")
            _refuse_stand_in(self, missing)

    @property
    def repeats(self) -> bool:
        return False

    @property
    def absences(self) -> tuple[FaultModel, ...]:
        return self._rounds


class TaskSampling(Subsets):
    r"""One random subset of each size for every record, all in one loss: a top for any subset of the parties.

    A record that n parties hold is computed n times, for k = 1 ... n with a uniformly drawn subset of k holders. With
    ``weights: tasks`` the copy of size k has weight

    .. math:: \binom{n}{k} / (2^n - 1),

    so that the expected loss is the mean over all 2^n - 1 subsets. With ``weights: records`` every copy has weight 1/n.

    Guarantee: uploads, bytes and gradients on the wire have the shapes of a round without subsets. The loss of a record
        has total weight 1.
    Not guaranteed: secrecy of single embeddings, and none is possible: of two nested sums the server could subtract
        one from the other. Aggregators that hide uploads are refused.

    Args:
        weights: ``tasks`` or ``records``.

    References:
        Valdeira, Wang, Chi, "Vertical Federated Learning with Missing Features During Training and Inference"
        (LASER-VFL), ICLR 2025, https://arxiv.org/abs/2410.22564: task sampling, there with a head at every party. The
        weights here sum its C(n-1, k-1)/k over the k heads of a subset.
    """

    def __init__(self, weights: Literal["tasks", "records"] = "tasks") -> None:
        if weights not in tuple(TaskWeights):
            raise ConfigurationError(f"weights of TaskSampling must be 'tasks' or 'records'; got {weights!r}")
        self.weights = str(weights)

    def rows(self, batch: VerticalBatch, names: RoundNames, roll: Roll, roster: Roster) -> VerticalBatch:
        there = roll.holders(batch.record_ids, batch.present)
        parties = there.shape[1]
        present = sampled_sizes(there, names, joint_rows(batch))
        weights = size_weights(there.sum(1), parties, TaskWeights(self.weights))
        if batch.weights is not None:
            weights = weights * batch.weights.repeat(parties)
        return repeated(batch, parties, present, weights)

    def check(self, aggregator: Aggregator, missing: MissingPolicy, roster: Roster) -> None:
        _refuse_hidden(self, aggregator, "DropParties with by: round")
        _refuse_stand_in(self, missing)

    @property
    def repeats(self) -> bool:
        return True

    @property
    def absences(self) -> tuple[FaultModel, ...]:
        return ()


class DroppedRounds(FaultModel):
    """Parties that the server does not call in a training round; the fault model behind ``DropParties`` by round.

    Guarantee: requests 2t and 2t + 1 have the same absent parties. At least one party is called.

    Args:
        p: the probability for each party.
        keep: the parties that are always called; None: the active party, if there is one.
    """

    def __init__(self, p: float, keep: tuple[int, ...] | None = None) -> None:
        self.p = drop_probability("p", p)
        self.keep = keep

    @property
    def tells_hosts_apart(self) -> bool:
        return False

    def sample(self, request: int, roster: Roster, seed: int) -> RoundOutcome:
        drawn = torch.from_numpy(uniforms(seed, request // 2, roster.parties, "who").copy())
        there = drawn >= self.p
        there[list(always_kept(self.keep, roster))] = True
        if not there.any():
            there[int(drawn.argmax())] = True
        return replace(RoundOutcome.nothing(roster), announced=there)

    def hosts(self, request: int, roster: Roster, seed: int) -> Tensor:
        return RoundOutcome.nothing(roster).hosts


# ---- what subsets share


def drop_probability(name: str, value: float) -> float:
    """A probability in [0, 1).

    Raises:
        ConfigurationError: for any other number.
    """
    if not 0.0 <= value < 1.0:
        raise ConfigurationError(f"{name} must be a probability from 0 to below 1; got {value}")
    return float(value)


def always_kept(keep: tuple[int, ...] | None, roster: Roster) -> tuple[int, ...]:
    """The parties that are never left out; if ``keep`` says nothing, the active party."""
    usual = () if roster.active is None else (roster.active,)
    return usual if keep is None else keep


def draws(names: RoundNames, rows: Rows, numbers: int, purpose: str) -> Tensor:
    """(B, numbers) float64 in [0, 1), this process's part of the draws of the joint batch."""
    words = stream(names.seed, "subsets", purpose, names.stage, names.round).random_raw(rows.total * numbers)
    return torch.from_numpy(uniform(words).reshape(rows.total, numbers)[rows.start : rows.start + len(rows.ids)])


def sampled_sizes(there: Tensor, names: RoundNames, rows: Rows, purpose: str = "tasks") -> Tensor:
    """(M·B, M) bool: for each size k = 1 ... M in turn, a subset of k holders for each row; none if fewer hold it."""
    records, parties = there.shape
    lots = draws(names, rows, parties * parties, purpose).to(there.device).view(records, parties, parties)
    lots = lots.masked_fill(~there.unsqueeze(1), 2.0)  # (B, size, M): absent parties come last
    order = lots.argsort(2)
    place = torch.empty_like(order).scatter_(2, order, torch.arange(parties, device=order.device).expand_as(order))
    size = torch.arange(1, parties + 1, device=there.device).view(1, parties, 1)
    enough = there.sum(1).view(records, 1, 1) >= size
    return ((place < size) & enough & there.unsqueeze(1)).transpose(0, 1).reshape(parties * records, parties)


def size_weights(holders: Tensor, parties: int, weights: TaskWeights) -> Tensor:
    """(M·B,) float32: M times the weight of each copy, sizes in turn, so that the mean over all rows is the loss.

    Args:
        holders: (B,) n, the number of holders of each record; with 0 the record has weight 0.
        parties: M.
        weights: see ``TaskSampling``.
    """
    weigh = _weight_of_task if weights == TaskWeights.TASKS else _weight_of_copy
    return table_of_sizes(parties, weigh).to(holders.device)[holders].T.reshape(-1)


@cache
def table_of_sizes(parties: int, weigh: Callable[[int, int, int], float]) -> Tensor:
    """(M+1, M) float32, in row n and column k - 1 ``weigh(M, n, k)`` for subsets of size k of n holders, else 0."""
    table = torch.zeros(parties + 1, parties)
    for n in range(1, parties + 1):
        for k in range(1, n + 1):
            table[n, k - 1] = weigh(parties, n, k)
    return table


def _weight_of_task(parties: int, holders: int, size: int) -> float:
    return parties * (comb(holders, size) / ((1 << holders) - 1))


def _weight_of_copy(parties: int, holders: int, size: int) -> float:
    return parties * (1 / holders)


def repeated(batch: VerticalBatch, copies: int, present: Tensor, weights: Tensor | None) -> VerticalBatch:
    """``copies`` of the batch one after the other; features are left as they are, because embeddings are repeated."""
    labels, joint = batch.labels, batch.joint
    return batch._replace(
        labels=None if labels is None else labels.repeat(copies, *(1,) * (labels.dim() - 1)),
        record_ids=batch.record_ids.repeat(copies),
        present=present,
        weights=weights,
        joint=None if joint is None else joint._replace(start=joint.start * copies, total=joint.total * copies),
    )


def _refuse_hidden(subsets: Subsets, aggregator: Aggregator, instead: str) -> None:
    if aggregator.wire is not None:
        raise ConfigurationError(
            f"subsets: {type(subsets).__name__} computes several subsets of one round's embeddings, which "
            f"{type(aggregator).__name__} hides or changes (the difference of two nested sums is one party's "
            f"embedding); use {instead}, or the aggregator Mean, Sum, Max or Concat"
        )


def _refuse_stand_in(subsets: Subsets, missing: MissingPolicy) -> None:
    if missing.stand_in is not None:
        raise ConfigurationError(
            f"subsets: {type(subsets).__name__} leaves absent parties out of the aggregate, but missing: "
            f"{type(missing).__name__} replaces them; use missing: Exclude or Skip"
        )
