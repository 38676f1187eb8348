"""Parties of uneven importance: columns shared out by how much they say about the label (VertiBench)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import permutation

from .informed import InformedPartitioner, TrainingRecords
from .partition import Layout, Part
from .uneven import concentrations, dirichlet, refuse_too_many, share_out

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BINS = 10


class ColumnsByImportance(InformedPartitioner):
    """Columns shared out so that the importance of parties follows a draw from Dirichlet(α).

    A party is as important as its columns together. Covers every column exactly once; the positions (pixels) of an
    image are columns too.

    Args:
        parties: M.
        alpha: α > 0 for every party: 0.1 makes few parties important, 100 all alike. Or M numbers: the mean shares are
            in proportion to them, and the larger they are, the less shares vary.
        importance: how important a column is. ``mutual_information``: what it says about the label, see
            ``mutual_information``. Or numbers from 0, one a column in their order, or name -> number, where the
            one-hot columns of a name share its number: such as mean absolute Shapley values of a model of yours.
        seed: names the shares, and the order of columns of equal importance.
        public: declare the cut public knowledge, so that a training that accounts for privacy accepts it.

    Units: importance, nats by mutual information; only ratios matter.
    Guarantee: every party has a column. No party gets more than the most important column above the share drawn for it,
        none falls short of it by more than that and what the M - 1 least important columns weigh. Columns of no
        importance are shared out by number, in the same shares. Seed, settings and training records decide alone.
    Not guaranteed: that columns which say the same are counted once: mutual information looks at one column at a time.
        That the one-hot columns of a category stay together.

    Raises:
        ConfigurationError: for α that is not a positive number or not one a party, and numbers below 0; in ``split``,
            for more parties than columns, numbers that are not those of the columns, and mutual information without
            labels.

    Examples:
        >>> import torch
        >>> from lightning_vfl.datamodules import Split
        >>> y = torch.arange(60) % 2
        >>> noise = torch.rand(60, 3, generator=torch.Generator().manual_seed(0))
        >>> train = Split(torch.cat([noise, y[:, None]], 1), y, np.arange(60))
        >>> cut = ColumnsByImportance(2, alpha=[1.0, 9.0]).informed_by(lambda: train)
        >>> [part.positions.tolist() for part in cut.split(Layout((4,)))]
        [[0, 2], [1, 3]]

    References:
        Wu, Hou, He, "VertiBench: Advancing Feature Distribution Diversity in Vertical Federated Learning Benchmarks",
        https://arxiv.org/abs/2307.02040, "Split by party importance". There every column goes to a party by chance,
        with probabilities drawn from Dirichlet(α), so that importance follows the draw in the mean; here in every cut.
    """

    def __init__(
        self,
        parties: int,
        alpha: float | Sequence[float] = 1.0,
        importance: Literal["mutual_information"] | Sequence[float] | Mapping[str, float] = "mutual_information",
        seed: int = 0,
        public: bool = False,
    ) -> None:
        self.parties = parties
        self.alpha = concentrations(alpha, parties)
        self.importance = importance if isinstance(importance, str) else _checked(importance)
        self.seed = seed
        self._public = public

    def parts_by(self, layout: Layout, training: TrainingRecords) -> tuple[Part, ...]:
        refuse_too_many(self.parties, layout.size, "columns")
        importance = self._importance(layout, training)
        order = permutation(layout.size, self.seed, "columns by importance", "order")
        order = order[np.argsort(-importance[order], kind="stable")]
        shares = dirichlet(self.alpha, self.parties, self.seed, "columns by importance")
        owners = share_out(importance[order], shares)
        own = [np.sort(order[owners == party]) for party in range(self.parties)]
        return tuple(Part(positions, (len(positions),)) for positions in own)

    def _importance(self, layout: Layout, training: TrainingRecords) -> "NDArray[np.float64]":
        """(F,) of every column."""
        if isinstance(self.importance, str):
            if training.labels is None:
                raise ConfigurationError(
                    "mutual information needs labels, which these data do not have; give importance a number a column"
                )
            return mutual_information(training.features, training.labels)
        if isinstance(self.importance, dict):
            return _by_name(self.importance, layout.columns)
        if len(self.importance) != layout.size:
            raise ConfigurationError(
                f"importance has {len(self.importance)} numbers for {layout.size} columns; give one a column"
            )
        return np.array(self.importance)


def mutual_information(
    features: "NDArray[np.float64]", labels: "NDArray[np.int64] | NDArray[np.float64]"
) -> "NDArray[np.float64]":
    """(F,) nats that each column says about the label, by itself: estimated from a table of counts.

    A column's values are sorted into ten bins of equally many records, equal values into the same; so are labels that
    are real numbers. What independent columns would be expected to say in a table of so few records, (bins - 1)
    (classes - 1) / 2N, is taken off; nothing is left below 0. Rounded to 1e-9, so that it is the same on every machine.

    Args:
        features: (N, F).
        labels: (N,) int64 classes, or float64 values.

    Examples:
        >>> y = np.arange(100) % 2
        >>> x = np.stack([y, np.zeros(100), np.arange(100)], axis=1)
        >>> mutual_information(x.astype(float), y).round(3).tolist()  # log 2 = 0.693
        [0.688, 0.0, 0.0]

    References:
        Miller, "Note on the bias of information estimates", 1955: the correction.
    """
    classes = labels if labels.dtype.kind == "i" else _bins(labels.astype(np.float64)[:, None])[:, 0]
    classes = np.unique(classes, return_inverse=True)[1]
    count = int(classes.max()) + 1
    bins, records = _bins(features), len(features)
    said = np.empty(features.shape[1])
    for column in range(features.shape[1]):
        counts = np.bincount(bins[:, column] * count + classes, minlength=_BINS * count).reshape(_BINS, count)
        rows, columns = counts.sum(1, keepdims=True), counts.sum(0, keepdims=True)
        filled = counts > 0
        expected = (rows * columns)[filled] / records
        information = (counts[filled] * np.log(counts[filled] / expected)).sum() / records
        said[column] = information - ((rows > 0).sum() - 1) * (count - 1) / (2 * records)
    return said.clip(min=0.0).round(9)


def _bins(values: "NDArray[np.float64]") -> "NDArray[np.int64]":
    """(N, F) the bin, 0 to 9, of each value among those of its column."""
    from scipy.stats import rankdata  # where it is used

    ranks: NDArray[np.float64] = rankdata(values, axis=0)  # 1 to N; equal values have their mean rank
    return ((ranks - 0.5) * _BINS // len(values)).astype(np.int64)


def _by_name(importance: Mapping[str, float], columns: tuple[str, ...]) -> "NDArray[np.float64]":
    """(F,) by the columns' names; the one-hot columns of a name share its number."""
    names = [column if column in importance else column.split("=", 1)[0] for column in columns]
    if strange := [name for name in importance if name not in names]:
        raise ConfigurationError(
            f"importance names column '{strange[0]}', which the data do not have; they have {', '.join(columns[:12])}"
            f"{', ...' if len(columns) > 12 else ''}"
        )
    if unnamed := [column for name, column in zip(names, columns, strict=True) if name not in importance]:
        raise ConfigurationError(
            f"importance has no number for {len(unnamed)} columns, first '{unnamed[0]}'; give it one, such as 0"
        )
    return np.array([importance[name] / names.count(name) for name in names])


def _checked(importance: Sequence[float] | Mapping[str, float]) -> tuple[float, ...] | dict[str, float]:
    """The numbers, kept as they were given."""
    named = {str(name): float(x) for name, x in importance.items()} if isinstance(importance, Mapping) else None
    numbers = tuple(float(x) for x in importance) if named is None else tuple(named.values())
    if wrong := [x for x in numbers if not 0 <= x < np.inf]:
        raise ConfigurationError(f"importance {wrong[0]:g} cannot be shared out; use finite numbers from 0")
    return numbers if named is None else named
