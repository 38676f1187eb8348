"""A study of faults: which treatment of late embeddings keeps the accuracy when half of the parties are slow?

``python examples/compare_policies.py`` prints one line for each policy. ``lightning-vfl study`` runs larger grids.
"""

from typing import Any

from lightning.pytorch import Trainer, seed_everything

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import Mean
from lightning_vfl.callbacks import Stragglers
from lightning_vfl.datamodules import Digits, Grid
from lightning_vfl.missing import Exclude, MissingPolicy, Stale, Zeros
from lightning_vfl.waiting import Deadline


def accuracy(policy: MissingPolicy) -> tuple[float, float]:
    """The accuracy on the test records, and the virtual seconds of the training."""
    seed_everything(0, verbose=False)
    data = Digits(Grid(2, 2), batch_size=32)
    model = SplitVFL(Mean(), width=32, waiting=Deadline(seconds=0.2), missing=policy)
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    trainer = Trainer(max_epochs=4, callbacks=[Stragglers(share=0.5)], enable_progress_bar=False, **quiet)
    trainer.fit(model, datamodule=data)
    (result,) = trainer.test(model, datamodule=data, verbose=False)
    return result["test/accuracy"], model.clock.seconds


def main() -> None:
    """Train once with each policy."""
    for policy in (Zeros(), Exclude(), Stale()):
        found, seconds = accuracy(policy)
        print(f"{type(policy).__name__:8} test accuracy {found:.3f} after {seconds:.1f} virtual seconds")


if __name__ == "__main__":
    main()
