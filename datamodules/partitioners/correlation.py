"""Columns divided by their correlation: parties with similar or with different columns (VertiBench)."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import Name, even_shares, stream

from ..records.layout import Layout, Part, flat_parts
from .informed import InformedPartitioner, TrainingRecords
from .uneven import refuse_too_many

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Matrix = NDArray[np.float64]
    Owners = NDArray[np.int64]

_STARTS = 8
_WAYS = 20
_FEWEST_SCORES, _MOST_SCORES = 120, 4_000
_WORK = 5e9


class ColumnsByCorrelation(InformedPartitioner):
    """Parts of even width, with a chosen correlation between the columns of different parties.

    With β = 0, correlated columns go to the same party; with β = 1, correlated columns go to different parties, so all
    parties have similar information. Every column goes to exactly one party; the positions (pixels) of an image are
    columns too.

    Args:
        parties: M, 2 or more.
        beta: β in [0, 1], the place of the wanted ``inter_party_correlation`` between the lowest score and the highest.
        seed: names the random starts of the search.
        public: declare the parts public knowledge, so that a training that accounts for privacy accepts them.

    Guarantee: widths differ by at most one, and the first are the larger. A larger β gives a higher score or the same
        parts: for every β the result is the nearest of the same candidates, which the search finds between the lowest
        score and the highest. A constant column has correlation 0 with every column. The parts depend on the seed, the
        settings and the training records only.
    Not guaranteed: that the lowest and the highest score of all divisions are found; there are too many to try all. Of
        70 tables of four to eight columns, one had a lower score, by 5 % of the range.
    Units: seconds of one core, 0.5 for 30 columns, 4 for 561, 36 for 2,000: they grow with the cube of the columns.

    Raises:
        ConfigurationError: for fewer than two parties and β outside [0, 1]; in ``split``, for more parties than
            columns, and if all divisions of the columns have the same score.

    Examples:
        >>> import torch
        >>> from lightning_vfl.datamodules import Split
        >>> draw = torch.Generator().manual_seed(0)
        >>> a, b = torch.randn(2, 200, 1, generator=draw)
        >>> noise = 0.1 * torch.randn(200, 4, generator=draw)
        >>> train = Split(torch.cat([a, a, b, b], 1) + noise, None, np.arange(200))
        >>> for beta in (0.0, 1.0):
        ...     cut = ColumnsByCorrelation(2, beta).informed_by(lambda: train)
        ...     print([part.positions.tolist() for part in cut.split(Layout((4,)))])
        [[2, 3], [0, 1]]
        [[0, 3], [1, 2]]

    References:
        Wu, Hou, He, "VertiBench: Advancing Feature Distribution Diversity in Vertical Federated Learning Benchmarks",
        https://arxiv.org/abs/2307.02040, "Split by party correlation". There a genetic algorithm looks for the lowest,
        the highest and the wanted score; here exchanges of two columns do, from cuts that are good by a simpler
        measure.
    """

    def __init__(self, parties: int, beta: float = 0.5, seed: int = 0, public: bool = False) -> None:
        if parties < 2:
            raise ConfigurationError(f"parties must be at least 2; got {parties}")
        if not 0 <= beta <= 1:
            raise ConfigurationError(
                f"beta must be from 0 (parties with different columns) to 1 (parties with similar columns); got {beta}"
            )
        self.parties = parties
        self.beta = float(beta)
        self.seed = seed
        self._public = public

    def parts_by(self, layout: Layout, training: TrainingRecords) -> tuple[Part, ...]:
        refuse_too_many(self.parties, layout.size, "columns")
        scores, cuts = _candidates(spearman(training.features), self.parties, self.seed)
        low, high = scores.min(), scores.max()
        if low == high:
            raise ConfigurationError(
                f"all divisions of these {layout.size} columns between {self.parties} parties have the same "
                f"correlation, "
                "so beta has no effect; use fewer parties, or RandomColumns"
            )
        order = scores.argsort(kind="stable")
        nearest = np.abs(scores[order] - (low + self.beta * (high - low))).argmin()
        return flat_parts(_own(cuts[order[nearest]], self.parties))


def spearman(features: "NDArray[np.float64]") -> "Matrix":
    """(F, F) rank correlations of columns (N, F); a constant column has correlation 0, also with itself.

    The result is bit for bit the same on every machine, up to N = 300,000: twice the centred ranks are whole numbers,
    and sums of their products are below 2⁵³.

    Examples:
        >>> spearman(np.array([[1.0, 9.0, 3.0], [2.0, 4.0, 3.0], [7.0, 2.0, 3.0]])).tolist()
        [[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    """
    from scipy.stats import rankdata  # where it is used

    ranks: NDArray[np.float64] = 2 * rankdata(features, axis=0) - (len(features) + 1)
    products = ranks.T @ ranks
    squares = np.diag(products)
    sizes = np.sqrt(np.outer(squares, squares))
    return products / np.where(sizes == 0, 1.0, sizes)


def inter_party_correlation(correlation: "Matrix", parts: "Sequence[NDArray[np.int64]]") -> float:
    """Icor, in [-1, 1]: the correlation between columns of different parties minus that within the same party.

    Pcor of two parties is the standard deviation of the singular values of the correlations between their columns,
    divided by the root of the number of singular values; 0 for a single value. Icor is the mean of
    Pcor(i, j) - Pcor(i, i) over ordered pairs (i, j) of parties.

    Args:
        correlation: (F, F), such as ``spearman`` gives.
        parts: positions of each party's columns, two parties or more.

    Examples:
        >>> two_pairs = np.kron(np.eye(2), np.ones((2, 2)))
        >>> split = inter_party_correlation(two_pairs, [np.array([0, 1]), np.array([2, 3])])
        >>> mixed = inter_party_correlation(two_pairs, [np.array([0, 2]), np.array([1, 3])])
        >>> round(split, 6), round(mixed, 6)
        (-1.0, 0.0)

    References:
        Wu, Hou, He, https://arxiv.org/abs/2307.02040, "Evaluate party correlation".
    """
    parties = len(parts)
    within = sum(_pcor(correlation, own, own) for own in parts)
    between = sum(_pcor(correlation, parts[i], parts[j]) for i in range(parties) for j in range(i))
    return 2 * between / (parties * (parties - 1)) - within / parties


def _pcor(correlation: "Matrix", one: "NDArray[np.int64]", other: "NDArray[np.int64]") -> float:
    count = min(len(one), len(other))
    if count == 1:
        return 0.0
    values = np.linalg.svd(correlation[one[:, None], other], compute_uv=False)
    return float(np.linalg.norm(values - values.mean()) / np.sqrt(count * (count - 1)))


def _own(owners: "Owners", parties: int) -> "list[NDArray[np.int64]]":
    return [np.flatnonzero(owners == party) for party in range(parties)]


def _candidates(correlation: "Matrix", parties: int, seed: int) -> "tuple[NDArray[np.float64], list[Owners]]":
    """The scores of the divisions that the search tried, and the owners (F,) of the columns in each.

    The search starts from random divisions, once towards low scores and once towards high scores. First it exchanges
    two columns at a time so that correlated columns gather in one party, or spread over parties, because squared
    correlations within parties are quick to update; then it tries random exchanges, judged by the score itself. Last it
    tries divisions on paths from the lowest score to high scores. The number of scores that are computed depends on the
    cost of one score, never on a clock.
    """
    columns = len(correlation)
    block = (columns / parties) ** 3 + 40**3  # a small block costs as much as one of 40 columns
    cost = parties * (parties + 1) / 2 * block
    allowed = int(np.clip(min(_WORK / cost, 100 * columns), _FEWEST_SCORES, _MOST_SCORES))
    squares = np.rint(correlation**2 * 1e9).astype(np.int64)  # whole numbers: sums do not depend on their order
    scores: list[float] = []
    cuts: list[Owners] = []

    def score(owners: "Owners") -> float:
        # to 1e-9: the last bits of singular values differ between machines, and equal divisions must have equal scores
        scores.append(round(inter_party_correlation(correlation, _own(owners, parties)), 9))
        cuts.append(owners.copy())
        return scores[-1]

    for sign, aim in ((-1, "low"), (1, "high")):
        for start in range(_STARTS):
            *_, owners = _exchanges(-sign * squares, even_shares(columns, parties, seed, "correlation", aim, start))
            best = score(owners)
            for a, b in _pairs(columns, allowed // (4 * _STARTS), seed, aim, start):
                if owners[a] == owners[b]:
                    continue
                owners[[a, b]] = owners[[b, a]]
                if sign * (new := score(owners)) >= sign * best:
                    best = new
                else:
                    owners[[a, b]] = owners[[b, a]]

    lowest = cuts[int(np.argmin(scores))]
    for way in range(_WAYS):
        if len(scores) >= allowed:
            break
        owners = lowest.copy()
        passed = [lowest]
        for a, b in _pairs(columns, columns, seed, "way", way):
            owners[[a, b]] = owners[[b, a]]
            passed.append(owners.copy())
        passed += _exchanges(-squares, owners)
        met = {place: score(passed[place]) for place in (0, len(passed) - 1)}
        while len(scores) < allowed:
            gaps = [(abs(met[b] - met[a]), a, b) for a, b in pairwise(sorted(met)) if b - a > 1]
            if not gaps:
                break
            _, a, b = max(gaps)
            met[(a + b) // 2] = score(passed[(a + b) // 2])
    return np.array(scores), cuts


def _pairs(columns: int, number: int, seed: int, *names: Name) -> "NDArray[np.int64]":
    """(number, 2) random columns to exchange."""
    words = stream(seed, "correlation", "pairs", *names).random_raw(2 * number)
    return (words % np.uint64(columns)).astype(np.int64).reshape(-1, 2)


def _exchanges(gains: "NDArray[np.int64]", owners: "Owners") -> "Iterator[Owners]":
    """These owners, and those after each exchange of two columns that raises the ``gains`` (F, F) within parties."""
    owners = owners.copy()
    every = np.arange(len(owners))
    own = np.diag(gains)
    of_party = np.stack([gains[:, owners == party].sum(1) for party in range(owners.max() + 1)], axis=1)  # (F, M)
    yield owners.copy()
    improved = True
    while improved:
        improved = False
        for a in range(len(owners)):
            mine = owners[a]
            current = of_party[every, owners]
            gain = of_party[:, mine] - current + of_party[a, owners] - current[a] + own + own[a] - 2 * gains[a]
            gain[owners == mine] = 0
            b = int(gain.argmax())
            if gain[b] > 0:
                moved = gains[:, b] - gains[:, a]
                of_party[:, mine] += moved
                of_party[:, owners[b]] -= moved
                owners[[a, b]] = owners[[b, a]]
                improved = True
                yield owners.copy()
