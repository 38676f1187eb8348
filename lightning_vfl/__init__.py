"""Vertical federated learning under unreliable, curious parties, on PyTorch Lightning."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_vfl.protocols.asynchronous import AsyncVFL
    from lightning_vfl.protocols.cascade import CascadeVFL
    from lightning_vfl.protocols.decoupled import DecoupledVFL
    from lightning_vfl.protocols.heads import EnsembleVFL, LocalVFL
    from lightning_vfl.protocols.laser import LaserVFL
    from lightning_vfl.protocols.module import VFLModule
    from lightning_vfl.protocols.one_shot import OneShotVFL
    from lightning_vfl.protocols.split import SplitVFL
    from lightning_vfl.types import VerticalBatch

__all__ = [
    "AsyncVFL",
    "CascadeVFL",
    "DecoupledVFL",
    "EnsembleVFL",
    "LaserVFL",
    "LocalVFL",
    "OneShotVFL",
    "SplitVFL",
    "VFLModule",
    "VerticalBatch",
    "__version__",
]

__version__ = "1.0.0"

# Protocols import `lightning` (3.5 s), and the batch imports `torch` (1 s); other parts must not take that time.
_LAZY = {
    "AsyncVFL": "lightning_vfl.protocols.asynchronous",
    "CascadeVFL": "lightning_vfl.protocols.cascade",
    "DecoupledVFL": "lightning_vfl.protocols.decoupled",
    "EnsembleVFL": "lightning_vfl.protocols.heads",
    "LaserVFL": "lightning_vfl.protocols.laser",
    "LocalVFL": "lightning_vfl.protocols.heads",
    "OneShotVFL": "lightning_vfl.protocols.one_shot",
    "SplitVFL": "lightning_vfl.protocols.split",
    "VFLModule": "lightning_vfl.protocols.module",
    "VerticalBatch": "lightning_vfl.types",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
