"""What pretraining on records that the parties do not share is worth, by test accuracy.

5 % of the training records are labelled and held by all parties; each of the others is held by one party alone. Joint
training has the 5 %, and ``Pretraining`` each party's own records besides. A draw has its own records and weights.

    python -m benchmarks.pretraining [--json FILE] [--draws N]
"""

import logging
import warnings
from functools import partial
from statistics import mean, stdev
from typing import NamedTuple

import torch
from lightning.pytorch import Trainer
from scipy.stats import t

from benchmarks.harness import arguments, report
from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Concat
from lightning_vfl.callbacks import Pretraining
from lightning_vfl.datamodules import CreditDefault, Digits, Handwritten, LimitedOverlap, VerticalDataModule
from lightning_vfl.networks import MLP

SHARE = 0.05
DRAWS = 4


class Trial(NamedTuple):
    """A data set, with the epochs of the joint training and those of the pretraining."""

    data: type[VerticalDataModule]
    epochs: int
    pretraining: int


TRIALS = (Trial(Digits, 50, 20), Trial(Handwritten, 40, 60), Trial(CreditDefault, 10, 10))


def accuracy(trial: Trial, aligned: int, draw: int, pretrained: bool) -> float:
    """The test accuracy of one training."""
    overlap = LimitedOverlap(aligned=aligned, seed=draw, only_aligned=True)
    data = trial.data(partitioner=overlap, batch_size=32, seed=draw)
    torch.manual_seed(draw)
    bottom = partial(MLP, hidden=(128,))
    module = SplitVFL(Concat(), bottom=bottom, top=partial(MLP, hidden=(64,)), width=64, seed=draw)
    trainer = Trainer(
        max_epochs=trial.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        callbacks=[Pretraining(epochs=trial.pretraining)] if pretrained else [],
    )
    trainer.fit(module, datamodule=data)
    (metrics,) = trainer.test(module, datamodule=data, verbose=False)
    return metrics["test/accuracy"]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--draws", type=int, default=DRAWS)
    given = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    rows = []
    for trial in TRIALS:
        whole = trial.data()
        whole.setup("fit")
        records = len(whole.records("train"))
        aligned = int(SHARE * records)
        joint = [accuracy(trial, aligned, draw, False) for draw in range(given.draws)]
        pretrained = [accuracy(trial, aligned, draw, True) for draw in range(given.draws)]
        gains = [one - other for one, other in zip(pretrained, joint, strict=True)]
        interval = float(t.ppf(0.975, given.draws - 1)) * stdev(gains) / given.draws**0.5
        rows.append(
            {
                "data": trial.data.__name__,
                "records": records,
                "labelled": aligned,
                "joint": round(mean(joint), 4),
                "pretrained": round(mean(pretrained), 4),
                "difference": f"{mean(gains):+.4f} ± {interval:.4f}",
            }
        )
    report(rows, [], given.json)


if __name__ == "__main__":
    main()
