"""A masked aggregator of one's own: the server learns how many parties vote yes, and no party's own vote."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from lightning.pytorch import Trainer
from torch import Tensor

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators.secure import Codec, IntegerSum, SecureLayer
from lightning_vfl.datamodules import Digits
from lightning_vfl.types import Roster


@dataclass(frozen=True)
class Signs(Codec):
    """A vote: the integer 1 for a positive number, 0 for any other."""

    def encode(self, h: Tensor, *_: Any, **__: Any) -> tuple[Tensor, float]:
        return (h > 0).int().cpu(), 0.0  # nothing is out of range; the other arguments are for random codecs

    def to_real(self, total: np.ndarray, n: int) -> np.ndarray:
        return 2.0 * np.asarray(total, np.float64) - n  # votes for, less votes against


class MaskedVote(IntegerSum):
    """Sums of votes modulo 2^8, for up to 255 parties; pairs of parties agree on keys, and their masks cancel."""

    def __init__(self) -> None:
        super().__init__(SecureLayer(bits=8))

    def codec(self, roster: Roster) -> Signs:
        return Signs()


if __name__ == "__main__":
    trainer = Trainer(max_epochs=8, logger=False, enable_checkpointing=False)
    trainer.fit(model := SplitVFL(MaskedVote(), width=32), datamodule=Digits())
    trainer.test(model, datamodule=Digits())
