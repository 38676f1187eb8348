"""Decoupled training (DVFL): guests and hosts learn without gradients from others, and guests crash and rejoin.

``python examples/decoupled.py`` trains for a few seconds and prints the accuracy on the test records.
"""

from lightning.pytorch import Trainer, seed_everything

from lightning_vfl import DecoupledVFL
from lightning_vfl.callbacks import Crashes
from lightning_vfl.datamodules import BreastCancer, ContiguousColumns


def main() -> None:
    """Train and test."""
    seed_everything(0)
    data = BreastCancer(ContiguousColumns(3), batch_size=32)
    # 8 epochs in which guests and two redundant hosts learn, then 12 in which the owner of the labels learns
    model = DecoupledVFL(width=16, hosts=2, host_width=32, guest_epochs=8, standardise=True)
    crashes = Crashes("guests", down=0.2, rejoin=0.3)
    trainer = Trainer(max_epochs=20, callbacks=[crashes], logger=False, enable_checkpointing=False)
    trainer.fit(model, datamodule=data)
    (result,) = trainer.test(model, datamodule=data, verbose=False)
    print(f"test accuracy {result['test/accuracy']:.3f} after {model.clock.seconds:.2f} virtual seconds")


if __name__ == "__main__":
    main()
