"""Whole records of a group from the sums of its model updates."""

from dataclasses import dataclass

import torch

from lightning_vfl.aggregators.messages import GRADIENTS
from lightning_vfl.audit.attack import Attack, Guesses, Known, NothingSeen, Seen, Target
from lightning_vfl.protocols.groups.updates import SUMS


@dataclass
class GroupInversion(Attack):
    """The update of a linear bottom is Gᵀ X, where G are the gradients that the server has sent: solve it for X.

    The server knows the gradients of all embeddings of a batch, and decodes the sum of the updates of a group that
    shares a linear bottom. With more columns in an embedding than rows in a batch, the pseudo-inverse gives the rows.
    ``SplitVFL`` refuses such groups unless ``allow_invertible_updates`` is set.

    Args:
        party: the first party of the attacked group.

    References:
        docs/results/attacks.md, "groups": the same attack for bottoms with hidden layers.
    """

    target = Target.RECORDS
    party: int = 1

    @property
    def _sums(self) -> str:
        return f"{SUMS} of party {self.party}"

    def reads(self, kind: str, way: str, sender: int | None, epoch: int) -> bool:
        return kind == self._sums or (kind == GRADIENTS and way == "down")

    def run(self, seen: Seen, known: Known) -> Guesses:
        group = next(group for group in seen.roster.groups if self.party in group)
        sent: dict[int, list[torch.Tensor]] = {}
        for answer in seen.transcript.find(GRADIENTS, "down"):
            if answer.receiver in group:
                sent.setdefault(answer.round, []).append(answer.value.double())
        records: dict[int, torch.Tensor] = {}
        for entry in seen.transcript.find(self._sums):
            if entry.round not in sent or not len(entry.ids):
                continue
            several = torch.stack(sent[entry.round])  # zeros in the rows that a member does not hold
            gradients = several[several.norm(dim=2).argmax(0), torch.arange(len(entry.ids))]
            width = gradients.shape[1]
            columns = entry.value.numel() // width - 1  # the bias is behind the weight
            update = entry.value.double().flatten()[: width * columns].view(width, columns)
            rows = torch.linalg.pinv(gradients.T, rcond=1e-9) @ update
            records |= dict(zip(entry.ids.tolist(), rows, strict=True))
        if not records:
            raise NothingSeen("no sum of model updates is computed")
        ids = sorted(records)
        values = torch.stack([records[record] for record in ids])
        return Guesses(torch.tensor(ids), values, "gradients, and sums of updates")
