"""What the server has of the steps of a training: uploads, the gradients that it sent for them, and the recipe."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_vfl.protocols.optimizer_groups import SERVER
from lightning_vfl.types import Tensors, over_rows

TINY = 1e-20  # keeps the slope of a square root finite
State = Tensors  # of the parties' optimiser, for one weight; empty before the first step
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

    def step(
        self,
        weight: Tensor,
        gradient: Tensor,
        state: State,
        number: int,
        rate: float,
        square_of: Callable[[Tensor], Tensor] = torch.square,
    ) -> tuple[Tensor, State]:
        """A weight after a step, and the optimiser's state then, differentiable.

        Args:
            weight: before the step.
            gradient: of the loss.
            state: after the last step.
            number: of the step, from 1 on.
            rate: the learning rate.
            square_of: what Adam's second moment is the mean of.

        References:
            Kingma, Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, algorithm 1.
        """
        if self.weight_decay and self.kind == "adamw":
            weight = weight * (1 - rate * self.weight_decay)
        elif self.weight_decay:
            gradient = gradient + self.weight_decay * weight
        if self.kind == "sgd" and not self.momentum:
            return weight - rate * gradient, ()

        zeros = torch.zeros_like(gradient)
        if self.kind == "sgd":
            (velocity,) = state or (zeros,)
            velocity = self.momentum * velocity + gradient
            change = gradient + self.momentum * velocity if self.nesterov else velocity
            return weight - rate * change, (velocity,)

        mean_decay, square_decay = self.betas
        mean, square = state or (zeros, zeros)
        mean = mean_decay * mean + (1 - mean_decay) * gradient
        square = square_decay * square + (1 - square_decay) * square_of(gradient)

        mean_correction = 1 - mean_decay**number
        square_correction = 1 - square_decay**number
        deviation = (square / square_correction + TINY).sqrt() + self.eps
        return weight - rate / mean_correction * mean / deviation, (mean, square)


def rule_of(optimizer: torch.optim.Optimizer, decay: float = 0.0) -> tuple[StepRule, float] | None:
    """The rule and the rate of an optimiser with equal settings for all parties; None: any other optimiser.

    Args:
        optimizer: of the parties.
        decay: λ of a loss that has λ/2 times the square of all parameters, which is left out under ``adamw``.
    """
    groups = [group for group in optimizer.param_groups if group.get("name") != SERVER]
    rules = [_rule_of_group(optimizer, group, decay) for group in groups]
    return rules[0] if rules and all(rule == rules[0] for rule in rules) else None


def _rule_of_group(
    optimizer: torch.optim.Optimizer, settings: dict[str, Any], decay: float
) -> tuple[StepRule, float] | None:
    rate = float(settings.get("initial_lr", settings["lr"]))  # a schedule has changed the rate
    weight_decay = float(settings.get("weight_decay", 0.0))
    if isinstance(optimizer, torch.optim.SGD):
        momentum = float(settings["momentum"])
        return StepRule("sgd", momentum, bool(settings["nesterov"]), weight_decay=weight_decay + decay), rate
    if not isinstance(optimizer, torch.optim.Adam):
        return None
    apart = isinstance(optimizer, torch.optim.AdamW) or settings.get("decoupled_weight_decay")
    betas = tuple(settings["betas"])
    eps = float(settings["eps"])
    if apart:
        return StepRule("adamw", betas=betas, eps=eps, weight_decay=weight_decay), rate
    return StepRule("adam", betas=betas, eps=eps, weight_decay=weight_decay + decay), rate


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
        visits = Visits.of(self)
        components, sizes = visits.components(sum(self.columns))
        columns = torch.full((self.records, sum(self.columns)), math.nan, dtype=torch.float64)
        columns[visits.seen] = components * sizes
        return columns


@dataclass(frozen=True, eq=False)
class Visits:
    """All visits (V,) to records, one after the other.

    Args:
        seen: (n,) the records that are visited, ascending.
        row: (V,) the place of each visit's record in ``seen``.
        step: (V,) the number of its step.
        uploads: (V, W) float64.
        count: (n,) float64, the visits to each record.
    """

    seen: Tensor
    row: Tensor
    step: Tensor
    uploads: Tensor
    count: Tensor

    @classmethod
    def of(cls, served: ServedSteps) -> "Visits":
        """The visits of all steps."""
        ids = torch.cat([step.ids for step in served.steps])
        seen, row = torch.unique(ids, return_inverse=True)
        lengths = torch.tensor([len(step.ids) for step in served.steps])
        number = torch.arange(len(lengths)).repeat_interleave(lengths)
        uploads = torch.cat([step.upload.double() for step in served.steps])
        return cls(seen, row, number, uploads, torch.bincount(row).double())

    def total(self, values: Tensor) -> Tensor:
        """(n, ...) the sum of values (V, ...) over the visits to each record."""
        return values.new_zeros(len(self.seen), *values.shape[1:]).index_add_(0, self.row, values)

    def mean(self, values: Tensor) -> Tensor:
        """(n, ...) the mean over the visits to each record."""
        return self.total(values) / over_rows(self.count, values)

    def components(self, d: int) -> tuple[Tensor, Tensor]:
        """(n, d) the first principal components of the mean uploads, with norm 1, and their sizes (d,).

        Both are zero for components that the uploads do not have.
        """
        mean = self.mean(self.uploads)
        left, sizes, _ = torch.linalg.svd(mean - mean.mean(0), full_matrices=False)
        rank = min(d, int((sizes > EMPTY * sizes[0]).sum()))
        components = torch.nn.functional.pad(left[:, :rank], (0, d - rank))
        return components, torch.nn.functional.pad(sizes[:rank], (0, d - rank))
