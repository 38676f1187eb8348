"""A data set of one's own: read the records, name the columns, divide them between the parties."""

from collections.abc import Mapping

import numpy as np
import torch
from lightning.pytorch import Trainer
from sklearn.datasets import load_wine

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Concat
from lightning_vfl.datamodules import ContiguousColumns, Layout, Split, VerticalDataModule
from lightning_vfl.datamodules.base import SplitName
from lightning_vfl.datamodules.split import split_rows


class Wine(VerticalDataModule):
    """178 Italian wines of three growers, 13 measurements (Forina et al., 1991); 20 % test, 10 % validation."""

    num_classes = 3

    @property
    def layout(self) -> Layout:
        return Layout((13,), tuple(load_wine().feature_names))

    def default_partitioner(self) -> ContiguousColumns:
        return ContiguousColumns(3)

    def load(self, names: tuple[SplitName, ...]) -> Mapping[SplitName, Split]:
        x, y = load_wine(return_X_y=True)
        rows = split_rows(np.arange(len(x)), self.seed, val=0.1, test=0.2, stratify=y)
        records, labels = torch.from_numpy(x).float(), torch.from_numpy(y)
        return {name: Split(records[rows[name]], labels[rows[name]], rows[name]) for name in names}


if __name__ == "__main__":
    trainer = Trainer(max_epochs=40, logger=False, enable_checkpointing=False)
    trainer.fit(model := SplitVFL(Concat(), width=8), datamodule=Wine(batch_size=16))
    trainer.test(model, datamodule=Wine())
