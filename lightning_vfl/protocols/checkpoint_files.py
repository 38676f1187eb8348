"""Checkpoints that a killed process leaves complete."""

from io import BytesIO
from pathlib import Path
from typing import Any, final

import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.plugins.io import TorchCheckpointIO
from lightning.pytorch import Trainer

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.whole_files import whole_file


@final
class WholeCheckpoints(CheckpointIO):
    """Writes checkpoints beside their place and renames them; reads and removes them as Lightning does.

    Only their owner may read them (mode 0600).

    Lightning writes a checkpoint into the folder of temporary files and moves it. Between two file systems a move is a
    copy. A process that is killed meanwhile leaves a part of a file, where the checkpoint of before was.

    Raises:
        ConfigurationError: if a file cannot be written; an earlier checkpoint of the same name is as it was.
    """

    def __init__(self) -> None:
        self._usual = TorchCheckpointIO()

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        if storage_options is not None or "://" in str(path):
            self._usual.save_checkpoint(checkpoint, path, storage_options)
            return
        content = BytesIO()  # torch hides the reason if it cannot write to a file
        torch.save(checkpoint, content)
        try:
            with whole_file(Path(path), 0o600) as file:  # positions of records, secrets of downlinks
                file.write(content.getbuffer())
        except OSError as error:
            raise ConfigurationError(
                f"the checkpoint {path} cannot be written ({error.strerror}); make room or choose another folder, and "
                "resume from the last checkpoint"
            ) from error

    def load_checkpoint(self, path: str | Path, *args: Any, **settings: Any) -> dict[str, Any]:
        return self._usual.load_checkpoint(path, *args, **settings)

    def remove_checkpoint(self, path: str | Path) -> None:
        self._usual.remove_checkpoint(path)


def use_whole_checkpoints(trainer: Trainer) -> None:
    """Let a trainer write whole checkpoints, unless its user has chosen another way to write them."""
    if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
        trainer.strategy.checkpoint_io = WholeCheckpoints()
