"""What sums of embeddings tell a server about features: writes tables/sums.csv and tables/seeds/sums.csv.

    python docs/results/make_sums.py

Digits, 4 parties, linear bottoms, one epoch of batches of 256. The server keeps the sums that it decodes, knows the
columns of party 2 of 100 records, and computes those of all others with a ridge regression (``FeatureReconstruction``).
"""

import csv
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory

import torch
from lightning.pytorch import Trainer

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Aggregator, LagrangeCoded, MaskedSum
from lightning_vfl.audit import FeatureReconstruction
from lightning_vfl.callbacks import Audit
from lightning_vfl.datamodules import Digits
from lightning_vfl.networks import Linear, PolynomialNetwork

TABLES = Path(__file__).parent / "tables"
SEEDS, KNOWN = range(5), 100
QUANTITY = "server/R² of features"


def coded() -> Aggregator:
    """FedVS with T = 1."""
    return LagrangeCoded(blocks=1, privacy=1)


RUNS = {
    "FedVS, width 64": (coded, PolynomialNetwork, 64),
    "FedVS, width 16": (coded, PolynomialNetwork, 16),
    "vFedSec, sum, width 64": (MaskedSum, Linear, 64),
    "vFedSec, sum, width 16": (MaskedSum, Linear, 16),
}


def success(run: str, seed: int) -> float:
    """R² of the features of party 2 of the records that the server does not know."""
    aggregator, bottom, width = RUNS[run]
    torch.manual_seed(seed)
    audit = Audit("server", [FeatureReconstruction(2, KNOWN)])
    module = SplitVFL(aggregator(), bottom, width=width, seed=seed)
    with TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=1,
            limit_val_batches=0,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[audit],
            default_root_dir=folder,
        )
        trainer.fit(module, datamodule=Digits(batch_size=256, seed=seed))
    return audit.findings[0].success


def main() -> None:
    """Train and write both tables."""
    found = {run: [success(run, seed) for seed in SEEDS] for run in RUNS}
    with (TABLES / "sums.csv").open("w", encoding="utf-8", newline="") as file:
        rows = [[QUANTITY, run, len(values), fmean(values), stdev(values)] for run, values in found.items()]
        csv.writer(file, lineterminator="\n").writerows([["quantity", "run", "seeds", "mean", "sd"], *rows])
    with (TABLES / "seeds" / "sums.csv").open("w", encoding="utf-8", newline="") as file:
        rows = [[QUANTITY, run, seed, value] for run, values in found.items() for seed, value in enumerate(values)]
        csv.writer(file, lineterminator="\n").writerows([["quantity", "run", "seed", "value"], *rows])


if __name__ == "__main__":
    main()
