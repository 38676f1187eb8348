"""Images: four parties hold a quarter of each picture, and each party trains a convolutional network on its quarter.

``python examples/images.py`` uses handwritten digits. ``ImageFolderVFL(data_dir=...)`` reads pictures of your own.
"""

from functools import partial

from lightning.pytorch import Trainer, seed_everything

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Concat
from lightning_vfl.datamodules import Digits, Grid
from lightning_vfl.networks import ConvNet


def main() -> None:
    """Train and test."""
    seed_everything(0)
    data = Digits(Grid(2, 2), batch_size=32)
    model = SplitVFL(Concat(), partial(ConvNet, channels=(8,)), width=16)
    trainer = Trainer(max_epochs=6, logger=False, enable_checkpointing=False)
    trainer.fit(model, datamodule=data)
    (result,) = trainer.test(model, datamodule=data, verbose=False)
    print(f"shapes of the quarters: {data.party_shapes}")
    print(f"test accuracy {result['test/accuracy']:.3f}")


if __name__ == "__main__":
    main()
