"""Damped Gauss-Newton steps for the least squares of a residual that is a function of one vector of unknowns."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

STEPS = 30
INNER_STEPS = 40  # of conjugate gradients, in one step
INNER_GAIN = 1e-6  # of the squared slope: below it the conjugate gradients have ended
SMALLEST_GAIN = 1e-3  # of a step, relative: below it the fit has ended
FIRST_DAMPING = 1e-6  # of the mean square of the residual's slope by each unknown
LEAST_DAMPING = 1e-12


class Solved(NamedTuple):
    """A solution of the linear least squares of one step: the step, and the residual that it would leave."""

    step: Tensor
    left: Tensor


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

        after = float(residual(unknowns + solved.step).square().sum())
        if not after < current:
            damping *= 8
            continue
        promised = current - float(solved.left.square().sum())
        kept_promise = (current - after) / promised
        unknowns = unknowns + solved.step
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


def _solve(jacobian: Jacobian, free: Tensor, ridge: float, deadline: float) -> Solved | None:
    """The step s that makes |r + J s|² + ridge |s|² small, by conjugate gradients; None: the time was over.

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
    return Solved(step, left)
