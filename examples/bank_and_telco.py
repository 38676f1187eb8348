"""Tables of two organisations: a bank and a telephone company train together, then predict new customers.

``python examples/bank_and_telco.py`` makes the tables, trains, tests, and prints the first predictions.
"""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from lightning.pytorch import Trainer, seed_everything
from make_customers import write
from torch import nn

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import MaskedSum
from lightning_vfl.callbacks import PredictionWriter
from lightning_vfl.datamodules import CSVTables
from lightning_vfl.networks import MLP


def main() -> None:
    """Train and test on customers whose loans have ended, and predict new customers."""
    seed_everything(0)
    with TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        tables = {"bank": folder / "bank.csv", "telco": folder / "telco.csv"}
        data = CSVTables(tables, "bank", "default", preprocess="auto", batch_size=32)
        # the server sees sums of masked embeddings, which need bounds
        model = SplitVFL(MaskedSum(), partial(MLP, output_activation=nn.Tanh), width=16)
        writer = PredictionWriter(str(folder / "predictions.csv"))
        trainer = Trainer(max_epochs=10, callbacks=[writer], logger=False, enable_checkpointing=False)
        trainer.fit(model, datamodule=data)
        (result,) = trainer.test(model, datamodule=data, verbose=False)
        new = {"bank": folder / "new_bank.csv", "telco": folder / "new_telco.csv"}
        trainer.predict(model, datamodule=CSVTables(new, "bank", "default", preprocess="auto", batch_size=32))
        print(pd.read_csv(folder / "predictions.csv").head())
    print(f"test accuracy {result['test/accuracy']:.3f}")


if __name__ == "__main__":
    main()
