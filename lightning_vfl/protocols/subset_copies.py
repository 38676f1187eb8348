"""The copies of a batch that ``TaskSampling`` and ``LaserVFL`` compute: drawn subsets of the parties, and weights."""

from collections.abc import Callable
from functools import cache
from itertools import combinations
from math import comb
from typing import Literal

import torch
from torch import Tensor

from lightning_vfl.streams import stream, uniform
from lightning_vfl.types import RoundNames, Rows, VerticalBatch

TaskWeights = Literal["tasks", "records"]
"""The weight of a subset in a loss: each of the 2^n - 1 subsets counts the same, or each size."""
EachSize = Literal["one", "disjoint", "all"]
"""Which subsets of a size are computed for a record."""


def draws(names: RoundNames, rows: Rows, numbers: int, purpose: str) -> Tensor:
    """(B, numbers) float64 in [0, 1), this process's part of the draws of the joint batch."""
    words = stream(names.seed, "subsets", purpose, names.stage, names.round).random_raw(rows.total * numbers)
    joint = torch.from_numpy(uniform(words)).view(rows.total, numbers)
    return joint[rows.start : rows.start + len(rows.ids)]


def sampled_sizes(there: Tensor, names: RoundNames, rows: Rows, each_size: EachSize = "one") -> Tensor:
    """(K·B, M) bool: K subsets of the holders of each row, one after the other, by size; none if the row has too few.

    Args:
        there: (B, M) bool, the holders of each record.
        names: the names of the round.
        rows: this process's part of the joint batch.
        each_size: ``one`` or ``disjoint``.
    """
    records, parties = there.shape
    device = there.device
    lots = draws(names, rows, parties * parties, "tasks").to(device).view(records, parties, parties)
    lots = lots.masked_fill(~there.unsqueeze(1), 2.0)  # (B, size, M): absent parties come last
    order = lots.argsort(2)
    places = torch.arange(parties, device=device).expand_as(order)
    place = torch.empty_like(order).scatter_(2, order, places)  # of each party in the order
    sizes, blocks = (slot.to(device).unsqueeze(1) for slot in _slots(parties, each_size))
    enough = there.sum(1).view(records, 1, 1) >= sizes * (blocks + 1)
    if each_size == "one":
        drawn = place < sizes
    else:  # one order of the holders for each size, cut into blocks of this size
        drawn = place[:, sizes[:, 0] - 1].div(sizes, rounding_mode="floor") == blocks
    return (drawn & enough & there.unsqueeze(1)).transpose(0, 1).reshape(-1, parties)


def every_subset(there: Tensor) -> Tensor:
    """(K·B, M) bool: each of the K = 2^M - 1 subsets in turn, by size; none where a member does not hold the row."""
    subsets = _subsets_by_size(there.shape[1]).to(there.device).unsqueeze(1)
    whole = (there | ~subsets).all(2, keepdim=True)
    return (subsets & whole).reshape(-1, there.shape[1])


def size_weights(holders: Tensor, parties: int, weights: TaskWeights, each_size: EachSize = "one") -> Tensor:
    """(K·B,) float32: K times the weight of each copy, copies in turn, so that the mean over all rows is the loss.

    Args:
        holders: (B,) n, the number of holders of each record; with 0 the record has weight 0.
        parties: M.
        weights: see ``TaskSampling``.
        each_size: see ``TaskSampling``; with ``all``, the weights are those of subsets of holders.
    """
    return _weights_of_copies(parties, weights, each_size).to(holders.device)[holders].T.reshape(-1)


@cache
def _slots(parties: int, each_size: EachSize) -> tuple[Tensor, Tensor]:
    """The K subsets of a record that all hold: (K,) sizes, and (K,) numbers among those of the same size."""
    sizes = range(1, parties + 1)
    how_many = {k: _subsets_of_size(parties, k, each_size) for k in sizes}
    pairs = torch.tensor([(k, block) for k in sizes for block in range(how_many[k])])
    return pairs[:, 0], pairs[:, 1]


@cache
def _subsets_by_size(parties: int) -> Tensor:
    """(2^M - 1, M) bool, all subsets that are not empty, by size."""
    everybody = range(parties)
    subsets = [members for size in range(1, parties + 1) for members in combinations(everybody, size)]
    return torch.tensor([[party in members for party in everybody] for members in subsets])


def _subsets_of_size(holders: int, size: int, each_size: EachSize) -> int:
    """The number of subsets of a size that are computed for a record."""
    if each_size == "one":
        return 1
    return holders // size if each_size == "disjoint" else comb(holders, size)


@cache
def _weights_of_copies(parties: int, weights: TaskWeights, each_size: EachSize) -> Tensor:
    """(M+1, K) float32, in row n the weights of the K copies of a record with n holders, times K."""
    sizes, blocks = _slots(parties, each_size)
    slots = list(zip(sizes.tolist(), blocks.tolist(), strict=True))
    table = torch.zeros(parties + 1, len(slots))
    for n in range(1, parties + 1):
        for copy, (size, block) in enumerate(slots):
            alike = _subsets_of_size(n, size, each_size)
            if size > n or (block >= alike and each_size != "all"):
                continue  # a record with n holders has no such subset
            # of all subsets of one size together: C(n, k) of 2^n - 1 tasks, or one size of n
            share = comb(n, size) / (2**n - 1) if weights == "tasks" else 1 / n
            table[n, copy] = len(slots) * (share / alike)
    return table


@cache
def table_of_sizes(parties: int, weigh: Callable[[int, int, int], float]) -> Tensor:
    """(M+1, M) float32, in row n and column k - 1 ``weigh(M, n, k)`` for subsets of size k of n holders, else 0."""
    table = torch.zeros(parties + 1, parties)
    for n in range(1, parties + 1):
        for k in range(1, n + 1):
            table[n, k - 1] = weigh(parties, n, k)
    return table


def repeated(batch: VerticalBatch, copies: int, present: Tensor, weights: Tensor | None) -> VerticalBatch:
    """``copies`` of the batch one after the other; features are left as they are, because embeddings are repeated."""
    labels = batch.labels
    joint = batch.joint
    return batch._replace(
        labels=None if labels is None else labels.repeat(copies, *(1,) * (labels.dim() - 1)),
        record_ids=batch.record_ids.repeat(copies),
        present=present,
        weights=weights,
        joint=None if joint is None else joint._replace(start=joint.start * copies, total=joint.total * copies),
    )
