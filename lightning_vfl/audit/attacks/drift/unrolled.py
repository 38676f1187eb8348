"""A training of bottoms with one hidden layer, as a differentiable function of columns and initial weights."""

import math
from typing import Literal

import torch
from torch import Tensor

from lightning_vfl.audit.attacks.drift.served import ServedSteps, StepRule, Visits

Activation = Literal["relu", "tanh"]
State = tuple[Tensor, ...]  # of the parties' optimiser, for one weight; empty before the first step

SHARPNESS = (4.0, 12.0, 40.0, 120.0, 400.0)  # β of the smoothed ReLU, stage by stage
SMALL_MISFIT = 0.1  # of the drift; while the misfit is larger, the redundant unknowns would follow it, so they stay
DRIFT_WEIGHT = 4.0  # how much more the change of a record's upload counts than its mean
RIDGE = 1e-3  # of the first output weights
TINY = 1e-20  # keeps the slope of a square root finite
REDUNDANT = ("map", "shift", "log_scale")  # unknowns that the first uploads do not depend on


class Unrolled:
    """The training as a function of columns and initial weights. Records that were never uploaded are left out.

    The unknowns are one vector; ``shapes`` has their names and shapes in order.
    """

    def __init__(self, served: ServedSteps, hidden: int, activation: Activation, bias: bool) -> None:
        self.rule = served.rule
        self.activation = activation
        self.bias = bias
        self.parties = len(served.columns)
        self.width_in = sum(served.columns)
        self.hidden = hidden * self.parties
        self.visits = Visits.of(served)

        sizes = [len(step.ids) for step in served.steps]
        self.batches = torch.split(self.visits.row, sizes)
        self.gradients = [step.gradient.double() for step in served.steps]
        self.rates = [step.rate for step in served.steps]

        uploads = self.visits.uploads
        variance = (uploads - uploads.mean(0)).square().mean()
        self.scale = variance.sqrt().clamp_min(TINY)
        self.mean = self.visits.mean(uploads)
        moved = DRIFT_WEIGHT * (uploads - self.mean[self.visits.row]) / self.scale
        self.drift = float(moved.square().mean())

        columns_of = torch.tensor(served.columns)
        party_of_column = torch.arange(self.parties).repeat_interleave(columns_of)
        party_of_unit = torch.arange(self.parties).repeat_interleave(hidden)
        self.same_party = (party_of_column[:, None] == party_of_column).double()
        self.reads = (party_of_unit[:, None] == party_of_column).double()  # (H, d)

        n = len(self.visits.seen)
        d = self.width_in
        self.shapes: dict[str, tuple[int, ...]] = {
            "columns": (n, d),
            "first": (self.hidden, d),
            "offsets": (self.hidden,),
            "last": (served.width, self.hidden),
            "constant": (served.width,),
            "map": (d, d),
            "shift": (d,),
            "log_scale": (self.hidden,),
        }
        self.redundant = sum(math.prod(self.shapes[name]) for name in REDUNDANT)

    def free(self, misfit: float) -> Tensor:
        """1 for the unknowns that may move at this misfit, 0 for the others."""
        free = torch.ones(sum(map(math.prod, self.shapes.values())), dtype=torch.float64)
        if misfit > SMALL_MISFIT * self.drift:
            free[-self.redundant :] = 0
        return free

    def start(self, generator: torch.Generator) -> Tensor:
        """The unknowns at the start: principal components, drawn first weights, last weights by ridge regression."""
        columns = self._first_columns(generator)
        bound = 1 / self.reads.sum(1).sqrt()  # torch's for a linear layer
        first = self.reads * _uniform(self.hidden, self.width_in, generator=generator)
        first = first * bound[:, None]
        offsets = _uniform(self.hidden, generator=generator) * bound * self.bias

        units, _ = self.activate(columns @ first.T + offsets, SHARPNESS[0])
        centre = self.bias * 1.0
        inputs = units - centre * units.mean(0)
        outputs = self.mean - centre * self.mean.mean(0)
        ridge = RIDGE * len(columns) * torch.eye(self.hidden, dtype=torch.float64)
        last = torch.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ outputs).T
        constant = centre * (self.mean - units @ last.T).mean(0) / self.parties

        redundant = torch.zeros(self.redundant, dtype=torch.float64)
        parts = (columns, first, offsets, last, constant, redundant)
        return torch.cat([part.reshape(-1) for part in parts])

    def _first_columns(self, generator: torch.Generator) -> Tensor:
        """(n, d) principal components of the mean uploads, with variance 1; small draws where there are no more."""
        components, sizes = self.visits.components(self.width_in)
        columns = components * math.sqrt(len(components))
        missing = sizes == 0
        drawn = torch.randn(len(columns), int(missing.sum()), generator=generator, dtype=torch.float64)
        columns[:, missing] = 0.1 * drawn
        if self.parties == 1:
            return columns
        # no component is of one party alone
        square = torch.randn(self.width_in, self.width_in, generator=generator, dtype=torch.float64)
        mixed: Tensor = columns @ torch.linalg.qr(square)[0]
        return mixed

    def activate(self, inputs: Tensor, sharpness: float) -> tuple[Tensor, Tensor]:
        """Hidden values and their slopes."""
        if self.activation == "tanh":
            values = inputs.tanh()
            return values, 1 - values * values
        values = torch.nn.functional.softplus(inputs, beta=sharpness, threshold=500)
        return values, torch.sigmoid(sharpness * inputs)

    def weights(self, unknowns: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Columns (n, d) and the four initial weights that the unknowns stand for."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        flat = zip(self.shapes.items(), torch.split(unknowns, sizes), strict=True)
        part = {name: values.view(shape) for (name, shape), values in flat}

        affine = torch.eye(self.width_in, dtype=torch.float64) + part["map"] * self.same_party
        shift = part["shift"] * self.bias
        columns = part["columns"] @ affine + shift
        first = torch.linalg.solve(affine, (part["first"] * self.reads).T).T
        offsets = (part["offsets"] - first @ shift) * self.bias
        last = part["last"]
        if self.activation == "relu":  # the scale of a unit is free
            scale = part["log_scale"].exp()
            first = first * scale[:, None]
            offsets = offsets * scale
            last = last / scale
        return columns, [first, offsets, last, part["constant"] * self.bias]

    def residual(self, unknowns: Tensor, sharpness: float) -> Tensor:
        """(visits, W): what the run with these unknowns leaves of the uploads, weighted, in deviations of them."""
        columns, weights = self.weights(unknowns)
        states: list[State] = [()] * len(weights)
        uploads = []
        steps = zip(self.batches, self.gradients, self.rates, strict=True)
        for number, (rows, sent, rate) in enumerate(steps, 1):
            first, offsets, last, constant = weights
            batch = columns[rows]
            units, slopes = self.activate(torch.addmm(offsets, batch, first.T), sharpness)
            uploads.append(torch.addmm(self.parties * constant, units, last.T))

            back = (sent @ last) * slopes
            gradients = (
                back.T @ batch * self.reads,
                back.sum(0) * self.bias,
                sent.T @ units,
                # the constants of several parties move alike: ``constant`` is their mean
                sent.sum(0) * self.bias,
            )
            parts = zip(weights, gradients, states, strict=True)
            stepped = [_step(self.rule, *one, number, rate) for one in parts]
            weights = [weight for weight, _ in stepped]
            states = [state for _, state in stepped]

        wrong = (torch.cat(uploads) - self.visits.uploads) / self.scale
        mean = self.visits.mean(wrong)[self.visits.row]
        return mean + DRIFT_WEIGHT * (wrong - mean)

    def misfit(self, unknowns: Tensor, sharpness: float) -> float:
        """The mean square of the residual."""
        return float(self.residual(unknowns, sharpness).square().mean())


def _uniform(*shape: int, generator: torch.Generator) -> Tensor:
    """Draws between -1 and 1."""
    return 2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1


def _step(
    rule: StepRule, weight: Tensor, gradient: Tensor, state: State, number: int, rate: float
) -> tuple[Tensor, State]:
    """A weight after a step of the parties' optimiser, and the optimiser's state then; steps count from 1."""
    if rule.weight_decay and rule.kind == "adamw":
        weight = weight * (1 - rate * rule.weight_decay)
    elif rule.weight_decay:
        gradient = gradient + rule.weight_decay * weight
    if rule.kind != "sgd":
        return _adam(rule, weight, gradient, state, number, rate)
    if not rule.momentum:
        return weight - rate * gradient, ()

    speed = state[0] if state else torch.zeros_like(gradient)
    speed = rule.momentum * speed + gradient
    change = gradient + rule.momentum * speed if rule.nesterov else speed
    return weight - rate * change, (speed,)


def _adam(
    rule: StepRule, weight: Tensor, gradient: Tensor, state: State, number: int, rate: float
) -> tuple[Tensor, State]:
    """As ``_step``, for Adam with the decay applied."""
    mean_decay, square_decay = rule.betas
    zeros = torch.zeros_like(gradient)
    mean, square = state or (zeros, zeros)
    mean = mean_decay * mean + (1 - mean_decay) * gradient
    square = square_decay * square + (1 - square_decay) * gradient**2
    rate = rate / (1 - mean_decay**number)
    size = (square / (1 - square_decay**number) + TINY).sqrt() + rule.eps
    return weight - rate * mean / size, (mean, square)
