"""How many records of each class a batch has, from the gradient of the top's last bias."""

import torch

from lightning_vfl.audit.attack import Attack, Guesses, Known, Needs, NothingSeen, Seen, Target, asked_for

TOP_GRADIENTS = "top gradients"


class BatchLabelCounts(Attack):
    """The gradient of the last bias is the mean of (p - y) over the batch, so it tells the counts of y.

    The attacker is the collaborator of cascade training, which receives the gradient of the top from an active party.
    It knows the share of each class among all records and takes it for the mean prediction: the guessed count of a
    class is B (share - gradient), for a batch of B records.

    References:
        Wainakh et al., "User-Level Label Leakage from Gradients in Federated Learning", PETS 2022, section 4.
    """

    target = Target.COUNTS

    @property
    def needs(self) -> Needs:
        return Needs(prior=True)

    def reads(self, kind: str, way: str, sender: int | None, epoch: int) -> bool:
        return kind == TOP_GRADIENTS

    def run(self, seen: Seen, known: Known) -> Guesses:
        prior = asked_for(known.prior)
        rounds, counts = [], []
        for entry in seen.transcript.find(TOP_GRADIENTS, "up"):
            batch = len(entry.ids)
            if seen.classes == 2:  # one output, for class 1
                positive = batch * (prior[1] - entry.value[-1].double())
                counts.append(torch.stack([batch - positive, positive]))
            else:
                counts.append(batch * (prior - entry.value[-seen.classes :].double()))
            rounds.append(entry.round)
        if not rounds:
            raise NothingSeen("no gradient of the top is sent")
        return Guesses(torch.tensor(rounds), torch.stack(counts), f"gradients of the top in {len(rounds):,} rounds")
