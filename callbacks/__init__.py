"""Callbacks: faults, traces, predictions, reports, plots, and limits of virtual time and privacy."""

from .audit import Audit
from .during_phase import DuringPhase
from .experiment_record import ExperimentRecord
from .history import RunHistory
from .injector import (
    Blur,
    Crashes,
    DroppedColumns,
    FaultInjector,
    Misaligned,
    Noise,
    PartyDropout,
    ShiftedUnits,
    StaleTable,
    Stragglers,
    TraceReplay,
)
from .learning_curve import LearningCurve
from .predictions import PredictionWriter, predictions_of
from .pretraining import Pretraining
from .privacy_budget import PrivacyBudget
from .progress import SparseProgressBar
from .run_record import RunRecord
from .run_summary import RunSummary
from .time_limit import VirtualTimeLimit
from .trace import TraceRecorder
from .train_metrics import TrainMetrics

__all__ = [
    "Audit",
    "Blur",
    "Crashes",
    "DroppedColumns",
    "DuringPhase",
    "ExperimentRecord",
    "FaultInjector",
    "LearningCurve",
    "Misaligned",
    "Noise",
    "PartyDropout",
    "PredictionWriter",
    "Pretraining",
    "PrivacyBudget",
    "RunHistory",
    "RunRecord",
    "RunSummary",
    "ShiftedUnits",
    "SparseProgressBar",
    "StaleTable",
    "Stragglers",
    "TraceRecorder",
    "TraceReplay",
    "TrainMetrics",
    "VirtualTimeLimit",
    "predictions_of",
]
