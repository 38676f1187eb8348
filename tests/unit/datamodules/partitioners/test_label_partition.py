"""Laws of sharing labels out: evenly, by class and from a file."""

import csv
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.datamodules import (
    ContiguousColumns,
    Groups,
    LabelPartition,
    Layout,
    LimitedOverlap,
    Partitioner,
    RandomColumns,
    Unchanged,
)
from lightning_vfl.datamodules.base import SplitName
from lightning_vfl.datamodules.records.records import Split
from lightning_vfl.errors import ConfigurationError

from ..miniature import InMemory, table

SPLITS: dict[SplitName, Split] = {
    "train": table(23, 5, 0),
    "val": table(9, 5, 1),
    "test": table(8, 5, 2),
    "predict": table(7, 5, 3),
}
PAPER = [[0, 1, 2], [2, 3, 4], [5, 6, 7], [7, 8, 9]]  # section 5.4.2
CIFAR = [[0, 1, 2, 3, 4, 5, own] for own in (6, 7, 8, 9)]


def opened(partitioner: Partitioner) -> InMemory:
    data = InMemory(SPLITS, partitioner=partitioner, normaliser=Unchanged())
    for stage in ("fit", "test", "predict"):
        data.setup(stage)
    return data


def holders(cut, labels, parties=4):
    labels = np.asarray(labels)
    return cut.label_holders(labels, np.array([f"r{i}" for i in range(len(labels))]), parties)


def written(path, rows, head=("id", "party")):
    with open(path, "w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([head, *rows])
    return path


# ---- evenly


@given(st.integers(1, 80), st.data(), st.integers(1, 8), st.integers(0, 2**40))
def test_everybody_has_as_many_and_the_first_have_the_one_more(records, data, parties, seed):
    active = data.draw(st.none() | st.integers(1, parties))
    sharers = active or parties
    cut = LabelPartition(ContiguousColumns(parties), active=active, seed=seed)
    labels = np.zeros(records, dtype=np.int64)
    if sharers > records:
        with pytest.raises(ConfigurationError, match="active must be at most"):
            holders(cut, labels, parties)
        return
    own = holders(cut, labels, parties)
    assert (own.shape, own.dtype) == ((records,), np.dtype(np.int64))
    counts = [int((own == m).sum()) for m in range(parties)]
    assert counts == [len(run) for run in np.array_split(np.arange(records), sharers)] + [0] * (parties - sharers)


def test_equal_shares_are_drawn_at_random_and_by_the_seed_alone():
    draws = {}
    for seed in (0, 1):
        cut = LabelPartition(ContiguousColumns(4), active=3, seed=seed)
        draws[seed] = holders(cut, np.arange(60) // 20)
        assert draws[seed].tolist() == holders(cut, np.zeros(60)).tolist()  # labels are not looked at
        assert draws[seed].tolist() != sorted(draws[seed].tolist())
    assert draws[0].tolist() != draws[1].tolist()


# ---- by class


@st.composite
def by_class(draw: st.DrawFn):
    parties = draw(st.integers(1, 5))
    classes = [sorted(draw(st.sets(st.integers(0, 6), min_size=1, max_size=4))) for _ in range(parties)]
    known = sorted(set().union(*classes))
    labels = draw(st.lists(st.sampled_from(known), min_size=40, max_size=90))
    labels += [k for k in known for _ in range(parties)]  # enough of each that nobody is left without
    return classes, draw(st.permutations(labels)), draw(st.integers(0, 2**40))


@given(by_class())
def test_every_party_has_labels_of_its_classes_and_an_equal_part_of_those_it_shares(case):
    classes, labels, seed = case
    cut = LabelPartition(ContiguousColumns(8), classes=classes, seed=seed)
    own = holders(cut, labels, 8)
    assert own.min() >= 0
    for k in set(labels):
        owners = [m for m, named in enumerate(classes) if k in named]
        counts = Counter(own[np.asarray(labels) == k].tolist())
        assert set(counts) == set(owners)
        shares = [counts[m] for m in owners]
        assert shares == [len(run) for run in np.array_split(np.arange(sum(shares)), len(owners))]


def test_the_classes_of_the_paper():
    labels = np.arange(1000) % 10
    own = holders(LabelPartition(ContiguousColumns(4), classes=PAPER), labels)
    assert np.bincount(own).tolist() == [250, 250, 250, 250]
    assert [sorted(set(labels[own == m].tolist())) for m in range(4)] == PAPER
    assert [(own[labels == 2] == m).sum() for m in (0, 1)] == [50, 50]
    own = holders(LabelPartition(ContiguousColumns(4), classes=CIFAR), labels)
    assert [sorted(set(labels[own == m].tolist())) for m in range(4)] == CIFAR
    assert all((own[labels == 6 + m] == m).all() for m in range(4))
    assert all(np.bincount(own[labels == k]).tolist() == [25] * 4 for k in range(6))


def test_records_of_a_shared_class_are_divided_at_random_and_by_the_seed():
    labels = np.zeros(40, dtype=np.int64)
    one, two = (
        holders(LabelPartition(ContiguousColumns(4), classes=[[0], [0]], seed=seed), labels).tolist() for seed in (0, 1)
    )
    assert one != two
    assert one != sorted(one)


def test_classes_are_drawn_apart():
    """Who has which of a class does not repeat in the next one."""
    labels = np.repeat([0, 1], 40)
    own = holders(LabelPartition(ContiguousColumns(4), classes=[[0, 1], [0, 1]]), labels)
    assert own[:40].tolist() != own[40:].tolist()


def test_classes_that_no_record_has_do_no_harm():
    own = holders(LabelPartition(ContiguousColumns(4), classes=[[0, 7], [1, 9]]), [0, 1, 0, 1])
    assert own.tolist() == [0, 1, 0, 1]


# ---- from a file


@given(st.lists(st.integers(-1, 3), min_size=1, max_size=30), st.randoms())
def test_the_holders_are_those_of_the_file(tmp_path_factory, said, random):
    rows = [(f"r{i}", party) for i, party in enumerate(said) if party >= 0]
    if not rows:
        return
    random.shuffle(rows)
    file = written(tmp_path_factory.mktemp("labels") / "it.csv", [*rows, ("a record of another split", 2)])
    assert holders(LabelPartition(ContiguousColumns(4), file=file), np.zeros(len(said))).tolist() == said


def test_ids_may_be_numbers_and_columns_in_any_order(tmp_path):
    file = written(tmp_path / "it.csv", [("x", 1, 7), ("y", 0, 8)], head=("why", "party", "id"))
    cut = LabelPartition(ContiguousColumns(2), file=str(file))
    assert cut.label_holders(np.zeros(3), np.array([8, 9, 7]), 2).tolist() == [0, -1, 1]


# ---- as a partitioner


@pytest.mark.parametrize("inner", [ContiguousColumns(3), RandomColumns(3, 7), Groups(ContiguousColumns(2), [1, 2])])
def test_columns_and_records_are_those_of_the_other_partitioner(inner):
    cut, layout = LabelPartition(inner, active=2), Layout((7,))
    for own, other in zip(cut.split(layout), inner.split(layout), strict=True):
        assert own.positions.tolist() == other.positions.tolist()
        assert own.shape == other.shape
    assert cut.groups(3) == inner.groups(3)
    mine, others = cut.held("train", 9, 3), inner.held("train", 9, 3)
    assert (mine is others is None) or np.array_equal(mine, others)


def test_training_records_say_who_holds_their_labels_and_no_others_do():
    cut = LabelPartition(ContiguousColumns(3), active=2, seed=5)
    data = opened(cut)
    train = data.records("train")
    assert train.label_holders.dtype == torch.int64
    assert train.label_holders.tolist() == cut.label_holders(np.zeros(23), train.ids, 3).tolist()
    assert torch.bincount(train.label_holders).tolist() == [12, 11]
    for name in ("val", "test", "predict"):
        assert data.records(name).label_holders is None
    assert torch.equal(train.labels, SPLITS["train"].labels)


@pytest.mark.parametrize("only", [False, True])
@pytest.mark.parametrize("over", [False, True])
def test_with_a_limited_overlap_either_way_round(over, only):
    """Labels are shared out before records are left out: who holds one does not depend on who else is there."""

    def cut():
        if over:
            return LabelPartition(LimitedOverlap(ContiguousColumns(3), 6, only_aligned=only), active=2)
        return LimitedOverlap(LabelPartition(ContiguousColumns(3), active=2), 6, only_aligned=only)

    records = opened(cut()).records("train")
    whole = opened(LabelPartition(ContiguousColumns(3), active=2)).records("train")
    of = dict(zip(whole.ids.tolist(), whole.label_holders.tolist(), strict=True))
    assert len(records) == len(records.label_holders) == (6 if only else 23)
    assert records.label_holders.tolist() == [of[key] for key in records.ids.tolist()]
    assert (records.present is None) == only


@pytest.mark.parametrize("over", [False, True])
def test_with_groups_either_way_round(over):
    """Four parties, two of whom share columns: numbers of parties are those that come out."""
    inner = ContiguousColumns(3)
    cut = (
        LabelPartition(Groups(inner, [1, 1, 2]), active=3)
        if over
        else Groups(LabelPartition(inner, active=3), [1, 1, 2])
    )
    records = opened(cut).records("train")
    assert torch.bincount(records.label_holders).tolist() == [8, 8, 7]
    assert records.present.shape == (23, 4)


def test_labels_that_are_held_otherwise_are_a_file_of_another_content(tmp_path):
    """A checkpoint knows the file by its name; what it says is looked at again."""
    file = written(tmp_path / "it.csv", [(f"r{i}", i % 2) for i in range(23)])
    cut = LabelPartition(ContiguousColumns(2), file=file)
    assert opened(cut).records("train").label_holders.tolist() == [i % 2 for i in range(23)]
    written(file, [(f"r{i}", 1 - i % 2) for i in range(23)])
    assert opened(cut).records("train").label_holders.tolist() == [1 - i % 2 for i in range(23)]


# ---- refusals


def asked(labels=(0, 1, 2, 0), parties=2, **settings):
    return lambda folder: holders(LabelPartition(ContiguousColumns(parties), **settings), list(labels), parties)


def filed(text, parties=2):
    def ask(folder):
        (folder / "it.csv").write_text(text)
        return holders(LabelPartition(ContiguousColumns(parties), file=folder / "it.csv"), [0, 0], parties)

    return ask


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (asked(active=1, classes=[[0]]), "only one of active, classes and file can be given; leave the others out"),
        (asked(active=2, file="it.csv"), "only one of active, classes and file can be given; leave the others out"),
        (asked(active=0), "active must be at least 1; got 0"),
        (asked(active=3), "labels are given to party 2, but the parties are 0 to 1; give them to these"),
        (asked(labels=[0], active=2), "active must be at most 1, the number of training labels; got 2"),
        (asked(classes=[]), "classes must have at least one class for each of the first parties; add classes"),
        (asked(classes=[[0, 1, 2], []]), "classes must have at least one class for each"),
        (asked(classes=[[0, 0], [1, 2]]), "classes must name each class once for a party; got"),
        (asked(classes=[[0], [1]]), "the labels of class 2 are given to no party; name it in classes, or leave its"),
        (asked(classes=[[0, 1, 2], [5]]), r"party 1 would hold no label: .* its classes \[5\] is left for it; give it"),
        (asked(labels=[0, 1], classes=[[0, 1], [1]]), "party 1 would hold no label"),
        (
            asked(classes=[[0], [1], [2]]),
            "labels are given to party 2, but the parties are 0 to 1; give them to these",
        ),
        (asked(file="nowhere.csv"), "nowhere.csv cannot be read .*; give a CSV file with the col"),
        (filed("key,party\nr0,1\n"), r"it.csv cannot be read \(.*\); give"),
        (filed("id,party\nr0\n"), r"it.csv cannot be read \(.*\); give"),
        (filed("id,party\nr0,first\n"), r"it.csv cannot be read \(.*\); give"),
        (filed("id,party\nr0,1\nr0,0\n"), "names 1 records twice; name each once"),
        (filed("id,party\nr0,2\n"), "label of record r0 to party 2, but the parties are 0 to 1; correct its number"),
        (filed("id,party\nr0,-1\n"), "gives the label of record r0 to party -1"),
        (filed("id,party\nx0,1\n"), "names none of the 2 training records, whose ids are like r0; use their ids"),
        (filed("id,party\n"), "names none of the 2 training records"),
        (filed(""), "names none of the 2 training records"),
        (lambda _: LabelPartition(active=1).split(Layout((4,))), "LabelPartition needs another partitioner"),
    ],
)
def test_what_cannot_be_shared_out_is_refused_in_one_line(tmp_path, ask, message):
    with pytest.raises(ConfigurationError, match=message) as error:
        ask(tmp_path)
    assert "\n" not in str(error.value)
