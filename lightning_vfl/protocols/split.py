"""SplitVFL: every round all parties send embeddings, and all learn from the server's gradient."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.optim import Optimizer

from lightning_vfl.protocols.base import VFLModule
from lightning_vfl.rounds import Exchange, contribute
from lightning_vfl.types import Contribution, Leg, LinearForms, PartyView, Roll, RoundNames, ServerView, VerticalBatch


class SplitVFL(VFLModule):
    """Synchronous split learning over vertical partitions, with any aggregator.

    One round is one mini-batch is one optimiser step: the parties' bottoms give embeddings, the aggregator joins them
    at the server, the top gives the loss, and the gradient goes back the same way. Arguments are ``VFLModule``'s.

    A party that holds none of a batch's records takes no part in that round: it sends nothing and does not learn.

    Not guaranteed: a meaning for batch norm in the bottoms when records are partly held; rows that a party does not
        hold run through its bottom as zeros, and only their embeddings are left out.

    Example:
        >>> from lightning_vfl.aggregators import Mean
        >>> module = SplitVFL(Mean(), party_shapes=[(3,), (2,)], num_classes=2)
        >>> module.configure_model()
        >>> module((torch.zeros(5, 3), torch.zeros(5, 2))).shape
        torch.Size([5])
    """

    _roll: Roll | None = None

    def configure_model(self) -> None:
        super().configure_model()
        # planned traffic by (rows, basis, stage): a fit knows two batch sizes at most
        self._plans: dict[tuple[int, tuple[int, ...], str], tuple[tuple[Leg, ...], Leg | None]] = {}

    def training_step(self, batch: VerticalBatch, batch_idx: int) -> Tensor:
        """One round."""
        names = self.next_round(seed_global=True)
        self._roll = self.roll_call(batch)
        loss = self.rank_loss(self._through_protocol(batch, names, self._roll), batch)
        self.log_training(loss, batch, batch_idx)
        return loss

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        """Nobody learns from a round that they took no part in."""
        if self._roll is not None and not self._roll.complete:
            self.bottoms.withhold((~self._roll.included).nonzero().flatten().tolist())

    def output(self, batch: VerticalBatch, names: RoundNames) -> Tensor:
        """The top's output, in the clear or through the aggregator's messages."""
        everyone = Roll.everyone(self.roster.parties)
        if self.protected_evaluation:
            return self._through_protocol(batch, names, everyone)
        output: Tensor = self.top(self.aggregator.plain(self.bottoms(batch.features), everyone, batch.present))
        return output

    def roll_call(self, batch: VerticalBatch) -> Roll:
        """Who takes part in this round: the parties that hold at least one row of the joint batch."""
        if batch.joint is None:
            held = None if batch.present is None else batch.present.any(0).cpu()
        else:
            held = None if batch.joint.held is None else torch.zeros(self.roster.parties, dtype=torch.bool)
            if held is not None:
                held[list(batch.joint.held or ())] = True
        return Roll.everyone(self.roster.parties) if held is None else Roll.of(held)

    def _through_protocol(self, batch: VerticalBatch, names: RoundNames, roll: Roll) -> Tensor:
        aggregator, rows, everyone = self.aggregator, self.rows_of(batch), tuple(range(self.roster.parties))
        contribution = contribute(aggregator.form, self.bottoms, batch.features)
        parties = PartyView(names, self.roster, everyone, roll.called, rows, {}, batch.present)
        seen = batch.present if aggregator.visible else None
        server = ServerView(names, self.roster, rows, roll, self.embedding_widths, seen)
        self._count(contribution, rows.total, roll, names)
        value = Exchange(aggregator, contribution, parties, server).run()
        if not roll.complete:  # with several processes every parameter has to take part in the backward pass
            value = value + sum(leaf.sum() for leaf in contribution.leaves) * 0.0
        output: Tensor = self.top(value)
        return output

    def _count(self, contribution: Contribution, rows: int, roll: Roll, names: RoundNames) -> None:
        """Enter the round's traffic in the books; evaluation stands there under kinds of its own."""
        basis = tuple(b.shape[1] for b in contribution.basis) if isinstance(contribution, LinearForms) else ()
        key = (rows, basis, names.stage)
        if key not in self._plans:
            legs = self.aggregator.legs(rows, self.embedding_widths, basis, self.roster)
            if names.stage == "fit":
                downlink = self.aggregator.downlink(rows, self.embedding_widths, self.roster)
            else:
                downlink, legs = None, tuple(replace(leg, kind=f"{names.stage} {leg.kind}") for leg in legs)
            self._plans[key] = (legs, downlink)
        legs, downlink = self._plans[key]
        everyone = None if roll.complete else roll.called
        for leg in legs:
            self.meter.add(leg, everyone)
        if downlink is not None:
            self.meter.add(downlink, None if roll.complete else roll.included)
