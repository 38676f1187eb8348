"""Audits: what an attacker really gets from a training, against chance and against what it knows anyway."""

from lightning_vfl.audit.attack import Attack, Guesses, Known, Needs, NothingSeen, Seen, Target
from lightning_vfl.audit.attacker import Attacker
from lightning_vfl.audit.attacks.drift.attacks import DriftColumns, DriftFeatures, DriftNeighbours
from lightning_vfl.audit.attacks.features import FeatureReconstruction, KnownPlaintext, SingleUpload
from lightning_vfl.audit.attacks.labels import BatchLabelCounts, LabelsByDirection, LabelsByNorm, LabelsOverEpochs
from lightning_vfl.audit.attacks.lower_bounds import CanariesInTraining, EpsilonLowerBound
from lightning_vfl.audit.attacks.membership import MembershipByLoss
from lightning_vfl.audit.attacks.model_completion import ModelCompletion
from lightning_vfl.audit.attacks.records import Collusion, GroupInversion
from lightning_vfl.audit.attacks.top_gradients import ChosenTop, TopGradientInversion
from lightning_vfl.audit.transcript import Entry, Transcript
from lightning_vfl.audit.verdicts import Finding

__all__ = [
    "Attack",
    "Attacker",
    "BatchLabelCounts",
    "CanariesInTraining",
    "ChosenTop",
    "Collusion",
    "DriftColumns",
    "DriftFeatures",
    "DriftNeighbours",
    "Entry",
    "EpsilonLowerBound",
    "FeatureReconstruction",
    "Finding",
    "GroupInversion",
    "Guesses",
    "Known",
    "KnownPlaintext",
    "LabelsByDirection",
    "LabelsByNorm",
    "LabelsOverEpochs",
    "MembershipByLoss",
    "ModelCompletion",
    "Needs",
    "NothingSeen",
    "Seen",
    "SingleUpload",
    "Target",
    "TopGradientInversion",
    "Transcript",
]
