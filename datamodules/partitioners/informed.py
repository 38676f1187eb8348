"""Partitioners that depend on the values of training records."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import torch

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import permutation

from ..records.layout import Layout, Part
from ..records.records import Split
from .partition import Partitioner

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class TrainingRecords:
    """The training records that an informed partitioner sees, before their columns are divided and scaled.

    Args:
        features: (N, F) float64, finite.
        labels: (N,) int64 classes or float64 values; None if there are none.
    """

    features: "NDArray[np.float64]"
    labels: "NDArray[np.int64] | NDArray[np.float64] | None"


class InformedPartitioner(Partitioner):
    """Divides columns by their values. A subclass implements ``parts_by`` instead of ``parts``.

    A datamodule passes its training records when the columns are divided, also through partitioners around this one.
    The division is the experimenter's, who sees all columns and labels; no party sees them.

    Guarantee: ``parts_by`` sees only training records, and at most ``most_records`` of them; of more records it sees a
        random draw that depends on their number only. The columns are divided anew in every program; a checkpoint keeps
        a fingerprint of the parts and is refused if other training records lead to other parts.
    Not guaranteed: privacy of the records that decide about the parts: a training that accounts for privacy refuses
        such parts, unless they are declared ``public``. Anything about records that a partitioner around this one takes
        away from some parties: the columns are divided first, with all records.

    Raises:
        ConfigurationError: in ``split``, without training records; for values that are not finite or not in memory, and
            for data that decide themselves which party holds which record.

    Examples:
        >>> class LargestFirst(InformedPartitioner):
        ...     def parts_by(self, layout, training):
        ...         order = np.argsort(-training.features.var(axis=0), kind="stable")
        ...         return tuple(Part(run, (len(run),)) for run in np.array_split(order, 2))
        >>> train = Split(torch.tensor([[0.0, 5.0, 1.0], [0.1, 9.0, 4.0]]), None, np.arange(2))
        >>> [part.positions.tolist() for part in LargestFirst().informed_by(lambda: train).split(Layout((3,)))]
        [[1, 2], [0]]
    """

    most_records: ClassVar[int] = 10_000
    _training: Callable[[], Split] | None = None
    _public = False  # not among the printed settings, which a checkpoint compares: it does not change the parts

    @abstractmethod
    def parts_by(self, layout: Layout, training: TrainingRecords) -> tuple[Part, ...]:
        """One part for each party: a pure function of the arguments and the settings."""

    def informed_by(self, training: Callable[[], Split]) -> Self:
        informed = copy(self)
        informed._training = training
        return informed

    @property
    def public(self) -> bool:
        return self._public

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        if self._training is None:
            raise ConfigurationError(
                f"{type(self).__name__} needs training records; pass it to a datamodule, or call informed_by "
                f"before split"
            )
        return self.parts_by(layout, self._seen(layout, self._training()))

    def _seen(self, layout: Layout, train: Split) -> TrainingRecords:
        if train.present is not None:
            raise ConfigurationError(
                f"these data decide themselves which party holds which record, so {type(self).__name__} cannot divide "
                "their columns; use records that every party holds (overlap: inner) or another partitioner"
            )
        features, labels = train.features.flatten(1), train.labels
        if features.shape[1] != layout.size:  # pictures that stay on the disk
            raise ConfigurationError(
                f"{type(self).__name__} needs the values of the data in memory, and these data stay on the disk; use a "
                "partitioner that needs no values (RowStrips, Grid)"
            )
        if len(features) > self.most_records:
            rows = torch.from_numpy(np.sort(permutation(len(features), 0, "informed partition")[: self.most_records]))
            features, labels = features[rows], None if labels is None else labels[rows]
        bad = ~torch.isfinite(features)
        if bad.any():
            position = int(bad.nonzero()[0, 1])
            raise ConfigurationError(
                f"{int(bad.sum())} feature values of the training records are NaN or infinite, first in "
                f"{layout.name_of(position)}; impute or remove them, because {type(self).__name__} uses these values"
            )
        values = None
        if labels is not None:
            wide = labels.double() if labels.is_floating_point() else labels.long()
            values = wide.numpy()
        return TrainingRecords(features.double().numpy(), values)


def fingerprint(parts: Sequence[Part]) -> str:
    """The number of columns of each party, and a short hash of their positions, the same on every machine.

    Examples:
        >>> from lightning_vfl.datamodules import ContiguousColumns
        >>> fingerprint(ContiguousColumns(2).split(Layout((5,))))
        '3 + 2 (ee0f1378)'
    """
    digest = blake2b(digest_size=4)
    for part in parts:
        digest.update(f"{part.shape}: {part.positions.tolist()}\n".encode())
    return f"{' + '.join(str(len(part.positions)) for part in parts)} ({digest.hexdigest()})"
