"""The base class of protocols that train in phases, the owner of the labels in the last of them."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import torch
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.modes import evaluating
from lightning_vfl.protocols.checks import callbacks_of
from lightning_vfl.protocols.hooks import toolkit_hook
from lightning_vfl.protocols.module import VFLModule
from lightning_vfl.types import RecordSource, Tensors

ROWS = 1024  # records that are embedded at a time


class PhasedVFL(VFLModule):
    """A protocol whose phase depends on the epoch. The owner learns in the last one, after it has collected once.

    Its ``own_books`` have a field ``collected``. In the phase ``owner`` there are no faults.

    Raises:
        ConfigurationError: before training, for a fit that ends before the owner's phase, and for early stopping that
            counts the epochs before it.
    """

    phases: tuple[str, ...]
    says_who_learns = False  # the phase decides, and faults

    @abstractmethod
    def phase_of(self, epoch: int) -> str:
        """The phase of an epoch, which decides who learns."""

    @property
    @abstractmethod
    def before_owner(self) -> tuple[int, str]:
        """How many epochs there are before the owner's phase, and the settings that they are the sum of."""

    @property
    def phase(self) -> str:
        """The phase of the current epoch."""
        return self.phase_of(self.current_epoch)

    @property
    def meets_faults(self) -> bool:
        return super().meets_faults and self.phase != "owner"

    @toolkit_hook
    def setup(self, stage: str) -> None:
        super().setup(stage)
        if stage == "fit" and any(type(callback) is EarlyStopping for callback in callbacks_of(self.trainer)):
            raise ConfigurationError(
                "EarlyStopping would count the epochs in which the owner does not learn; wrap it: class_path "
                "DuringPhase, init_args: {phase: owner, callback: {class_path: EarlyStopping, ...}}"
            )

    @toolkit_hook
    def on_fit_start(self) -> None:
        """Refuse a fit that ends before the owner's phase."""
        first, settings = self.before_owner
        last = self.trainer.max_epochs
        if last is not None and 0 <= last <= first and not self.trainer.fast_dev_run:  # type: ignore[attr-defined]  # set in Trainer.__init__
            raise ConfigurationError(
                f"max_epochs must be at least {first + 1}, because the owner's phase begins after {first} epochs "
                f"({settings}); got {last}"
            )
        super().on_fit_start()

    @toolkit_hook
    def on_train_epoch_start(self) -> None:
        """Let schedules that monitor a metric wait for the owner's phase: until then it is of an untrained owner."""
        super().on_train_epoch_start()
        for schedule in self.trainer.lr_scheduler_configs:
            if schedule.reduce_on_plateau:
                schedule.interval = "epoch" if self.phase == "owner" else "not before the owner's phase"

    @toolkit_hook
    def on_train_end(self) -> None:
        """Warn if the fit ended before the owner's first step."""
        super().on_train_end()
        untrained = self.scores_here and not self.books.own.collected
        if untrained and not self.trainer.fast_dev_run:  # type: ignore[attr-defined]  # set in Trainer.__init__
            rank_zero_warn(
                "the training ended before the owner's phase, so the classifier is untrained; resume from the "
                "checkpoint, or raise trainer.max_epochs"
            )

    def final_embeddings(self, parts: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensors]]:
        """Some positions of training records at a time, and the embeddings (B, D_m) of these records by all bottoms."""
        records = self.datamodule.records("train")
        like = next(self.bottoms.parameters())
        for ids in parts:
            rows = [x.to(like) if x.is_floating_point() else x.to(like.device) for x in records.rows(ids)]
            with torch.no_grad(), evaluating(self):
                h = self.bottoms(tuple(rows))
            yield ids, h


def in_parts(data: RecordSource) -> Tensors:
    """The records that every guest holds, in parts that are embedded at a time."""
    every = torch.arange(len(data))
    common = every if data.present is None else every[data.present.all(1).cpu()]
    return torch.split(common, ROWS)
