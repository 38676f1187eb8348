"""What all callbacks that inject faults share: to hand a fault model to the protocol."""

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.protocols import VFLModule
from lightning_vfl.simulation import FaultModel


class FaultInjector(Callback):
    """Lets a fault model of any kind happen to the trained protocol; use it directly for a model of your own.

    The model is handed over before any loader exists and taken back at the end; nothing runs per batch. Several
    injectors in one trainer act together.

    Args:
        model: what happens.

    Raises:
        ConfigurationError: before training, for a module that is no protocol of this toolkit.
    """

    def __init__(self, model: FaultModel) -> None:
        self.model = model

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        protocol(self, pl_module).faults.add(self.model)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        protocol(self, pl_module).faults.remove(self.model)


def protocol(callback: Callback, module: LightningModule) -> VFLModule:
    """This module, seen to be one that faults can happen to.

    Raises:
        ConfigurationError: if it is none.
    """
    if not isinstance(module, VFLModule):
        raise ConfigurationError(
            f"{type(callback).__name__} cannot act on {type(module).__name__}, which is no VFLModule; "
            "train a protocol of lightning_vfl, or leave the callback out"
        )
    return module
