"""Parties that are there for training and not when the model is used."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from lightning_vfl.errors import ConfigurationError

from .over import PartitionerOver
from .partition import Layout, Part, Partitioner

if TYPE_CHECKING:
    from numpy.typing import NDArray

_Later = Literal["val", "test", "predict"]
_SPLITS: tuple[_Later, ...] = ("val", "test", "predict")


class MissingAtTest(PartitionerOver):
    """The parts of another partitioner, for parties some of whom hold no record any more once training is over.

    Training is with everybody, and the same to the bit as without this. Records of the other splits come without the
    features of the missing. Where embeddings are joined in the clear (``Concat``, ``Sum``, ``Mean``, ``Max``, any with
    ``evaluate: plain``), those of the missing are left out; ``MaskedSum`` and the Lagrange codes refuse such records.

    Args:
        partitioner: cuts the columns into M parts; None: the usual cut of the data, which the datamodule fills in.
        parties: numbers of the parties that are missing.
        splits: where: ``val``, ``test``, ``predict``. Without ``val``, a model is chosen with everybody there.

    Shapes: ``held`` (N, M).

    Raises:
        ConfigurationError: for no parties, a number twice, and splits that are none of these; in ``split``, for numbers
            that no party has, and if nobody would be left.

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
            raise ConfigurationError(f"parties {list(parties)} names none, or one twice; name each missing party once")
        if not splits or not set(splits) <= set(_SPLITS):
            raise ConfigurationError(f"splits {list(splits)} are not some of {', '.join(_SPLITS)}; name these only")
        super().__init__(partitioner)
        self.parties = tuple(int(party) for party in parties)
        self.splits = tuple(splits)

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        parts = super().parts(layout)
        if strange := [party for party in self.parties if not 0 <= party < len(parts)]:
            raise ConfigurationError(
                f"party {strange[0]} cannot be missing, the parties are 0 to {len(parts) - 1}; correct its number"
            )
        if len(self.parties) == len(parts):
            raise ConfigurationError(f"all {len(parts)} parties would be missing; leave one there")
        return parts

    def held(self, split: str, records: int, parties: int) -> "NDArray[np.bool_] | None":
        held = self.inner.held(split, records, parties)
        if split not in self.splits:
            return held
        held = np.ones((records, parties), dtype=np.bool_) if held is None else held.copy()
        held[:, list(self.parties)] = False
        return held
