"""The gradients that an attacker is sent."""

import torch
from torch import Tensor

from lightning_vfl.aggregators.messages import GRADIENTS
from lightning_vfl.audit.attack import Seen
from lightning_vfl.audit.transcript import by_record

NO_GRADIENT = "no gradient is sent"


def gradients_of(seen: Seen, epoch: int) -> tuple[Tensor, Tensor]:
    """Records (n,) and rows (n, W): the gradients of an epoch, those of several parties side by side.

    A party of ``LagrangeCoded`` is sent the gradient of the aggregate, which serves as well. A server alone is sent no
    gradients: it computes them from labels that it has.
    """
    own = seen.attacker.parties
    parts = [by_record(seen.transcript.find(GRADIENTS, "down", receiver=party, epoch=epoch)) for party in own]
    parts = [(ids, rows) for ids, rows in parts if len(ids)]
    if not parts:
        return torch.empty(0, dtype=torch.int64), torch.empty(0, 0)
    if len(parts) == 1:
        return parts[0]
    common = parts[0][0]
    for ids, _ in parts[1:]:
        common = common[torch.isin(common, ids)]
    places = [torch.searchsorted(ids.sort().values, common) for ids, _ in parts]
    orders = [ids.argsort() for ids, _ in parts]
    aligned = [rows[order[place]] for (_, rows), order, place in zip(parts, orders, places, strict=True)]
    return common, torch.cat(aligned, 1)
