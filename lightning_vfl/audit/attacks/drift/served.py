"""What the server has of the steps of a training: uploads, the gradients that it sent for them, and the recipe."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

EMPTY = 1e-9  # of the largest singular value, under which a direction has no uploads


@dataclass(frozen=True)
class StepRule:
    """The optimiser of the parties, as the recipe says it.

    Args:
        kind: ``adam`` adds the decay to the gradient, ``adamw`` to the weights, as torch's classes of these names.
        momentum: of ``sgd``.
        nesterov: of ``sgd``.
        betas: of ``adam`` and ``adamw``.
        eps: of ``adam`` and ``adamw``.
        weight_decay: torch's; 0: none.
    """

    kind: Literal["sgd", "adam", "adamw"]
    momentum: float = 0.0
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0


@dataclass(frozen=True, eq=False)
class ServedStep:
    """One optimiser step.

    Args:
        ids: (B,) int64, positions of the batch's records, from 0 to N - 1.
        upload: (B, W) float64, a party's embeddings, or the SUM of the embeddings of several parties (a mean is
            multiplied by their number), computed with the weights of before the step.
        gradient: (B, W) float64, the gradient of the loss that the server sent for each of these embeddings; every
            party behind a sum is sent the same one. A party's weight gradient is Σ_j ∂h_j/∂W applied to row j.
        rate: the learning rate of this step.
    """

    ids: Tensor
    upload: Tensor
    gradient: Tensor
    rate: float


@dataclass(frozen=True, eq=False)
class ServedSteps:
    """All steps of a training, in order.

    Args:
        steps: the steps.
        rule: the optimiser of the parties.
        records: N.
        columns: of each party behind the upload, the number of its columns; d is their sum.
    """

    steps: tuple[ServedStep, ...]
    rule: StepRule
    records: int
    columns: tuple[int, ...]

    @property
    def width(self) -> int:
        """W, the width of an upload."""
        return int(self.steps[0].upload.shape[1])

    def shown(self) -> Tensor:
        """(N, d) the principal components of each record's mean upload: what uploads show as they are.

        Columns behind the W-th are zero. Rows of records that were never uploaded are NaN.
        """
        ids = torch.cat([step.ids for step in self.steps])
        seen, places = torch.unique(ids, return_inverse=True)
        uploads = torch.cat([step.upload.double() for step in self.steps])
        mean = torch.zeros(len(seen), self.width, dtype=torch.float64).index_add(0, places, uploads)
        mean = mean / torch.bincount(places)[:, None]
        left, sizes, _ = torch.linalg.svd(mean - mean.mean(0), full_matrices=False)
        d = sum(self.columns)
        rank = min(d, int((sizes > EMPTY * sizes[0]).sum()))
        columns = torch.full((self.records, d), math.nan, dtype=torch.float64)
        columns[seen] = torch.nn.functional.pad(left[:, :rank] * sizes[:rank], (0, d - rank))
        return columns
