"""The base class of protocols without a server: every party has a head of its own, and needs the labels."""

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lightning_vfl.aggregators.base import Aggregator
from lightning_vfl.aggregators.plain import Mean
from lightning_vfl.networks._linear import Linear
from lightning_vfl.networks.mlp import MLP
from lightning_vfl.objectives import mean_loss
from lightning_vfl.protocols.build import BottomFactory, TopFactory, build_top
from lightning_vfl.protocols.module import VFLModule
from lightning_vfl.support import Part, Unsupported
from lightning_vfl.types import RoundNames, VerticalBatch
from lightning_vfl.wire import Leg


class HeadsVFL(VFLModule):
    """M parties, each with a bottom and a head. There is no server, and every party has the labels.

    ``top`` is the list of the heads, made by the factory ``top`` from the width of one embedding or of the aggregate.

    Not guaranteed: training with faults, with groups of parties and in several processes; all are refused. Records that
        only some parties hold are trained and predicted.

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
        Part.FEDERATION: "every party needs the labels, and the tables of a federation have them at one host; use "
        "SplitVFL with TaskSampling",
    }
    parties_learn_from_joiner = False  # there is no server
    top: nn.ModuleList

    def __init__(
        self,
        aggregator: Aggregator | None = None,
        bottom: BottomFactory = MLP,
        top: TopFactory = Linear,
        width: int = 64,
        **settings: Any,
    ) -> None:
        super().__init__(aggregator or Mean(), bottom, top, width, **settings)

    def build(self) -> None:
        super().build()
        outputs = self.objective.outputs(self.hparams["num_classes"])
        head: Any = self._top  # not in halves, which are refused
        self.costs.know()  # of one head
        more = (build_top(head, self.top_width(), outputs, self.keys) for _ in range(self.roster.parties - 1))
        self.top = nn.ModuleList([self.top, *more])

    def more_legs(self, rows: int) -> tuple[Leg, ...]:
        return ()

    def output(self, batch: VerticalBatch, names: RoundNames) -> Tensor:
        return self.output_in_the_clear(batch)

    def owners(self) -> Iterator[nn.Module]:
        for pair in zip(self.bottoms.parties, self.top, strict=True):
            yield nn.ModuleList(pair)

    def protection(self, uploads: int) -> str | None:
        return "none: the labels are at every party, which trains a head of its own with them"


def mean_of_holders(outputs: Tensor, there: Tensor) -> Tensor:
    """(B, O), the mean of the outputs (M, B, O) over the parties in ``there`` (B, M); zeros where there is none."""
    shape = (*there.T.shape, *(1,) * (outputs.dim() - 2))
    kept = torch.where(there.T.reshape(shape), outputs, outputs.new_zeros(()))
    count = there.sum(1).clamp(min=1).view(shape[1:])
    return kept.sum(0) / count


def weighted_loss(module: VFLModule, output: Tensor, batch: VerticalBatch, weights: Tensor) -> Tensor:
    """The mean over the batch of the loss of each row times its weight (B,)."""
    own = weights if batch.weights is None else weights * batch.weights
    return mean_loss(module.objective, output, batch._replace(weights=own))
