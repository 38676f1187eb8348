"""Parties that do not exist: the records are those of a partitioner that gives the same columns by name."""

import numpy as np
import pytest
import torch

from lightning_vfl.datamodules import (
    BreastCancer,
    ContiguousColumns,
    Groups,
    LabelPartition,
    Layout,
    MissingAtRandom,
    NamedColumns,
    OnlyParties,
)
from lightning_vfl.errors import ConfigurationError


def test_the_records_are_those_of_the_columns_alone():
    columns = BreastCancer().layout.columns
    named = NamedColumns({"first": columns[:10], "third": columns[20:]}, drop_rest=True)
    both = [BreastCancer(cut) for cut in (OnlyParties(ContiguousColumns(3), [True, False, True]), named)]
    for data in both:
        data.setup("fit")
        data.setup("test")
    for split in ("train", "val", "test"):
        one, other = (data.records(split) for data in both)
        every = torch.arange(len(one))
        assert len(one.rows(every)) == 2
        assert all(torch.equal(a, b) for a, b in zip(one.rows(every), other.rows(every), strict=True))
        assert torch.equal(one.labels, other.labels)


def test_records_and_labels_that_parties_hold_are_numbered_anew():
    lacking = MissingAtRandom(ContiguousColumns(4), p=0.5)
    cut = OnlyParties(lacking, [False, True, False, True])
    assert np.array_equal(cut.held("train", 50, 2), lacking.held("train", 50, 4)[:, [1, 3]])
    labels, ids = np.arange(40) % 2, np.arange(40)
    shared = LabelPartition(ContiguousColumns(4), active=3)
    before = shared.label_holders(labels, ids, 4)
    after = OnlyParties(shared, [False, True, True, True]).label_holders(labels, ids, 3)
    assert set(before.tolist()) == {0, 1, 2}
    assert after.tolist() == [{0: -1, 1: 0, 2: 1}[holder] for holder in before.tolist()]


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (lambda: OnlyParties(None, [False, False]), "must keep at least one party"),
        (lambda: OnlyParties(ContiguousColumns(3), [True]).split(Layout((4,))), "has 1 values for 3 parties"),
        (
            lambda: OnlyParties(Groups(ContiguousColumns(2), [1, 2]), [True, True, False]).split(Layout((4,))),
            "give it a partitioner without groups",
        ),
    ],
)
def test_what_cannot_be_is_refused(cut, words):
    with pytest.raises(ConfigurationError, match=words):
        cut()
