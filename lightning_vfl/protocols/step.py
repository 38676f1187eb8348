"""What a protocol has computed in one training step."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn
from torch.optim import Optimizer


@dataclass(frozen=True, eq=False)
class Step:
    """The result of ``VFLModule.step``: a loss, who learns from it, and what is logged beside it.

    ``VFLModule`` does the rest: it books a step without a loss as given up, weighs nothing, logs, takes away the
    gradients of those who do not learn, and calls the two functions around the optimiser's step.

    Args:
        loss: scalar with a graph that the optimiser steps on; None: nobody learns, and no parameter and no optimiser
            state changes.
        learners: numbers of the parties whose bottoms learn; None: all parties learn.
        notes: further values of this step, by the name under which they are logged.
        withheld: other networks that do not learn.
        logged: the loss of the batch for ``train/loss``, where ``loss`` is a surrogate; None: ``loss`` itself.
        before_optimizer: called with the optimiser when all gradients are there: the place for messages that are sent
            after the backward pass.
        after_optimizer: called when the parameters have moved.
    """

    loss: Tensor | None
    learners: Collection[int] | None = None
    notes: Mapping[str, float | Tensor] = field(default_factory=dict)
    withheld: Sequence[nn.Module] = ()
    logged: Tensor | None = None
    before_optimizer: Callable[[Optimizer], None] | None = None
    after_optimizer: Callable[[], None] | None = None
