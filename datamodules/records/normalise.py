"""Scaling of features, fitted by each party on its own training rows and nothing else."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Normaliser(ABC):
    """An affine map of a party's features, (x - shift) / scale."""

    @abstractmethod
    def fit(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Shift and scale, each (F,), from the party's training rows x (N, F)."""

    def fit_bytes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Shift and scale, each (F,) float32, of the numbers x / 255 for bytes x (N, F); default: ``fit`` to them."""
        return self.fit(x.float().div_(255))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Standardise(Normaliser):
    """Mean 0 and standard deviation 1 for every column; a constant column becomes 0.

    Example:
        >>> shift, scale = Standardise().fit(torch.tensor([[1.0, 7.0], [3.0, 7.0]]))
        >>> shift.tolist(), scale.tolist()
        ([2.0, 7.0], [1.0, 1.0])
    """

    def fit(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, deviation = x.double().mean(0), x.double().std(0, correction=0)
        constant = deviation <= 1e-12 * mean.abs().clamp(min=1.0)
        return mean.to(x.dtype), torch.where(constant, 1.0, deviation).to(x.dtype)


class StandardiseNumbers(Normaliser):
    """As ``Standardise``, but columns with nothing but 0 and 1, such as categories, stay as they are.

    One record in 30,000 has a rare category: 0 and 1 would become -0.006 and 173.

    Example:
        >>> shift, scale = StandardiseNumbers().fit(torch.tensor([[1.0, 0.0], [3.0, 1.0]]))
        >>> shift.tolist(), scale.tolist()
        ([2.0, 0.0], [1.0, 1.0])
    """

    def fit(self, x: Tensor) -> tuple[Tensor, Tensor]:
        shift, scale = Standardise().fit(x)
        indicators = ((x == 0) | (x == 1)).all(0)
        return torch.where(indicators, 0.0, shift), torch.where(indicators, 1.0, scale)


class StandardiseParty(Normaliser):
    """Mean 0 and standard deviation 1 over ALL of a party's numbers: keeps the contrast between pixels."""

    def fit(self, x: Tensor) -> tuple[Tensor, Tensor]:
        wide = x.double()
        return _one_pair(wide.mean(), wide.std(correction=0), x.dtype, x.shape[1])

    def fit_bytes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if type(self).fit is not StandardiseParty.fit:  # a subclass that fits otherwise
            return super().fit_bytes(x)
        # there are 256 different numbers: how often each comes is all that counts, at a fiftieth of the time
        values = torch.arange(256).float().div_(255).double()
        counts = torch.bincount(x.flatten(), minlength=256).double()
        mean = counts @ values / x.numel()
        deviation = (counts @ (values - mean).square() / x.numel()).sqrt()
        return _one_pair(mean, deviation, torch.float32, x.shape[1])


def _one_pair(mean: Tensor, deviation: Tensor, dtype: torch.dtype, columns: int) -> tuple[Tensor, Tensor]:
    """The same shift and scale for so many columns."""
    scale = deviation if deviation > 1e-12 * max(1.0, abs(float(mean))) else torch.ones_like(deviation)
    return mean.to(dtype).expand(columns), scale.to(dtype).expand(columns)


class Unchanged(Normaliser):
    """Features as they are."""

    def fit(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])
