"""The gradients that an attacker is sent."""

from torch import Tensor

from lightning_vfl.aggregators.messages import GRADIENTS
from lightning_vfl.audit.attack import NotAttacked, NothingSeen, Seen
from lightning_vfl.audit.transcript import by_record, side_by_side


def reads_gradients(kind: str, way: str) -> bool:
    """Whether these are gradients that the server has sent."""
    return kind == GRADIENTS and way == "down"


def epochs_of(seen: Seen) -> list[int]:
    """The epochs in which the attacker is sent gradients of records."""
    sent = seen.transcript.find(GRADIENTS, "down")
    return sorted({entry.epoch for entry in sent if entry.receiver in seen.attacker.parties and len(entry.ids)})


def sent_gradients(seen: Seen, epoch: int) -> tuple[Tensor, Tensor]:
    """Records (n,) and rows (n, W): the gradients of an epoch, those of several parties side by side.

    A party of ``LagrangeCoded`` is sent the gradient of the aggregate, which serves as well. A server alone is sent no
    gradients: it computes them from labels that it has.

    Raises:
        NothingSeen: saying whether the attacker is no party, or nothing is sent.
        NotAttacked: if the training has no such epoch.
    """
    parties = seen.attacker.parties
    if not parties:
        raise NothingSeen("gradients are sent to parties, and the attacker is none")
    entries = {party: list(seen.transcript.find(GRADIENTS, "down", receiver=party)) for party in parties}
    tables = [by_record(entry for entry in received if entry.epoch == epoch) for received in entries.values()]
    tables = [(ids, rows) for ids, rows in tables if len(ids)]
    if tables:
        return side_by_side(tables, seen.records)
    epochs = {entry.epoch for received in entries.values() for entry in received}
    if epochs:
        raise NotAttacked(f"the attack takes epoch {epoch}, the training has {min(epochs)} to {max(epochs)}")
    raise NothingSeen("no gradient is sent")
