"""Repeat in a simulation what has happened in a federation."""

from copy import deepcopy
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.arrivals import Recorded
from lightning_vfl.federation.record import Replayed
from lightning_vfl.protocols.asynchronous import AsyncVFL


class Replay(Callback):
    """Puts a party back to the state from which it has come back in the federation.

    ``SplitVFL.replayed`` repeats the rounds themselves, and ``AsyncVFL.replayed`` the events.

    Args:
        record: of the federation.
    """

    def __init__(self, record: Replayed) -> None:
        self.record = record
        self._wanted: dict[int, set[int]] = {}  # round -> parties whose state at its beginning is put back later
        for back in record.restored.values():
            for party, since in back.items():
                self._wanted.setdefault(since, set()).add(party)
        self._kept: dict[tuple[int, int], tuple[Any, list[Any]]] = {}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let every party run its bottom alone, as its process did.

        Raises:
            ConfigurationError: for a recipe with another number of parties.
        """
        module: Any = pl_module
        if module.roster.parties != self.record.parties:
            raise ConfigurationError(
                f"{self.record.path} is of {self.record.parties} parties, the recipe has {module.roster.parties}"
            )
        if isinstance(module, AsyncVFL):
            module.replayed = lambda planned: Recorded(planned, module, self.record)
        else:
            module.replayed = self.record
        module.bottoms.groups = ()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """Keep states that are needed later."""
        module: Any = pl_module
        round = module.books.rounds.get("fit", 0)
        (optimizer,) = trainer.optimizers
        for party in self._wanted.get(round, ()):
            bottom = module.bottoms.parties[party]
            moments = [deepcopy(optimizer.state.get(p)) for p in bottom.parameters()]
            self._kept[round, party] = deepcopy(bottom.state_dict()), moments

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Put the states back of parties that have come back before the next round."""
        module: Any = pl_module
        round = module.books.rounds.get("fit", 0)
        (optimizer,) = trainer.optimizers
        for party, since in self.record.restored.get(round, {}).items():
            weights, moments = self._kept[since, party]
            bottom = module.bottoms.parties[party]
            bottom.load_state_dict(weights)
            for parameter, moment in zip(bottom.parameters(), moments, strict=True):
                if moment is None:
                    optimizer.state.pop(parameter, None)
                else:
                    optimizer.state[parameter] = {
                        name: value.clone() if isinstance(value, torch.Tensor) else value
                        for name, value in moment.items()
                    }
