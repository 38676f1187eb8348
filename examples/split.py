"""Split learning: four parties hold a quarter of each handwritten digit, and half of the parties are slow.

``python examples/split.py`` trains for a few seconds and prints the accuracy on the test records.
"""

from lightning.pytorch import Trainer, seed_everything

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.callbacks import Stragglers
from lightning_vfl.datamodules import Digits, Grid
from lightning_vfl.missing import Stale
from lightning_vfl.waiting import Deadline


def main() -> None:
    """Train and test."""
    seed_everything(0)
    data = Digits(Grid(2, 2), batch_size=32)
    # the server waits 0.2 virtual seconds, then it uses the latest embedding of a late party
    model = SplitVFL(Mean(), width=32, waiting=Deadline(seconds=0.2), missing=Stale())
    trainer = Trainer(max_epochs=8, callbacks=[Stragglers(share=0.5)], logger=False, enable_checkpointing=False)
    trainer.fit(model, datamodule=data)
    (result,) = trainer.test(model, datamodule=data, verbose=False)
    print(f"test accuracy {result['test/accuracy']:.3f} after {model.clock.seconds:.2f} virtual seconds")
    print(f"bytes sent by each party: {model.books.meter.total('up').tolist()}")


if __name__ == "__main__":
    main()
