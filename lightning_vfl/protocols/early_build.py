"""Networks for callbacks that copy the module before Lightning has let it build its networks."""

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging


class BuildNetworks(Callback):
    """Builds the networks as soon as the data are set up; it comes before the callback that copies the module."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        strategy = trainer.strategy
        with (
            strategy.tensor_init_context(),
            strategy.model_sharded_context(),
            strategy.precision_plugin.module_init_context(),
        ):
            pl_module.configure_model()


def with_networks(callbacks: list[Callback]) -> list[Callback]:
    """The callbacks; if one of them averages weights, another one builds the networks first."""
    copies = any(isinstance(callback, StochasticWeightAveraging) for callback in callbacks)
    built = any(isinstance(callback, BuildNetworks) for callback in callbacks)
    return [BuildNetworks(), *callbacks] if copies and not built else callbacks
