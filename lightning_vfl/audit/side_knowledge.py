"""The side knowledge that a case gives to an attack."""

import numpy as np
import torch

from lightning_vfl.audit.attack import Attack, Known, Needs, Target
from lightning_vfl.audit.attacks.canaries import CanariesInTraining
from lightning_vfl.audit.case import Case
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import stream


def known_to(case: Case, attack: Attack) -> Known:
    """The side knowledge of an attack."""
    if isinstance(attack, CanariesInTraining):
        return _known_coins(case, attack)
    return choose_known(case, attack.needs, attack.party, attack.target)


def choose_known(case: Case, needs: Needs, party: int, target: Target) -> Known:
    """The side knowledge: records drawn by the run's seed, the same for every attack with the same needs.

    Raises:
        ConfigurationError: for more records than there are.
    """
    truth = case.truth
    draw = np.random.Generator(stream(case.module.seed, "audit", "known")).permutation(truth.records)
    prior = None
    if needs.prior:
        prior = torch.bincount(truth.labels(), minlength=truth.classes).double() / truth.records
    if needs.records:
        if needs.records >= truth.records:
            raise ConfigurationError(
                f"known must be less than the number of training records, {truth.records:,}; got {needs.records:,}"
            )
        ids = torch.from_numpy(draw[: needs.records].copy())
        attacked = truth.embeddings(case.module, party) if target == Target.EMBEDDINGS else truth.features(party)
        return Known(ids, None, attacked[ids], prior)
    if not needs.labels_per_class and not needs.positives:
        return Known(torch.empty(0, dtype=torch.int64), prior=prior)
    if truth.classes < 2:
        raise ConfigurationError("the attack guesses classes, but the labels are numbers; attack features instead")
    labels, order = truth.labels(), torch.from_numpy(draw.copy())
    only = truth.classes == 2 and needs.positives
    chosen = []
    for c in [1] if only else range(truth.classes):
        own = order[labels[order] == c]
        k = needs.positives if only else needs.labels_per_class
        if k >= len(own):
            raise ConfigurationError(
                f"known must be less than the size of every class; class {c} has {len(own)} training records and the "
                f"attack wants {k}"
            )
        chosen.append(own[:k])
    ids = torch.cat(chosen)
    return Known(ids, labels[ids], None, prior)


def _known_coins(case: Case, attack: CanariesInTraining) -> Known:
    """The coins of every second canary."""
    ids = attack.chosen(case.truth.records, case.module.seed)[::2]
    return Known(ids, None if case.coins is None else case.coins[ids].long())
