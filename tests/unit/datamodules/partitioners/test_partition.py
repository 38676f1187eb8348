"""Law: no part is empty, and every column goes to exactly one party, or group, unless the class says it does not."""

import math
from collections.abc import Iterator
from inspect import isabstract

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.commands.known_classes import own_classes
from lightning_vfl.datamodules import (
    ColumnsByCorrelation,
    ColumnsByImportance,
    ContiguousColumns,
    DirichletColumns,
    Grid,
    Groups,
    LabelPartition,
    Layout,
    LimitedOverlap,
    MissingAtRandom,
    MissingAtTest,
    NamedColumns,
    OnlyParties,
    OverlappingColumns,
    Part,
    Partitioner,
    RandomColumns,
    RowStrips,
    Split,
    Views,
)
from lightning_vfl.datamodules.partitioners.over import PartitionerOver
from lightning_vfl.errors import ConfigurationError
from tests.examples import examples

Case = tuple[Partitioner, Layout, int]  # the cut, what is cut, how many parties come out


def tables(parties: int, spare: int) -> Layout:
    return Layout((parties + spare,), tuple(f"c{i}" for i in range(parties + spare)))


@st.composite
def contiguous(draw: st.DrawFn) -> Case:
    parties, spare = draw(st.integers(1, 30)), draw(st.integers(0, 30))
    return ContiguousColumns(parties), tables(parties, spare), parties


@st.composite
def random_columns(draw: st.DrawFn) -> Case:
    parties, spare = draw(st.integers(1, 30)), draw(st.integers(0, 30))
    return RandomColumns(parties, draw(st.integers(0, 2**40))), tables(parties, spare), parties


@st.composite
def named(draw: st.DrawFn) -> Case:
    owners = draw(st.lists(st.integers(0, 4), min_size=5, max_size=20))
    owners = [*range(5), *owners]  # everybody has a column
    layout = tables(len(owners), 0)
    columns = {f"p{m}": [c for c, owner in zip(layout.columns, owners, strict=True) if owner == m] for m in range(5)}
    return NamedColumns(columns), layout, 5


@st.composite
def strips(draw: st.DrawFn) -> Case:
    parties = draw(st.integers(1, 12))
    shape = (draw(st.integers(1, 3)), parties + draw(st.integers(0, 9)), draw(st.integers(1, 9)))
    return RowStrips(parties), Layout(shape), parties


@st.composite
def grid(draw: st.DrawFn) -> Case:
    down, across = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    shape = (draw(st.integers(1, 3)), down + draw(st.integers(0, 9)), across + draw(st.integers(0, 9)))
    return Grid(down, across), Layout(shape), down * across


@st.composite
def views(draw: st.DrawFn) -> Case:
    widths = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=8)))
    inner = draw(st.sampled_from([(), (2, 3)]))  # of a table, of images
    views = tuple(width * math.prod(inner) for width in widths)
    parties = draw(st.none() | st.integers(1, len(widths)))
    return Views(parties), Layout((sum(widths), *inner), views=views), parties or len(widths)


@st.composite
def groups(draw: st.DrawFn) -> Case:
    members = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    return Groups(ContiguousColumns(len(members)), members), tables(len(members), draw(st.integers(0, 9))), sum(members)


@st.composite
def overlap(draw: st.DrawFn) -> Case:
    cut, layout, parties = draw(contiguous())
    return LimitedOverlap(cut, draw(st.integers(1, 9))), layout, parties


@st.composite
def labelled(draw: st.DrawFn) -> Case:
    cut, layout, parties = draw(contiguous() | groups())
    return LabelPartition(cut, active=draw(st.integers(1, parties))), layout, parties


@st.composite
def missing(draw: st.DrawFn) -> Case:
    parties = draw(st.integers(2, 9))
    there = draw(st.integers(0, parties - 1))
    cut = MissingAtTest(ContiguousColumns(parties), [m for m in range(parties) if m != there])
    return cut, tables(parties, draw(st.integers(0, 9))), parties


@st.composite
def dirichlet(draw: st.DrawFn) -> Case:
    parties, alpha = draw(st.integers(1, 9)), draw(st.sampled_from([0.1, 1.0, 100.0]))
    cut, spare = DirichletColumns(parties, alpha, draw(st.integers(0, 2**40))), draw(st.integers(0, 9))
    return cut, draw(st.sampled_from([tables(parties, spare), Layout((2, parties + spare, 3))])), parties


def random_records(columns: int) -> Split:
    values = np.random.Generator(np.random.PCG64(0)).normal(size=(30, columns))
    return Split(torch.from_numpy(values), torch.arange(30) % 2, np.arange(30))


@st.composite
def importance(draw: st.DrawFn) -> Case:
    parties, alpha = draw(st.integers(1, 9)), draw(st.sampled_from([0.1, 1.0, 100.0]))
    layout = tables(parties, draw(st.integers(0, 9)))
    cut = ColumnsByImportance(parties, alpha, seed=draw(st.integers(0, 2**40)))
    return cut.informed_by(lambda: random_records(layout.size)), layout, parties


@st.composite
def correlation(draw: st.DrawFn) -> Case:
    parties = draw(st.integers(2, 3))
    layout = tables(parties, draw(st.integers(parties, 4)))  # two columns each, or there is but one score
    cut = ColumnsByCorrelation(parties, draw(st.floats(0, 1)))
    return cut.informed_by(lambda: random_records(layout.size)), layout, parties


CASES = {
    ContiguousColumns: contiguous,
    RandomColumns: random_columns,
    NamedColumns: named,
    RowStrips: strips,
    Grid: grid,
    Groups: groups,
    LabelPartition: labelled,
    LimitedOverlap: overlap,
    Views: views,
    MissingAtTest: missing,
    DirichletColumns: dirichlet,
    ColumnsByImportance: importance,
    ColumnsByCorrelation: correlation,
}
SHARING = {OverlappingColumns}  # columns go to several parties: test_shared_columns.py
LACKING = {MissingAtRandom, OnlyParties}  # columns are those of another partitioner: tests of their own


def built_on(base: type[Partitioner]) -> Iterator[type[Partitioner]]:
    """Its subclasses that cut something themselves or say something about a cut; others are there to build on."""
    for c in base.__subclasses__():
        yield from built_on(c)
        if c is not PartitionerOver and not isabstract(c):
            yield c


def test_every_partitioner_is_in_the_list():
    public = {c for c in built_on(Partitioner) if c.__module__.startswith("lightning_vfl.")}
    assert public == set(CASES) | SHARING | LACKING


@pytest.mark.parametrize("partitioner", CASES, ids=lambda c: c.__name__)
@given(data=st.data())
@examples(20)
def test_every_column_goes_to_exactly_one_group(partitioner, data):
    cut, layout, parties = data.draw(CASES[partitioner]())
    parts = cut.split(layout)
    assert len(parts) == parties
    together = cut.groups(parties)
    assert sorted(party for group in together for party in group) == list(range(parties))
    assert sorted(int(p) for group in together for p in parts[group[0]].positions) == list(range(layout.size))
    for group in together:
        assert all(np.array_equal(parts[m].positions, parts[group[0]].positions) for m in group)
        assert {parts[m].shape for m in group} == {parts[group[0]].shape}
    assert all(len(part.positions) == np.prod(part.shape) > 0 for part in parts)


OVER = {
    Groups: {"members": [1, 2]},
    LabelPartition: {"active": 2, "seed": 3},
    LimitedOverlap: {"aligned": 4, "seed": 3, "only_aligned": True},
    MissingAtRandom: {"p": 0.5},
    MissingAtTest: {"parties": [1]},
    OnlyParties: {"there": [True, False]},
    OverlappingColumns: {"shared": 0.5},
}


def test_every_partitioner_over_another_is_in_its_list():
    assert {c for c in built_on(PartitionerOver) if c.__module__.startswith("lightning_vfl.")} == set(OVER)


@pytest.mark.parametrize("over", OVER, ids=lambda c: c.__name__)
def test_the_usual_cut_fills_in_for_none(over):
    usual = ContiguousColumns(2)
    cut = over(None, **OVER[over])
    filled = cut.with_default(usual)
    assert repr(filled) == repr(over(usual, **OVER[over]))
    assert cut.partitioner is None  # the one that was given stays as it was
    assert filled.with_default(ContiguousColumns(3)) is filled
    assert own_classes()[over.__name__] == f"lightning_vfl.datamodules.{over.__name__}"


@pytest.mark.parametrize(("cut", "axis"), [(RowStrips(3), 1), (Grid(1, 3), 2)])
def test_strips_reassemble_to_the_image(cut, axis):
    image = np.arange(2 * 7 * 8).reshape(2, 7, 8)
    parts = cut.split(Layout(image.shape))
    assert np.array_equal(np.concatenate([image.reshape(-1)[p.positions].reshape(p.shape) for p in parts], axis), image)


def test_tiles_come_row_by_row():
    image = np.arange(36).reshape(1, 6, 6)
    corners = [
        image.reshape(-1)[part.positions].reshape(part.shape)[0, 0, 0] for part in Grid(2, 2).split(Layout((1, 6, 6)))
    ]
    assert corners == [0, 3, 18, 21]


def test_views_of_images_are_shared_as_channels():
    image = np.arange(6 * 2 * 2).reshape(6, 2, 2)
    parts = Views(2).split(Layout(image.shape, views=(4, 8, 12)))
    assert [image.reshape(-1)[part.positions].reshape(part.shape).tolist() for part in parts] == [
        image[:3].tolist(),
        image[3:].tolist(),
    ]


def test_sizes_are_even_and_the_first_parts_are_the_larger():
    sizes = [len(part.positions) for part in ContiguousColumns(4).split(tables(4, 6))]
    assert sizes == [len(run) for run in np.array_split(np.arange(10), 4)]


def test_random_columns_depend_on_the_seed_alone():
    def cut(seed: int) -> list[list[int]]:
        return [part.positions.tolist() for part in RandomColumns(3, seed).split(tables(3, 20))]

    assert cut(5) == cut(5) != cut(6)


def test_a_name_stands_for_its_one_hot_columns():
    layout = Layout((4,), ("age", "job=clerk", "job=farmer", "jobless"))
    parts = NamedColumns({"a": ["jobless", "age"], "b": ["job"]}).split(layout)
    assert [part.positions.tolist() for part in parts] == [[3, 0], [1, 2]]


def test_named_columns_may_leave_out_columns_when_asked():
    parts = NamedColumns({"a": ["c2"]}, drop_rest=True).split(tables(4, 0))
    assert [part.positions.tolist() for part in parts] == [[2]]


@pytest.mark.parametrize(
    ("cut", "layout", "message"),
    [
        (ContiguousColumns(4), Layout((3,)), "4 parties cannot share 3 columns; use 1 to 3 parties"),
        (RandomColumns(0), Layout((3,)), "0 parties cannot share 3 columns"),
        (RowStrips(5), Layout((1, 4, 9)), "5 parties cannot share 4 rows of pixels"),
        (Grid(1, 5), Layout((1, 9, 4)), "5 parties cannot share 4 columns of pixels"),
        (RowStrips(2), Layout((9,)), "use ContiguousColumns, RandomColumns or NamedColumns"),
        (Views(), Layout((9,)), "Views needs data with views"),
        (Views(3), Layout((9,), views=(4, 5)), "3 parties cannot share 2 views; use 1 to 2 parties"),
        (NamedColumns({"a": ["x"]}), Layout((1, 2, 2)), "use RowStrips or Grid for images"),
        (NamedColumns({"a": ["x"]}), Layout((1,), ("y",)), "party 'a' is given column 'x', which the data do not have"),
        (NamedColumns({"a": ["x"], "b": ["x"]}), Layout((1,), ("x",)), "column 'x' is given to both 'a' and 'b'"),
        (NamedColumns({"a": ["x"]}), Layout((3,), ("x", "y", "z")), r"2 columns are given to no party \(y, z\)"),
        (NamedColumns({"a": ["x"], "b": []}), Layout((1,), ("x",)), "gives party 1 no column"),
    ],
)
def test_an_impossible_cut_is_refused(cut, layout, message):
    with pytest.raises(ConfigurationError, match=message):
        cut.split(layout)


def test_a_broken_promise_is_noticed():
    class Overlapping(Partitioner):
        def parts(self, layout: Layout) -> tuple[Part, ...]:
            return (Part(np.array([0, 1]), (2,)), Part(np.array([1]), (1,)))

    with pytest.raises(ConfigurationError, match="1 columns go to no party and 1 to several"):
        Overlapping().split(Layout((3,)))
