"""Scaling of features: fitted by each party on its own training rows only, or given in advance."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from math import isfinite
from typing import ClassVar, Self

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError

Bounds = tuple[float, float]


class Normaliser(ABC):
    """An affine map of a party's features, (x - shift) / scale.

    A fitted scale depends on every training record, so the scaled features of one record depend on all others. Privacy
    figures of a single record are then wrong, so a training that accounts for privacy refuses a fitted normaliser,
    unless its statistics are declared public.
    """

    fitted: ClassVar[bool] = True
    """Whether shift and scale depend on the values of the training rows."""
    by_column: ClassVar[bool] = False
    """Whether shift and scale of a column depend on that column alone, so that ``fit`` may be given one at a time."""
    public: bool = False
    """Whether shift and scale are declared public knowledge, so that they are not protected."""

    @abstractmethod
    def fit(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Shift and scale, each (F,), from the party's training rows x (N, F)."""

    def fit_bytes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Shift and scale, each (F,) float32, for the numbers x / 255 of bytes x (N, F); default: ``fit`` to these."""
        return self.fit(x.float().div_(255))

    def within(self, bounds: Bounds | None, data: str) -> Self:
        """This normaliser for a data set with known bounds of the features; default: bounds are ignored.

        Args:
            bounds: the data set's ``known_bounds``; None: unknown.
            data: the name of the data set, for errors.
        """
        return self

    def of_columns(self, own: Sequence[str], every: Sequence[str]) -> "Normaliser":
        """This normaliser for a party's own columns; default: names are ignored.

        Args:
            own: the names of the party's columns; empty: columns have no names.
            every: the names of all parties' columns.
        """
        return self

    def of_party(self, party: str) -> "Normaliser":
        """This normaliser in a process that knows the columns of one party alone; default: names are ignored.

        Args:
            party: its name; a column is named ``column``, or ``party.column`` if others have such a column.
        """
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'public=True' if self.public else ''})"


class Standardise(Normaliser):
    """Mean 0 and standard deviation 1 for every column; a constant column becomes 0.

    Args:
        public: declare means and deviations public knowledge, see ``Normaliser``.

    Examples:
        >>> shift, scale = Standardise().fit(torch.tensor([[1.0, 7.0], [3.0, 7.0]]))
        >>> shift.tolist(), scale.tolist()
        ([2.0, 7.0], [1.0, 1.0])
    """

    by_column: ClassVar[bool] = True

    def __init__(self, public: bool = False) -> None:
        self.public = public

    def fit(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, deviation = _moments(x)
        constant = deviation <= 1e-12 * mean.abs().clamp(min=1.0)
        return mean.to(x.dtype), torch.where(constant, 1.0, deviation).to(x.dtype)


class StandardiseNumbers(Normaliser):
    """As ``Standardise``, but columns that have only 0 and 1, such as categories, are not changed.

    For a category of one record in 30,000, standardising would map 0 and 1 to -0.006 and 173.

    Args:
        public: declare means and deviations public knowledge, see ``Normaliser``.

    Examples:
        >>> shift, scale = StandardiseNumbers().fit(torch.tensor([[1.0, 0.0], [3.0, 1.0]]))
        >>> shift.tolist(), scale.tolist()
        ([2.0, 0.0], [1.0, 1.0])
    """

    by_column: ClassVar[bool] = True

    def __init__(self, public: bool = False) -> None:
        self.public = public

    def fit(self, x: Tensor) -> tuple[Tensor, Tensor]:
        indicators = ((x == 0) | (x == 1)).all(0)
        if indicators.all():
            return x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])
        shift, scale = Standardise().fit(x)
        return torch.where(indicators, 0.0, shift), torch.where(indicators, 1.0, scale)


class StandardiseParty(Normaliser):
    """Mean 0 and standard deviation 1 over ALL numbers of a party, which keeps the contrast between pixels.

    Args:
        public: declare mean and deviation public knowledge, see ``Normaliser``.
    """

    def __init__(self, public: bool = False) -> None:
        self.public = public

    def fit(self, x: Tensor) -> tuple[Tensor, Tensor]:
        wide = x.double()
        return _one_pair(wide.mean(), wide.std(correction=0), x.dtype, x.shape[1])

    def fit_bytes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if type(self).fit is not StandardiseParty.fit:  # a subclass with another fit
            return super().fit_bytes(x)
        # bytes have 256 different values: computing with their counts takes a fiftieth of the time
        values = torch.arange(256).float().div_(255).double()
        counts = torch.bincount(x.flatten(), minlength=256).double()
        mean = counts @ values / x.numel()
        deviation = (counts @ (values - mean).square() / x.numel()).sqrt()
        return _one_pair(mean, deviation, torch.float32, x.shape[1])


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation, each (F,) float64, of every column."""
    wide = x.double()
    if x.shape[1] == 1:  # torch divides the sum of a single column between threads, and its last bit depends on them
        column = wide[:, 0].numpy()
        return torch.tensor([column.mean()]), torch.tensor([column.std()])
    return wide.mean(0), wide.std(0, correction=0)


def _one_pair(mean: Tensor, deviation: Tensor, dtype: torch.dtype, columns: int) -> tuple[Tensor, Tensor]:
    """The same shift and scale for all columns."""
    scale = deviation if deviation > 1e-12 * max(1.0, abs(float(mean))) else torch.ones_like(deviation)
    return mean.to(dtype).expand(columns), scale.to(dtype).expand(columns)


class StandardiseViews(Normaliser):
    """As ``Standardise``, but some views are not scaled, and others by one mean and deviation of all their numbers.

    Args:
        unscaled: names of views; column i of a view is called ``view.i``.
        as_one: names of views.
        public: declare means and deviations public knowledge, see ``Normaliser``.
    """

    def __init__(self, unscaled: Sequence[str] = (), as_one: Sequence[str] = (), public: bool = False) -> None:
        self.unscaled = tuple(unscaled)
        self.as_one = tuple(as_one)
        self.public = public

    def fit(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return Standardise().fit(x)

    def of_columns(self, own: Sequence[str], every: Sequence[str]) -> Normaliser:
        views = {name.rpartition(".")[0] for name in own}
        if views and views <= set(self.unscaled):
            return Unchanged()
        return StandardiseParty() if views and views <= set(self.as_one) else Standardise()

    def __repr__(self) -> str:
        public = ", public=True" if self.public else ""
        return f"{type(self).__name__}({list(self.unscaled)}, {list(self.as_one)}{public})"


class Unchanged(Normaliser):
    """No scaling."""

    fitted: ClassVar[bool] = False

    def fit(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])


class Given(Normaliser):
    """Map features from bounds that are known in advance to [-1, 1]; the scaling does not depend on the records.

    Shapes: as ``Normaliser``.
    Guarantee: shift and scale are the same for all records.
    Not guaranteed: values within [-1, 1]: a value outside the bounds is mapped to a value outside [-1, 1], without
        clipping.

    Args:
        low: the smallest possible value of a feature, in the units of the data (images of bytes: 0 to 1); or column
            name -> number, where columns without a name in it are not changed.
        high: the largest possible value, in the same form. Both None: the ``known_bounds`` of the data set.

    Raises:
        ConfigurationError: for bounds that are not in order, that are of different columns, or of which one is missing;
            if the data set has no known bounds and none are given; for names of columns that no party has.

    Examples:
        >>> shift, scale = Given(0.0, 16.0).fit(torch.tensor([[16.0, 3.0], [0.0, 8.0]]))
        >>> shift.tolist(), scale.tolist()
        ([8.0, 8.0], [8.0, 8.0])
    """

    fitted: ClassVar[bool] = False

    def __init__(
        self, low: float | Mapping[str, float] | None = None, high: float | Mapping[str, float] | None = None
    ) -> None:
        for name, pair in _pairs(low, high).items():
            if not (isfinite(pair[0]) and isfinite(pair[1]) and pair[0] < pair[1]):
                of = f" of column '{name}'" if name else ""
                raise ConfigurationError(
                    f"low and high{of} must be finite numbers with low < high; got {pair[0]} and {pair[1]}"
                )
        self.low = low
        self.high = high
        self._party: str | None = None  # whose columns alone are known

    def within(self, bounds: Bounds | None, data: str) -> "Given":
        if self.low is not None:
            return self
        if bounds is None:
            raise ConfigurationError(
                f"{data} has no known bounds for normaliser: Given; give low and high, or declare means and deviations "
                "of the training records public knowledge (normaliser: Standardise with public: true)"
            )
        return Given(*bounds)

    def of_columns(self, own: Sequence[str], every: Sequence[str]) -> Normaliser:
        if not isinstance(self.low, Mapping):
            return self
        pairs = _pairs(self.low, self.high)
        if self._party is not None:  # bounds of other parties' columns are theirs to check
            return _GivenColumns([pairs.get(f"{self._party}.{name}", pairs.get(name)) for name in own])
        if unknown := [name for name in self.low if name not in every]:
            raise ConfigurationError(
                f"normaliser: Given names column '{unknown[0]}', which no party has; "
                + (
                    f"its columns are {', '.join(every[:8])}, ..."
                    if every
                    else "these data have no names, so give two numbers"
                )
            )
        return _GivenColumns([pairs.get(name) for name in own])

    def of_party(self, party: str) -> "Given":
        alone = copy(self)
        alone._party = party
        return alone

    def fit(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Shift and scale, each (F,); they do not depend on the values of x."""
        if self.low is None or isinstance(self.low, Mapping):
            raise ConfigurationError(
                f"{self!r} has no bounds for columns without names; give low and high as numbers, or use a datamodule "
                "that has known bounds"
            )
        return _GivenColumns([*_pairs(self.low, self.high).values()] * x.shape[1]).fit(x)

    def fit_bytes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.fit(torch.empty(0, x.shape[1]))

    def __repr__(self) -> str:
        return f"Given(low={self.low!r}, high={self.high!r})"


class _GivenColumns(Normaliser):
    """One pair of bounds for each column; None: the column is not changed."""

    fitted: ClassVar[bool] = False

    def __init__(self, bounds: Sequence[Bounds | None]) -> None:
        pairs = torch.tensor([(-1.0, 1.0) if pair is None else pair for pair in bounds], dtype=torch.float64)
        self.low, self.high = pairs.reshape(-1, 2).unbind(1)

    def fit(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return ((self.low + self.high) / 2).to(x.dtype), ((self.high - self.low) / 2).to(x.dtype)


def _pairs(low: float | Mapping[str, float] | None, high: float | Mapping[str, float] | None) -> dict[str, Bounds]:
    """Column name -> bounds of the column; the name "" stands for all columns; empty if no bounds are given.

    Raises:
        ConfigurationError: if one of low and high is missing, or they are of different columns.
    """
    if isinstance(low, Mapping) and isinstance(high, Mapping) and low.keys() == high.keys():
        return {name: (float(low[name]), float(high[name])) for name in low}
    if low is None and high is None:
        return {}
    if low is None or high is None or isinstance(low, Mapping) or isinstance(high, Mapping):
        raise ConfigurationError(
            f"low and high must be two numbers, or numbers for the same column names; got {low!r} and {high!r}"
        )
    return {"": (float(low), float(high))}
