"""The declared state of all hosted parties between training rounds; checkpoints for resuming contain it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_vfl.aggregators.parts import PartyState
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.memory import Memory
from lightning_vfl.wire import RoundState


class KeptState(Memory):
    """The state of each party, as its aggregator declares it.

    Args:
        declared: the ``party_state`` of the aggregator.
    """

    def __init__(self, declared: PartyState) -> None:
        self.declared = declared
        self.tables: dict[int, dict[str, Tensor]] = {}

    def prepare(self, records: int, widths: Sequence[int], device: torch.device) -> None:
        self.tables = {m: self.declared.empty(records, width) for m, width in enumerate(widths)}
        self.move(device)

    def move(self, device: torch.device) -> None:
        for tables in self.tables.values():
            tables.update({name: table.to(device) for name, table in tables.items()})

    def begin(self) -> RoundState:
        """The state for one round."""
        return RoundState(self.tables)

    def state(self) -> dict[str, Any]:
        return {str(m): dict(tables) for m, tables in self.tables.items()}

    def load(self, state: dict[str, Any]) -> None:
        for party, tables in self.tables.items():
            kept = state.get(str(party), {})
            shapes, own = ({name: tuple(x.shape) for name, x in one.items()} for one in (kept, tables))
            if shapes != own:
                raise ConfigurationError(
                    f"the checkpoint keeps the state {shapes} of party {party}, this aggregator and these data have "
                    f"{own}; resume with the same aggregator and the same records"
                )
            for name, table in tables.items():
                table.copy_(kept[name])
