"""What colluding parties compute from their shares of another party's records."""

from dataclasses import dataclass

import torch

from lightning_vfl.aggregators import LagrangeCoded
from lightning_vfl.aggregators.coded.data_shares import arrangement
from lightning_vfl.aggregators.coded.messages import DATA
from lightning_vfl.audit.attack import Attack, Guesses, Known, NothingSeen, Seen, Target
from lightning_vfl.field.lagrange import interpolate
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
        row, block = arrangement(coding, seen.records, seen.roster.parties, seen.seed, Stage.FIT).place(ids)
        saw = f"{len(holders)} shares of each record; {code.blocks + coding.privacy} are needed"
        return Guesses(ids, blocks[block, row].double(), saw)
