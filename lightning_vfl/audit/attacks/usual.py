"""The attacks of an audit that names none."""

from math import prod

from lightning_vfl import audit
from lightning_vfl.audit.attack import Attack
from lightning_vfl.audit.case import Case, Truth
from lightning_vfl.protocols import CascadeVFL


def usual_attacks(case: Case) -> list[Attack]:
    """All attacks that suit the attacker and the data, with their defaults."""
    attacker = case.transcript.attacker
    truth = case.truth
    module = case.module
    others = [party for party in range(truth.parties) if party not in attacker.parties]
    attacks = list[Attack]()
    if attacker.parties and truth.classes > 1:
        if truth.classes == 2:
            attacks.append(audit.LabelsByNorm())
        attacks.append(audit.LabelsByDirection(1 if truth.classes == 2 else 4))
        attacks += [audit.LabelsOverEpochs(known) for known in (0, *_budgets(truth))]
        attacks += [audit.ModelCompletion(known) for known in _budgets(truth)]
    if attacker.server or isinstance(module, CascadeVFL):  # an active party joins embeddings
        attacks += [audit.DriftNeighbours(), audit.DriftColumns()]
    if attacker.server:
        target = others[-1] if others else 0
        known = min(1000, truth.records // 2)
        attacks.append(audit.FeatureReconstruction(target, known))
        attacks.append(audit.SingleUpload(target, known))
        attacks.append(audit.KnownPlaintext(target, known))
        attacks += [audit.DriftFeatures(target, k) for k in _sweep(case)]
        if isinstance(module, CascadeVFL):
            if truth.classes > 1:
                attacks.append(audit.BatchLabelCounts())
            attacks += [audit.TopGradientInversion(), audit.ChosenTop()]
        attacks += [audit.GroupInversion(group[0]) for group in module.roster.shared]
        if module.aggregator.accounting is not None:
            attacks.append(audit.EpsilonLowerBound())
    elif module.aggregator.setup is not None and others:
        attacks.append(audit.Collusion(others[0]))
    return [*attacks, audit.MembershipByLoss()]


def _budgets(truth: Truth) -> list[int]:
    """Numbers of known labels of a class: 1, 20, and one per cent of the records divided by the classes."""
    smallest_class = int(truth.labels().bincount().min())
    return _of_half({1, 20, truth.records // (100 * truth.classes)}, smallest_class)


def _sweep(case: Case) -> list[int]:
    """Numbers of known records: 1, half as many as all parties have columns, as many, and twice as many."""
    columns = sum(prod(case.truth.shape(party)) for party in range(case.truth.parties))
    return _of_half({1, columns // 2, columns, 2 * columns}, case.truth.records)


def _of_half(numbers: set[int], records: int) -> list[int]:
    """The numbers from 1 to half of the records, ascending."""
    return sorted(number for number in numbers if 1 <= number <= records // 2)
