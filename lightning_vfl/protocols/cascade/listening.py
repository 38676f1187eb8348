"""The messages of a period besides embeddings and their gradients, for an audit."""

from collections.abc import Callable

import torch
from torch import Tensor

from lightning_vfl.aggregators.messages import GRADIENTS
from lightning_vfl.protocols.cascade.events import Ends, EventMessage
from lightning_vfl.protocols.cascade.plans import IDS, EventPlan
from lightning_vfl.protocols.cascade.surrogate import half_squares
from lightning_vfl.types import RoundNames
from lightning_vfl.wire import Message


def tell_of_period(
    ends: Ends, party: int, ids: Tensor, names: RoundNames, plan: EventPlan, message: EventMessage
) -> Callable[[], None]:
    """Tell an audit what the active party sends; returns a function for after the step, which tells the new top."""
    module = ends.module
    tell, nothing = module.listener(ids, party), torch.empty(0, dtype=torch.int64)
    collaborator = module.listener(ids)
    if tell is None or collaborator is None:
        return _nothing
    if module.aggregator.opening is None:
        tell(Message(IDS, "peers", (party,), (ids.expand(module.roster.parties, -1),), round=names))
    if party in ends.amplified:
        bottoms = ends.memory.replicas.of[party].bottoms.parties
        senders = tuple(m for m in range(module.roster.parties) if m != party)
        sums = tuple(half_squares(list(bottoms[m].parameters())).detach().reshape(1) for m in senders)
        tell(Message("regularisers", "server", senders, sums, round=names))
        factors = (message.amplification.reshape(1),) * len(plan.round.learning)
        tell(Message(GRADIENTS, "parties", (), factors, receivers=tuple(plan.round.learning), round=names))
    top = message.gradients[len(plan.round.learning) :]
    if not plan.steps or not top:
        return _nothing
    gradient = torch.cat([g.flatten() for g in top])
    collaborator(Message("top gradients", "server", (party,), (gradient,), round=names))

    def returned() -> None:
        new = torch.cat([p.detach().flatten() for p in module.top.parameters()])
        back = module.listener(nothing)
        if back is not None:
            back(Message("top", "parties", (), (new,), receivers=(party,), round=names))

    return returned


def _nothing() -> None:
    """Nobody listens."""
