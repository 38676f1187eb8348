"""Several views of one object: each party holds one view in a NumPy file, and embeddings of all views are summed.

``python examples/multi_view.py`` makes the file from handwritten digits: pixels, and sums over rows and columns.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from lightning.pytorch import Trainer, seed_everything
from sklearn.datasets import load_digits

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Sum
from lightning_vfl.datamodules import MultiView


def main() -> None:
    """Write the views, train and test."""
    seed_everything(0)
    images, labels = load_digits(return_X_y=True)
    square = images.reshape(-1, 8, 8)
    with TemporaryDirectory() as folder:
        views = {"pixels": images, "rows": square.sum(2), "columns": square.sum(1)}
        np.savez(Path(folder, "digits.npz"), **views, labels=labels)
        data = MultiView(data_dir=folder, file="digits.npz", batch_size=32)
        model = SplitVFL(Sum(), width=32)
        trainer = Trainer(max_epochs=6, logger=False, enable_checkpointing=False)
        trainer.fit(model, datamodule=data)
        (result,) = trainer.test(model, datamodule=data, verbose=False)
    print(f"parties: {data.layout.view_names}, features of each: {data.party_shapes}")
    print(f"test accuracy {result['test/accuracy']:.3f}")


if __name__ == "__main__":
    main()
