"""The gradients that an attacker is sent."""

import torch
from torch import Tensor

from lightning_vfl.aggregators.messages import GRADIENTS
from lightning_vfl.audit.attack import NothingSeen, Seen
from lightning_vfl.audit.transcript import by_record


def sent_gradients(seen: Seen, epoch: int) -> tuple[Tensor, Tensor]:
    """As ``gradients_of``, if there are any.

    Raises:
        NothingSeen: saying whether the attacker is no party, the training has no such epoch, or nothing is sent.
    """
    ids, rows = gradients_of(seen, epoch)
    if len(ids):
        return ids, rows
    own = seen.attacker.parties
    if not own:
        raise NothingSeen("gradients are sent to parties, and the attacker is none")
    epochs = {entry.epoch for m in own for entry in seen.transcript.find(GRADIENTS, "down", receiver=m)}
    if epochs:
        raise NothingSeen(f"the attack takes epoch {epoch}, the training has {min(epochs)} to {max(epochs)}")
    raise NothingSeen("no gradient is sent")


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
