"""Records that parties lack at random."""

import numpy as np
import pytest
from scipy import stats

from lightning_vfl.datamodules import ContiguousColumns, Groups, Layout, MissingAtRandom, MissingAtTest
from lightning_vfl.errors import ConfigurationError
from tests.subjects import Blobs


def test_each_party_lacks_its_share_and_less_is_part_of_more():
    few, many = (MissingAtRandom(ContiguousColumns(4), p=p).held("test", 20_000, 4) for p in (0.1, 0.5))
    for held, p in ((few, 0.1), (many, 0.5)):
        for party in held.T:
            assert stats.binomtest(int((~party).sum()), 20_000, p).pvalue > 1e-6
    assert (many <= few).all()
    pairs = np.corrcoef(many.T)
    assert abs(pairs[np.triu_indices(4, 1)]).max() < 0.04  # parties are independent


def test_beta_gives_each_party_a_probability_of_its_own():
    shares = []
    for seed in range(200):
        cut = MissingAtRandom(ContiguousColumns(3), beta=(2, 2), seed=seed)
        shares += cut.held("train", 400, 3).mean(0).tolist()
    assert stats.kstest(shares, stats.beta(2, 2).cdf).pvalue > 1e-6


def test_blocks_of_records_are_missing_together():
    held = MissingAtRandom(ContiguousColumns(2), p=0.5, by=8).held("test", 20, 2)
    for start in (0, 8, 16):
        assert (held[start : start + 8] == held[start]).all()


def test_splits_differ_and_other_splits_are_whole():
    cut = MissingAtRandom(ContiguousColumns(2), p=0.5, splits=["train", "test"])
    assert cut.held("val", 50, 2) is None
    assert (cut.held("train", 50, 2) != cut.held("test", 50, 2)).any()
    assert MissingAtRandom(ContiguousColumns(2), p=0.0).held("train", 50, 2) is None


def test_records_that_nobody_holds_are_counted_and_left_out():
    data = Blobs(MissingAtRandom(ContiguousColumns(3), p=0.8, splits=["train"]), batch_size=4)
    with pytest.warns(UserWarning, match=r"no party holds .* of the 54 train records"):
        data.setup("fit")
    train = data.records("train")
    expected = MissingAtRandom(ContiguousColumns(3), p=0.8).held("train", 54, 3)
    assert train.present.any(1).all()
    assert np.array_equal(train.present.numpy(), expected[expected.any(1)])
    assert np.array_equal(train.ids, np.arange(1000, 1054)[expected.any(1)])


def test_holders_of_the_other_partitioner_stay():
    held = MissingAtRandom(MissingAtTest(ContiguousColumns(3), [1]), p=0.2).held("test", 100, 3)
    assert not held[:, 1].any()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: MissingAtRandom(), "p or beta, one of them"),
        (lambda: MissingAtRandom(p=0.1, beta=(1, 1)), "p or beta, one of them"),
        (lambda: MissingAtRandom(p=1.0), "from 0 to below 1; got 1.0"),
        (lambda: MissingAtRandom(beta=(0, 1)), "two numbers above 0"),
        (lambda: MissingAtRandom(p=0.1, splits=["later"]), "one or more of train, val, test, predict"),  # type: ignore[list-item]  # wrong on purpose
        (lambda: MissingAtRandom(p=0.1, by=0), "'record' or a number of records; got 0"),
        (lambda: MissingAtRandom(Groups(ContiguousColumns(2), [1, 2]), p=0.1).split(Layout((4,))), "groups"),
    ],
)
def test_settings_that_cannot_be(make, words):
    with pytest.raises(ConfigurationError, match=words):
        make()
