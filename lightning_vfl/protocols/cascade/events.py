"""The END of a period: the active party's messages and the gradients in them."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_vfl.aggregators.clear import EMBEDDINGS
from lightning_vfl.aggregators.messages import GRADIENTS
from lightning_vfl.missing import Exclude, StandIn, completed
from lightning_vfl.objectives import mean_loss
from lightning_vfl.protocols.cascade.memory import CascadeMemory, Late
from lightning_vfl.protocols.cascade.plans import IDS, EventPlan
from lightning_vfl.protocols.cascade.replicas import Replica
from lightning_vfl.protocols.cascade.surrogate import half_squares
from lightning_vfl.protocols.message_rounds import aggregator_notes
from lightning_vfl.protocols.module import VFLModule
from lightning_vfl.rounds.exchange import contribute, contribute_some
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.types import Event, RoundNames, Stage, VerticalBatch, joint_rows
from lightning_vfl.wire import Embeddings, Message, ServerView, Tap


class EventMessage(NamedTuple):
    """The messages of an active party at the END, in the form in which the receivers use them.

    Args:
        values: the tensors to which the gradients belong, computed with the receivers' current parameters: embeddings
            (B, D_m), and the parameters of the top.
        gradients: the gradients of the values, of the same shapes, constants.
        amplification: c, a scalar.
        loss: the mean loss of the batch, a scalar.
        notes: further values to log, by name.
    """

    values: list[Tensor]
    gradients: list[Tensor]
    amplification: Tensor
    loss: Tensor
    notes: dict[str, float | Tensor]


@dataclass(frozen=True, eq=False)
class Ends:
    """The END of the periods of a training.

    Args:
        module: the protocol.
        memory: its replicas and late embeddings.
        amplified: the active parties whose gradients have the factor c.
        q: of c = max(1, q F^(q-1)).
        decay: λ of F, the loss with λ/2 times the squares of the parameters of bottoms.
    """

    module: VFLModule
    memory: CascadeMemory
    amplified: Collection[int]
    q: float
    decay: float

    def send_message(self, batch: VerticalBatch, event: Event, names: RoundNames, plan: EventPlan) -> EventMessage:
        """Compute the messages of an event's active party.

        The first half is the computation of the active party, with all parameters as at START. The second half is the
        computation of the receivers, with their current parameters.
        """
        module = self.module
        replicas = self.memory.replicas
        replica = replicas.of[event.party]
        learning = plan.round.learning
        # Algorithm 1, at START: with the replica of then
        replica.bottoms.stream = module.bottoms.stream  # dropout of START is that of END
        replica.bottoms.keys = module.bottoms.keys
        leaves, computed = self.collect(replica, batch, event, plan.round)
        gradients, factor, loss, notes = self.differentiate(leaves, batch, event, names, plan)
        # Algorithm 2, at END: with the parameters of now, whose Jacobians the gradients are multiplied by
        embeddings = module.bottoms.some(batch.features, computed)
        if batch.present is not None and module.aggregator.wire is not None:  # unheld rows were zeros
            for place, party in enumerate(learning):
                gradients[place] = gradients[place] * batch.present[:, party, None]
        values = [embeddings[party] for party in learning]
        if plan.steps:
            values += trained(replicas.live)
        return EventMessage(values, gradients, factor, loss, notes)

    def differentiate(
        self, leaves: tuple[Tensor, ...], batch: VerticalBatch, event: Event, names: RoundNames, plan: EventPlan
    ) -> tuple[list[Tensor], Tensor, Tensor, dict[str, float | Tensor]]:
        """What the active party computes from the embeddings of all parties, with its replica of the top.

        Returns:
            The gradients of the embeddings of those that learn and of the top's parameters, the factor c, the loss, and
            values to log.
        """
        module = self.module
        replica = self.memory.replicas.of[event.party]
        roll = plan.round.roll
        roster = module.roster.joined_by(event.party)
        value, exchange = module.exchange(batch, Embeddings(leaves), names, roll, Exclude(), roster)
        module._seed_top(module.device, event.party, "replica")
        output = replica.top(module.join(value, module.columns_from(roll)))
        loss = mean_loss(module.objective, output, batch)
        wanted = [leaves[party] for party in plan.round.learning]
        if plan.steps:
            wanted += trained(replica)
        gradients = list(torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True))
        loss = loss.detach()
        amplifies = event.party in self.amplified
        factor = self._amplification(loss, replica) if amplifies else torch.ones_like(loss)
        return gradients, factor.detach(), loss, {**aggregator_notes(exchange)}

    def collect(
        self, replica: Replica, batch: VerticalBatch, event: Event, plan: RoundPlan
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        """The embeddings (B, D_m) that the active party joins, as leaves with gradients, and the parties that ran."""
        module = self.module
        in_the_clear = module.aggregator.wire is None
        everybody = tuple(range(module.roster.parties))
        computed = everybody
        if in_the_clear:  # only embeddings that are read are computed
            computed = tuple(sorted({*plan.roll.included_parties, *plan.late}))
        with torch.no_grad():
            if len(computed) < len(everybody):
                h = contribute_some(replica.bottoms, batch.features, computed, module.embedding_widths).leaves
            else:
                hidden = None if in_the_clear else batch.present
                h = contribute(Embeddings, replica.bottoms, batch.features, hidden).leaves
        stand_in = module.missing.stand_in
        if stand_in is not None:
            h = self._fill(stand_in, h, batch, event, plan)
        return tuple(x.detach().requires_grad_() for x in h), computed

    def _fill(
        self,
        stand_in: StandIn,
        h: tuple[Tensor, ...],
        batch: VerticalBatch,
        event: Event,
        plan: RoundPlan,
    ) -> tuple[Tensor, ...]:
        """Replace missing embeddings by the policy; late ones are stored for use from the time of their arrival."""
        self.memory.receive(event.party, event.start)
        for party, after in plan.late.items():
            arrival = event.start + after
            self.memory.send(event.party, Late(arrival, party, batch.record_ids, h[party].detach()))
        roll = plan.roll
        senders = roll.included_parties
        names = RoundNames(self.module.seed, Stage.FIT, event.number)
        view = ServerView(names, self.module.roster, joint_rows(batch), roll, self.module.embedding_widths)
        arrived = Message(EMBEDDINGS, "server", senders, tuple(h[party] for party in senders))
        return completed(stand_in, arrived, h, view)

    def _amplification(self, loss: Tensor, replica: Replica) -> Tensor:
        """The factor c = max(1, q F^(q-1)), with the parameters that computed the embeddings."""
        # F = mean loss + λ Σ r(θ_m); a slow party minimises F^q, whose slope by F is q F^(q-1)
        objective = loss + self.decay * half_squares(replica.bottom_parameters)
        slope = self.q * objective.clamp(min=0.0) ** (self.q - 1)
        return slope.clamp(min=1.0)

    def tell(
        self, tap: Tap, party: int, ids: Tensor, names: RoundNames, plan: EventPlan, message: EventMessage
    ) -> None:
        """Tell an audit what the active party sends besides embeddings and their gradients."""
        module = self.module
        learning = tuple(plan.round.learning)
        tell = partial(tap.sent, ids=ids, at=party)
        if module.aggregator.opening is None:
            tell(Message(IDS, "peers", (party,), (ids.expand(module.roster.parties, -1),), round=names))
        if party in self.amplified:  # Algorithm 1, lines 8 to 10
            bottoms = self.memory.replicas.of[party].bottoms.parties
            senders = tuple(other for other in range(module.roster.parties) if other != party)
            of_senders = (list(bottoms[sender].parameters()) for sender in senders)
            sums = tuple(half_squares(parameters).detach().reshape(1) for parameters in of_senders)
            tell(Message("regularisers", "server", senders, sums, round=names))
            factors = (message.amplification.reshape(1),) * len(learning)
            tell(Message(GRADIENTS, "parties", (), factors, receivers=learning, round=names))
        of_top = message.gradients[len(learning) :]
        if of_top:  # the collaborator steps
            flat = torch.cat([gradient.flatten() for gradient in of_top])
            tap.sent(Message("top gradients", "server", (party,), (flat,), round=names), ids)


def trained(replica: Replica) -> list[Tensor]:
    """The parameters of a top that learn."""
    return [p for p in replica.top_parameters if p.requires_grad]
