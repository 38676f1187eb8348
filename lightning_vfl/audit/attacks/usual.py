"""The attacks of an audit that names none."""

from math import prod
from typing import TYPE_CHECKING

from lightning_vfl.audit.attack import Attack
from lightning_vfl.audit.attacks.batch_label_counts import BatchLabelCounts
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
from lightning_vfl.audit.attacks.membership_by_loss import MembershipByLoss
from lightning_vfl.audit.attacks.model_completion import ModelCompletion
from lightning_vfl.audit.attacks.single_upload import SingleUpload
from lightning_vfl.protocols import CascadeVFL

if TYPE_CHECKING:
    from lightning_vfl.audit.case import Case


def usual_attacks(case: "Case") -> list[Attack]:
    """All attacks that suit the attacker and the data, with their defaults."""
    attacker, classes, chosen = case.transcript.attacker, case.truth.classes, list[Attack]()
    if attacker.parties and classes > 1:
        chosen += [LabelsByNorm()] if classes == 2 else []
        k = 1 if classes == 2 else 4
        chosen += [LabelsByDirection(k), ModelCompletion(min(40, int(case.truth.labels().bincount().min()) // 2))]
    if attacker.server or isinstance(case.module, CascadeVFL):  # an active party joins embeddings
        chosen += [DriftNeighbours(), DriftColumns()]
    if attacker.server:
        target = next((m for m in reversed(range(case.truth.parties)) if m not in attacker.parties), 0)
        known = min(1000, case.truth.records // 2)
        chosen += [FeatureReconstruction(target, known), SingleUpload(target, known), KnownPlaintext(target, known)]
        chosen += [DriftFeatures(target, k) for k in _sweep(case)]
        chosen += [BatchLabelCounts()] if classes > 1 and isinstance(case.module, CascadeVFL) else []
        chosen += [GroupInversion(group[0]) for group in case.module.roster.shared]
        if case.module.aggregator.accounting is not None:
            chosen.append(EpsilonLowerBound())
    elif case.module.aggregator.setup is not None and len(attacker.parties) < case.truth.parties:
        chosen.append(Collusion(next(m for m in range(case.truth.parties) if m not in attacker.parties)))
    return [*chosen, MembershipByLoss()]


def _sweep(case: "Case") -> list[int]:
    """Numbers of known records: 1, half as many as all parties have columns, as many, and twice as many."""
    columns = sum(prod(case.truth.shape(party)) for party in range(case.truth.parties))
    numbers = {1, columns // 2, columns, 2 * columns}
    return sorted(k for k in numbers if 1 <= k <= case.truth.records // 2)
