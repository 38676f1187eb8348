"""Whole records of a party, from messages that are linear in them."""

from dataclasses import dataclass

import torch

from lightning_vfl.aggregators import LagrangeCoded
from lightning_vfl.aggregators.coded.data_shares import arrangement
from lightning_vfl.aggregators.coded.messages import DATA
from lightning_vfl.aggregators.messages import GRADIENTS
from lightning_vfl.audit.attack import Attack, Guesses, Known, NothingSeen, Seen, Target
from lightning_vfl.field.lagrange import interpolate
from lightning_vfl.protocols.groups.updates import SUMS
from lightning_vfl.types import Stage


@dataclass
class Collusion(Attack):
    """Colluding parties interpolate another party's records from the shares that they hold.

    A party of ``LagrangeCoded`` shares its rounded records as values of a polynomial of degree K + T - 1. The colluding
    parties interpolate the polynomial of the smallest degree through their shares: the right one for K + T shares or
    more; for T shares it tells nothing.

    Args:
        party: the attacked party.

    References:
        Li, Yao, Liu, "FedVS", ICML 2023, theorem 5.2.
    """

    target = Target.SHARES
    party: int = 0

    def reads(self, kind: str, way: str, sender: int | None, epoch: int) -> bool:
        return kind == DATA and sender == self.party

    def run(self, seen: Seen, known: Known) -> Guesses:
        aggregator = seen.aggregator
        if not isinstance(aggregator, LagrangeCoded):
            raise NothingSeen("no records are shared")
        parts: dict[int, list[torch.Tensor]] = {}
        for entry in seen.transcript.find(DATA, "peer", sender=self.party):
            if entry.receiver is not None and entry.receiver in seen.attacker.parties:
                parts.setdefault(entry.receiver, []).append(entry.value)
        if not parts:
            raise NothingSeen("the attacker holds no share of this party")
        coding = aggregator.wire.coding
        code = coding.code(seen.roster.parties)
        holders = sorted(parts)
        shares = torch.stack([torch.cat(parts[holder]) for holder in holders]).to(torch.int64)  # (holders, rows, W)
        points = [code.alpha[holder] for holder in holders]
        blocks = coding.field.lift(interpolate(coding.field, shares, points, code.beta[: code.blocks]))
        ids = torch.arange(seen.records)
        row, block = arrangement(code.blocks, seen.records, seen.seed, Stage.FIT).place(ids)
        saw = f"{len(holders)} shares of each record; {code.blocks + coding.privacy} are needed"
        return Guesses(ids, blocks[block, row].double(), saw)


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
