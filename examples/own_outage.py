"""Outages of whole regions, and a waiting rule of one's own: wait for information, not for a number of parties."""

from dataclasses import dataclass, replace

import torch
from lightning.pytorch import Trainer
from numpy.random import Generator
from torch import Tensor

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.callbacks import FaultInjector
from lightning_vfl.datamodules import Digits
from lightning_vfl.simulation import FaultModel, RoundOutcome
from lightning_vfl.streams import stream
from lightning_vfl.types import Roster
from lightning_vfl.waiting import WaitingRule


@dataclass(frozen=True)
class RegionOutages(FaultModel):
    """In a round, each region is down with a probability, and with it all of its parties, without notice."""

    regions: list[list[int]]
    probability: float

    @property
    def silent(self) -> bool:
        return self.probability > 0

    def sample(self, request: int, roster: Roster, seed: int) -> RoundOutcome:
        chance = Generator(stream(seed, "RegionOutages", request // 2))  # two requests make a round
        draws = chance.random(len(self.regions))
        down = [m for region, draw in zip(self.regions, draws, strict=True) if draw < self.probability for m in region]
        sends = torch.tensor([party not in down for party in range(roster.parties)])
        return replace(RoundOutcome.nothing(roster), sends=sends)


@dataclass(frozen=True)
class EnoughInformation(WaitingRule):
    """Go on when the parties that have arrived hold a share of the information, and after a timeout in any case."""

    information: tuple[float, ...]  # of each party, for example its number of columns
    share: float
    timeout: float

    @property
    def patience(self) -> float:
        return self.timeout

    def close(self, arrivals: Tensor, needed: int = 1) -> tuple[Tensor, float]:
        called = int((~arrivals.isnan()).sum())
        seconds, order = arrivals.nan_to_num(nan=torch.inf, posinf=torch.inf).sort(stable=True)
        together = torch.tensor(self.information, dtype=torch.float64)[order].cumsum(0)
        enough = 1 + int((together < self.share * sum(self.information)).sum())
        first = min(max(enough, needed), called)  # all that are called, if these hold too little
        when = min(float(seconds[first - 1]), self.timeout) if first else 0.0
        included = torch.zeros(len(arrivals), dtype=torch.bool)
        included[order[:first]] = True
        return included & (arrivals <= when), when

    def fewest(self, parties: int, needed: int = 1) -> int:
        return int(self.close(torch.zeros(parties, dtype=torch.float64), needed)[0].sum())


if __name__ == "__main__":
    outages = FaultInjector(RegionOutages(regions=[[0, 1], [2, 3]], probability=0.2))
    trainer = Trainer(max_epochs=8, callbacks=[outages], logger=False, enable_checkpointing=False)
    rule = EnoughInformation(information=(2.0, 1.0, 1.0, 2.0), share=0.5, timeout=1.0)
    trainer.fit(model := SplitVFL(Mean(), width=32, waiting=rule), datamodule=Digits())
    trainer.test(model, datamodule=Digits())
