"""A fault model of one's own: some parties rest in two rounds of seven, and everybody knows it beforehand."""

from dataclasses import replace

import torch
from lightning.pytorch import Trainer

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.callbacks import FaultInjector
from lightning_vfl.datamodules import Digits
from lightning_vfl.simulation import FaultModel, RoundOutcome
from lightning_vfl.types import Roster


class Weekends(FaultModel):
    """The parties of ``resting`` are absent in the last two of every seven rounds (two requests each)."""

    def __init__(self, resting: list[int]) -> None:
        self.resting = resting

    def sample(self, request: int, roster: Roster, seed: int) -> RoundOutcome:
        there = torch.ones(roster.parties, dtype=torch.bool)
        if request // 2 % 7 >= 5:
            there[self.resting] = False
        return replace(RoundOutcome.nothing(roster), announced=there)


if __name__ == "__main__":
    weekends = FaultInjector(Weekends(resting=[1]))
    trainer = Trainer(max_epochs=8, callbacks=[weekends], logger=False, enable_checkpointing=False)
    trainer.fit(model := SplitVFL(Mean(), width=32), datamodule=Digits())
    trainer.test(model, datamodule=Digits())
