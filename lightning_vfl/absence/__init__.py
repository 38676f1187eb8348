"""How well a trained model predicts when some parties are absent: by subset, by number absent and by probability."""

from lightning_vfl.absence.asked import Asked, parse
from lightning_vfl.absence.measure import Measured, embed, measure, refuse
from lightning_vfl.absence.predicting import PredictWithout
from lightning_vfl.absence.stand_ins import AbsentStandIn, Exclude, MeanEmbedding, Moments, Regressed, Zeros

__all__ = [
    "AbsentStandIn",
    "Asked",
    "Exclude",
    "MeanEmbedding",
    "Measured",
    "Moments",
    "PredictWithout",
    "Regressed",
    "Zeros",
    "embed",
    "measure",
    "parse",
    "refuse",
]
