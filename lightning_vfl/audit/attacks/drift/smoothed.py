"""The columns behind bottoms with one hidden layer, from uploads and the gradients that the server sent for them.

The server does not know the initial weights, and it knows no record. It fits both: the run of the bottoms is unrolled
under the recipe's optimiser, and columns and initial weights are moved until the unrolled run gives the uploads.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lightning_vfl.audit.attacks.drift.served import ServedSteps
from lightning_vfl.audit.attacks.drift.unrolled import SHARPNESS, Unrolled
from lightning_vfl.networks.depth import HiddenLayer

ITERATIONS = 3000  # of Adam, in all stages
ADAM_RATE = 0.02
ADAM_SHARE = 0.8  # of the time; the rest is for the Gauss-Newton steps
STEPS = 30
INNER_STEPS = 40  # of conjugate gradients, in one step
INNER_GAIN = 1e-6  # of the squared slope: below it the conjugate gradients have ended
SMALLEST_GAIN = 1e-3  # of a step, relative: below it the fit has ended
FIRST_DAMPING = 1e-6  # of the mean square of the residual's slope by each unknown
LEAST_DAMPING = 1e-12
MEASURED_STEPS = 20  # of the training, to tell how long an iteration takes


@dataclass(frozen=True, eq=False)
class SmoothedFit:
    """The columns as the fit gives them.

    Args:
        columns: (N, d) float64, centred, up to a rotation among the columns of each party; NaN: never uploaded.
        misfit: the weighted mean square of what the fit does not explain, in variances of the uploads.
        first_misfit: the same at the start of the fit; ``misfit`` is never larger.
        complete: whether the time was enough for all iterations. Then the result depends on the seed alone.
    """

    columns: Tensor
    misfit: float
    first_misfit: float
    complete: bool


def smoothed(
    served: ServedSteps,
    layer: HiddenLayer,
    seed: int = 0,
    seconds: float = 120.0,
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
        layer: the hidden layer of every bottom.
        seed: of the start.
        seconds: the time that the fit may take; one evaluation of the run may come on top. ``inf``: no limit.
        iterations: of Adam.

    Raises:
        ValueError: if no record was uploaded twice.
    """
    began = time.monotonic()
    deadline = began + seconds
    run = Unrolled(served, layer)
    if not bool((run.visits.count > 1).any()):
        raise ValueError("no record was uploaded twice; the smoothed fit needs a second epoch")

    per_iteration = seconds_per_iteration(served, layer)
    start = run.start(torch.Generator().manual_seed(seed))
    sharpest = SHARPNESS[-1]
    first_misfit = run.misfit(start, sharpest)
    left = seconds - (time.monotonic() - began)
    possible = ADAM_SHARE * left / per_iteration
    planned = max(int(min(iterations, possible)), 0)

    unknowns = best = start
    lowest = first_misfit
    for sharpness in SHARPNESS:
        unknowns = _adam(run, unknowns, sharpness, planned // len(SHARPNESS), deadline)
        misfit = run.misfit(unknowns, sharpest)
        if misfit < lowest:
            best = unknowns
            lowest = misfit

    newton, ended = gauss_newton(lambda unknowns: run.residual(unknowns, sharpest), best, deadline, run.free)
    misfit = run.misfit(newton, sharpest)
    if misfit < lowest:
        best = newton
        lowest = misfit

    fitted, _ = run.weights(best)
    columns = torch.full((served.records, run.width_in), math.nan, dtype=torch.float64)
    columns[run.visits.seen] = fitted - fitted.mean(0)
    return SmoothedFit(columns, lowest, first_misfit, ended and planned == iterations)


def seconds_per_iteration(served: ServedSteps, layer: HiddenLayer) -> float:
    """The seconds that one iteration of ``smoothed`` takes, measured on the first steps."""
    first = replace(served, steps=served.steps[:MEASURED_STEPS])
    run = Unrolled(first, layer)
    start = run.start(torch.Generator().manual_seed(0))
    _slope(run, start, SHARPNESS[-1])  # warms up
    began = time.monotonic()
    _slope(run, start, SHARPNESS[-1])
    return (time.monotonic() - began) * len(served.steps) / len(first.steps)


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
    first_misfit = math.inf
    misfit = math.nan
    free = run.free(math.inf)
    for iteration in range(iterations):
        if time.monotonic() > deadline:
            break
        progress = math.pi * iteration / iterations
        optimizer.param_groups[0]["lr"] = ADAM_RATE * (0.5 + 0.5 * math.cos(progress))
        misfit, slope = _slope(run, unknowns, sharpness)
        if not math.isfinite(misfit):
            return start
        if iteration == 0:
            first_misfit = misfit
            free = run.free(misfit)
        unknowns.grad = slope * free
        optimizer.step()
    return unknowns.detach() if misfit < first_misfit else start


def gauss_newton(
    residual: Callable[[Tensor], Tensor],
    start: Tensor,
    deadline: float,
    free: Callable[[float], Tensor],
) -> tuple[Tensor, bool]:
    """The unknowns after damped Gauss-Newton steps, and whether these ended before the deadline.

    Args:
        residual: of unknowns; differentiable twice.
        start: the first unknowns.
        deadline: of ``time.monotonic``.
        free: by the mean square of the residual, 1 for the unknowns that may move and 0 for the others.

    References:
        Nocedal, Wright, "Numerical Optimization", 2nd edition, 2006, section 10.3 (Levenberg-Marquardt).
    """
    unknowns = start
    damping = FIRST_DAMPING
    for _ in range(STEPS):
        jacobian = Jacobian(residual, unknowns)
        numbers = jacobian.residual.numel()
        current = float(jacobian.residual.square().sum())
        solved = _solve(jacobian, free(current / numbers), damping * numbers, deadline)
        if solved is None:
            return unknowns, False

        step, left = solved
        after = float(residual(unknowns + step).square().sum())
        if not after < current:
            damping *= 8
            continue
        promised = current - float(left.square().sum())
        kept_promise = (current - after) / promised
        unknowns = unknowns + step
        if kept_promise > 0.7:
            damping = max(damping / 4, LEAST_DAMPING)
        elif kept_promise < 0.3:
            damping = damping * 4
        if 1 - after / current < SMALLEST_GAIN:
            break
    return unknowns, True


class Jacobian:
    """The Jacobian J of a residual at some unknowns, as products with vectors."""

    def __init__(self, residual: Callable[[Tensor], Tensor], unknowns: Tensor) -> None:
        self._unknowns = unknowns.clone().requires_grad_()
        self._residual = residual(self._unknowns)
        self._dual = torch.zeros_like(self._residual, requires_grad=True)
        # Jᵀ dual is linear in ``dual``, so that its slope by ``dual`` in a direction is J direction
        (self._pulled,) = torch.autograd.grad(self._residual, self._unknowns, self._dual, create_graph=True)
        self.residual = self._residual.detach()

    def times(self, direction: Tensor) -> Tensor:
        """J v, for v of the form of the unknowns."""
        (product,) = torch.autograd.grad(self._pulled, self._dual, direction, retain_graph=True)
        return product

    def transposed_times(self, values: Tensor) -> Tensor:
        """Jᵀ v, for v of the form of the residual."""
        (product,) = torch.autograd.grad(self._residual, self._unknowns, values, retain_graph=True)
        return product


def _solve(jacobian: Jacobian, free: Tensor, ridge: float, deadline: float) -> tuple[Tensor, Tensor] | None:
    """The step s that makes |r + J s|² + ridge |s|² small, by conjugate gradients, and -(r + J s); None: out of time.

    References:
        Paige, Saunders, "LSQR: An Algorithm for Sparse Linear Equations and Sparse Least Squares", ACM TOMS 8, 1982,
        section 7.1 (conjugate gradients for least squares).
    """
    left = -jacobian.residual
    descent = jacobian.transposed_times(left) * free
    step = torch.zeros_like(descent)
    direction = descent
    size = float(descent.dot(descent))
    smallest = INNER_GAIN * size
    for _ in range(INNER_STEPS):
        if time.monotonic() > deadline:
            return None
        moved = jacobian.times(direction)
        curvature = float(moved.square().sum() + ridge * direction.dot(direction))
        length = size / curvature
        step = step + length * direction
        left = left - length * moved
        descent = jacobian.transposed_times(left) * free - ridge * step
        last_size = size
        size = float(descent.dot(descent))
        if size < smallest:
            break
        direction = descent + size / last_size * direction
    return step, left
