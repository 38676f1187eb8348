"""Groups of parties: the parties of a group hold the same columns for different records (vFedSec, section 3.1)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import permutation
from lightning_vfl.types import Parties

from ..records.layout import Layout, Part
from ..records.records import Split
from .over import PartitionerOver
from .partition import Partitioner

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Groups(PartitionerOver):
    """The parts of another partitioner, each for a group of parties that hold different records.

    Part g goes to ``members[g]`` parties, and every record to one of them. Parties are numbered group by group: members
    [1, 2, 2] are the parties 0 | 1, 2 | 3, 4. A group of one is an ordinary party and holds every record; if all groups
    are such, ``held`` is that of the other partitioner.

    Args:
        partitioner: divides the columns into G parts; None: the data set's default partitioner.
        members: the number of parties in each of the G groups.
        seed: names the division of the records.

    Shapes: ``held`` (N, M), M the sum of ``members``.
    Guarantee: in every split exactly one party of each group holds a record. The shares of a group's parties differ by
        at most one record, and the first parties have the larger. They depend on seed, split and group only.
    Not guaranteed: that a record of two splits (test records are often the records to predict) is held by the same
        party in both; that the labels of the shares have the same distribution. Secrecy of the records in training: the
        server knows the bottom that a group shares and the gradients of its embeddings, and can compute records from
        the updates of the bottom, masked or not. ``SplitVFL`` refuses trainings in which it can, unless
        ``allow_invertible_updates`` is set.

    Raises:
        ConfigurationError: for numbers below 1; in ``split``, if ``members`` does not have a number for each part, or
            the parts are in groups already.

    Examples:
        >>> from lightning_vfl.datamodules import ContiguousColumns
        >>> cut = Groups(ContiguousColumns(2), members=[1, 2])
        >>> [part.positions.tolist() for part in cut.split(Layout((4,)))], cut.groups(3)
        ([[0, 1], [2, 3], [2, 3]], ((0,), (1, 2)))
        >>> cut.held("train", 5, 3).sum(0).tolist()
        [5, 3, 2]

    References:
        Qiu et al., "Secure Vertical Federated Learning Under Unreliable Connectivity" (vFedSec),
        https://arxiv.org/abs/2305.16794, section 3.1.
    """

    of_groups = False

    def __init__(self, partitioner: Partitioner | None, members: Sequence[int], seed: int = 0) -> None:
        if not members:
            raise ConfigurationError("members must have a number of parties for each part; got none")
        if few := [g for g, parties in enumerate(members) if parties < 1]:
            raise ConfigurationError(
                f"members must be 1 or more for every group; got {members[few[0]]} for group {few[0]}"
            )
        super().__init__(partitioner)
        self.members = tuple(members)
        self.seed = seed

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        parts = super().parts(layout)
        if len(parts) != len(self.members):
            raise ConfigurationError(
                f"members has {len(self.members)} numbers, but {type(self.inner).__name__} makes {len(parts)} parts; "
                "give one number of parties for each part"
            )
        return tuple(part for part, parties in zip(parts, self.members, strict=True) for _ in range(parties))

    def groups(self, parties: int) -> tuple[Parties, ...]:
        if parties != sum(self.members):
            raise ConfigurationError(
                f"Groups has {sum(self.members)} parties (members {', '.join(map(str, self.members))}); got {parties} "
                "parties; pass the number of its parts"
            )
        ends = np.cumsum(self.members).tolist()
        return tuple(tuple(range(end - size, end)) for size, end in zip(self.members, ends, strict=True))

    def held(self, split: str, records: int, parties: int) -> "NDArray[np.bool_] | None":
        groups = self.groups(parties)
        own = self.inner.held(split, records, len(groups))  # (N, G)
        if max(self.members) == 1:
            return own
        held = np.zeros((records, parties), dtype=bool)
        for g, group in enumerate(groups):
            shares = np.array_split(permutation(records, self.seed, "groups", split, g), len(group))
            for party, share in zip(group, shares, strict=True):
                held[share, party] = True
        return held if own is None else held & np.repeat(own, self.members, axis=1)


def find_holders(name: str, split: Split, partitioner: Partitioner, groups: Sequence[Sequence[int]]) -> Tensor | None:
    """(N, M) bool, whether party m holds record n, according to the data and to the partitioner; None: all parties do.

    Args:
        name: the name of the split, as in ``Partitioner.held``.
        split: its records; ``present`` is not changed.
        partitioner: the partitioner, with M parties.
        groups: the parties of each group, M in all.

    Guarantee: no two parties of a group hold the same record.

    Raises:
        ConfigurationError: if two do, or if the data or the partitioner return another shape.
    """
    records = len(split.ids)
    parties = sum(len(group) for group in groups)
    present = None
    shares = partitioner.held(name, records, parties)
    for source, said in (
        ("present of the data", split.present),
        (f"{type(partitioner).__name__}.held", None if shares is None else torch.as_tensor(shares, dtype=torch.bool)),
    ):
        if said is None:
            continue
        if said.shape != (records, parties):
            raise ConfigurationError(
                f"{source} has shape {tuple(said.shape)} for the {name} records; return one truth value for each "
                f"of the "
                f"{records} records and {parties} parties"
            )
        present = said if present is None else present & said
    if present is None and any(len(group) > 1 for group in groups):
        present = torch.ones(records, parties, dtype=torch.bool)
    if present is not None:
        _refuse_shared(name, split, present, groups)
    return present


def find_label_holders(train: Split, partitioner: Partitioner, parties: int) -> Tensor | None:
    """(N,) int64, the party that holds the label of each training record, -1: no party; None: not specified.

    Raises:
        ConfigurationError: if the partitioner returns another shape or other numbers.
    """
    if train.labels is None:
        return None
    holders = partitioner.label_holders(train.labels.numpy(), train.ids, parties)
    if holders is None:
        return None
    records = len(train.ids)
    if holders.shape != (records,) or holders.min() < -1 or holders.max() >= parties:
        raise ConfigurationError(
            f"{type(partitioner).__name__}.label_holders has shape {holders.shape} and values from {holders.min()} to "
            f"{holders.max()}; return one number from -1 (no party) to {parties - 1} for each of the {records} records"
        )
    return torch.from_numpy(holders)


def _refuse_shared(name: str, split: Split, present: Tensor, groups: Sequence[Sequence[int]]) -> None:
    for group in groups:
        twice = present[:, list(group)].sum(1) > 1
        if twice.any():
            row = int(twice.nonzero()[0])
            holders = " and ".join(str(party) for party in group if present[row, party])
            raise ConfigurationError(
                f"{int(twice.sum())} {name} records are held by several parties of one group, first record "
                f"{split.ids[row]} by parties {holders}; parties of a group hold different records, so give each to "
                "one of them"
            )
