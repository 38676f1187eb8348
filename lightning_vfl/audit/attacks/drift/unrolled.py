"""A training of bottoms with one hidden layer, as a differentiable function of columns and initial weights."""

import math
from typing import Literal

import torch
from torch import Tensor

from lightning_vfl.audit.attacks.drift.served import EMPTY, ServedSteps, StepRule

Activation = Literal["relu", "tanh"]

SHARPNESS = (4.0, 12.0, 40.0, 120.0, 400.0)  # β of the smoothed ReLU, stage by stage
SMALL_MISFIT = 0.1  # of the drift; while the misfit is larger, the redundant unknowns would follow it, so they stay
DRIFT_WEIGHT = 4.0  # how much more the change of a record's upload counts than its mean
RIDGE = 1e-3  # of the first output weights
TINY = 1e-20  # keeps the slope of a square root finite


class Unrolled:
    """The training as a function of columns and initial weights. Records that were never uploaded are left out."""

    def __init__(self, served: ServedSteps, hidden: int, activation: Activation, bias: bool) -> None:
        parties = len(served.columns)
        self.rule, self.activation, self.bias, self.parties = served.rule, activation, bias, parties
        self.width_in, self.width_out, self.hidden = sum(served.columns), served.width, hidden * parties
        ids = torch.cat([step.ids for step in served.steps])
        self.seen = torch.bincount(ids).nonzero()[:, 0]
        self.places = torch.searchsorted(self.seen, ids)
        self.rates = [step.rate for step in served.steps]
        sizes = [len(step.ids) for step in served.steps]
        self.batches = torch.split(self.places, sizes)
        self.gradients = [step.gradient.double() for step in served.steps]
        self.uploads = torch.cat([step.upload.double() for step in served.steps])
        self.scale = (self.uploads - self.uploads.mean(0)).square().mean().sqrt().clamp_min(TINY)
        self.visits = torch.bincount(self.places).double()
        self.mean = self.by_record(self.uploads)
        moved = DRIFT_WEIGHT * (self.uploads - self.mean[self.places]) / self.scale
        self.drift = float(moved.square().mean())
        parties_of_columns = torch.arange(parties).repeat_interleave(torch.tensor(served.columns))
        parties_of_units = torch.arange(parties).repeat_interleave(hidden)
        self.same_party = (parties_of_columns[:, None] == parties_of_columns).double()
        self.reads = (parties_of_units[:, None] == parties_of_columns).double()  # (H, d)
        n, d = len(self.seen), self.width_in
        wide, out = self.hidden, self.width_out
        # columns, first and last layer; then the redundant unknowns: map and shift of the columns, scale of the units
        self.shapes = ((n, d), (wide, d), (wide,), (out, wide), (out,), (d, d), (d,), (wide,))
        self.redundant = d * d + d + wide

    def by_record(self, rows: Tensor) -> Tensor:
        """(n, W) means over the visits of each record."""
        total = torch.zeros(len(self.seen), rows.shape[1], dtype=torch.float64)
        return total.index_add(0, self.places, rows) / self.visits[:, None]

    def free(self, misfit: float) -> Tensor:
        """1 for the unknowns that may move at this misfit, 0 for the others."""
        free = torch.ones(sum(math.prod(shape) for shape in self.shapes), dtype=torch.float64)
        if misfit > SMALL_MISFIT * self.drift:
            free[-self.redundant :] = 0
        return free

    def principal(self) -> Tensor:
        """(n, d) principal components of the mean uploads, with variance 1."""
        left, sizes, _ = torch.linalg.svd(self.mean - self.mean.mean(0), full_matrices=False)
        rank = min(self.width_in, int((sizes > EMPTY * sizes[0]).sum()))
        result = torch.zeros(len(self.seen), self.width_in, dtype=torch.float64)
        result[:, :rank] = left[:, :rank] * math.sqrt(len(self.seen))
        return result

    def start(self, generator: torch.Generator) -> Tensor:
        """The unknowns at the start: principal components, drawn first weights, last weights by ridge regression."""
        n, d = len(self.seen), self.width_in
        columns = self.principal()
        missing = (columns == 0).all(0)
        columns[:, missing] = 0.1 * torch.randn(n, int(missing.sum()), generator=generator, dtype=torch.float64)
        if self.parties > 1:  # no component is of one party alone
            square = torch.randn(d, d, generator=generator, dtype=torch.float64)
            columns = columns @ torch.linalg.qr(square)[0]
        bound = 1 / self.reads.sum(1).sqrt()  # torch's for a linear layer
        first = self.reads * (2 * torch.rand(self.hidden, d, generator=generator, dtype=torch.float64) - 1)
        drawn = 2 * torch.rand(self.hidden, generator=generator, dtype=torch.float64) - 1
        first, offsets = first * bound[:, None], drawn * bound * self.bias
        units, _ = self.activate(columns @ first.T + offsets, SHARPNESS[0])
        centre = self.bias * 1.0
        inputs, outputs = units - centre * units.mean(0), self.mean - centre * self.mean.mean(0)
        square = inputs.T @ inputs + RIDGE * n * torch.eye(self.hidden, dtype=torch.float64)
        last = torch.linalg.solve(square, inputs.T @ outputs).T
        constant = centre * (self.mean - units @ last.T).mean(0) / self.parties
        redundant = torch.zeros(self.redundant, dtype=torch.float64)
        return torch.cat([part.reshape(-1) for part in (columns, first, offsets, last, constant, redundant)])

    def activate(self, inputs: Tensor, sharpness: float) -> tuple[Tensor, Tensor]:
        """Hidden values and their slopes."""
        if self.activation == "tanh":
            values = inputs.tanh()
            return values, 1 - values * values
        values = torch.nn.functional.softplus(inputs, beta=sharpness, threshold=500)
        return values, torch.sigmoid(sharpness * inputs)

    def weights(self, unknowns: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Columns (n, d) and the four initial weights that the unknowns stand for."""
        sizes = [math.prod(shape) for shape in self.shapes]
        parts = [part.view(shape) for part, shape in zip(torch.split(unknowns, sizes), self.shapes, strict=True)]
        columns, first, offsets, last, constant, change, shift, log_scale = parts
        affine = torch.eye(self.width_in, dtype=torch.float64) + change * self.same_party
        shift = shift * self.bias
        columns = columns @ affine + shift
        first = torch.linalg.solve(affine, (first * self.reads).T).T
        offsets = (offsets - first @ shift) * self.bias
        if self.activation == "relu":  # the scale of a unit is free
            scale = log_scale.exp()
            first, offsets, last = first * scale[:, None], offsets * scale, last / scale
        return columns, [first, offsets, last, constant * self.bias]

    def residual(self, unknowns: Tensor, sharpness: float) -> Tensor:
        """(visits, W): what the run with these unknowns leaves of the uploads, weighted, in deviations of them."""
        columns, weights = self.weights(unknowns)
        state: list[list[Tensor]] = []
        rows = []
        for number, (places, sent, rate) in enumerate(zip(self.batches, self.gradients, self.rates, strict=True), 1):
            first, offsets, last, constant = weights
            batch = columns[places]
            units, slopes = self.activate(torch.addmm(offsets, batch, first.T), sharpness)
            rows.append(torch.addmm(self.parties * constant, units, last.T))
            back = (sent @ last) * slopes
            # the constants of several parties move alike: ``constant`` is their mean
            slope = [back.T @ batch * self.reads, back.sum(0) * self.bias, sent.T @ units, sent.sum(0) * self.bias]
            weights = _step(self.rule, weights, slope, state, number, rate)
        wrong = (torch.cat(rows) - self.uploads) / self.scale
        mean = self.by_record(wrong)[self.places]
        return mean + DRIFT_WEIGHT * (wrong - mean)

    def misfit(self, unknowns: Tensor, sharpness: float) -> float:
        """The mean square of the residual."""
        return float(self.residual(unknowns, sharpness).square().mean())


def _step(
    rule: StepRule, weights: list[Tensor], slopes: list[Tensor], state: list[list[Tensor]], number: int, rate: float
) -> list[Tensor]:
    """The weights after one step of the parties' optimiser; ``state`` is replaced in place."""
    if rule.weight_decay and rule.kind == "adamw":
        weights = [weight * (1 - rate * rule.weight_decay) for weight in weights]
    elif rule.weight_decay:
        slopes = [slope + rule.weight_decay * weight for slope, weight in zip(slopes, weights, strict=True)]
    if rule.kind == "sgd":
        if rule.momentum:
            old = state[0] if state else [torch.zeros_like(slope) for slope in slopes]
            speeds = [rule.momentum * speed + slope for speed, slope in zip(old, slopes, strict=True)]
            state[:] = [speeds]
            if rule.nesterov:
                speeds = [slope + rule.momentum * speed for speed, slope in zip(speeds, slopes, strict=True)]
            slopes = speeds
        return [weight - rate * slope for weight, slope in zip(weights, slopes, strict=True)]
    mean_decay, square_decay = rule.betas
    zeros = [torch.zeros_like(slope) for slope in slopes]
    means, squares = state or (zeros, zeros)
    means = [mean_decay * m + (1 - mean_decay) * slope for m, slope in zip(means, slopes, strict=True)]
    squares = [square_decay * s + (1 - square_decay) * slope**2 for s, slope in zip(squares, slopes, strict=True)]
    state[:] = [means, squares]
    rate, correction = rate / (1 - mean_decay**number), 1 - square_decay**number
    return [
        weight - rate * m / ((s / correction + TINY).sqrt() + rule.eps)
        for weight, m, s in zip(weights, means, squares, strict=True)
    ]
