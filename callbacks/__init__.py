"""Thin adapters between the trainer and the toolkit: reporting, plots, predictions."""

from .learning_curve import LearningCurve
from .predictions import PredictionWriter
from .progress import SparseProgressBar
from .run_summary import RunSummary

__all__ = ["LearningCurve", "PredictionWriter", "RunSummary", "SparseProgressBar"]
