"""Where a module runs: in a simulation, which hosts everybody, or in a process of a federation."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lightning_vfl.aggregators.parts import Setup
from lightning_vfl.protocols.step import Step
from lightning_vfl.schedules.arrivals import FirstComeFirstServed
from lightning_vfl.schedules.batches import Schedule
from lightning_vfl.types import RecordSource, Roll, RoundNames, Seat, VerticalBatch


class Elsewhere(nn.Module):
    """Stands for a network of another process. It has no parameters and cannot run.

    Args:
        owner: whose network it is, in words.
    """

    def __init__(self, owner: str) -> None:
        super().__init__()
        self.owner = owner

    def forward(self, *_: Any) -> Tensor:
        """Refuse to run.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(f"the network of {self.owner} is in another process, and cannot run here")

    def extra_repr(self) -> str:
        return self.owner


class Behind(Elsewhere):
    """Stands for the half of a top behind the cut, in the server's process: it hands on what crosses the cut."""

    def forward(self, *crossing: Tensor) -> Tensor:
        return crossing[0]


class Place(ABC):
    """The process of a federation in which a protocol (``module``) runs: that of one party, or the server's.

    Attributes:
        seat: who is hosted here.
        evaluated: batches of the evaluation that is going on.
        tells_predictions: whether the server tells the parties the predicted values.
        labels: (B,), which a party has sent for the round of evaluation; None: the server has them itself.
    """

    seat: Seat
    evaluated: int = 0
    tells_predictions: bool = False
    labels: Tensor | None = None

    def order(self, module: Any, planned: FirstComeFirstServed) -> Schedule:
        """The order of asynchronous events, which a plan knows only in a simulation; default: as planned."""
        return planned

    @abstractmethod
    def step(self, module: Any, batch: VerticalBatch, names: RoundNames) -> Step:
        """This process's part of a training round."""

    def end_epoch(self, module: Any) -> None:
        """After the last training round of an epoch and its evaluation; default: nothing."""
        return

    @abstractmethod
    def output(self, module: Any, batch: VerticalBatch, names: RoundNames, roll: Roll) -> Tensor:
        """This process's part of a round of evaluation.

        Returns:
            The top's output at the server; at a party nothing, or the predicted values that the server has told.
        """

    def set_up(
        self, module: Any, source: RecordSource, names: RoundNames, agreed: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Any]:
        """This process's part of the set-up of a stage: the settled values, and the memory of the hosted party."""
        raise RuntimeError(f"{type(self).__name__} has no set-up")

    @abstractmethod
    def share_metrics(self, module: Any, split: str) -> None:
        """After an evaluation: the server tells the parties its metrics, and each party logs them."""


def needed(setup: Setup | None) -> Setup:
    """The set-up of an aggregator that has one."""
    if setup is None:
        raise RuntimeError("the aggregator has no set-up")
    return setup


def nothing() -> Tensor:
    """The output of an evaluation at a party: no rows."""
    return torch.empty(0)
