"""What a round gives a protocol, and what a protocol's training step returns."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor, nn
from torch.optim import Optimizer

from lightning_vfl.types import Parties, VerticalBatch


@dataclass(frozen=True, eq=False)
class Step:
    """The result of ``VFLModule.step``: the loss, the parties that learn from it, and further values to log.

    ``VFLModule`` counts a step without a loss as given up, logs the values, deletes the gradients of networks that do
    not learn, and calls the two functions around the optimiser's step. It does not weight the loss.

    Args:
        loss: scalar with a graph, on which the optimiser steps; None: no parameter and no optimiser state changes.
        learners: numbers of the parties whose bottoms learn; None: all parties learn.
        notes: further values of this step, by log name.
        withheld: other networks that do not learn.
        logged: the loss of the batch for ``train/loss``, where ``loss`` is a surrogate; None: ``loss`` itself.
        before_optimizer: called with the optimiser after the backward pass and before the optimiser's step: the place
            for messages that are sent after the backward pass.
        after_optimizer: called after the optimiser's step.
    """

    loss: Tensor | None
    learners: Collection[int] | None = None
    notes: Mapping[str, float | Tensor] = field(default_factory=dict)
    withheld: Sequence[nn.Module] = ()
    logged: Tensor | None = None
    before_optimizer: Callable[[Optimizer], None] | None = None
    after_optimizer: Callable[[], None] | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a round of messages has given, see ``VFLModule.round``.

    Args:
        output: (B, outputs), the top's output, connected to the networks of the parties that learn.
        aggregate: (B, D_out), the server's aggregate, without a graph.
        batch: the rows of ``output``, with the labels that the server has.
        learners: numbers of the parties whose bottoms learn from the round.
        step: of these learners, without a loss.
    """

    output: Tensor
    aggregate: Tensor
    batch: VerticalBatch
    learners: Parties
    step: Step

    def learn(self, loss: Tensor, logged: Tensor | None = None) -> Step:
        """The step on a loss of ``output``, which everybody learns from whom the round has reached.

        ``logged``: as in ``Step``.
        """
        return replace(self.step, loss=loss, logged=logged)


class GivenUp(Exception):
    """A round is given up: no network learns. ``training_step`` turns it into a step without a loss."""
