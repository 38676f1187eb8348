"""Membership of records in the training, from predictions."""

import torch

from lightning_vfl.audit.attack import Attack, Guesses, Known, NothingSeen, Seen, Target
from lightning_vfl.errors import ConfigurationError

LEAST = 1e-12  # of a probability


class MembershipByLoss(Attack):
    """Training records have smaller losses than others.

    The attacker is anybody who asks for predictions and knows the labels of the records. The guess is the negative loss
    of a record: cross-entropy, or the squared error of a number. Success is measured on as many training records as
    validation records.

    References:
        Yeom et al., "Privacy Risk in Machine Learning: Analyzing the Connection to Overfitting", CSF 2018, adversary 1.
    """

    target = Target.MEMBERS

    def check(self, seen: Seen) -> None:
        if seen.classes < 1:
            raise ConfigurationError("MembershipByLoss needs predictions of classes or of numbers")

    def reads(self, kind: str, way: str, sender: int | None, epoch: int) -> bool:
        return False

    def run(self, seen: Seen, known: Known) -> Guesses:
        if "predictions" not in seen.inputs:
            raise NothingSeen("no prediction is published")
        predictions, labels = seen.inputs["predictions"], seen.inputs["labels"]
        ids = torch.arange(len(labels))
        if seen.classes == 1:
            values = -(predictions.flatten() - labels.double().flatten()).square()
        elif predictions.dim() == 1:
            values = torch.where(labels == 1, predictions, 1 - predictions).clamp(min=LEAST).log()
        else:
            values = predictions[ids, labels.long()].clamp(min=LEAST).log()
        return Guesses(ids, values, f"predictions of {len(ids):,} records with their labels")
