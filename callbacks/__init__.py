"""Thin adapters between the trainer and the toolkit: reporting, plots, predictions, faults, an end by virtual time."""

from .crashes import Crashes
from .dropout import PartyDropout
from .during_phase import DuringPhase
from .history import RunHistory
from .injector import FaultInjector
from .learning_curve import LearningCurve
from .predictions import PredictionWriter
from .privacy_budget import PrivacyBudget
from .progress import SparseProgressBar
from .run_summary import RunSummary
from .stragglers import Stragglers
from .time_limit import VirtualTimeLimit
from .trace import TraceRecorder, TraceReplay
from .train_metrics import TrainMetrics

__all__ = [
    "Crashes",
    "DuringPhase",
    "FaultInjector",
    "LearningCurve",
    "PartyDropout",
    "PredictionWriter",
    "PrivacyBudget",
    "RunHistory",
    "RunSummary",
    "SparseProgressBar",
    "Stragglers",
    "TraceRecorder",
    "TraceReplay",
    "TrainMetrics",
    "VirtualTimeLimit",
]
