"""A protocol of one's own that meets waiting rules, absent parties, faults and any aggregator by one call."""

from typing import Any

from lightning.pytorch import Trainer

from lightning_vfl import VerticalBatch, VFLModule
from lightning_vfl.aggregators import Aggregator, Mean
from lightning_vfl.callbacks import FaultInjector
from lightning_vfl.datamodules import Digits
from lightning_vfl.protocols import Step
from lightning_vfl.simulation import PartyDropout
from lightning_vfl.types import RoundNames


class SmallLogits(VFLModule):
    """Split learning whose loss also penalises large logits, which makes predictions less confident."""

    def __init__(self, aggregator: Aggregator, *, penalty: float = 1e-3, **settings: Any) -> None:
        super().__init__(aggregator, **settings)
        self.penalty = penalty

    def step(self, batch: VerticalBatch, names: RoundNames) -> Step:
        outcome = self.round(batch, names)
        loss = self.rank_loss(outcome.output, outcome.batch)
        return outcome.learn(loss + self.penalty * outcome.output.square().mean(), logged=loss)


if __name__ == "__main__":
    faults = FaultInjector(PartyDropout(probability=0.5, proportion=0.25))
    trainer = Trainer(max_epochs=8, logger=False, enable_checkpointing=False, callbacks=[faults])
    trainer.fit(model := SmallLogits(Mean(), width=32), datamodule=Digits())
    trainer.test(model, datamodule=Digits())
