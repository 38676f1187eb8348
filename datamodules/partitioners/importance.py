"""Parts of uneven importance: columns divided by their information about the label (VertiBench)."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import permutation

from ..records.layout import Layout, Part, flat_parts
from .informed import InformedPartitioner, TrainingRecords
from .uneven import check_alpha, draw_shares, refuse_too_many, share_out

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BINS = 10


class ColumnsByImportance(InformedPartitioner):
    """Columns divided so that the importance of parties follows a draw from Dirichlet(α).

    The importance of a party is the sum over its columns. Every column goes to exactly one party; the positions
    (pixels) of an image are columns too.

    Args:
        parties: M.
        alpha: α > 0 for every party: with 0.1 few parties are important, with 100 all are nearly equal. Or M numbers:
            the mean shares are proportional to them, and the larger they are, the less shares vary.
        importance: the importance of a column. ``mutual_information``: its information about the label, see the
            function of this name. Or numbers from 0, one for each column in their order, or name -> number, where the
            one-hot columns of a name share its number: for example mean absolute Shapley values of your own model.
        seed: names the draw of the shares, and the order of columns of equal importance.
        public: declare the parts public knowledge, so that a training that accounts for privacy accepts them.

    Units: importance, nats for mutual information; only ratios matter.
    Guarantee: every party has at least one column. The importance of a party is above its share by at most the most
        important column, and below its share by at most this column and the M - 1 least important columns together.
        Columns of importance 0 are divided by number, in the same shares. The parts depend on the seed, the settings
        and the training records only.
    Not guaranteed: that columns with the same information are counted once: mutual information is computed column by
        column. That the one-hot columns of a category stay together.

    Raises:
        ConfigurationError: for α that is not positive or not one number for each party, and numbers below 0; in
            ``split``, for more parties than columns, for importance that is not given for every column, and for mutual
            information without labels.

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
        https://arxiv.org/abs/2307.02040, "Split by party importance". There every column goes to a random party,
        with probabilities drawn from Dirichlet(α), so that importance follows the draw on average; here it always does.
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
        self.alpha = check_alpha(alpha, parties)
        self.importance = importance if isinstance(importance, str) else _checked(importance)
        self.seed = seed
        self._public = public

    def parts_by(self, layout: Layout, training: TrainingRecords) -> tuple[Part, ...]:
        refuse_too_many(self.parties, layout.size, "columns")
        importance = self._importance(layout, training)
        order = permutation(layout.size, self.seed, "columns by importance", "order")
        order = order[np.argsort(-importance[order], kind="stable")]
        shares = draw_shares(self.alpha, self.parties, self.seed, "columns by importance")
        owners = share_out(importance[order], shares)
        return flat_parts(np.sort(order[owners == party]) for party in range(self.parties))

    def _importance(self, layout: Layout, training: TrainingRecords) -> "NDArray[np.float64]":
        """(F,) of every column."""
        if isinstance(self.importance, str):
            if training.labels is None:
                raise ConfigurationError(
                    "mutual information needs labels, and these data have none; give importance as one number for "
                    "each column"
                )
            return mutual_information(training.features, training.labels)
        if isinstance(self.importance, dict):
            return _by_name(self.importance, layout.columns)
        if len(self.importance) != layout.size:
            raise ConfigurationError(
                f"importance must have one number for each of the {layout.size} columns; got {len(self.importance)}"
            )
        return np.array(self.importance)


def mutual_information(
    features: "NDArray[np.float64]", labels: "NDArray[np.int64] | NDArray[np.float64]"
) -> "NDArray[np.float64]":
    """(F,) the mutual information, in nats, between each column and the label, estimated from a table of counts.

    The values of a column are sorted into ten bins of equally many records, equal values into the same bin; labels that
    are real numbers are treated in the same way. The expected estimate for independent columns, (bins - 1)
    (classes - 1) / 2N, is subtracted, and negative results become 0. The result is rounded to 1e-9, so that it is the
    same on every machine.

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
    bins = _bins(features)
    records = len(features)
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
    """(N, F) the bin, 0 to 9, of each value of a column."""
    from scipy.stats import rankdata  # where it is used

    ranks: NDArray[np.float64] = rankdata(values, axis=0)  # 1 to N; equal values have the mean of their ranks
    return ((ranks - 0.5) * _BINS // len(values)).astype(np.int64)


def _by_name(importance: Mapping[str, float], columns: tuple[str, ...]) -> "NDArray[np.float64]":
    """(F,) the importance by name; the one-hot columns of a name share its number."""
    names = [column if column in importance else column.split("=", 1)[0] for column in columns]
    if strange := [name for name in importance if name not in names]:
        raise ConfigurationError(
            f"importance names column '{strange[0]}', which the data do not have; they have {', '.join(columns[:12])}"
            f"{', ...' if len(columns) > 12 else ''}"
        )
    if unnamed := [column for name, column in zip(names, columns, strict=True) if name not in importance]:
        raise ConfigurationError(
            f"importance has no number for {len(unnamed)} columns, first '{unnamed[0]}'; give one, such as 0"
        )
    return np.array([importance[name] / names.count(name) for name in names])


def _checked(importance: Sequence[float] | Mapping[str, float]) -> tuple[float, ...] | dict[str, float]:
    """The checked numbers, in the form in which they were given."""
    named = {str(name): float(x) for name, x in importance.items()} if isinstance(importance, Mapping) else None
    numbers = tuple(float(x) for x in importance) if named is None else tuple(named.values())
    if wrong := [x for x in numbers if not 0 <= x < np.inf]:
        raise ConfigurationError(f"importance must be finite numbers from 0; got {wrong[0]:g}")
    return numbers if named is None else named
