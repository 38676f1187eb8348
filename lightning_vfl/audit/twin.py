"""The unprotected twin of a recipe: the same networks, where nothing that is sent is masked, coded or noisy."""

from torch import Tensor

from lightning_vfl.aggregators.base import Aggregator, Around
from lightning_vfl.aggregators.local_gaussian import LocalGaussian
from lightning_vfl.protocols import VFLModule
from lightning_vfl.types import Roll, Tensors


class Unprotected(Around):
    """The aggregate of another aggregator, of embeddings in the clear.

    Args:
        inner: the other aggregator, of which ``plain`` is used and no part.
    """

    def __init__(self, inner: Aggregator) -> None:
        self.inner = inner

    def plain(self, h: Tensors, roll: Roll, present: Tensor | None = None) -> Tensor:
        return self.inner.plain(h, roll, present)


def is_protected(module: VFLModule) -> bool:
    """Whether embeddings, records or labels of this protocol travel hidden or with noise."""
    aggregator = module.aggregator
    parts = aggregator.wire, aggregator.setup, aggregator.opening, aggregator.accounting, aggregator.shared_bottoms
    return any((*parts, getattr(module, "downlink", None), getattr(module, "noise", 0.0)))


def unprotect(module: VFLModule) -> None:
    """Make a module that is not built yet its own unprotected twin."""
    aggregator = module.aggregator
    module.aggregator = aggregator.inner if isinstance(aggregator, LocalGaussian) else Unprotected(aggregator)
    module.protected_evaluation = False
    module.privacy_ledger = "auto"
    module.allow_embeddings_by_subtraction = True
    module.allow_invertible_updates = True
    for name, nothing in (("downlink", None), ("noise", 0.0)):  # of SplitVFL and AsyncVFL
        if hasattr(module, name):
            setattr(module, name, nothing)
