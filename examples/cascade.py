"""Cascade training (CVFL): three parties hold labels of different classes, and one of them is slow.

``python examples/cascade.py`` trains for a few seconds and prints the accuracy on the test records.
"""

from functools import partial

import torch
from lightning.pytorch import Trainer, seed_everything

from lightning_vfl import CascadeVFL
from lightning_vfl.aggregators import Concat
from lightning_vfl.datamodules import Digits, LabelPartition, RowStrips


def main() -> None:
    """Train and test."""
    seed_everything(0)
    labels = LabelPartition(RowStrips(4), classes=[[0, 1, 2, 3], [3, 4, 5, 6], [7, 8, 9]])
    data = Digits(labels, batch_size=32)
    # party 1 takes four times as long for each of its periods; the others do not wait for it
    optimizer = partial(torch.optim.SGD, lr=0.1)
    model = CascadeVFL(Concat(), width=16, slower={1: 0.75}, optimizer=optimizer)
    trainer = Trainer(max_epochs=10, logger=False, enable_checkpointing=False)
    trainer.fit(model, datamodule=data)
    (result,) = trainer.test(model, datamodule=data, verbose=False)
    print(f"test accuracy {result['test/accuracy']:.3f} after {model.clock.seconds:.2f} virtual seconds")


if __name__ == "__main__":
    main()
