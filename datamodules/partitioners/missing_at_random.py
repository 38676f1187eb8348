"""Records of which each party lacks its own columns at random."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
from lightning.pytorch.utilities import rank_zero_warn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import stream, uniform

from ..records.records import SPLITS, SplitName
from .missing_party import check_splits
from .over import PartitionerOver
from .partition import Partitioner

if TYPE_CHECKING:
    from numpy.typing import NDArray


class MissingAtRandom(PartitionerOver):
    """The parts of another partitioner; each party lacks each record (or block of records) with a probability.

    Records that no party holds are left out of their split, with a warning that counts them.

    Args:
        partitioner: divides the columns into M parts; None: the data set's default partitioner.
        p: the probability that a party lacks a record, in [0, 1).
        beta: (a, b): each party has a probability of its own, drawn once from the beta distribution with these
            parameters, in place of ``p``. The probability is that a party HOLDS a record, as in the paper.
        splits: the splits in which records are missing.
        by: ``record``, or the number of consecutive records that are missing together.
        seed: names the draws.

    Shapes: ``held`` (N, M).
    Guarantee: the draws depend on (seed, split, N, M) only. For equal seeds, the records that a party lacks at a
        smaller p are among those that it lacks at a larger p.
    Not guaranteed: that the features that a party lacks do not influence what OTHER parties hold: they are missing
        completely at random.

    Raises:
        ConfigurationError: for p outside [0, 1), for both or none of ``p`` and ``beta``, for parameters that are not
            positive, and for unknown splits; in ``split``, for groups of parties.

    Examples:
        >>> from lightning_vfl.datamodules import ContiguousColumns
        >>> cut = MissingAtRandom(ContiguousColumns(2), p=0.5, splits=["test"])
        >>> cut.held("train", 4, 2), cut.held("test", 4, 2).shape
        (None, (4, 2))

    References:
        Valdeira, Wang, Chi, "Vertical Federated Learning with Missing Features During Training and Inference", ICLR
        2025, section 5: probabilities 0, 0.1 and 0.5, or drawn from Beta(2, 2), for training and test.
    """

    of_groups = False

    def __init__(
        self,
        partitioner: Partitioner | None = None,
        p: float | None = None,
        beta: Sequence[float] | None = None,
        splits: Sequence[SplitName] = SPLITS,
        by: Literal["record"] | int = "record",
        seed: int = 0,
    ) -> None:
        if (p is None) == (beta is None):
            raise ConfigurationError(f"MissingAtRandom takes p or beta, one of them; got p={p}, beta={beta}")
        if p is not None and not 0.0 <= p < 1.0:
            raise ConfigurationError(f"p of MissingAtRandom must be from 0 to below 1; got {p}")
        if beta is not None and (len(beta) != 2 or not min(beta) > 0):
            raise ConfigurationError(f"beta of MissingAtRandom must be two numbers above 0; got {list(beta)}")
        check_splits(splits, SPLITS)
        if by != "record" and (isinstance(by, bool) or not isinstance(by, int) or by < 1):
            raise ConfigurationError(f"by of MissingAtRandom must be 'record' or a number of records; got {by!r}")
        super().__init__(partitioner)
        self.p = p
        self.beta = None if beta is None else tuple(float(one) for one in beta)
        self.splits = tuple(splits)
        self.by = by
        self.seed = seed

    def held(self, split: str, records: int, parties: int) -> "NDArray[np.bool_] | None":
        held = self.inner.held(split, records, parties)
        if split not in self.splits or self.p == 0.0:
            return held
        block = 1 if self.by == "record" else int(self.by)
        blocks = -(-records // block)
        drawn = _uniforms(blocks * parties, self.seed, split, "records").reshape(blocks, parties)
        mine = (drawn >= self._missing(parties)).repeat(block, axis=0)[:records]
        return mine if held is None else mine & held

    def only_held(self, split: str, held: "NDArray[np.bool_]") -> "NDArray[np.int64] | None":
        some = np.asarray(held.any(1))
        if some.all():
            return None
        rank_zero_warn(
            f"no party holds {int((~some).sum()):,} of the {len(some):,} {split} records; these records are left out"
        )
        return np.flatnonzero(some)

    def _missing(self, parties: int) -> "NDArray[np.float64]":
        """(M,) the probability that each party lacks a record."""
        if self.beta is None:
            return np.full(parties, self.p)
        from scipy.special import betaincinv  # imported here, because the import takes 0.2 s

        held: NDArray[np.float64] = betaincinv(*self.beta, _uniforms(parties, self.seed, "parties"))
        return 1.0 - held


def _uniforms(n: int, seed: int, *names: str) -> "NDArray[np.float64]":
    """(n,) draws in [0, 1)."""
    return uniform(stream(seed, "missing at random", *names).random_raw(n))
