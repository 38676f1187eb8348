"""The columns behind bottoms with one hidden layer, from uploads and the gradients that the server sent for them.

The server does not know the initial weights, and it knows no record. It fits both: the run of the bottoms is unrolled
under the recipe's optimiser, and columns and initial weights are moved until the unrolled run gives the uploads.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lightning_vfl.audit.attacks.drift.served import EMPTY, ServedSteps, StepRule

Activation = Literal["relu", "tanh"]

SHARPNESS = (4.0, 12.0, 40.0, 120.0, 400.0)  # β of the smoothed ReLU, stage by stage
SMALL_MISFIT = 0.1  # of the drift; while the misfit is larger, the redundant unknowns would follow it, so they stay
ITERATIONS = 3000  # of Adam, in all stages
ADAM_RATE = 0.02
ADAM_SHARE = 0.8  # of the time; the rest is for the Gauss-Newton steps
DRIFT_WEIGHT = 4.0  # how much more the change of a record's upload counts than its mean
NEWTON_STEPS = 30
INNER_STEPS = 40  # of conjugate gradients, in a Gauss-Newton step
SMALLEST_GAIN = 1e-3  # of a Gauss-Newton step, relative: below it the fit has ended
RIDGE = 1e-3  # of the first output weights
TINY = 1e-20  # keeps the slope of a square root finite


@dataclass(frozen=True, eq=False)
class SmoothedFit:
    """The columns as the fit gives them and as the uploads show them without it.

    Args:
        columns: (N, d) float64, centred, up to a rotation among the columns of each party; NaN: never uploaded.
        plain: (N, d) float64, the principal components of the mean uploads; columns of zeros behind the W-th.
        misfit: the weighted mean square of what the fit does not explain, in variances of the uploads.
        first_misfit: the same at the start of the fit; ``misfit`` is never larger.
        complete: whether the time was enough for all iterations. Then the result depends on the seed alone.
    """

    columns: Tensor
    plain: Tensor
    misfit: float
    first_misfit: float
    complete: bool


def smoothed(
    served: ServedSteps,
    hidden: tuple[int, ...],
    activation: Activation,
    seed: int = 0,
    seconds: float = 120.0,
    bias: bool = True,
    iterations: int = ITERATIONS,
) -> SmoothedFit:
    r"""Columns of bottoms with one hidden layer, from the server's view of a training alone.

    The unknowns are the columns and the initial weights. The start is the principal components of each record's mean
    upload. Adam moves the unknowns while the ReLU, smoothed as :math:`\log(1 + e^{\beta a}) / \beta`, gets sharper;
    damped Gauss-Newton steps end the fit. Three redundant unknowns make it quick: an affine map of the columns that
    the first layer undoes, and a scale of each hidden unit that the last layer undoes. They leave the first uploads as
    they are, so that the change of the uploads alone decides about them. They move once the misfit is small.

    Shapes: a result (N, d), d the sum of ``served.columns``.
    Guarantee: the result fits the uploads at least as well as the start. The same arguments give the same result where
        ``complete`` is true. The global generator is not used.
    Not guaranteed: the best fit. A fit of a ReLU network that ends early can be further from the true columns than the
        uploads, although its misfit is smaller. The unrolled run is exact for ``adam`` and ``adamw`` too, but its first
        steps depend on signs of gradients; how much the fit gains there is not measured.

    Args:
        served: the steps.
        hidden: the width of the hidden layer of every bottom.
        activation: of the hidden layer.
        seed: of the start.
        seconds: the time that the fit may take; one evaluation of the run may come on top.
        bias: whether the layers have biases.
        iterations: of Adam.

    Raises:
        ValueError: for more or fewer than one hidden layer, and if no record was uploaded twice.
    """
    began = time.monotonic()
    if len(hidden) != 1:
        raise ValueError(f"the smoothed fit is for one hidden layer; got {len(hidden)}")
    run = Unrolled(served, hidden[0], activation, bias)
    if not bool((run.visits > 1).any()):
        raise ValueError("no record was uploaded twice; the smoothed fit needs a second epoch")
    generator = torch.Generator().manual_seed(seed)
    first = run.start(generator)
    sharpest = SHARPNESS[-1]
    first_misfit, per_iteration = _timed(lambda: _slope(run, first, sharpest)[0])
    possible = int(ADAM_SHARE * (seconds - (time.monotonic() - began)) / per_iteration)
    planned = max(min(iterations, possible), 0)
    best, lowest, unknowns = first, first_misfit, first
    for sharpness in SHARPNESS:
        unknowns = _adam(run, unknowns, sharpness, planned // len(SHARPNESS), began + seconds)
        if (misfit := float(run.residual(unknowns, sharpest).square().mean())) < lowest:
            best, lowest = unknowns, misfit
    newton, ended = _gauss_newton(run, best, sharpest, began + seconds)
    misfit = float(run.residual(newton, sharpest).square().mean())
    if misfit < lowest:
        best, lowest = newton, misfit
    columns = torch.full((served.records, run.width_in), math.nan, dtype=torch.float64)
    fitted = run.weights(best)[0]
    columns[run.seen] = fitted - fitted.mean(0)
    return SmoothedFit(columns, served.shown(), lowest, first_misfit, ended and planned == iterations)


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


def _timed(compute: Callable[[], float]) -> tuple[float, float]:
    """The result of the second of two calls, and the seconds that it took: the first one warms up."""
    compute()
    began = time.monotonic()
    result = compute()
    return result, time.monotonic() - began


def _slope(run: Unrolled, unknowns: Tensor, sharpness: float) -> tuple[float, Tensor]:
    """The misfit and its slope."""
    variable = unknowns.detach().clone().requires_grad_()
    misfit = run.residual(variable, sharpness).square().mean()
    (slope,) = torch.autograd.grad(misfit, variable)
    return float(misfit.detach()), slope


def _adam(run: Unrolled, start: Tensor, sharpness: float, iterations: int, deadline: float) -> Tensor:
    """Adam with a rate that falls along a cosine; the start if the misfit has not become smaller."""
    unknowns = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([unknowns], lr=ADAM_RATE, betas=(0.9, 0.99))
    first, misfit, free = math.inf, math.nan, run.free(math.inf)
    for iteration in range(iterations):
        if time.monotonic() > deadline:
            break
        optimizer.param_groups[0]["lr"] = ADAM_RATE * (0.5 + 0.5 * math.cos(math.pi * iteration / iterations))
        misfit, unknowns.grad = _slope(run, unknowns, sharpness)
        if not math.isfinite(misfit):
            return start
        if iteration == 0:
            first, free = misfit, run.free(misfit)
        unknowns.grad = unknowns.grad * free
        optimizer.step()
    return unknowns.detach() if misfit < first else start


def _gauss_newton(run: Unrolled, start: Tensor, sharpness: float, deadline: float) -> tuple[Tensor, bool]:
    """Damped Gauss-Newton steps, each by conjugate gradients; and whether they ended before the deadline.

    References:
        Paige, Saunders, "LSQR: An Algorithm for Sparse Linear Equations and Sparse Least Squares", ACM TOMS 8, 1982,
        section 7.1 (conjugate gradients for least squares).
    """
    unknowns, damping = start, 1e-6
    for _ in range(NEWTON_STEPS):
        variable = unknowns.clone().requires_grad_()
        residual = run.residual(variable, sharpness)
        dual = torch.zeros_like(residual, requires_grad=True)
        # linear in ``dual``: its slope by ``dual`` is the Jacobian times a vector
        (pulled,) = torch.autograd.grad(residual, variable, dual, create_graph=True)
        current, ridge = float(residual.detach().square().sum()), damping * residual.numel()
        free = run.free(current / residual.numel())
        step, left = torch.zeros_like(unknowns), -residual.detach()
        (descent,) = torch.autograd.grad(residual, variable, left, retain_graph=True)
        descent = descent * free
        direction, size = descent, float(descent.dot(descent))
        smallest = 1e-6 * size
        for _ in range(INNER_STEPS):
            if time.monotonic() > deadline:
                return unknowns, False
            (moved,) = torch.autograd.grad(pulled, dual, direction, retain_graph=True)
            length = size / float(moved.square().sum() + ridge * direction.dot(direction))
            step, left = step + length * direction, left - length * moved
            (descent,) = torch.autograd.grad(residual, variable, left, retain_graph=True)
            descent = descent * free - ridge * step
            before, size = size, float(descent.dot(descent))
            if size < smallest:
                break
            direction = descent + size / before * direction
        after = float(run.residual(unknowns + step, sharpness).square().sum())
        if not after < current:
            damping *= 8
            continue
        ratio = (current - after) / (current - float(left.square().sum()))
        unknowns = unknowns + step
        damping = max(damping / 4, 1e-12) if ratio > 0.7 else damping * (4 if ratio < 0.3 else 1)
        if 1 - after / current < SMALLEST_GAIN:
            break
    return unknowns, True
