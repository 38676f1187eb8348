"""A training of bottoms with one hidden layer, as a differentiable function of columns and initial weights."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from lightning_vfl.audit.attacks.drift.served import TINY, ServedSteps, State, Visits
from lightning_vfl.networks.depth import HiddenLayer
from lightning_vfl.types import Shape

SHARPNESS = (4.0, 12.0, 40.0, 120.0, 400.0)  # β of the smoothed ReLU, stage by stage
SMALL_MISFIT = 0.1  # of the drift; while the misfit is larger, the redundant unknowns would follow it, so they stay
DRIFT_WEIGHT = 4.0  # how much more the change of a record's upload counts than its mean
RIDGE = 1e-3  # of the first output weights
REDUNDANT = ("map", "shift", "log_scale")  # unknowns that the first uploads do not depend on


class Batch(NamedTuple):
    """The records of one step (B,), as places in ``Visits.seen``, and what the server sent for them."""

    rows: Tensor
    gradient: Tensor  # (B, W)
    rate: float


class Weights(NamedTuple):
    """The weights of all bottoms side by side: H hidden units and d columns of all parties.

    Args:
        first: (H, d), zero where a unit does not read a column.
        offsets: (H,), the bias of the hidden layer.
        last: (W, H).
        constant: (W,), the mean over the parties of their last bias.
    """

    first: Tensor
    offsets: Tensor
    last: Tensor
    constant: Tensor


class Unrolled:
    """The training as a function of columns and initial weights. Records that were never uploaded are left out.

    The unknowns are one vector; ``shapes`` has their names and shapes in order.
    """

    def __init__(self, served: ServedSteps, layer: HiddenLayer) -> None:
        self.rule = served.rule
        self.activation = layer.activation
        self.bias = layer.bias
        self.parties = len(served.columns)
        self.width_in = sum(served.columns)
        self.hidden = layer.width * self.parties
        self.visits = Visits.of(served)
        self.batches = list(self._batches(served))

        uploads = self.visits.uploads
        variance = (uploads - uploads.mean(0)).square().mean()
        self.scale = variance.sqrt().clamp_min(TINY)
        self.mean = self.visits.mean(uploads)
        moved = DRIFT_WEIGHT * (uploads - self.mean[self.visits.row]) / self.scale
        self.drift = float(moved.square().mean())

        columns_of = torch.tensor(served.columns)
        party_of_column = torch.arange(self.parties).repeat_interleave(columns_of)
        party_of_unit = torch.arange(self.parties).repeat_interleave(layer.width)
        self.same_party = (party_of_column[:, None] == party_of_column).double()
        self.reads = (party_of_unit[:, None] == party_of_column).double()  # (H, d)

        n = len(self.visits.seen)
        d = self.width_in
        self.shapes: dict[str, Shape] = {
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

    def _batches(self, served: ServedSteps) -> Iterator[Batch]:
        """The steps, in order."""
        sizes = [len(step.ids) for step in served.steps]
        for step, rows in zip(served.steps, torch.split(self.visits.row, sizes), strict=True):
            yield Batch(rows, step.gradient.double(), step.rate)

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

    def weights(self, unknowns: Tensor) -> tuple[Tensor, Weights]:
        """Columns (n, d) and the initial weights that the unknowns stand for.

        With c, F and o for the unknown columns, first weights and offsets: the columns are x = c A + s, the weights
        W = F A⁻ᵀ and the offsets b = o - W s, so that x Wᵀ + b = c Fᵀ + o whatever A and s are.
        """
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        flat = torch.split(unknowns, sizes)
        part = {name: values.view(self.shapes[name]) for name, values in zip(self.shapes, flat, strict=True)}

        affine = torch.eye(self.width_in, dtype=torch.float64) + part["map"] * self.same_party
        shift = part["shift"] * self.bias
        columns = part["columns"] @ affine + shift
        first = torch.linalg.solve(affine, (part["first"] * self.reads).T).T
        offsets = (part["offsets"] - first @ shift) * self.bias
        last = part["last"]
        constant = part["constant"] * self.bias
        if self.activation == "relu":  # relu(e a) / e = relu(a) for every e > 0
            scale = part["log_scale"].exp()
            first = first * scale[:, None]
            offsets = offsets * scale
            last = last / scale
        return columns, Weights(first, offsets, last, constant)

    def residual(self, unknowns: Tensor, sharpness: float) -> Tensor:
        """(V, W): the uploads of the run with these unknowns less those of the training, in deviations of these.

        The difference of a visit from the mean over the visits to its record counts ``DRIFT_WEIGHT`` times.
        """
        columns, weights = self.weights(unknowns)
        states: list[State] = [()] * len(weights)
        uploads = []
        for number, batch in enumerate(self.batches, 1):
            upload, gradients = self._forward_and_backward(weights, columns[batch.rows], batch.gradient, sharpness)
            uploads.append(upload)
            stepped = [
                self.rule.step(weight, gradient, state, number, batch.rate)
                for weight, gradient, state in zip(weights, gradients, states, strict=True)
            ]
            weights = Weights(*(weight for weight, _ in stepped))
            states = [state for _, state in stepped]

        wrong = (torch.cat(uploads) - self.visits.uploads) / self.scale
        mean_wrong = self.visits.mean(wrong)[self.visits.row]
        return mean_wrong + DRIFT_WEIGHT * (wrong - mean_wrong)

    def _forward_and_backward(
        self, weights: Weights, inputs: Tensor, sent: Tensor, sharpness: float
    ) -> tuple[Tensor, Weights]:
        """The upload of a batch (B, d), and the gradients of the weights by what the server sent for it (B, W)."""
        # u = relu(x Wᵀ + b), h = u Vᵀ + M c, for M parties
        before = torch.addmm(weights.offsets, inputs, weights.first.T)
        units, slopes = self.activate(before, sharpness)
        upload = torch.addmm(self.parties * weights.constant, units, weights.last.T)
        # with δ for ∂L/∂h: ∂L/∂V = δᵀ u, and behind the activation ε = (δ V) ⊙ relu', ∂L/∂W = εᵀ x
        behind = (sent @ weights.last) * slopes
        gradients = Weights(
            first=behind.T @ inputs * self.reads,
            offsets=behind.sum(0) * self.bias,
            last=sent.T @ units,
            constant=sent.sum(0) * self.bias,  # every party's last bias has this gradient, so has their mean
        )
        return upload, gradients

    def misfit(self, unknowns: Tensor, sharpness: float) -> float:
        """The mean square of the residual."""
        return float(self.residual(unknowns, sharpness).square().mean())


def _uniform(*shape: int, generator: torch.Generator) -> Tensor:
    """Draws between -1 and 1."""
    return 2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1
