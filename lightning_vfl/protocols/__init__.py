"""Protocols: LightningModules that define which networks are trained, when, and from which messages."""

from lightning_vfl.protocols.asynchronous import AsyncVFL
from lightning_vfl.protocols.cascade import CascadeVFL
from lightning_vfl.protocols.decoupled import DecoupledVFL
from lightning_vfl.protocols.heads import EnsembleVFL, HeadsVFL, LocalVFL
from lightning_vfl.protocols.laser import LaserVFL
from lightning_vfl.protocols.module import VFLModule
from lightning_vfl.protocols.one_shot import OneShotVFL
from lightning_vfl.protocols.scores import Predictions
from lightning_vfl.protocols.split import SplitVFL
from lightning_vfl.protocols.step import Outcome, Step
from lightning_vfl.protocols.subsets import DropParties, Everybody, Subsets, TaskSampling

__all__ = [
    "AsyncVFL",
    "CascadeVFL",
    "DecoupledVFL",
    "DropParties",
    "EnsembleVFL",
    "Everybody",
    "HeadsVFL",
    "LaserVFL",
    "LocalVFL",
    "OneShotVFL",
    "Outcome",
    "Predictions",
    "SplitVFL",
    "Step",
    "Subsets",
    "TaskSampling",
    "VFLModule",
]
