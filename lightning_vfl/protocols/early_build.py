"""Networks for callbacks that read the module before Lightning has let it build its networks."""

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BaseFinetuning, StochasticWeightAveraging
from lightning.pytorch.utilities.model_helpers import is_overridden

_READERS = StochasticWeightAveraging, BaseFinetuning
_WITHOUT = "lightning", "pytorch_lightning", "lightning_vfl"  # whose other callbacks need no networks in setup


class BuildNetworks(Callback):
    """Builds the networks as soon as the data are set up; it comes before all other callbacks."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        strategy = trainer.strategy
        with (
            strategy.tensor_init_context(),
            strategy.model_sharded_context(),
            strategy.precision_plugin.module_init_context(),
        ):
            pl_module.configure_model()


def with_networks(callbacks: list[Callback]) -> list[Callback]:
    """The callbacks; if one of them may read networks in its ``setup``, another one builds the networks first."""
    built = any(isinstance(callback, BuildNetworks) for callback in callbacks)
    return [BuildNetworks(), *callbacks] if not built and any(map(_reads_networks, callbacks)) else callbacks


def _reads_networks(callback: Callback) -> bool:
    """Whether a callback copies or freezes networks in its ``setup``, as an author's own may do."""
    own = type(callback).__module__.partition(".")[0] not in _WITHOUT
    return isinstance(callback, _READERS) or (own and is_overridden("setup", callback, parent=Callback))
