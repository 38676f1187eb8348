"""What the server puts in place of the embeddings of absent parties, when a model is tested without them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lightning_vfl.checks import positive
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.rebuildable import Rebuildable, printed
from lightning_vfl.types import Roll, Tensors, Widths


class Moments:
    """Running mean and covariance of the joint embedding of the training records, in float64.

    Args:
        widths: D_m of each party.
    """

    def __init__(self, widths: Widths) -> None:
        self.widths = widths
        total = sum(widths)
        self.records = 0
        self.mean = torch.zeros(total, dtype=torch.float64)
        self.scatter = torch.zeros(total, total, dtype=torch.float64)
        """The sum over records of (h - mean)(h - mean)ᵀ."""

    def add(self, h: Tensors) -> None:
        """Add the embeddings of B records, each (B, D_m), which all parties hold."""
        joint = torch.cat(h, 1).double().cpu()
        rows = len(joint)
        if rows == 0:
            return
        mean = joint.mean(0)
        delta = mean - self.mean
        total = self.records + rows
        centred = joint - mean
        self.scatter += centred.T @ centred + torch.outer(delta, delta) * (self.records * rows / total)
        self.mean += delta * (rows / total)
        self.records = total

    def columns(self, party: int) -> slice:
        """The columns of a party in the joint embedding."""
        start = sum(self.widths[:party])
        return slice(start, start + self.widths[party])


@dataclass(frozen=True)
class Filled:
    """Embeddings after a stand-in.

    Args:
        h: M embeddings (B, D_m).
        roll: who is included, and who is filled.
    """

    h: Tensors
    roll: Roll


class AbsentStandIn(Rebuildable, ABC):
    """The server's answer to absent parties at the time of a prediction."""

    learns: ClassVar[bool]
    """Whether it needs the embeddings of training records; the server must then see single embeddings."""

    @abstractmethod
    def fill(self, h: Tensors, there: Tensor, moments: Moments | None) -> Filled:
        """Replace the embeddings of absent parties.

        Args:
            h: M embeddings (B, D_m); those of absent parties are not read.
            there: (M,) bool, the parties that are not absent; at least one.
            moments: of the training embeddings; None if ``learns`` is False.
        """

    __repr__ = printed


class Exclude(AbsentStandIn):
    """Leave absent parties out of the aggregate: a mean is divided by the number of the others."""

    learns: ClassVar[bool] = False

    def fill(self, h: Tensors, there: Tensor, moments: Moments | None) -> Filled:
        return Filled(h, Roll.of(there))


class Zeros(AbsentStandIn):
    """Put zeros for absent parties: a mean is divided by the number of all parties."""

    learns: ClassVar[bool] = False

    def fill(self, h: Tensors, there: Tensor, moments: Moments | None) -> Filled:
        zeroed = tuple(x if there[m] else torch.zeros_like(x) for m, x in enumerate(h))
        return Filled(zeroed, filled_roll(there))


class MeanEmbedding(AbsentStandIn):
    """Put the mean embedding of a party over the training records, which a server can keep as a running mean."""

    learns: ClassVar[bool] = True

    def fill(self, h: Tensors, there: Tensor, moments: Moments | None) -> Filled:
        known = needed(moments)
        filled = [x if there[m] else known.mean[known.columns(m)].to(x).expand_as(x) for m, x in enumerate(h)]
        return Filled(tuple(filled), filled_roll(there))


class Regressed(AbsentStandIn):
    r"""Put the ridge regression of an absent embedding on the embeddings that are there.

    With the centred training embeddings X of the parties that are there and Y of an absent party, the coefficients are

    .. math:: (X^\top X + \lambda I)^{-1} X^\top Y .

    Args:
        ridge: λ, above 0.

    Raises:
        ConfigurationError: for other numbers.
    """

    learns: ClassVar[bool] = True

    def __init__(self, ridge: float = 1.0) -> None:
        positive("ridge of Regressed", ridge)
        self.ridge = ridge

    def fill(self, h: Tensors, there: Tensor, moments: Moments | None) -> Filled:
        known = needed(moments)
        positions = torch.arange(len(known.mean))
        seen = torch.cat([positions[known.columns(m)] for m in range(len(h)) if there[m]])
        joined = torch.cat([x for m, x in enumerate(h) if there[m]], 1)
        centred = joined.double().cpu() - known.mean[seen]
        scatter = known.scatter[seen]
        gram = scatter[:, seen] + self.ridge * torch.eye(len(seen), dtype=torch.float64)
        filled = []
        for m, x in enumerate(h):
            if there[m]:
                filled.append(x)
                continue
            own = known.columns(m)
            coefficients = torch.linalg.solve(gram, scatter[:, own])
            filled.append((centred @ coefficients + known.mean[own]).to(x))
        return Filled(tuple(filled), filled_roll(there))


def filled_roll(there: Tensor) -> Roll:
    """The roll in which absent parties count by their replacement."""
    return Roll(there, there, there, ~there)


def needed(moments: Moments | None) -> Moments:
    """The moments.

    Raises:
        ConfigurationError: if there are none.
    """
    if moments is None or not moments.records:
        raise ConfigurationError("the stand-in needs training records that all parties hold; use Exclude or Zeros")
    return moments
