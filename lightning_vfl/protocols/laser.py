"""LaserVFL: a head at every party, trained for every subset of the parties by task sampling."""

from collections.abc import Collection
from math import comb
from typing import ClassVar

import torch
from torch import Tensor

from lightning_vfl.aggregators.base import FLOAT_BITS
from lightning_vfl.protocols.heads import HeadsVFL, weighted_loss
from lightning_vfl.protocols.subsets import draws, repeated, table_of_sizes
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.support import Part, Unsupported
from lightning_vfl.types import Roll, RoundNames, Tensors, VerticalBatch, joint_rows
from lightning_vfl.wire import Leg


class LaserVFL(HeadsVFL):
    r"""LASER-VFL: party m predicts with its own head from the mean embedding of any subset that contains m.

    In a round every party sends its embeddings to all others. For every head m and every size k = 1 ... n, where n
    parties hold the record, one subset of k holders with m among them is drawn; the loss is

    .. math:: \sum_m \sum_{k=1}^n \frac{1}{k} \binom{n-1}{k-1} \, \ell(f_m(\mathrm{mean}_{i \in S_{mk}} h_i), y),

    whose expectation is the sum over all 2^n - 1 subsets of the mean loss of their heads. The batch's mean of it is
    ``train/loss``; at M = 4 it is about 15 times the loss of one prediction.

    A prediction is the mean of the outputs of the heads whose parties are there. (The paper's authors average the
    METRIC over these heads.)

    Every party needs the labels of all training records, which is not so in ``SplitVFL`` with ``TaskSampling``.

    Args:
        aggregator: Mean in the paper; None: Mean.
        settings: settings of ``VFLModule``; ``top`` makes the head of each party, from the width of the aggregate.

    Raises:
        ConfigurationError: see ``HeadsVFL``.

    References:
        Valdeira, Wang, Chi, "Vertical Federated Learning with Missing Features During Training and Inference", ICLR
        2025, https://arxiv.org/abs/2410.22564; weights as in https://github.com/Valdeira/LASER-VFL, methods/laser.py.
    """

    unsupported: ClassVar[Unsupported] = {
        Part.AUDIT: "a listener hears no message between parties; audit SplitVFL with Mean, whose server gets what a "
        "party gets here"
    }
    exchanges = True

    def losses(self, batch: VerticalBatch, names: RoundNames, parties: Collection[int]) -> list[Tensor]:
        present = self.subsets(batch, names)
        sent = [x.expand(self.roster.parties, *x.shape).unbind() for x in self.bottoms(batch.features)]
        return [self.loss_of(party, tuple(x[party] for x in sent), batch, present) for party in parties]

    def loss_of(self, party: int, h: Tensors, batch: VerticalBatch, present: Tensor) -> Tensor:
        """The loss of a party's head on the embeddings (B, D_m) that it has got; ``present``: of all ``subsets``."""
        parties = self.roster.parties
        everybody = Roll.everyone(parties)
        own = present[party].reshape(-1, parties)  # (M B, M): the batch once for each size
        copies = tuple(x.repeat(parties, 1) for x in h)
        aggregate = self.joined(copies, everybody, own)
        sample_weights = None if batch.weights is None else batch.weights.repeat(parties)
        wide = repeated(batch, parties, own, sample_weights)
        there = everybody.holders(h[0], batch.present)
        weights = head_weights(there)[party].reshape(-1)
        return weighted_loss(self, self.head_of(party, aggregate), wide, weights) * parties  # the sum over sizes

    def inputs(self, h: Tensors, roll: Roll, present: Tensor | None) -> Tensors:
        return (self.joined(h, roll, present),) * self.roster.parties

    def subsets(self, batch: VerticalBatch, names: RoundNames) -> Tensor:
        """(M, M, B, M) bool: for each head and size, a subset of the record's holders with the head's party in it."""
        parties = self.roster.parties
        device = batch.record_ids.device
        there = Roll.everyone(parties).holders(batch.record_ids, batch.present)[:, None, None]
        lots = draws(names, joint_rows(batch), parties**3, "laser").to(device)
        lots = lots.view(-1, parties, parties, parties)  # (record, head, size, member)
        own = torch.eye(parties, dtype=torch.bool, device=device).view(1, parties, 1, parties)
        lots = lots.masked_fill(own, -1.0)  # the head's party comes first
        lots = lots.masked_fill(~there, 2.0)  # and who does not hold the record last
        place = lots.argsort(3).argsort(3)
        size = torch.arange(1, parties + 1, device=device).view(1, 1, parties, 1)
        drawn = (place < size) & there
        return drawn.permute(1, 2, 0, 3)

    def training_legs(self, rows: int) -> list[Leg]:
        elements = rows * torch.tensor(self.embedding_widths) * (self.roster.parties - 1)
        return [Leg(kind, "peers", elements, FLOAT_BITS) for kind in ("embeddings", "gradients")]

    def enter(self, rows: int, happened: RoundPlan | None = None) -> None:
        super().enter(rows, happened)
        for leg in self.training_legs(rows):
            self.books.meter.add(leg)

    def seconds(self, rows: int) -> float:
        costs = self.costs.of_round(rows)
        parties = self.roster.parties
        _, head = self.costs.work
        of_copies = sum(head) * rows * parties  # the head runs once for each size
        heads = self.clock.computing(torch.full((parties,), of_copies, dtype=torch.float64))
        sending = sum(float(self.clock.transfer(leg).max()) for leg in self.training_legs(rows))
        return sending + float(costs.forward.max() + costs.backward.max() + heads.max())


def head_weights(there: Tensor) -> Tensor:
    """(M, M, B) float32, the weight C(n-1, k-1)/k of head m and size k for each record; 0 if m is not a holder.

    ``there`` (B, M) bool are the holders, n of them.
    """
    table = table_of_sizes(there.shape[1], _weight_of_head).to(there.device)
    of_size = table[there.sum(1)].T  # (size, B)
    return of_size.unsqueeze(0) * there.T.unsqueeze(1)


def _weight_of_head(parties: int, holders: int, size: int) -> float:
    return comb(holders - 1, size - 1) / size
