"""The base class of aggregators: how the embeddings of M parties become one tensor at the server.

An aggregator is configuration and arithmetic: it has no parameters and keeps nothing between rounds. Its parts
(``lightning_vfl.aggregators.parts``) say how embeddings travel, what parties exchange before and at the beginning of
rounds, what each party keeps between rounds, and what a round costs in privacy. An aggregator without parts works on
embeddings in the clear.

Laws, checked for an aggregator of your own by ``lightning_vfl.testing.check_aggregator``:

1. The messages of a round decode to ``wire.clear``, bit for bit, for every roll that the aggregator accepts.
2. Every message fits the leg that announced it: kind, destination and number of elements.
3. ``answer`` and ``carry`` together are the adjoint of ``plain``: <carry(answer(grad)), v> == <grad, J v>.
4. A party that is not counted gets a gradient of exactly zero and changes no bit of the aggregate.
5. Uploads of P hosted parties are those of each party alone, bit for bit.
6. The traits that a wire declares are what its code does.
7. No mutable object can be reached from a party side and from a server side.
8. ``decode`` is given messages and a ``ServerView``, nothing else.
9. A party's declared state is a function of its own rounds: it changes in no other way.
10. A row of ``plain`` depends on the same row of the embeddings alone, and has their dtype and device.
11. An aggregate that ``accounting`` charges is drawn anew in every round.
"""

from abc import ABC, abstractmethod
from copy import copy
from typing import ClassVar, Self

import torch
from torch import Tensor

from lightning_vfl.aggregators.parts import Accounting, Opening, Setup, SharedBottoms, Wire
from lightning_vfl.rebuildable import Rebuildable, printed, printed_without
from lightning_vfl.types import Roll, Roster, Tensors, Widths
from lightning_vfl.wire import Contribution, Embeddings

FLOAT_BITS = 32  # embeddings and gradients in the clear travel as float32


class Aggregator(Rebuildable, ABC):
    """How M embeddings become one aggregate; subclass it for an aggregator of your own.

    For embeddings in the clear, ``plain`` and ``out_width`` are enough: a round is ``plain`` and its autograd. An
    aggregator that hides something returns a part of ``lightning_vfl.aggregators.parts`` from the property of that
    name; None means that it has no such part.

    Class data:
        form: what parties contribute to a round, ``Embeddings`` or ``LinearForms``.
        private_evaluation: validation and test run through the protocol by default, not in the clear.
        incidental: settings that change no result: a checkpoint that was trained with others may be loaded.
    """

    form: ClassVar[type[Contribution]] = Embeddings
    private_evaluation: ClassVar[bool] = False
    incidental: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def plain(self, h: Tensors, roll: Roll, present: Tensor | None = None) -> Tensor:
        """The aggregate in real arithmetic, differentiable.

        Args:
            h: M embeddings, (B, D_m).
            roll: only the parties in ``roll.counted`` enter.
            present: (B, M) bool, which party holds which row; None: all.

        Returns:
            (B, D_out).
        """

    @abstractmethod
    def out_width(self, width: int, roster: Roster) -> int:
        """D_out, the width of the aggregate if every bottom gives ``widths(width, roster)``."""

    def widths(self, width: int, roster: Roster) -> Widths:
        """The embedding width that each of the M bottoms must give; default: ``width`` for all."""
        return (width,) * roster.parties

    def columns(self, widths: Widths, roll: Roll) -> Tensor:
        """(D_out,) bool, False where a segment of the joint embedding is absent; default: no segment is."""
        return torch.ones(self.out_width(widths[0], Roster.singles(len(widths))), dtype=torch.bool)

    def among(self, roster: Roster) -> Self:
        """This aggregator for these parties; default: the same object for any parties.

        Raises:
            ConfigurationError: before anything is built, if the aggregator cannot work for these parties.
        """
        return self

    # ---- parts

    @property
    def wire(self) -> Wire | None:
        """How embeddings travel; None: in the clear."""
        return None

    @property
    def setup(self) -> Setup | None:
        """What parties exchange before the first round of a stage; None: nothing."""
        return None

    @property
    def opening(self) -> Opening | None:
        """What parties exchange at the beginning of each round; None: nothing."""
        return None

    @property
    def accounting(self) -> Accounting | None:
        """What rounds cost the privacy of their records; None: no cost is claimed or charged."""
        return None

    @property
    def shared_bottoms(self) -> SharedBottoms | None:
        """How the parties of a group send updates of their shared bottom; None: in the clear."""
        return None

    # ---- printed forms, which are text in checkpoints

    def __repr__(self) -> str:
        return printed(self)

    @property
    def identity(self) -> str:
        """The settings that a checkpoint has to share with the aggregator that it is loaded into."""
        return printed_without(self, self.incidental)


class Around(Aggregator, ABC):
    """An aggregate of the form of another aggregator's, ``inner``, which a subclass sets."""

    inner: Aggregator

    def among(self, roster: Roster) -> Self:
        bound = copy(self)
        bound.inner = self.inner.among(roster)
        return bound

    def out_width(self, width: int, roster: Roster) -> int:
        return self.inner.out_width(width, roster)

    def widths(self, width: int, roster: Roster) -> Widths:
        return self.inner.widths(width, roster)

    def columns(self, widths: Widths, roll: Roll) -> Tensor:
        return self.inner.columns(widths, roll)
