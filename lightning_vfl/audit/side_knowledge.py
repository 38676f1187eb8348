"""The side knowledge that a case gives to an attack."""

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.audit.attack import Attack, Known, Needs, Target
from lightning_vfl.audit.attacks.canaries import CanariesInTraining
from lightning_vfl.audit.case import Case
from lightning_vfl.checks import within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import stream


def known_to(case: Case, attack: Attack) -> Known:
    """The side knowledge of an attack."""
    truth = case.truth
    needs = attack.needs
    if isinstance(attack, CanariesInTraining):  # the coins of every second canary
        ids = attack.chosen(truth.records, case.module.seed)[::2]
        return Known(ids, None if case.coins is None else case.coins[ids].long())
    ids = known_records(case, needs)
    prior = torch.bincount(truth.labels(), minlength=truth.classes).double() / truth.records if needs.prior else None
    if needs.records:
        embeddings = attack.target == Target.EMBEDDINGS
        features = truth.embeddings(case.module, attack.party) if embeddings else truth.features(attack.party)
        return Known(ids, features=features[ids], prior=prior)
    return Known(ids, truth.labels()[ids] if len(ids) else None, prior=prior)


def known_records(case: Case, needs: Needs) -> Tensor:
    """(k,) records drawn by the run's seed, the same for every attack with the same needs.

    Raises:
        ConfigurationError: for more records than there are.
    """
    truth = case.truth
    order = np.random.Generator(stream(case.module.seed, "audit", "known")).permutation(truth.records)
    drawn = torch.from_numpy(order)
    if needs.records:
        within("known", needs.records, 1, truth.records - 1, whole=True, advice="some records have to be unknown")
        return drawn[: needs.records]
    if not needs.labels_per_class and not needs.positives:
        return drawn[:0]
    if truth.classes < 2:
        raise ConfigurationError("the attack guesses classes, but the labels are numbers; attack features instead")
    classes = list(range(truth.classes))
    count = needs.labels_per_class
    if truth.classes == 2 and needs.positives:
        classes, count = [1], needs.positives
    chosen = []
    for c in classes:
        members = drawn[truth.labels()[drawn] == c]
        advice = f"some of the {len(members)} training records of class {c} have to be unknown"
        within("known", count, 1, len(members) - 1, whole=True, advice=advice)
        chosen.append(members[:count])
    return torch.cat(chosen)
