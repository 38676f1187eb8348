"""Limited overlap: few training records with every party, each of the others with one."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.datamodules import (
    ContiguousColumns,
    Groups,
    Layout,
    LimitedOverlap,
    Partitioner,
    Standardise,
    Unchanged,
)
from lightning_vfl.datamodules.base import SplitName
from lightning_vfl.datamodules.records.records import Split
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import permutation
from tests.examples import examples

from ..miniature import InMemory, table

SPLITS: dict[SplitName, Split] = {
    "train": table(23, 5, 0),
    "val": table(9, 5, 1),
    "test": table(8, 5, 2),
    "predict": table(7, 5, 3),
}


def opened(partitioner: Partitioner, normaliser=None) -> InMemory:
    data = InMemory(SPLITS, partitioner=partitioner, normaliser=normaliser or Unchanged())
    for stage in ("fit", "test", "predict"):
        data.setup(stage)
    return data


# ---- the partitioner


def test_columns_are_those_of_the_other_partitioner():
    own, inner = LimitedOverlap(ContiguousColumns(3), 1), ContiguousColumns(3)
    assert [p.positions.tolist() for p in own.split(Layout((7,)))] == [
        p.positions.tolist() for p in inner.split(Layout((7,)))
    ]
    assert own.groups(3) == ((0,), (1,), (2,))


@given(st.integers(1, 60), st.data(), st.integers(1, 6), st.integers(0, 2**40))
@examples(40)
def test_aligned_records_are_with_everybody_and_the_others_with_one(records, data, parties, seed):
    aligned = data.draw(st.integers(1, records))
    cut = LimitedOverlap(ContiguousColumns(parties), aligned, seed)
    held = cut.held("train", records, parties)
    if held is None:
        assert aligned == records or parties == 1
        return
    assert (held.shape, held.dtype) == ((records, parties), np.dtype(bool))
    holders = held.sum(1)
    assert (holders == parties).sum() == aligned
    assert (holders == 1).sum() == records - aligned
    shares = held.sum(0) - aligned
    assert shares.max() - shares.min() <= 1
    assert sorted(shares, reverse=True) == shares.tolist()  # the first are the larger
    assert cut.kept("train", records) is None
    kept = LimitedOverlap(ContiguousColumns(parties), aligned, seed, only_aligned=True).kept("train", records)
    assert kept.tolist() == held.all(1).nonzero()[0].tolist()


def test_the_draw_is_that_of_the_named_stream():
    order = permutation(11, 5, "overlap").tolist()
    held = LimitedOverlap(ContiguousColumns(3), 4, 5).held("train", 11, 3)
    for party, own in enumerate((order[4:7], order[7:9], order[9:])):
        assert held[:, party].nonzero()[0].tolist() == sorted(order[:4] + own)


def test_seed_and_number_name_the_draw():
    def aligned(number=5, seed=0, parties=2):
        return set(
            LimitedOverlap(ContiguousColumns(parties), number, seed).held("train", 40, parties).all(1).nonzero()[0]
        )

    assert aligned() == aligned(parties=4) < aligned(6)
    assert aligned() != aligned(seed=1)


@pytest.mark.parametrize("split", ["val", "test", "predict"])
def test_records_of_other_splits_are_with_everybody(split):
    for only in (False, True):
        cut = LimitedOverlap(ContiguousColumns(2), 99, only_aligned=only)
        assert cut.held(split, 9, 2) is None
        assert cut.kept(split, 9) is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LimitedOverlap(aligned=0), "aligned must be at least 1; got 0"),
        (
            lambda: opened(LimitedOverlap(ContiguousColumns(2), 24)),
            "aligned 24 exceeds the 23 training records; lower it to at most 23",
        ),
        (
            lambda: opened(LimitedOverlap(Groups(ContiguousColumns(2), [1, 2]), 4)),
            "Groups makes groups of parties, and LimitedOverlap needs parties of their own columns; give it a "
            "partitioner without groups",
        ),
        (
            lambda: opened(LimitedOverlap(LimitedOverlap(ContiguousColumns(2), 4), 4)),
            "LimitedOverlap decides already who holds the train records; give LimitedOverlap a partitioner that "
            "divides only columns",
        ),
        (
            lambda: LimitedOverlap().split(Layout((4,))),
            "LimitedOverlap needs another partitioner; give it one, or pass LimitedOverlap to a datamodule, which "
            "fills in its default partitioner",
        ),
    ],
)
def test_an_impossible_overlap_is_refused_in_one_line(make, message):
    with pytest.raises(ConfigurationError) as error:
        make()
    assert str(error.value) == message


# ---- the records


def test_batches_of_training_say_who_holds_what_and_no_others_do():
    cut = LimitedOverlap(ContiguousColumns(2), 6, seed=1)
    data = opened(cut)
    records, original = data.records("train"), SPLITS["train"].features
    assert torch.equal(records.present, torch.from_numpy(cut.held("train", 23, 2)))
    for party, features in enumerate(records.rows(torch.arange(23))):
        held = records.present[:, party]
        assert torch.equal(features[held], original[held][:, (slice(0, 3), slice(3, 5))[party]])
        assert not features[~held].any()
    for name in ("val", "test", "predict"):
        assert data.records(name).present is None
        assert torch.equal(data.records(name).features, SPLITS[name].features)


def test_only_aligned_records_are_the_same_to_the_bit():
    """In the other mode too a party scales with all records that it holds."""
    everything = opened(LimitedOverlap(ContiguousColumns(2), 6), Standardise())
    only = opened(LimitedOverlap(ContiguousColumns(2), 6, only_aligned=True), Standardise())
    records, left = everything.records("train"), only.records("train")
    common = records.present.all(1)
    assert int(common.sum()) == len(left) == 6
    assert torch.equal(left.features, records.features[common])
    assert torch.equal(left.labels, records.labels[common])
    assert left.ids.tolist() == records.ids[common.numpy()].tolist()
    assert left.present is None
    for name in ("val", "test", "predict"):
        assert torch.equal(only.records(name).features, everything.records(name).features)
    batches = list(only.train_dataloader())
    assert sorted(i for batch in batches for i in batch.record_ids.tolist()) == list(range(6))
    assert all(batch.present is None and batch.joint is None for batch in batches)


def test_groups_leave_out_what_their_parts_do():
    data = opened(Groups(LimitedOverlap(ContiguousColumns(2), 6, only_aligned=True), [1, 2]))
    assert data.records("train").present.sum(1).tolist() == [2] * 6
