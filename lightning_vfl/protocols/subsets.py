"""Which subsets of the parties a training batch is computed for, so that the top also learns to predict without some.

A subset of the parties is a row mask: the batch is repeated K times, and ``present`` (K·B, M) says whose embedding
enters which row. The parties compute and send the B embeddings of the batch once, as without subsets. All copies go
through the aggregator and the top in one call.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.checks import one_of, within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import MissingPolicy
from lightning_vfl.protocols.subset_copies import (
    EachSize,
    TaskWeights,
    draws,
    every_subset,
    repeated,
    sampled_sizes,
    size_weights,
)
from lightning_vfl.rebuildable import Rebuildable, printed
from lightning_vfl.simulation.draws import uniforms
from lightning_vfl.simulation.faults import FaultModel, RoundOutcome
from lightning_vfl.types import Roll, Roster, RoundNames, VerticalBatch, joint_rows

DropBy = Literal["record", "round"]
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

    def __init__(self, p: float, keep: tuple[int, ...] | None = None) -> None:
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


def always_kept(keep: tuple[int, ...] | None, roster: Roster) -> Tensor:
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
