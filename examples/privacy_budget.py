"""Differential privacy: the training ends before the privacy loss of a record exceeds a budget.

``python examples/privacy_budget.py`` trains with binomial noise under masked sums (PBM-VFL) and prints epsilon.
"""

from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from lightning.pytorch import Trainer, seed_everything
from torch import nn

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import MaskedSum, PoissonBinomial
from lightning_vfl.callbacks import PrivacyBudget
from lightning_vfl.datamodules import Digits, Given, Grid
from lightning_vfl.networks import MLP


def main() -> None:
    """Train until the budget is spent, and test."""
    seed_everything(0)
    # known bounds of the pixels: a scaling that is fitted to the records would cost privacy itself
    data = Digits(Grid(2, 2), normaliser=Given(), batch_size=32)
    aggregator = PoissonBinomial(MaskedSum(), levels=16, beta=0.25, clip=1.0)
    bottom = partial(MLP, output_activation=nn.Tanh)
    model = SplitVFL(aggregator, bottom, MLP, width=16, evaluate="plain")
    budget = PrivacyBudget(target_epsilon=100.0, unit="party-record")
    with TemporaryDirectory() as folder:  # the run writes its ledger of releases there; keep yours
        settings: dict[str, Any] = {"default_root_dir": folder, "logger": False, "enable_checkpointing": False}
        trainer = Trainer(max_epochs=20, callbacks=[budget], **settings)
        trainer.fit(model, datamodule=data)
        (result,) = trainer.test(model, datamodule=data, verbose=False)
    epsilon = model.privacy.figures()["party-record"]
    print(f"test accuracy {result['test/accuracy']:.3f} after {trainer.current_epoch} epochs, epsilon {epsilon:.1f}")


if __name__ == "__main__":
    main()
