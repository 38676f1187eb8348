"""Lagrange coding: K secrets and T masks become M shares. Any T shares reveal nothing; enough shares reveal all."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from lightning_vfl.checks import positive, within
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field.lagrange import interpolate, lagrange_matrix
from lightning_vfl.field.prime import PrimeField
from lightning_vfl.field.reed_solomon import Decoded, decode


@dataclass(frozen=True)
class LagrangeCode:
    r"""Shares of K secrets for M holders: values at α_1..α_M of the polynomial through the secrets and T masks.

    .. math:: F(\beta_k) = X_k \; (k \le K), \qquad F(\beta_{K+t}) = Z_t \text{ uniform}, \qquad
              \text{share}_j = F(\alpha_j).

    The points are β = 1..K+T and α = K+T+1..K+T+M: all distinct, and distinct modulo every prime that is larger.
    If the holders evaluate a polynomial of total degree g on their shares, the results lie on a polynomial of degree
    g(K+T-1). Any g(K+T-1)+1 results determine it, and its values at β_1..β_K are the results for the secrets.

    Shapes: secrets (K, *S), masks (T, *S), shares (M, *S).
    Units: field elements.
    Guarantee: any T shares are uniform and independent of the secrets, if the masks are uniform and used once;
        decoding is exact.
    Not guaranteed: anything against T + 1 holders; correct shares from a dishonest dealer.

    Args:
        field: the modulus.
        blocks: K.
        privacy: T.
        parties: M.

    Raises:
        ConfigurationError: if the field is too small for K + T + M points.

    Examples:
        >>> from lightning_vfl.field import PrimeField
        >>> code = LagrangeCode(PrimeField(11), blocks=1, privacy=1, parties=3)
        >>> shares = code.share(torch.tensor([[7]]), torch.tensor([[2]]))
        >>> code.decode(shares[:2], (0, 1), degree=1).tolist()
        [[7]]

    References:
        Yu, Li, Raviv, Kalan, Soltanolkotabi, Avestimehr, "Lagrange Coded Computing", AISTATS 2019, section 4;
        Li, Yao, Liu, "FedVS", ICML 2023, equations (2), (4) and (6), theorems 5.1 and 5.2.
    """

    field: PrimeField
    blocks: int
    privacy: int
    parties: int

    def __post_init__(self) -> None:
        positive("blocks", self.blocks, whole=True)
        within("privacy", self.privacy, 0, whole=True)
        positive("parties", self.parties, whole=True)
        points = self.beta + self.alpha
        if len(points) > self.field.modulus:
            raise ConfigurationError(
                f"{self.field} has no room for {len(points)} points (K + T + M); use a prime of at least {len(points)}"
            )

    @cached_property
    def beta(self) -> tuple[int, ...]:
        """The K + T points of secrets and masks."""
        return tuple(range(1, self.blocks + self.privacy + 1))

    @cached_property
    def alpha(self) -> tuple[int, ...]:
        """The M points of the shares."""
        first = self.blocks + self.privacy + 1
        return tuple(range(first, first + self.parties))

    def threshold(self, degree: int) -> int:
        """How many results determine a computation of degree g: g(K + T - 1) + 1."""
        return degree * (self.blocks + self.privacy - 1) + 1

    def share(self, secrets: Tensor, masks: Tensor, holders: Sequence[int] | None = None) -> Tensor:
        """Shares of K different secrets, for all M holders or for the given ones."""
        points = self.alpha if holders is None else self._points(holders)
        return interpolate(self.field, torch.cat([secrets, masks]), self.beta, points)

    def share_copies(self, secret: Tensor, masks: Tensor, holders: Sequence[int] | None = None) -> Tensor:
        """Shares of the same secret (*S) in all K places: equation (4), G(β_k) = W for every k."""
        matrix = self._copies if holders is None else self._copies[list(holders)]
        values = torch.cat([secret.unsqueeze(0), masks]).flatten(1)
        return self.field.matmul(matrix.to(secret.device), values).view(len(matrix), *secret.shape)

    def share_zeros(self, free: Tensor, degree: int, holders: Sequence[int] | None = None) -> Tensor:
        """Shares of a polynomial of degree g(K + T - 1) that is zero at β_1..β_K, for ``free`` (g(K+T-1)+1-K, *S).

        If the ``free`` values are uniform, the polynomial is uniform among all such polynomials.
        """
        if len(free) != self.threshold(degree) - self.blocks:
            raise ConfigurationError(
                f"a polynomial with {self.threshold(degree)} coefficients and {self.blocks} zeros has "
                f"{self.threshold(degree) - self.blocks} free values; got {len(free)}"
            )
        matrix = _zero_matrix(self, degree)
        matrix = matrix if holders is None else matrix[list(holders)]
        return self.field.matmul(matrix.to(free.device), free.flatten(1)).view(len(matrix), *free.shape[1:])

    def decode(self, results: Tensor, holders: Sequence[int], degree: int) -> Tensor:
        """The results for the K secrets, from the first g(K + T - 1) + 1 of these holders' results (n, *S)."""
        needed = self.threshold(degree)
        if len(holders) < needed:
            raise ConfigurationError(
                f"{len(holders)} results do not determine a polynomial with {needed} coefficients; wait for {needed}"
            )
        points = self._points(holders[:needed])
        return interpolate(self.field, results[:needed], points, self.beta[: self.blocks])

    def correct(self, results: Tensor, holders: Sequence[int], degree: int) -> Decoded:
        """As ``decode``, from all n results, of which ⌊(n - needed) / 2⌋ may be wrong; also gives their positions."""
        points = self._points(holders)
        return decode(self.field, results, points, self.beta[: self.blocks], self.threshold(degree))

    def _points(self, holders: Sequence[int]) -> list[int]:
        strangers = [j for j in holders if not 0 <= j < self.parties]
        if strangers:
            raise ConfigurationError(f"party {strangers[0]} holds no share; the parties are 0 to {self.parties - 1}")
        return [self.alpha[j] for j in holders]

    @cached_property
    def _copies(self) -> Tensor:
        """(M, 1 + T): the factors of the one secret and of each mask in every share."""
        matrix = lagrange_matrix(self.beta, self.alpha, self.field.modulus)
        of_secrets, of_masks = matrix[:, : self.blocks], matrix[:, self.blocks :]
        return torch.cat([self.field.sum(of_secrets.T).unsqueeze(1), of_masks], dim=1)


@lru_cache(maxsize=64)
def _zero_matrix(code: LagrangeCode, degree: int) -> Tensor:
    """(M, g(K+T-1)+1-K): the columns of the free values, which stand at the points next to β_K."""
    points = tuple(range(1, code.threshold(degree) + 1))
    return lagrange_matrix(points, code.alpha, code.field.modulus)[:, code.blocks :].contiguous()
