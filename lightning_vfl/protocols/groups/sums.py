"""The parties' sums of updates over several rounds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError

Group = tuple[int, ...]


@dataclass(frozen=True)
class Summed:
    """The summed update of each party of a group, and the records in it.

    Args:
        gradients: for each party its gradients (W,), summed over the rounds.
        records: positions of the records of these rounds' batches, in their order; empty if updates are not charged.
    """

    gradients: dict[int, Tensor]
    records: Tensor


@dataclass
class UpdateSums:
    """Each party's sum of gradients since its group last sent an update.

    Only rounds from which the whole group learns are added. Every update is therefore the sum of exactly ``over``
    rounds.

    Args:
        over: k, the number of summed rounds.
        rounds: for each group, the number of rounds in its sums.
    """

    over: int = 1
    rounds: dict[Group, int] = field(default_factory=dict)
    _gradients: dict[int, Tensor] = field(default_factory=dict)
    _records: dict[Group, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.over < 1:
            raise ConfigurationError(f"sum_updates_over must be at least 1; got {self.over}")

    def due(self, groups: Iterable[Group]) -> tuple[Group, ...]:
        """The groups that send an update after the next round from which they learn."""
        return tuple(group for group in groups if self.rounds.get(group, 0) + 1 >= self.over)

    def add(self, group: Group, gradients: Mapping[int, Tensor], records: Tensor) -> Summed | None:
        """Add a round's gradients. If the sum is then complete, return it and begin a new one."""
        before = self.rounds.pop(group, 0)
        summed = dict(gradients)
        if before:
            summed = {m: self._gradients.pop(m).to(own.device, own.dtype) + own for m, own in summed.items()}
            records = torch.cat([self._records.pop(group), records])
        if before + 1 >= self.over:
            return Summed(summed, records)
        self.rounds[group] = before + 1
        self._gradients.update(summed)
        self._records[group] = records
        return None

    def state(self) -> dict[str, Any]:
        """The state for a checkpoint: tensors and plain values."""
        return {
            "rounds": [(list(group), rounds) for group, rounds in self.rounds.items()],
            "gradients": dict(self._gradients),
            "records": [(list(group), records) for group, records in self._records.items()],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the sums from a checkpoint."""
        self.rounds = {tuple(group): rounds for group, rounds in state.get("rounds", ())}
        self._gradients = dict(state.get("gradients", {}))
        self._records = {tuple(group): records for group, records in state.get("records", ())}
