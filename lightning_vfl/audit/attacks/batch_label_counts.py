"""How many records of each class a batch has, from the gradient of the top's last bias."""

from typing import ClassVar

import torch

from lightning_vfl.audit.attack import Attack, Guesses, Known, Needs, NothingSeen, Seen, Target


class BatchLabelCounts(Attack):
    """The gradient of the last bias is the mean of (p - y) over the batch, so it tells the counts of y.

    The attacker is the collaborator of cascade training, which receives the gradient of the top from an active party.
    It knows the share of each class among all records and takes it for the mean prediction: the guessed count of a
    class is B (share - gradient), for a batch of B records.

    References:
        Wainakh et al., "User-Level Label Leakage from Gradients in Federated Learning", PETS 2022, section 4.
    """

    target: ClassVar[Target] = Target.COUNTS

    @property
    def needs(self) -> Needs:
        return Needs(prior=True)

    def run(self, seen: Seen, known: Known) -> Guesses:
        if known.prior is None:
            raise TypeError("BatchLabelCounts needs the share of each class")
        rounds, values = [], []
        for entry in seen.transcript.find("top gradients", "up"):
            outputs = 1 if seen.classes == 2 else seen.classes
            bias, rows = entry.value[-outputs:].double(), len(entry.ids)
            if outputs == 1:
                positive = rows * (known.prior[1] - bias[0])
                values.append(torch.stack([rows - positive, positive]))
            else:
                values.append(rows * (known.prior - bias))
            rounds.append(entry.round)
        if not rounds:
            raise NothingSeen("no gradient of the top is sent")
        return Guesses(torch.tensor(rounds), torch.stack(values), f"gradients of the top in {len(rounds):,} rounds")
