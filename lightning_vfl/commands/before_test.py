"""A refusal of a measurement before the test that it follows."""

from collections.abc import Callable

from lightning.pytorch import Callback, LightningModule, Trainer


class BeforeTest(Callback):
    """Refuses before the test what the measurement after it could not do.

    Args:
        refuse: raises an error if something cannot be done.
    """

    def __init__(self, refuse: Callable[[], object]) -> None:
        self._refuse = refuse

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._refuse()
