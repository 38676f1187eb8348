"""Groups of parties: the same columns for different records, each record with exactly one party of every group."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.cli import run
from lightning_vfl.commands.known_classes import own_classes
from lightning_vfl.datamodules import (
    BankMarketing,
    ContiguousColumns,
    Grid,
    Groups,
    Layout,
    NamedColumns,
    Part,
    Partitioner,
    Split,
    Standardise,
    Unchanged,
)
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.streams import permutation
from lightning_vfl.types import Roster
from tests.examples import examples

from ..miniature import InMemory, bank, table, write_bank

SPLITS = ("train", "val", "test", "predict")
STAGES = ("fit", "test", "predict")


def open_splits(partitioner: Partitioner, normaliser: Any = None, columns: int = 5, **splits: Split):
    usual: Any = {
        name: table(n, columns, seed) for seed, (name, n) in enumerate(zip(SPLITS, (23, 9, 8, 7), strict=True))
    }
    data = InMemory(usual | splits, partitioner=partitioner, normaliser=normaliser or Unchanged())
    for stage in STAGES:
        data.setup(stage)
    return data


# ---- the partitioner


def test_party_numbers_run_through_the_groups_in_order():
    cut = Groups(ContiguousColumns(3), [1, 2, 2])
    assert cut.groups(5) == ((0,), (1, 2), (3, 4))
    parts = cut.split(Layout((7,)))
    assert [part.positions.tolist() for part in parts] == [[0, 1, 2], [3, 4], [3, 4], [5, 6], [5, 6]]


def test_images_keep_their_shapes():
    parts = Groups(Grid(1, 2), [2, 1]).split(Layout((3, 4, 6)))
    assert [part.shape for part in parts] == [(3, 4, 3)] * 3


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 60), st.integers(0, 2**40))
@examples(40)
def test_every_record_is_with_one_party_of_each_group_in_equal_shares(members, records, seed):
    cut = Groups(ContiguousColumns(len(members)), members, seed)
    for split in SPLITS:
        held = cut.held(split, records, sum(members))
        if max(members) == 1:
            assert held is None
            continue
        assert (held.shape, held.dtype) == ((records, sum(members)), np.dtype(bool))
        for group in cut.groups(sum(members)):
            assert (held[:, list(group)].sum(1) == 1).all()
            sizes = held[:, list(group)].sum(0)
            assert sizes.max() - sizes.min() <= 1
            assert sorted(sizes, reverse=True) == sizes.tolist()  # the first are the larger


def test_the_shares_are_those_of_the_named_stream():
    held = Groups(ContiguousColumns(2), [2, 3], seed=5).held("val", 11, 5)
    first = permutation(11, 5, "groups", "val", 1)
    assert sorted(first[:4].tolist()) == held[:, 2].nonzero()[0].tolist()
    assert sorted(first[4:8].tolist()) == held[:, 3].nonzero()[0].tolist()
    assert sorted(first[8:].tolist()) == held[:, 4].nonzero()[0].tolist()
    second = permutation(11, 5, "groups", "val", 0)
    assert sorted(second[:6].tolist()) == held[:, 0].nonzero()[0].tolist()


def test_seed_split_and_group_name_the_draw():
    def shares(seed=0, split="train", group=0):
        return Groups(ContiguousColumns(2), [2, 2], seed).held(split, 40, 4)[:, 2 * group].tolist()

    assert shares() == shares()
    assert len({tuple(shares(**one)) for one in ({}, {"seed": 1}, {"split": "test"}, {"group": 1})}) == 4


def test_everybody_else_is_a_group_alone_and_holds_everything():
    assert ContiguousColumns(3).groups(3) == ((0,), (1,), (2,)) == Roster.singles(3).groups
    assert ContiguousColumns(3).held("train", 9, 3) is None
    assert Groups(ContiguousColumns(3), [1, 1, 1]).held("train", 9, 3) is None
    assert Groups(ContiguousColumns(3), [1, 2, 1]).held("train", 9, 4)[:, [0, 3]].all()


def test_own_shares_of_the_wrapped_partitioner_stay():
    class Halves(ContiguousColumns):
        def held(self, split: str, records: int, parties: int) -> Any:  # part 1 knows nothing of odd records
            return np.stack([np.ones(records, dtype=bool), np.arange(records) % 2 == 0], axis=1)

    held = Groups(Halves(2), [1, 3]).held("train", 20, 4)
    assert held[:, 0].all()
    assert held[:, 1:].sum(1).tolist() == [1, 0] * 10


class Shared(Partitioner):
    """Two parties of one group; who holds what is up to the test."""

    covering = False

    def __init__(self, held: Any = None) -> None:
        self._held = held

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        return (Part(np.arange(layout.size), (layout.size,)),) * 2

    def groups(self, parties: int) -> tuple[tuple[int, ...], ...]:
        return (tuple(range(parties)),)

    def held(self, split: str, records: int, parties: int) -> Any:
        return self._held


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Groups(ContiguousColumns(2), [1, 2, 2]).split(Layout((4,))),
            "members has 3 numbers, but ContiguousColumns makes 2 parts; give one number of parties for each part",
        ),
        (lambda: Groups(ContiguousColumns(2), []), "members must have a number of parties for each part; got none"),
        (lambda: Groups(ContiguousColumns(2), [1, 0]), "members must be 1 or more for every group; got 0 for group 1"),
        (lambda: Groups(ContiguousColumns(2), [-1, 2]), "must be 1 or more for every group; got -1 for group 0"),
        (
            lambda: Groups(None, [1, 2]).split(Layout((4,))),
            "Groups needs another partitioner; give it one, or pass Groups to a datamodule, which fills in its default",
        ),
        (
            lambda: Groups(Groups(ContiguousColumns(2), [1, 2]), [1, 1, 1]).split(Layout((4,))),
            "Groups makes groups of parties, and Groups needs parties of their own columns",
        ),
        (
            lambda: Groups(ContiguousColumns(2), [1, 2]).groups(2),
            r"Groups has 3 parties \(members 1, 2\); got 2 parties; pass the number of its parts",
        ),
        (lambda: Groups(ContiguousColumns(9), [1] * 9).split(Layout((4,))), "9 parties cannot share 4 columns"),
    ],
)
def test_impossible_groups(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


# ---- the records


def test_what_a_party_does_not_hold_is_zero_and_present_says_so():
    cut = Groups(ContiguousColumns(2), [1, 2], seed=4)
    data = open_splits(cut)
    assert data.party_shapes == ((3,), (2,), (2,))
    assert data.party_groups == ((0,), (1, 2))
    for name in SPLITS:
        records, original = data.records(name), data.splits[name].features
        assert torch.equal(records.present, torch.from_numpy(cut.held(name, len(records), 3)))
        own, first, second = records.rows(torch.arange(len(records)))
        assert torch.equal(own, original[:, :3])
        assert torch.equal(first + second, original[:, 3:])  # disjoint, and together everything
        assert torch.equal(first[~records.present[:, 1]], torch.zeros(int((~records.present[:, 1]).sum()), 2))
        assert torch.equal(second[~records.present[:, 2]], torch.zeros(int((~records.present[:, 2]).sum()), 2))


def test_each_party_scales_with_its_own_rows_and_absent_ones_stay_zero():
    data = open_splits(Groups(ContiguousColumns(2), [1, 2]), Standardise())
    records = data.records("train")
    for party, features in enumerate(records.rows(torch.arange(len(records)))):
        held = features[records.present[:, party]].double()
        torch.testing.assert_close(held.mean(0), torch.zeros_like(held[0]), rtol=0, atol=1e-6)
        torch.testing.assert_close(held.std(0, correction=0), torch.ones_like(held[0]), rtol=0, atol=1e-6)
        assert not features[~records.present[:, party]].any()
    rows = data.splits["train"].features[records.present[:, 1], 3:].double()
    tested = data.records("test")
    own = data.splits["test"].features[:, 3:].double().sub(rows.mean(0)).div(rows.std(0, correction=0)).float()
    expected = torch.where(tested.present[:, 1:2], own, 0.0)
    torch.testing.assert_close(tested.features_of(1, torch.arange(len(tested))), expected, rtol=0, atol=1e-5)


def test_both_data_and_groups_must_say_that_a_party_holds_a_record():
    cut = Groups(ContiguousColumns(2), [1, 2])
    split = table(23, 5)
    split.present = torch.rand(23, 3, generator=torch.Generator().manual_seed(0)) < 0.7
    before = split.present.clone()
    data = open_splits(cut, train=split)
    both = before & torch.from_numpy(cut.held("train", 23, 3))
    assert torch.equal(data.records("train").present, both)
    assert torch.equal(split.present, before)
    widths = torch.tensor([3, 2, 2])
    zeros = ~both.repeat_interleave(widths, dim=1)
    assert not data.records("train").features[zeros].any()
    assert data.records("train").features[~zeros].all()
    assert torch.equal(data.records("val").present, torch.from_numpy(cut.held("val", 9, 3)))


@pytest.mark.parametrize("name", ["train", "val", "test", "predict"])
def test_batches_carry_who_holds_what(name):
    data = open_splits(Groups(ContiguousColumns(2), [1, 2]))
    records = data.records(name)
    batches = list(getattr(data, f"{name}_dataloader")())
    assert sum(len(batch.record_ids) for batch in batches) == len(records)
    for batch in batches:
        assert torch.equal(batch.present, records.present[batch.record_ids])
        assert batch.joint.held == tuple(batch.present.any(0).nonzero().flatten().tolist())
        for features, present in zip(batch.features, batch.present.T, strict=True):
            assert torch.equal(features.any(1), present)


def test_a_value_that_is_not_finite_is_the_holders_alone():
    cut = Groups(ContiguousColumns(2), [1, 2])
    split = table(23, 5)
    split.features[6, 4] = float("nan")
    party = 1 + int(cut.held("train", 23, 3)[6, 2])
    with pytest.raises(ConfigurationError, match=rf"1 feature values .* first of party {party}, position 4, record r6"):
        open_splits(cut, train=split)


def test_more_parties_than_training_records():
    with pytest.raises(ConfigurationError, match="party 24 holds none of the 23 training records"):
        open_splits(Groups(ContiguousColumns(2), [1, 24]))


@pytest.mark.parametrize("held", [None, np.ones((23, 2), dtype=bool)])
def test_a_record_that_two_parties_of_a_group_hold(held):
    with pytest.raises(ConfigurationError) as error:
        InMemory({"train": table(23, 4)}, partitioner=Shared(held)).setup("fit")
    assert str(error.value) == (
        "23 train records are held by several parties of one group, first record r0 by parties 0 and 1; parties of a "
        "group hold different records, so give each to one of them"
    )


def test_the_first_record_that_two_parties_hold_is_named():
    held = np.arange(9)[:, None] % 2 == np.array([[0, 1]])
    held[5] = held[7] = True
    good = np.arange(9)[:, None] % 2 == np.array([[0, 1]])

    class OnlyVal(Shared):
        def held(self, split: str, records: int, parties: int) -> Any:
            return held if split == "val" else good

    data = InMemory({"train": table(9, 4), "val": table(9, 4)}, partitioner=OnlyVal())
    with pytest.raises(ConfigurationError, match=r"2 val records are held by .* first record r5 by parties 0 and 1;"):
        data.setup("fit")


def test_shared_records_in_the_data_s_own_words():
    split = table(6, 4)
    split.present = torch.tensor([[True, False], [False, True]] * 3)
    data = InMemory({"train": split}, partitioner=Shared())
    data.setup("fit")
    assert torch.equal(data.records("train").present, split.present)
    split.present[4, 1] = True
    with pytest.raises(ConfigurationError, match=r"1 train records .* first record r4 by parties 0 and 1"):
        InMemory({"train": split}, partitioner=Shared()).setup("fit")


def test_presence_for_another_number_of_parties():
    split = table(23, 5)
    split.present = torch.ones(23, 2, dtype=torch.bool)
    with pytest.raises(ConfigurationError) as error:
        open_splits(Groups(ContiguousColumns(2), [1, 2]), train=split)
    assert str(error.value) == (
        "present of the data has shape (23, 2) for the train records; return one truth value for each of the 23 "
        "records "
        "and 3 parties"
    )
    with pytest.raises(ConfigurationError, match=r"Shared.held has shape \(9, 2\)"):
        InMemory({"train": table(8, 4)}, partitioner=Shared(np.ones((9, 2), dtype=bool))).setup("fit")


# ---- the clients of vFedSec


def test_the_five_clients_of_bank_marketing(tmp_path):
    write_bank(tmp_path)
    usual = {"data_dir": tmp_path, "expected_records": None}
    single, grouped = BankMarketing(**usual), BankMarketing(Groups(None, [1, 2, 2]), **usual)
    assert grouped.party_shapes == ((57,), (3,), (3,), (20,), (20,))
    assert grouped.party_groups == ((0,), (1, 2), (3, 4))
    for data in (single, grouped):
        data.normaliser = Unchanged()
        for stage in STAGES:
            data.setup(stage)
    for name in SPLITS:
        one, five = single.records(name), grouped.records(name)
        assert one.ids.tolist() == five.ids.tolist()
        everybody = torch.arange(len(one))
        active, *groups = one.rows(everybody)
        members = five.rows(everybody)
        assert torch.equal(members[0], active)
        assert torch.equal(members[1] + members[2], groups[0])
        assert torch.equal(members[3] + members[4], groups[1])
        shares = five.present.sum(0).tolist()
        assert shares[0] == len(one)
        assert shares[1:] == [(len(one) + 1) // 2, len(one) // 2] * 2


def test_a_recipe_says_it_by_short_names(tmp_path):
    write_bank(tmp_path, bank(620))
    assert own_classes()["Groups"] == "lightning_vfl.datamodules.Groups"
    data = ["--data", "BankMarketing", f"--data.data_dir={tmp_path}", "--data.expected_records=null"]
    groups = ["--data.partitioner", "Groups", "--data.partitioner.members", "[1,2,2]", "--data.partitioner.seed", "3"]
    model = ["--config", "protocol/mean", "--trainer.max_steps=1", "--trainer.accelerator=cpu"]
    model += ["--model.allow_invertible_updates=true"]
    quiet = ["--trainer.logger=false", "--trainer.enable_checkpointing=false", "--trainer.enable_progress_bar=false"]
    done = run(["fit", *data, *groups, *model, *quiet, f"--trainer.default_root_dir={tmp_path}"])
    assert done.datamodule.party_groups == ((0,), (1, 2), (3, 4))
    assert isinstance(done.datamodule.partitioner.partitioner, NamedColumns)
    assert done.datamodule.partitioner.seed == 3
