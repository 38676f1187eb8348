"""What a process of a federation is given."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_vfl.federation.charter import Charter, SeatFile, Weights
from lightning_vfl.federation.identity import Identity
from lightning_vfl.federation.link import Way
from lightning_vfl.federation.versions import versions
from lightning_vfl.protocols.loading import rounds_in
from lightning_vfl.protocols.owner_keys import new_key, save_key
from lightning_vfl.protocols.run_folder import run_folder
from lightning_vfl.types import Seat


@dataclass(frozen=True)
class Run:
    """What a process of a federation is given.

    Args:
        charter: the same in all processes.
        identity: of this host.
        seat: its settings.
        way: to the other processes.
        trainer: Lightning's trainer of this process.
        model: the protocol.
        data: the datamodule.
        method: of the trainer: ``fit``, ``validate``, ``test`` or ``predict``.
        recipe: the settings that all processes must share.
        injected: faults are played from the recipe.
        checkpoint: of this process; None: none.
        local: all processes are on this machine, so that each may load a whole data set.
    """

    charter: Charter
    identity: Identity
    seat: SeatFile
    way: Way
    trainer: Any
    model: Any
    data: Any
    method: str
    recipe: Mapping[str, str] = field(repr=False)
    injected: bool = False
    checkpoint: str | None = None
    local: bool = False

    @cached_property
    def rounds(self) -> int:
        """Training rounds of the checkpoint; 0: there is none."""
        return 0 if self.checkpoint is None else rounds_in(Path(self.checkpoint))

    def take_seat(self, seat: Seat) -> None:
        """Say to the data which seat this process has, and who has labels."""
        names = [party.name for party in self.charter.parties] if self.data.own_files else None
        self.data.take_seat(seat, names, self.model.active, self.model.labels_everywhere)

    def use_fitted(self) -> None:
        """Prepare new records as those that the model was trained on."""
        if self.checkpoint is not None and self.model.fitted is not None:
            self.data.use(self.model.fitted)

    def train(self) -> None:
        """Call the method of the trainer."""
        self.model.place.tells_predictions = any(getattr(c, "at", None) == "parties" for c in self.trainer.callbacks)
        getattr(self.trainer, self.method)(self.model, datamodule=self.data, ckpt_path=self.checkpoint)

    def about(self) -> dict[str, Any]:
        """What processes compare."""
        return {
            "digest": self.charter.digest.hex(),
            "versions": {**versions(), "torch": torch.__version__},
            "method": self.method,
            "weights": str(self.charter.weights),
        }

    def draw_secrets(self, owner: int | None) -> None:
        """Draw the secret from which this process's weights, dropout and noise follow, if they are to be secret."""
        if self.charter.weights == Weights.SECRET:
            self.model.keys[owner] = new_key()
            self.trainer.callbacks.append(KeepKey())


class KeepKey(Callback):
    """Writes the secret of this process into the folder of its run, before anything that depends on it is sent."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        module: Any = pl_module
        save_key(module.keys[module.owner], Path(run_folder(trainer)))
