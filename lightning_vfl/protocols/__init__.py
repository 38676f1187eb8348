"""Protocols: LightningModules that define which networks are trained, when, and from which messages."""

from lightning_vfl.protocols.asynchronous import AsyncVFL
from lightning_vfl.protocols.base import VFLModule
from lightning_vfl.protocols.cascade import CascadeVFL
from lightning_vfl.protocols.decoupled import DecoupledVFL
from lightning_vfl.protocols.evaluation import Predictions
from lightning_vfl.protocols.groups.noise import UpdateNoise
from lightning_vfl.protocols.round import RoundVFL
from lightning_vfl.protocols.split import SplitVFL
from lightning_vfl.protocols.step import Step

__all__ = [
    "AsyncVFL",
    "CascadeVFL",
    "DecoupledVFL",
    "Predictions",
    "RoundVFL",
    "SplitVFL",
    "Step",
    "UpdateNoise",
    "VFLModule",
]
