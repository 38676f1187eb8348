"""What the party with the labels sends of them, as messages for an audit: the labels, or gradients of a cut."""

from functools import partial

from torch import Tensor

from lightning_vfl.networks.halved_top import ACTIVATIONS, HalvedTop
from lightning_vfl.protocols.model import SplitModel
from lightning_vfl.rounds.exchange import Hear
from lightning_vfl.types import RoundNames, VerticalBatch
from lightning_vfl.wire import Message


def tell_of_labels(module: SplitModel, batch: VerticalBatch, names: RoundNames) -> None:
    """The labels that the active party sends to the server; nothing is sent if one of the two keeps them."""
    active = module.roster.active
    tell = module.listener(batch.record_ids)
    if active is None or module.halved or tell is None or batch.labels is None:
        return
    tell(Message("labels", "server", (active,), (batch.labels,), round=names))


def listen_at_cut(module: SplitModel, batch: VerticalBatch, names: RoundNames) -> None:
    """Tell what crosses the cut of a top in halves in this round; nothing does in a top that the server has alone."""
    tell = module.listener(batch.record_ids)
    if isinstance(module.top, HalvedTop) and tell is not None and module.roster.active is not None:
        module.top.hear = partial(_tell_of_cut, tell, module.roster.active, names)


def _tell_of_cut(tell: Hear, active: int, names: RoundNames, kind: str, values: Tensor) -> None:
    if kind == ACTIVATIONS:
        tell(Message(kind, "parties", (), (values,), receivers=(active,), round=names))
    else:
        tell(Message(kind, "server", (active,), (values,), round=names))
