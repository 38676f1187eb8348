"""A listener to all messages of a run, for audits."""

from abc import ABC, abstractmethod

from torch import Tensor

from lightning_vfl.types import RoundNames
from lightning_vfl.wire.messages import Message


class Tap(ABC):
    """Receives every message of a run when it is sent; a protocol has at most one (``module.tap``).

    Guarantee: a protocol passes messages and never reads anything back, so that a tap changes no bit of a training.
    Not guaranteed: messages that a simulation does not compute, such as the late embedding that nobody joins.
    """

    @abstractmethod
    def sent(self, message: Message, ids: Tensor, at: int | None = None) -> None:
        """A message.

        Args:
            message: the message. Its pieces must not be changed, and have to be copied if they are kept, unless it is
                ``lasting``.
            ids: (B,) int64, the positions of the records that the message is about; empty: it is about no records.
            at: the party that plays the server in this round; None: the server itself.
        """

    @abstractmethod
    def joined(
        self, value: Tensor, names: RoundNames, ids: Tensor, at: int | None = None, kind: str = "aggregates"
    ) -> None:
        """What somebody has computed from the messages that it has received: an aggregate (B, D_out) of the server.

        Args:
            value: the aggregate.
            names: of the round.
            ids: (B,) int64, its records.
            at: the party that has computed it, or that plays the server in this round; None: the server itself.
            kind: the name of what was computed; sums of model updates have a name of their own.
        """
