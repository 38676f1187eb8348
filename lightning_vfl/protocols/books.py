"""What a protocol writes down and reads off: an epoch's loss, when to log, plain settings, a learning rate."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.accountant import PrivacyAccountant
from lightning_vfl.privacy.events import UNITS
from lightning_vfl.types import Event, VerticalBatch


@dataclass
class EpochLoss:
    """The running mean of one epoch's loss over its rows, float64 on the loss's own device."""

    number: int = 0
    total: Tensor | float = 0.0
    rows: int = 0

    def add(self, loss: Tensor, rows: int) -> None:
        self.total = self.total + loss.double() * rows
        self.rows += rows

    def mean(self) -> Tensor:
        return torch.as_tensor(self.total, dtype=torch.float64) / self.rows


@dataclass
class PrivacyBooks:
    """What training has cost its records in privacy.

    Args:
        delta: δ that figures are told for.
        unit: what is protected in the figure that is logged.
        accountant: from the first fit on, where the aggregator accounts.
    """

    delta: float = 1e-5
    unit: str = "party-record"
    accountant: PrivacyAccountant | None = None

    def open(self, records: int) -> None:
        """Account for N records; what has been spent on as many stays spent."""
        if self.accountant is None or self.accountant.records != records:
            self.accountant = PrivacyAccountant(records)

    def epsilon(self) -> float:
        """ε of the chosen unit; 0 where nothing is accounted for."""
        return 0.0 if self.accountant is None else self.accountant.epsilon(self.delta, self.unit)

    def figures(self) -> dict[str, float]:
        """ε by unit."""
        return {} if self.accountant is None else {unit: self.accountant.epsilon(self.delta, unit) for unit in UNITS}

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {} if self.accountant is None else self.accountant.state_dict()

    def load(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.accountant = PrivacyAccountant(state["records"]) if state else None
        if self.accountant is not None:
            self.accountant.load_state_dict(state)


def is_due(step: int, every: int) -> bool:
    """Whether something done every so many steps is due after this one; 0: never."""
    return every > 0 and step % every == 0


def event_of(batch: VerticalBatch, protocol: object) -> Event:
    """The event that an asynchronous protocol's own schedule has put into a batch.

    Raises:
        ConfigurationError: if another schedule has made the batch.
    """
    if batch.event is None:
        raise ConfigurationError(
            f"{type(protocol).__name__} trains on the events of its own schedule; let the trainer ask a "
            "VerticalDataModule for batches"
        )
    return batch.event


def plain_sgd_rate(optimizer: Any, parameter: Tensor) -> float | None:
    """The learning rate of this parameter, if a step is that times the gradient and nothing else; None: it is not."""
    optimizer = getattr(optimizer, "optimizer", optimizer)  # Lightning's wrapper
    if type(optimizer) is not torch.optim.SGD:
        return None
    group = next(group for group in optimizer.param_groups if any(p is parameter for p in group["params"]))
    if group["momentum"] or group["weight_decay"] or group["maximize"] or not float(group["lr"]):
        return None
    return float(group["lr"])


def drop_unplain(hparams: Any) -> None:
    """Leave only what the safe loader accepts; a run from a recipe keeps its class paths, which are plain."""
    for name in [name for name, value in hparams.items() if not _is_plain(value)]:
        del hparams[name]


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return all(_is_plain(inner) for inner in value)
    return value is None or type(value) in (bool, int, float, str)
