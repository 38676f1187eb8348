"""Weight of evidence: a number is replaced by what its bin of numbers says about the label."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from secrets import randbelow
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

import numpy as np

from lightning_vfl.errors import ConfigurationError

from .column_steps import NumberStep

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Counts = Callable[[NDArray[np.int64], int], NDArray[np.int64]]
    """(N,) bins of the training rows and the number of bins -> how many records of the second class are in each."""

PUBLIC = "public"


@dataclass(frozen=True)
class WeightOfEvidence(NumberStep):
    r"""The logarithm of the share of the second class that is in a bin, divided by the share of the first class.

    .. math:: \log \frac{(p_b + s) / (P + s B)}{(n_b + s) / (N + s B)}

    for :math:`p_b` of P training records of the second class and :math:`n_b` of N of the first in bin b of B. A
    bin without training records has weight 0.

    Args:
        bins: at most so many bins of about equally many training rows; a value that many rows have is a bin of its own,
            and so are missing values.
        smoothing: s, above 0.
        monotone: join neighbouring bins until the weights rise or fall with the number.
        edges: fitted: the greatest number of each bin.
        weights: fitted: the weight of each bin, that of missing values last.
        information: fitted: the information value, the sum over bins of the difference of the shares times the weight.

    References:
        Siddiqi, "Credit Risk Scorecards", 2006, chapter 6.
    """

    word: ClassVar[str] = "woe"
    main: ClassVar[str] = "bins"
    settings: ClassVar[tuple[str, ...]] = ("bins", "smoothing", "monotone")
    bins: int = 10
    smoothing: float = 0.5
    monotone: bool = False
    edges: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    information: float = 0.0

    def __post_init__(self) -> None:
        if self.bins < 2:
            raise ConfigurationError(f"{self.word}: bins must be at least 2; got {self.bins}")
        if not self.smoothing > 0:
            raise ConfigurationError(f"{self.word}: smoothing must be above 0; got {self.smoothing}")

    def fit(self, numbers: "NDArray[np.float64]", column: str, party: str) -> Self:
        raise ConfigurationError(
            f"column '{column}' of party '{party}': woe needs the labels, which are not here; use another step"
        )

    def fit_to(self, numbers: "NDArray[np.float64]", column: str, party: str, counts: "Counts") -> Self:
        """This step, fitted to the (N, 1) numbers of the training rows and to counts of their labels.

        Raises:
            ConfigurationError: for several numbers of a row.
        """
        if numbers.shape[1] != 1:
            raise ConfigurationError(
                f"column '{column}' of party '{party}': woe takes one number of a record, and the steps before it make "
                f"{numbers.shape[1]}; use it behind numbers or ordinal"
            )
        values = numbers[:, 0]
        edges = _edges(values[~np.isnan(values)], self.bins)
        bins = _bins(values, edges)
        number = len(edges) + 1
        sizes = np.bincount(bins, minlength=number)
        positives = np.clip(counts(bins, number), 0, sizes)
        if self.monotone and len(edges) > 1:
            first = _pools(sizes[:-1], positives[:-1])
            last = [*(start - 1 for start in first[1:]), len(edges) - 1]
            edges = edges[last]
            starts = [*first, number - 1]  # missing values stay a bin of their own
            sizes = np.add.reduceat(sizes, starts)
            positives = np.add.reduceat(positives, starts)
        used = sizes > 0  # there may be no missing value, and then nothing is known about them
        of_second = _shares(positives[used], self.smoothing)
        of_first = _shares((sizes - positives)[used], self.smoothing)
        evidence = np.log(of_second / of_first)
        information = float(((of_second - of_first) * evidence).sum())
        weights = np.zeros(len(sizes))
        weights[used] = evidence
        return replace(self, edges=tuple(edges.tolist()), weights=tuple(weights.tolist()), information=information)

    def apply(self, numbers: "NDArray[np.float64]") -> "NDArray[np.float64]":
        return np.array(self.weights)[_bins(numbers[:, 0], np.array(self.edges))][:, None]

    def describe(self) -> str:
        if not self.weights:
            return self.word
        return f"woe ({len(self.edges)} bins, information value {self.information:.3f})"

    def taken(self) -> str:
        return "quantiles and counts of labels"


class _Release(NamedTuple):
    """What a party was given once."""

    bins: "NDArray[np.int64]"
    positives: "NDArray[np.int64]"


class LabelCounts:
    """The counts of labels that the parties are given, each column once.

    Args:
        holder: the party with the labels, which counts its own columns itself.
        release: what other parties are given: counts with noise, and the ε of all columns together; ``public``: counts
            in the clear.
        columns: how many columns of other parties are counted; each has an equal part of ε.

    Guarantee: for a number, what all parties are given is ε-differentially private for the label of a single training
        record, with δ = 0: a label changes the count of one bin of each column by 1, and the noise of a count is a
        discrete Laplace draw, exact, of random bits of the operating system. It is added once: the same column gets the
        same counts again.
    Not guaranteed: privacy of the features against the holder of the labels, who is told the bin of every training
        record. ε of several datamodules together: each releases its counts anew.
    """

    def __init__(self, holder: str, release: float | str | None, columns: int) -> None:
        self._holder = holder
        self._release = release
        self._columns = columns
        self._released: dict[tuple[str, str], _Release] = {}

    def of(
        self,
        party: str,
        column: str,
        labels: "NDArray[np.int64]",
        bins: "NDArray[np.int64]",
        number: int,
    ) -> "NDArray[np.int64]":
        """(number,) how many records of class 1 are in each bin, as the party is told.

        Args:
            party: that is told.
            column: of the party.
            labels: (N,) 0 or 1, of the training rows.
            bins: (N,) their bins.
            number: of bins.

        Raises:
            ConfigurationError: for another release about the same column, which would cost ε again.
        """
        positives = np.bincount(bins, weights=labels, minlength=number).astype(np.int64)
        if party == self._holder or self._release == PUBLIC:
            return positives
        earlier = self._released.get((party, column))
        if earlier is not None and np.array_equal(earlier.bins, bins):
            return earlier.positives
        if earlier is not None or len(self._released) == self._columns:
            raise ConfigurationError(
                f"label_counts: ε of {self._release} is spent; counts for other bins of column '{column}' of party "
                f"'{party}' would cost it again; make a new datamodule"
            )
        noisy = positives + discrete_laplace(Fraction(self._release or 0) / self._columns, number)
        self._released[party, column] = _Release(bins, noisy)
        return noisy


def discrete_laplace(epsilon: Fraction, size: int, below: Callable[[int], int] = randbelow) -> "NDArray[np.int64]":
    """(size,) whole numbers k with probabilities proportional to exp(-ε |k|), exactly.

    Each is the difference of two geometric draws.

    Args:
        epsilon: above 0.
        size: how many.
        below: gives a uniform whole number from 0 to n - 1.

    References:
        Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", NeurIPS 2020, algorithm 1.
    """

    def geometric() -> int:
        draw = 0
        while _happens(epsilon, below):
            draw += 1
        return draw

    return np.array([geometric() - geometric() for _ in range(size)], dtype=np.int64)


def _happens(exponent: Fraction, below: Callable[[int], int]) -> bool:
    """True with probability exp(-exponent), exactly."""
    while exponent > 1:
        if not _happens(Fraction(1), below):
            return False
        exponent -= 1
    trials = 1
    while below(exponent.denominator * trials) < exponent.numerator:
        trials += 1
    return trials % 2 == 1


def _shares(counts: "NDArray[np.int64]", smoothing: float) -> "NDArray[np.float64]":
    shares: NDArray[np.float64] = (counts + smoothing) / (counts.sum() + smoothing * len(counts))
    return shares


def _edges(values: "NDArray[np.float64]", bins: int) -> "NDArray[np.float64]":
    """The greatest number of each bin, in ascending order."""
    unique = np.unique(values)
    if len(unique) <= bins:
        return unique
    shares = np.arange(1, bins + 1) / bins
    return np.unique(np.quantile(values, shares, method="inverted_cdf"))


def _bins(values: "NDArray[np.float64]", edges: "NDArray[np.float64]") -> "NDArray[np.int64]":
    """(N,) the bin of each number; numbers above the last edge are in the last bin, and NaN has a bin behind it."""
    bins = np.minimum(np.searchsorted(edges, values, side="left"), max(len(edges) - 1, 0))
    return np.where(np.isnan(values), len(edges), bins)


def _pools(sizes: "NDArray[np.int64]", positives: "NDArray[np.int64]") -> list[int]:
    """The first bin of each run of bins that are joined, so that the share of positives rises, or falls.

    Of both directions the one with the smaller squared error is taken (pool adjacent violators).
    """
    shares = positives / sizes
    found = []
    for sign in (1, -1):
        runs: list[tuple[int, int, int]] = []  # first bin, size, positives
        for place, (size, positive) in enumerate(zip(sizes.tolist(), positives.tolist(), strict=True)):
            run = (place, size, positive)
            while runs and sign * runs[-1][2] * run[1] >= sign * run[2] * runs[-1][1]:
                before = runs.pop()
                run = (before[0], before[1] + run[1], before[2] + run[2])
            runs.append(run)
        ends = [*(first for first, _, _ in runs[1:]), len(sizes)]
        joined = np.concatenate(
            [np.full(end - first, total / size) for (first, size, total), end in zip(runs, ends, strict=True)]
        )
        error = float((sizes * (shares - joined) ** 2).sum())
        found.append((error, [first for first, _, _ in runs]))
    return min(found)[1]
