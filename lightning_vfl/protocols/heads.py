"""Protocols without a server: every party has a head of its own, and needs the labels."""

from collections.abc import Collection, Iterator
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.plain import Mean
from lightning_vfl.checks import within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.objectives import mean_loss
from lightning_vfl.protocols.build import build_top
from lightning_vfl.protocols.module import VFLModule
from lightning_vfl.protocols.step import Step
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.support import Part, Unsupported
from lightning_vfl.types import Roll, RoundNames, Seat, Tensors, VerticalBatch
from lightning_vfl.wire import Leg


class HeadsVFL(VFLModule):
    """M parties, each with a bottom and a head. There is no server, and every party has the labels.

    ``top`` is the list of the heads, made by the factory ``top`` from the width of one embedding or of the aggregate.

    Not guaranteed: training with faults, with groups of parties and by DDP; all are refused. Records that only some
        parties hold are trained and predicted.

    Raises:
        ConfigurationError: for an aggregator that hides or changes uploads; before training, for the settings above.
    """

    unsupported: ClassVar[Unsupported] = {
        Part.FAULTS: "use MissingAtRandom for records that parties lack, or SplitVFL",
        Part.WAITING: "nobody waits for a server; leave out waiting, or use SplitVFL",
        Part.MISSING: "each party learns from its own loss; leave out missing, or use SplitVFL",
        Part.PROTECTED_EVALUATION: "parties send embeddings in the clear; use evaluate: plain",
        Part.HIDDEN: "parties read each other's embeddings; use Mean, Sum or Max",
        Part.GROUPS: "every party has a head of its own; use SplitVFL",
        Part.COMPRESSOR: "parties exchange whole embeddings, or none; use SplitVFL or AsyncVFL",
        Part.LOCAL_UPDATE: "parties learn from losses of their own; use SplitVFL or AsyncVFL",
        Part.HALVES: "every party has a head of its own; use SplitVFL",
        Part.PROCESSES: "it draws in one process; use devices: 1",
        Part.FEDERATION: None,
    }
    parties_learn_from_joiner = False  # there is no server
    labels_everywhere = True
    sends_labels = False
    exchanges: ClassVar[bool] = False
    """Whether parties send each other their embeddings, and learn from each other's gradients."""
    top: nn.ModuleList
    _unlearnt: nn.Parameter

    def __init__(self, aggregator: Aggregator | None = None, **settings: Any) -> None:
        super().__init__(aggregator or Mean(), **settings)
        self.__dict__["_unlearnt"] = nn.Parameter(torch.zeros(()))  # not registered

    def build(self) -> None:
        super().build()
        self.costs.know()  # of one head
        first = [] if self.keys else [self.top]  # which was drawn with the server's key
        self.top = nn.ModuleList([*first, *map(self._new_head, range(len(first), self.roster.parties))])

    def networks_by_party(self) -> list[nn.ModuleList]:
        return [*super().networks_by_party(), self.top]

    def keep_own(self, seat: Seat) -> None:
        if self.exchanges and len({*self.embedding_widths}) > 1:
            raise ConfigurationError(
                f"{type(self).__name__} needs embeddings of one width between processes; give {self.aggregator!r} one"
            )
        super().keep_own(seat)

    def _new_head(self, party: int) -> nn.Module:
        head: Any = self._top  # not in halves, which are refused
        return build_top(head, self.top_width(), self._outputs, self.keys, (), party)

    def initial_networks(self, party: int) -> nn.Module:
        return nn.ModuleList([super().initial_networks(party), self._new_head(party)])

    def named_parameters(self, *given: Any, **settings: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """As torch's; the server of a federation has no network, and its optimiser a number that never changes."""
        yield from super().named_parameters(*given, **settings)
        if self.place is not None and self.place.seat.party is None:
            yield "nothing", self._unlearnt

    # ---- training

    @final
    def step(self, batch: VerticalBatch, names: RoundNames) -> Step:
        """One step of every party that learns, on its own loss."""
        plan = None if self.replayed is None else self.replayed.plan(names.round, 1)
        self.enter(len(batch.record_ids), plan)
        learners = self.learning if plan is None else plan.learning
        if not learners:
            return Step(None)
        loss = torch.stack(self.losses(batch, names, learners)).sum()
        withheld = [head for party, head in enumerate(self.top) if party not in learners]
        return Step(loss, learners, withheld=withheld)

    @property
    def learning(self) -> Collection[int]:
        """The parties that learn."""
        return range(self.roster.parties)

    def enter(self, rows: int, happened: RoundPlan | None = None) -> None:
        """Count a round with so many records, as it is planned or as it has ``happened`` between processes."""
        learners = self.learning if happened is None else happened.learning
        self.clock.advance(self.seconds(rows) if happened is None else happened.seconds)
        self.books.mini_batches += len(learners)

    def training_legs(self, rows: int) -> list[Leg]:
        """What parties send in a round: here nothing; between processes a message without rows, that one has learnt."""
        return [*self.wire.legs(0, self.embedding_widths, (), self.roster)]

    def seconds(self, rows: int) -> float:
        """The simulated seconds of a round."""
        costs = self.costs.of_round(rows)
        return float((costs.forward + costs.backward)[[*self.learning]].max())

    def losses(self, batch: VerticalBatch, names: RoundNames, parties: Collection[int]) -> list[Tensor]:
        """The losses of these parties; by default each with its own columns alone."""
        h = self.bottoms.some(batch.features, parties)
        everybody = Roll.everyone(self.roster.parties)
        losses = []
        for party in parties:
            there = everybody.holders(h[party], batch.present)[:, party]
            losses.append(weighted_loss(self, self.head_of(party, h[party]), batch, there.float()))
        return losses

    def head_of(self, party: int, value: Tensor) -> Tensor:
        """The output of a party's head; what a head draws in training depends on the round and its party alone."""
        self._seed_top(value.device, party, f"head {party}")
        output: Tensor = self.top[party](value)
        return output

    # ---- predictions

    def inputs(self, h: Tensors, roll: Roll, present: Tensor | None) -> Tensors:
        """What the heads get of M embeddings (B, D_m); by default, each its party's own."""
        return h

    def output_of(self, h: Tensors, roll: Roll, present: Tensor | None, columns: Tensor | None = None) -> Tensor:
        outputs = map(self.head_of, range(self.roster.parties), self.inputs(h, roll, present))
        return mean_of_holders(torch.stack([*outputs]), roll.holders(h[0], present))

    def top_width(self) -> int:
        return super().top_width() if self.exchanges else self.aggregator.widths(self.width, self.roster)[0]

    def owners(self) -> Iterator[nn.Module]:
        for pair in zip(self.bottoms.parties, self.top, strict=True):
            yield nn.ModuleList(pair)

    def protection(self, uploads: int) -> str | None:
        sees = ", and is sent the embeddings of all others" if self.exchanges else ""
        return f"none: the labels are at every party, which trains a head of its own with them{sees}"


def mean_of_holders(outputs: Tensor, there: Tensor) -> Tensor:
    """(B, O), the mean of the outputs (M, B, O) over the parties in ``there`` (B, M); zeros where there is none."""
    parties, rows, *of_output = outputs.shape
    beside = [1] * len(of_output)  # so that flags broadcast over an output's numbers
    holds = there.T.reshape(parties, rows, *beside)
    total = outputs.where(holds, 0.0).sum(0)
    return total / there.sum(1).clamp(min=1).view(rows, *beside)


def weighted_loss(module: VFLModule, output: Tensor, batch: VerticalBatch, weights: Tensor) -> Tensor:
    """The mean over the batch of the loss of each row times its weight (B,)."""
    own = weights if batch.weights is None else weights * batch.weights
    return mean_loss(module.objective, output, batch._replace(weights=own))


# ---- EnsembleVFL: every party trains a model of its own, and the parties vote


class EnsembleVFL(HeadsVFL):
    """Every party trains a bottom and a head alone on the records that it holds; no message is sent in training.

    A prediction is the mean of the outputs of the parties that are there: a vote with the outputs as weights, without
    the ties of a majority vote. It is a baseline: it needs the labels at every party.

    Raises:
        ConfigurationError: see ``HeadsVFL``.

    References:
        Valdeira, Wang, Chi, "Vertical Federated Learning with Missing Features During Training and Inference", ICLR
        2025, section 5 (the baseline Ensemble, there with a majority vote).
    """


# ---- LocalVFL: one party alone, without the others


class LocalVFL(HeadsVFL):
    """One party trains and predicts with its own columns. What the others add is measured against this baseline.

    Records that this party does not hold are not trained, and have no prediction when the party is absent.

    Args:
        aggregator: of no use here; it is there because all protocols have one.
        party: the number of the party; None: the active party, or party 0.
        settings: settings of ``VFLModule``; ``top`` makes the party's head.

    Raises:
        ConfigurationError: for a number that no party has; see ``HeadsVFL``.

    References:
        Valdeira, Wang, Chi, "Vertical Federated Learning with Missing Features During Training and Inference", ICLR
        2025, section 5 (the baseline Local, there averaged over the parties).
    """

    unsupported: ClassVar[Unsupported] = {
        Part.FEDERATION: "it sends no message; use lightning-vfl fit on the host of the party",
    }

    def __init__(self, aggregator: Aggregator | None = None, *, party: int | None = None, **settings: Any) -> None:
        super().__init__(aggregator, **settings)
        self.party = (self.active or 0) if party is None else party

    def build(self) -> None:
        super().build()
        within("party of LocalVFL", self.party, 0, self.roster.parties - 1, whole=True)

    @property
    def learning(self) -> Collection[int]:
        return (self.party,)

    def output_of(self, h: Tensors, roll: Roll, present: Tensor | None, columns: Tensor | None = None) -> Tensor:
        output: Tensor = self.top[self.party](h[self.party])
        return output

    def answers(self, there: Tensor) -> Tensor:
        return there[:, self.party]

    def protection(self, uploads: int) -> str | None:
        return f"no embedding leaves party {self.party}, which has the labels; the other parties are not asked"
