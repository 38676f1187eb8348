"""Groups of parties: the parties of a group hold the same columns for different records (vFedSec, section 3.1)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import permutation

from .over import PartitionerOver
from .partition import Layout, Part, Partitioner
from .records import Split

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Groups(PartitionerOver):
    """The parts of another partitioner, each for a group of parties that share the records out among themselves.

    Part g goes to ``members[g]`` parties. Party numbers run through the groups in order: members [1, 2, 2] are the
    parties 0 | 1, 2 | 3, 4. A group of one is a party as usual and holds every record; with no other groups, nothing
    is said about who holds what.

    Args:
        partitioner: cuts the columns into G parts; None: the usual cut of the data, which the datamodule fills in.
        members: G numbers of parties.
        seed: names the shares.

    Shapes: ``held`` (N, M), M the sum of ``members``.
    Guarantee: in every split each record is held by exactly one party of each group, and the shares of a group's
        parties differ by one record at most, the first parties have the larger. Seed, split and group alone decide.
    Not guaranteed: that a record in two splits, as the test records often are those to predict, is with the same party
        in both; that the shares are alike in their labels. Secrecy of the records in training: the server knows the
        bottom that a group shares and the gradients of its embeddings, and can compute records from the updates of the
        bottom, masked or not. ``SplitVFL`` refuses trainings in which it can, see its ``update_noise``,
        ``sum_updates_over`` and ``allow_invertible_updates``.

    Raises:
        ConfigurationError: for numbers below 1; in ``split``, if there are not as many numbers as parts, or the parts
            are in groups already.

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

    def __init__(self, partitioner: Partitioner | None, members: Sequence[int], seed: int = 0) -> None:
        if not members:
            raise ConfigurationError("members is empty; give one number of parties for each part")
        if few := [g for g, parties in enumerate(members) if parties < 1]:
            raise ConfigurationError(f"members gives group {few[0]} to {members[few[0]]} parties; use 1 or more")
        super().__init__(partitioner)
        self.members = tuple(members)
        self.seed = seed

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        inner = self.inner
        parts = inner.split(layout)
        if len(parts) != len(self.members):
            raise ConfigurationError(
                f"members has {len(self.members)} numbers but {type(inner).__name__} cuts the columns into "
                f"{len(parts)} parts; give one number of parties for each part"
            )
        if any(len(group) > 1 for group in inner.groups(len(parts))):
            raise ConfigurationError(
                f"{type(inner).__name__} cuts into groups already, which cannot be grouped again; say all numbers in "
                "one members"
            )
        return tuple(part for part, parties in zip(parts, self.members, strict=True) for _ in range(parties))

    def groups(self, parties: int) -> tuple[tuple[int, ...], ...]:
        if parties != sum(self.members):
            raise ConfigurationError(
                f"Groups has {sum(self.members)} parties (members {', '.join(map(str, self.members))}) but is asked "
                f"for the groups of {parties}; hand it the parts it has made"
            )
        ends = np.cumsum(self.members).tolist()
        return tuple(tuple(range(end - size, end)) for size, end in zip(self.members, ends, strict=True))

    def held(self, split: str, records: int, parties: int) -> "NDArray[np.bool_] | None":
        groups = self.groups(parties)
        own = self.inner.held(split, records, len(groups))  # (N, G): what a group lacks, none of its parties holds
        if max(self.members) == 1:
            return own
        held = np.zeros((records, parties), dtype=bool)
        for g, group in enumerate(groups):
            shares = np.array_split(permutation(records, self.seed, "groups", split, g), len(group))
            for party, share in zip(group, shares, strict=True):
                held[share, party] = True
        return held if own is None else held & np.repeat(own, self.members, axis=1)


def who_holds(name: str, split: Split, partitioner: Partitioner, groups: Sequence[Sequence[int]]) -> Tensor | None:
    """(N, M) bool, which party holds which record of a split: where both data and partitioner say so; None: all do.

    Args:
        name: the split's, as in ``Partitioner.held``.
        split: its records; ``present`` is left as it is.
        partitioner: the cut into M parties.
        groups: the parties of each group, M in all.

    Guarantee: no record is held by two parties of a group.

    Raises:
        ConfigurationError: if one is, or if either says it for other numbers of records or parties.
    """
    records, parties = len(split.ids), sum(len(group) for group in groups)
    present = None
    shares = partitioner.held(name, records, parties)
    for source, said in (
        ("the data say", split.present),
        (f"{type(partitioner).__name__} says", None if shares is None else torch.as_tensor(shares, dtype=torch.bool)),
    ):
        if said is None:
            continue
        if said.shape != (records, parties):
            raise ConfigurationError(
                f"{source} who holds the {name} records in shape {tuple(said.shape)}, but there are {records} records "
                f"and {parties} parties; say it for each record and party"
            )
        present = said if present is None else present & said
    if present is None and any(len(group) > 1 for group in groups):
        present = torch.ones(records, parties, dtype=torch.bool)
    if present is not None:
        _refuse_shared(name, split, present, groups)
    return present


def _refuse_shared(name: str, split: Split, present: Tensor, groups: Sequence[Sequence[int]]) -> None:
    for group in groups:
        twice = present[:, list(group)].sum(1) > 1
        if twice.any():
            row = int(twice.nonzero()[0])
            holders = " and ".join(str(party) for party in group if present[row, party])
            raise ConfigurationError(
                f"{int(twice.sum())} {name} records are held by several parties of one group, first record "
                f"{split.ids[row]} by parties {holders}; parties of a group hold different records, so leave each with "
                "one of them"
            )
