"""Columns that several parties hold: the same values with each, drawn by the seed, own columns first."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.datamodules import (
    ContiguousColumns,
    Groups,
    Layout,
    NamedColumns,
    OverlappingColumns,
    RandomColumns,
    RowStrips,
    Standardise,
)
from lightning_vfl.errors import ConfigurationError
from tests.examples import examples

from ..miniature import InMemory, table


def cut(partitioner, columns=10):
    layout = Layout((columns,), tuple(f"c{i}" for i in range(columns)))
    return [part.positions.tolist() for part in partitioner.split(layout)]


def holders(parts, columns):
    return [[m for m, own in enumerate(parts) if c in own] for c in range(columns)]


@given(st.integers(2, 6), st.integers(0, 12), st.data(), st.floats(0.001, 1.0), st.integers(0, 2**40))
@examples(150)
def test_shared_columns_are_with_so_many_parties_and_others_with_one(parties, spare, data, shared, seed):
    columns = parties + spare
    number = data.draw(st.none() | st.integers(2, parties))
    before = cut(RandomColumns(parties, 1), columns)
    after = cut(OverlappingColumns(RandomColumns(parties, 1), shared, number, seed), columns)
    for old, new in zip(before, after, strict=True):
        assert new[: len(old)] == old  # own columns first, as they were
        assert new[len(old) :] == sorted(new[len(old) :])
        assert len(set(new)) == len(new)
    counts = np.array([len(own) for own in holders(after, columns)])
    assert set(counts) <= {1, number or parties}
    assert (counts > 1).sum() == max(1, round(shared * columns))


def test_named_columns_are_shared_and_no_others():
    layout = Layout((5,), ("age", "job=clerk", "job=farmer", "income", "jobless"))
    parts = OverlappingColumns(ContiguousColumns(2), shared=["job", "jobless"]).split(layout)
    assert [part.positions.tolist() for part in parts] == [[0, 1, 2, 4], [3, 4, 1, 2]]
    assert [part.shape for part in parts] == [(4,), (4,)]


def test_the_columns_of_a_smaller_share_are_among_those_of_a_larger():
    def shared(share, number=None, seed=0):
        parts = cut(OverlappingColumns(ContiguousColumns(4), share, number, seed), 20)
        return {c: set(own) for c, own in enumerate(holders(parts, 20)) if len(own) > 1}

    few, many = shared(0.2), shared(0.5)
    assert (len(few), len(many)) == (4, 10)
    assert few.keys() < many.keys()
    assert shared(0.2) == few
    assert shared(0.2, seed=1).keys() != few.keys()
    two, three = shared(0.5, 2), shared(0.5, 3)
    assert all(two[c] < three[c] < many[c] for c in many)


def test_other_holders_are_drawn():
    parts = cut(OverlappingColumns(ContiguousColumns(4), 1.0, 2), 40)
    extra = [len(own) - 10 for own in parts]
    assert sum(extra) == 40
    assert min(extra) >= 4
    assert cut(OverlappingColumns(ContiguousColumns(4), 1.0, 2, seed=1), 40) != parts


def test_own_columns_stay_in_their_order():
    inner = NamedColumns({"a": ["c3", "c0"], "b": ["c4", "c1", "c2"]})
    assert cut(OverlappingColumns(inner, ["c4", "c1", "c0"]), 5) == [[3, 0, 1, 4], [4, 1, 2, 0]]


def test_columns_that_nobody_holds_are_not_shared():
    inner = NamedColumns({"a": ["c0"], "b": ["c1", "c2"]}, drop_rest=True)
    parts = cut(OverlappingColumns(inner, 1.0), 10)
    assert parts == [[0, 1, 2], [1, 2, 0]]


def test_both_parties_see_the_same_values():
    data = InMemory(
        {"train": table(23, 6), "val": table(9, 6, 1), "test": table(8, 6, 2)},
        partitioner=OverlappingColumns(ContiguousColumns(2), shared=["c1", "c4"]),
        normaliser=Standardise(),
        columns=tuple(f"c{i}" for i in range(6)),
    )
    for stage, name in (("fit", "train"), ("fit", "val"), ("test", "test")):
        data.setup(stage)
        records = data.records(name)
        first, second = records.rows(torch.arange(len(records)))  # 0 1 2 4 and 3 4 5 1
        assert torch.equal(first[:, 1], second[:, 3])
        assert torch.equal(first[:, 3], second[:, 1])
        assert not torch.equal(first[:, 0], second[:, 0])
    assert data.party_shapes == ((4,), (4,))
    batch = next(iter(data.test_dataloader()))
    assert torch.equal(batch.features[0][:, 3], batch.features[1][:, 1])


def test_shops_of_a_chain_share_with_the_bank():
    grouped = Groups(OverlappingColumns(ContiguousColumns(2), shared=["c0"]), [1, 2])
    assert cut(grouped, 4) == [[0, 1], [2, 3, 0], [2, 3, 0]]


def test_it_shares_what_is_shared_already():
    twice = OverlappingColumns(OverlappingColumns(ContiguousColumns(3), ["c0"], 2), ["c0"])
    assert holders(cut(twice, 6), 6)[0] == [0, 1, 2]
    again = OverlappingColumns(OverlappingColumns(ContiguousColumns(3), ["c0"]), ["c0"], 2)
    assert holders(cut(again, 6), 6)[0] == [0, 1, 2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OverlappingColumns(shared=0.0), "must be a share above 0 and up to 1, or names of columns; got 0.0"),
        (lambda: OverlappingColumns(shared=1.2), "up to 1, or names of columns; got 1.2"),
        (lambda: OverlappingColumns(shared=[]), "shared must name at least one column; got none"),
        (lambda: OverlappingColumns(holders=1), "holders must be at least 2; got 1"),
        (
            lambda: cut(OverlappingColumns(ContiguousColumns(2), holders=3)),
            "holders must be from 2 to the number of parties, which is 2; got 3",
        ),
        (lambda: cut(OverlappingColumns(ContiguousColumns(1))), "from 2 to the number of parties, which is 1; got 1"),
        (
            lambda: cut(OverlappingColumns(ContiguousColumns(2), ["c99"])),
            "shared names column 'c99', which no party holds; use names of columns that a party holds, or a share "
            "of them",
        ),
        (lambda: OverlappingColumns(ContiguousColumns(2), ["age"]).split(Layout((4,))), "'age', which no party holds"),
        (
            lambda: cut(OverlappingColumns(Groups(ContiguousColumns(2), [1, 2]))),
            "Groups makes groups of parties, and OverlappingColumns needs parties of their own columns; give it",
        ),
        (
            lambda: OverlappingColumns(RowStrips(2)).split(Layout((1, 4, 4))),
            "pixels cannot be added to a party with images of shape (1, 2, 4); use Contiguous",
        ),
    ],
)
def test_an_impossible_sharing_is_refused(make, message):
    with pytest.raises(ConfigurationError) as error:
        make()
    assert message in str(error.value)
