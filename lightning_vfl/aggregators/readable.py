"""Which sums of embeddings whoever joins them can read."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lightning_vfl.aggregators.clear import wire_of
from lightning_vfl.types import Parties, Roll, Tensors, Widths

if TYPE_CHECKING:
    from lightning_vfl.aggregators.base import Aggregator


@dataclass(frozen=True, eq=False)
class Readable:
    """What can be read of the embeddings of some parties.

    Args:
        parties: the parties whose embeddings are added.
        width: W, how many numbers are read.
        inside: for each of them, the places (W,) of its summands in its own embedding.
        outside: the places (W,) of the sums in the aggregate; None: the parties' own messages are read.
        scale: the aggregate is the sum times this number.
    """

    parties: Parties
    width: int
    inside: Tensors = ()
    outside: Tensor | None = None
    scale: float = 1.0


def readable(aggregator: "Aggregator", widths: Widths) -> list[Readable]:
    """Each party's embedding, where embeddings are sent in the clear or with noise; else the sums in the aggregate."""
    if wire_of(aggregator).traits.visible:
        return [Readable((party,), width) for party, width in enumerate(widths)]
    return sums_of(aggregator, widths)


def sums_of(aggregator: "Aggregator", widths: Widths) -> list[Readable]:
    """The sums in an aggregate: columns of the aggregate to which the same parties add."""
    everybody = Roll.everyone(len(widths))
    units = torch.split(torch.eye(sum(widths)), list(widths), 1)
    value = aggregator.plain(units, everybody) - aggregator.plain(tuple(map(torch.zeros_like, units)), everybody)
    slopes = [part.T for part in torch.split(value, list(widths))]  # (D_out, D_m) of each party
    added: dict[Parties, list[tuple[int, list[int], float]]] = {}
    for place in range(value.shape[1]):
        rows = {m: slope[place] for m, slope in enumerate(slopes) if slope[place].any()}
        if rows:
            inside = [int(row.abs().argmax()) for row in rows.values()]
            first, *_ = rows.values()
            added.setdefault(tuple(rows), []).append((place, inside, float(first.abs().max())))
    found = []
    for parties, columns in added.items():
        places, summands, scales = zip(*columns, strict=True)
        of_parties = tuple(map(torch.tensor, zip(*summands, strict=True)))
        found.append(Readable(parties, len(columns), of_parties, torch.tensor(places), scales[0]))
    return found
