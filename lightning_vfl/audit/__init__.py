"""Audits: what an attacker really gets from a training, against chance and against what it knows anyway."""

from lightning_vfl.audit.attack import Attack, Guesses, Known, Needs, NothingSeen, Seen, Target
from lightning_vfl.audit.attacker import Attacker
from lightning_vfl.audit.attacks.batch_label_counts import BatchLabelCounts
from lightning_vfl.audit.attacks.canaries import CanariesInTraining
from lightning_vfl.audit.attacks.collusion import Collusion
from lightning_vfl.audit.attacks.drift_columns import DriftColumns
from lightning_vfl.audit.attacks.drift_features import DriftFeatures
from lightning_vfl.audit.attacks.drift_neighbours import DriftNeighbours
from lightning_vfl.audit.attacks.epsilon_lower_bound import EpsilonLowerBound
from lightning_vfl.audit.attacks.feature_reconstruction import FeatureReconstruction
from lightning_vfl.audit.attacks.group_inversion import GroupInversion
from lightning_vfl.audit.attacks.known_plaintext import KnownPlaintext
from lightning_vfl.audit.attacks.labels_by_direction import LabelsByDirection
from lightning_vfl.audit.attacks.labels_by_norm import LabelsByNorm
from lightning_vfl.audit.attacks.labels_over_epochs import LabelsOverEpochs
from lightning_vfl.audit.attacks.membership_by_loss import MembershipByLoss
from lightning_vfl.audit.attacks.model_completion import ModelCompletion
from lightning_vfl.audit.attacks.single_upload import SingleUpload
from lightning_vfl.audit.finding import Finding
from lightning_vfl.audit.transcript import Entry, Transcript

__all__ = [
    "Attack",
    "Attacker",
    "BatchLabelCounts",
    "CanariesInTraining",
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
    "Transcript",
]
