"""Polynomial networks: the bottoms that can be evaluated on secret shares."""

from math import prod, sqrt

import torch
from torch import Tensor, nn

from lightning_vfl.checks import positive
from lightning_vfl.networks._linear import as_real
from lightning_vfl.networks.batched import Layers, batched, stack
from lightning_vfl.types import Shape


class PolynomialNetwork(nn.Module):
    r"""A polynomial of the input's elements, which is linear in its weights.

    .. math:: h = \sum_{i=1}^{D} x^{\circ i} W^i + b

    The paper has a bias b^i for every degree; only the sum of these matters, so there is ONE bias here. The powers and
    the constant form one matrix, and the weights another: ``h = expand(x) @ weight``. Coded aggregators share these
    two matrices.

    Shapes: input (B, *S) with d = ∏ S; expand(x) (B, D·d + 1), the powers 1..D in turn, then a column of ones;
    weight (D·d + 1, width), its last row the bias; output (B, width).

    Args:
        shape: S, per-record shape of the party's features.
        width: width of the embedding.
        degree: D ≥ 1, the number of layers in the paper's words.

    Examples:
        >>> network = PolynomialNetwork((2,), 1, degree=2)
        >>> network.expand(torch.tensor([[2.0, 3.0]])).tolist()
        [[2.0, 3.0, 4.0, 9.0, 1.0]]

    References:
        Li, Yao, Liu, "FedVS", ICML 2023, section 3, equation (1); after Livni et al., 2014.
    """

    def __init__(self, shape: Shape, width: int, degree: int = 1) -> None:
        super().__init__()
        positive("degree", degree, whole=True)
        self.degree = degree
        inputs = prod(shape)
        self.weight = nn.Parameter(torch.empty(degree * inputs + 1, width))
        bound = 1 / sqrt(degree * inputs)  # torch.nn.Linear's own bound for this fan-in
        nn.init.uniform_(self.weight, -bound, bound)

    def expand(self, x: Tensor) -> Tensor:
        """(B, D·d + 1): powers 1..D of every feature, then the constant 1."""
        flat = (x if x.is_floating_point() else as_real(x)).flatten(1)
        powers = [flat]
        for _ in range(self.degree - 1):
            powers.append(powers[-1] * flat)
        return torch.cat([*powers, torch.ones_like(flat[:, :1])], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, *S) to (B, width)."""
        return self.expand(x) @ self.weight


@batched.register
def _polynomials(first: PolynomialNetwork, layers: Layers, x: Tensor) -> Tensor:
    basis = first.expand(x.flatten(0, 1)).view(*x.shape[:2], -1)
    return torch.bmm(basis, stack(layers, "weight"))
