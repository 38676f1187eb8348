"""Parties that take part in training and are missing when the model is evaluated or used."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from lightning_vfl.errors import ConfigurationError

from ..records.layout import Layout, Part
from .over import PartitionerOver
from .partition import Partitioner

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Later = Literal["val", "test", "predict"]
_SPLITS: tuple[_Later, ...] = ("val", "test", "predict")


class MissingAtTest(PartitionerOver):
    """The parts of another partitioner; some parties hold no records of later splits.

    All parties take part in training, which is bit for bit the same as without ``MissingAtTest``. Records of the other
    splits have no features of the missing parties. Plain aggregators (``Concat``, ``Sum``, ``Mean``, ``Max``, and every
    aggregator with ``evaluate: plain``) leave out the embeddings of missing parties; ``MaskedSum`` and the Lagrange
    codes refuse such records.

    Args:
        partitioner: divides the columns into M parts; None: the data set's default partitioner.
        parties: numbers of the missing parties.
        splits: the splits in which they are missing: ``val``, ``test``, ``predict``. Without ``val``, the best model is
            chosen with all parties.

    Shapes: ``held`` (N, M).

    Raises:
        ConfigurationError: for no parties, a repeated number, and other splits; in ``split``, for numbers that no party
            has, and if no party would be left.

    Examples:
        >>> from lightning_vfl.datamodules import ContiguousColumns
        >>> cut = MissingAtTest(ContiguousColumns(3), parties=[1])
        >>> cut.held("train", 2, 3), cut.held("test", 2, 3).tolist()
        (None, [[True, False, True], [True, False, True]])
    """

    def __init__(
        self,
        partitioner: Partitioner | None,
        parties: Sequence[int],
        splits: Sequence[_Later] = _SPLITS,
    ) -> None:
        if not parties or len(set(parties)) < len(parties):
            raise ConfigurationError(f"parties must name at least one missing party, each once; got {list(parties)}")
        check_splits(splits, _SPLITS)
        super().__init__(partitioner)
        self.parties = tuple(int(party) for party in parties)
        self.splits = tuple(splits)

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        parts = super().parts(layout)
        if strange := [party for party in self.parties if not 0 <= party < len(parts)]:
            raise ConfigurationError(
                f"parties names party {strange[0]}, but the parties are 0 to {len(parts) - 1}; correct its number"
            )
        if len(self.parties) == len(parts):
            raise ConfigurationError(f"all {len(parts)} parties would be missing; name fewer in parties")
        return parts

    def held(self, split: str, records: int, parties: int) -> "NDArray[np.bool_] | None":
        held = self.inner.held(split, records, parties)
        if split not in self.splits:
            return held
        held = np.ones((records, parties), dtype=np.bool_) if held is None else held.copy()
        held[:, list(self.parties)] = False
        return held


def check_splits(given: Sequence[str], known: Sequence[str]) -> None:
    """Accept names of splits, at least one.

    Raises:
        ConfigurationError: for any other name, and for none.
    """
    if not given or not {*given} <= {*known}:
        raise ConfigurationError(f"splits must be one or more of {', '.join(known)}; got {list(given)}")
