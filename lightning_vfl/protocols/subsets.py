"""Which subsets of the parties a training batch is computed for, so that the top also learns to predict without some.

A subset of the parties is a row mask: the batch is repeated K times, and ``present`` (K·B, M) says whose embedding
enters which row. The parties compute and send the B embeddings of the batch once, as without subsets. All copies go
through the aggregator and the top in one call.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from math import comb
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.checks import one_of, within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import MissingPolicy
from lightning_vfl.rebuildable import Rebuildable, printed
from lightning_vfl.simulation.draws import uniforms
from lightning_vfl.simulation.faults import FaultModel, RoundOutcome
from lightning_vfl.streams import stream, uniform
from lightning_vfl.types import Parties, Roll, Roster, RoundNames, Rows, VerticalBatch, joint_rows

DropBy = Literal["record", "round"]
TaskWeights = Literal["tasks", "records"]
"""The weight of a subset in a loss: each of the 2^n - 1 subsets counts the same, or each size."""
EachSize = Literal["one", "disjoint", "all"]
"""Which subsets of a size are computed for a record."""
MOST_FOR_ALL = 8  # parties for which all subsets are computed: 255 copies of a batch


class Subsets(Rebuildable, ABC):
    """The subsets of the parties that a training batch is computed for.

    Laws, tested for every subclass: the draws are a function of (seed, stage, round) and of the position in the joint
    batch; every row has at least one party that is included and holds the record, if there is one; no party enters a
    row that it does not hold.

    Attributes:
        repeats: whether ``rows`` computes a record several times, so that it has several gradients in a round.
    """

    repeats: ClassVar[bool] = False

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
    def absences(self) -> tuple[FaultModel, ...]:
        """Absences that the server announces in training, for subsets of whole rounds; default: none."""
        return ()

    __repr__ = printed


class Everybody(Subsets):
    """No subsets: every batch is computed once, with all parties that take part in the round."""

    def rows(self, batch: VerticalBatch, names: RoundNames, roll: Roll, roster: Roster) -> VerticalBatch:
        return batch

    def check(self, aggregator: Aggregator, missing: MissingPolicy, roster: Roster) -> None:
        return


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

    def __init__(self, p: float, keep: Sequence[int] | None = None, by: DropBy = "record") -> None:
        self.p = float(within("p", p, 0, below=1))
        self.keep = None if keep is None else tuple(int(party) for party in keep)
        self.by = one_of("by of DropParties", by, get_args(DropBy))
        self._rounds = (DroppedRounds(self.p, self.keep),) if self.by == "round" else ()

    def rows(self, batch: VerticalBatch, names: RoundNames, roll: Roll, roster: Roster) -> VerticalBatch:
        if self.by == "round":
            return batch
        there = roll.holders(batch.record_ids, batch.present)
        kept = always_kept(self.keep, roster).to(there.device)
        drawn = draws(names, joint_rows(batch), there.shape[1], "drop").to(there.device)
        present = there & ((drawn >= self.p) | kept)
        # if all would be left out, the party with the largest draw stays: it is uniform among those that are there
        stays = drawn.masked_fill(~there, -1.0).argmax(1, keepdim=True)
        alone = torch.zeros_like(there).scatter(1, stays, True) & there
        return batch._replace(present=torch.where(present.any(1, keepdim=True), present, alone))

    def check(self, aggregator: Aggregator, missing: MissingPolicy, roster: Roster) -> None:
        for party in self.keep or ():
            within("a party of keep", party, 0, roster.parties - 1, whole=True)
        if self.by == "record":
            _refuse_hidden(self, aggregator, missing)

    @property
    def absences(self) -> tuple[FaultModel, ...]:
        return self._rounds


class TaskSampling(Subsets):
    r"""Random subsets of each size for every record, all in one loss: a top for any subset of the parties.

    A record that n parties hold is computed for subsets of its holders of the sizes k = 1 ... n, drawn uniformly. With
    ``weights: tasks`` the subsets of size k have together the weight

    .. math:: \binom{n}{k} / (2^n - 1),

    so that the expected loss is the mean over all 2^n - 1 subsets. With ``weights: records`` every size has weight 1/n.
    The subsets of one size share its weight evenly.

    Guarantee: uploads, bytes and gradients on the wire have the shapes of a round without subsets. The loss of a record
        has total weight 1. Its expectation does not depend on ``each_size``.
    Not guaranteed: secrecy of single embeddings, and none is possible: of two nested sums the server could subtract
        one from the other. Aggregators that hide uploads are refused.

    Args:
        weights: ``tasks`` or ``records``.
        each_size: the subsets of size k that are computed for a record. ``one`` random subset. ``disjoint``: the n // k
            subsets of a random division of the holders, so that every party is also alone once. ``all``: every subset,
            and nothing is drawn. More subsets make the gradient less noisy and the step more expensive: with M = 4 a
            record is computed 4, 8 or 15 times, with M = 8 it is 8, 20 or 255 times.

    Raises:
        ConfigurationError: for other words, and, before training, for ``all`` with more than 8 parties.

    References:
        Valdeira, Wang, Chi, "Vertical Federated Learning with Missing Features During Training and Inference"
        (LASER-VFL), ICLR 2025, https://arxiv.org/abs/2410.22564: task sampling, there with a head at every party. The
        weights here sum its C(n-1, k-1)/k over the k heads of a subset.
    """

    repeats = True

    def __init__(
        self,
        weights: TaskWeights = "tasks",
        each_size: EachSize = "one",
    ) -> None:
        self.weights = one_of("weights of TaskSampling", weights, get_args(TaskWeights))
        self.each_size = one_of("each_size of TaskSampling", each_size, get_args(EachSize))

    def rows(self, batch: VerticalBatch, names: RoundNames, roll: Roll, roster: Roster) -> VerticalBatch:
        there = roll.holders(batch.record_ids, batch.present)
        weights = size_weights(there.sum(1), there.shape[1], self.weights, self.each_size)
        if self.each_size == "all":
            present = every_subset(there)
            weights = weights * present.any(1)  # it counts if all its members hold the record, which n does not say
        else:
            present = sampled_sizes(there, names, joint_rows(batch), self.each_size)
        copies = len(present) // len(there)
        if batch.weights is not None:
            weights = weights * batch.weights.repeat(copies)
        return repeated(batch, copies, present, weights)

    def check(self, aggregator: Aggregator, missing: MissingPolicy, roster: Roster) -> None:
        if self.each_size == "all" and roster.parties > MOST_FOR_ALL:
            raise ConfigurationError(
                f"each_size: all computes each record for {2**roster.parties - 1} subsets of {roster.parties} parties, "
                f"and works with up to {MOST_FOR_ALL} parties; use each_size: disjoint"
            )
        _refuse_hidden(self, aggregator, missing)


class DroppedRounds(FaultModel):
    """Parties that the server does not call in a training round; the fault model behind ``DropParties`` by round.

    Guarantee: requests 2t and 2t + 1 have the same absent parties. At least one party is called.

    Args:
        p: the probability for each party.
        keep: the parties that are always called; None: the active party, if there is one.
    """

    def __init__(self, p: float, keep: Parties | None) -> None:
        self.p = float(within("p", p, 0, below=1))
        self.keep = keep

    @property
    def announces(self) -> bool:
        return self.p > 0

    @property
    def tells_hosts_apart(self) -> bool:
        return False

    def sample(self, request: int, roster: Roster, seed: int) -> RoundOutcome:
        drawn = torch.from_numpy(uniforms(seed, request // 2, roster.parties, "who").copy())
        there = (drawn >= self.p) | always_kept(self.keep, roster)
        if not there.any():
            there[int(drawn.argmax())] = True
        return replace(RoundOutcome.nothing(roster), announced=there)

    def hosts(self, request: int, roster: Roster, seed: int) -> Tensor:
        return RoundOutcome.nothing(roster).hosts


# ---- what subsets share


def always_kept(keep: Parties | None, roster: Roster) -> Tensor:
    """(M,) bool, the parties that are never left out; if ``keep`` says nothing, the active party."""
    usual = () if roster.active is None else (roster.active,)
    kept = torch.zeros(roster.parties, dtype=torch.bool)
    kept[list(usual if keep is None else keep)] = True
    return kept


def _refuse_hidden(subsets: Subsets, aggregator: Aggregator, missing: MissingPolicy) -> None:
    """Refuse an aggregator that hides uploads, and a policy that replaces them."""
    name = type(subsets).__name__
    if aggregator.wire is not None:
        raise ConfigurationError(
            f"subsets: {name} computes several subsets of one round's embeddings, which {type(aggregator).__name__} "
            "hides or changes (the difference of two nested sums is one party's embedding); use DropParties with by: "
            "round, or the aggregator Mean, Sum, Max or Concat"
        )
    if missing.stand_in is not None:
        raise ConfigurationError(
            f"subsets: {name} leaves absent parties out of the aggregate, but missing: {type(missing).__name__} "
            "replaces them; use missing: Exclude or Skip"
        )


# ---- the copies of a batch that ``TaskSampling`` and ``LaserVFL`` compute: drawn subsets, and weights


def draws(names: RoundNames, rows: Rows, numbers: int, purpose: str) -> Tensor:
    """(B, numbers) float64 in [0, 1), this process's part of the draws of the joint batch."""
    words = stream(names.seed, "subsets", purpose, names.stage, names.round).random_raw(rows.total * numbers)
    joint = torch.from_numpy(uniform(words)).view(rows.total, numbers)
    return joint[rows.start : rows.start + len(rows.ids)]


def sampled_sizes(there: Tensor, names: RoundNames, rows: Rows, each_size: EachSize = "one") -> Tensor:
    """(K·B, M) bool: K subsets of the holders of each row, one after the other, by size; none if the row has too few.

    Args:
        there: (B, M) bool, the holders of each record.
        names: the names of the round.
        rows: this process's part of the joint batch.
        each_size: ``one`` or ``disjoint``.
    """
    records, parties = there.shape
    device = there.device
    lots = draws(names, rows, parties * parties, "tasks").to(device).view(records, parties, parties)
    lots = lots.masked_fill(~there.unsqueeze(1), 2.0)  # (B, size, M): absent parties come last
    order = lots.argsort(2)
    places = torch.arange(parties, device=device).expand_as(order)
    place = torch.empty_like(order).scatter_(2, order, places)  # of each party in the order
    sizes, blocks = (slot.to(device).unsqueeze(1) for slot in _slots(parties, each_size))
    enough = there.sum(1).view(records, 1, 1) >= sizes * (blocks + 1)
    if each_size == "one":
        drawn = place < sizes
    else:  # one order of the holders for each size, cut into blocks of this size
        drawn = place[:, sizes[:, 0] - 1].div(sizes, rounding_mode="floor") == blocks
    return (drawn & enough & there.unsqueeze(1)).transpose(0, 1).reshape(-1, parties)


def every_subset(there: Tensor) -> Tensor:
    """(K·B, M) bool: each of the K = 2^M - 1 subsets in turn, by size; none where a member does not hold the row."""
    subsets = _subsets_by_size(there.shape[1]).to(there.device).unsqueeze(1)
    whole = (there | ~subsets).all(2, keepdim=True)
    return (subsets & whole).reshape(-1, there.shape[1])


def size_weights(holders: Tensor, parties: int, weights: TaskWeights, each_size: EachSize = "one") -> Tensor:
    """(K·B,) float32: K times the weight of each copy, copies in turn, so that the mean over all rows is the loss.

    Args:
        holders: (B,) n, the number of holders of each record; with 0 the record has weight 0.
        parties: M.
        weights: see ``TaskSampling``.
        each_size: see ``TaskSampling``; with ``all``, the weights are those of subsets of holders.
    """
    return _weights_of_copies(parties, weights, each_size).to(holders.device)[holders].T.reshape(-1)


@cache
def _slots(parties: int, each_size: EachSize) -> tuple[Tensor, Tensor]:
    """The K subsets of a record that all hold: (K,) sizes, and (K,) numbers among those of the same size."""
    sizes = range(1, parties + 1)
    how_many = {k: _subsets_of_size(parties, k, each_size) for k in sizes}
    pairs = torch.tensor([(k, block) for k in sizes for block in range(how_many[k])])
    return pairs[:, 0], pairs[:, 1]


@cache
def _subsets_by_size(parties: int) -> Tensor:
    """(2^M - 1, M) bool, all subsets that are not empty, by size."""
    everybody = range(parties)
    subsets = [members for size in range(1, parties + 1) for members in combinations(everybody, size)]
    return torch.tensor([[party in members for party in everybody] for members in subsets])


def _subsets_of_size(holders: int, size: int, each_size: EachSize) -> int:
    """The number of subsets of a size that are computed for a record."""
    if each_size == "one":
        return 1
    return holders // size if each_size == "disjoint" else comb(holders, size)


@cache
def _weights_of_copies(parties: int, weights: TaskWeights, each_size: EachSize) -> Tensor:
    """(M+1, K) float32, in row n the weights of the K copies of a record with n holders, times K."""
    sizes, blocks = _slots(parties, each_size)
    slots = list(zip(sizes.tolist(), blocks.tolist(), strict=True))
    table = torch.zeros(parties + 1, len(slots))
    for n in range(1, parties + 1):
        for copy, (size, block) in enumerate(slots):
            alike = _subsets_of_size(n, size, each_size)
            if size > n or (block >= alike and each_size != "all"):
                continue  # a record with n holders has no such subset
            # of all subsets of one size together: C(n, k) of 2^n - 1 tasks, or one size of n
            share = comb(n, size) / (2**n - 1) if weights == "tasks" else 1 / n
            table[n, copy] = len(slots) * (share / alike)
    return table


@cache
def table_of_sizes(parties: int, weigh: Callable[[int, int, int], float]) -> Tensor:
    """(M+1, M) float32, in row n and column k - 1 ``weigh(M, n, k)`` for subsets of size k of n holders, else 0."""
    table = torch.zeros(parties + 1, parties)
    for n in range(1, parties + 1):
        for k in range(1, n + 1):
            table[n, k - 1] = weigh(parties, n, k)
    return table


def repeated(batch: VerticalBatch, copies: int, present: Tensor, weights: Tensor | None) -> VerticalBatch:
    """``copies`` of the batch one after the other; features are left as they are, because embeddings are repeated."""
    labels = batch.labels
    joint = batch.joint
    return batch._replace(
        labels=None if labels is None else labels.repeat(copies, *(1,) * (labels.dim() - 1)),
        record_ids=batch.record_ids.repeat(copies),
        present=present,
        weights=weights,
        joint=None if joint is None else joint._replace(start=joint.start * copies, total=joint.total * copies),
    )
