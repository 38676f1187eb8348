"""Asynchronous split learning (VAFL): nobody waits for anybody; the server keeps the latest embedding of each record.

``python examples/asynchronous.py`` trains for a few seconds and prints the accuracy on the test records.
"""

from lightning.pytorch import Trainer, seed_everything

from lightning_vfl import AsyncVFL
from lightning_vfl.aggregators import Concat
from lightning_vfl.callbacks import Stragglers
from lightning_vfl.datamodules import BreastCancer, ContiguousColumns


def main() -> None:
    """Train and test."""
    seed_everything(0)
    data = BreastCancer(ContiguousColumns(3), batch_size=32)
    model = AsyncVFL(Concat(), width=16)
    # one of the three parties is slow: it has fewer turns than the others, and it holds nobody up
    trainer = Trainer(max_epochs=8, callbacks=[Stragglers(share=0.34)], logger=False, enable_checkpointing=False)
    trainer.fit(model, datamodule=data)
    (result,) = trainer.test(model, datamodule=data, verbose=False)
    print(f"test accuracy {result['test/accuracy']:.3f} after {model.clock.seconds:.2f} virtual seconds")


if __name__ == "__main__":
    main()
