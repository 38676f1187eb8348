from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.schedules.batches import InOrder, Phases, Shuffled
from lightning_vfl.streams import permutation
from tests.examples import examples

sizes = st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


@given(sizes, st.integers(0, 3), st.integers(0, 4), st.booleans())
def test_every_record_once_an_epoch(size, seed, epoch, drop_last):
    records, batch_size = size
    schedule = Shuffled(records, batch_size, seed, drop_last)
    plan = [ids.tolist() for ids, _ in schedule.epoch(epoch)]
    order = list(chain.from_iterable(plan))
    whole = records - records % batch_size if drop_last else records
    assert len(order) == len(set(order)) == whole
    assert set(order) <= set(range(records))
    assert len(plan) == schedule.steps
    assert all(len(ids) == batch_size for ids in plan[:-1])
    assert schedule.whole_passes == (whole == records)
    assert schedule.steps / schedule.pass_batches == pytest.approx(whole / records)


def test_an_epoch_depends_on_its_number_and_the_seed_alone():
    one, other = Shuffled(50, 7, seed=1), Shuffled(50, 7, seed=1)
    one.epoch(0), one.epoch(1)
    assert [ids.tolist() for ids, _ in one.epoch(4)] == [ids.tolist() for ids, _ in other.epoch(4)]
    assert [ids.tolist() for ids, _ in one.epoch(4)] != [ids.tolist() for ids, _ in one.epoch(5)]
    assert [ids.tolist() for ids, _ in one.epoch(4)] != [ids.tolist() for ids, _ in Shuffled(50, 7, seed=2).epoch(4)]


def test_a_batch_larger_than_the_data_names_the_fix():
    with pytest.raises(ConfigurationError, match="must be a whole number from 1 to 10"):
        Shuffled(10, 11, seed=0)


def test_in_order_keeps_the_order():
    assert [i for ids, _ in InOrder(10, 4).epoch(3) for i in ids.tolist()] == list(range(10))


# ---- decoupled training

KINDS = ("representation", "representation", "representation", "replay", "owner", "owner")  # epoch 1 and 2 communicate


def phases(present, batch_size, seed=0, parties=2, drop_last=False, first=1):
    return Phases(
        len(present), present, batch_size, seed, parties, lambda e: KINDS[e], lambda e: first <= e < 3, drop_last
    )


@st.composite
def shares(draw):
    """Who holds which of up to 20 records, and a batch size that everybody can fill."""
    parties = draw(st.integers(1, 4))
    rows = draw(st.lists(st.lists(st.booleans(), min_size=parties, max_size=parties), max_size=20))
    present = np.array([[True] * parties, *rows])[draw(st.permutations(range(len(rows) + 1)))]
    return present, draw(st.integers(1, int(present.sum(0).min()))), draw(st.integers(0, 3)), parties


def columns(schedule, epoch):
    return np.stack([ids for ids, _ in schedule.epoch(epoch)])  # (steps, B, M + 1)


@given(shares(), st.integers(0, 3))
@examples(40)
def test_a_guest_goes_through_its_records_again_and_again(case, epoch):
    present, batch_size, _, parties = case
    schedule = phases(*case)
    ids = columns(schedule, epoch)
    assert ids.dtype == np.int64
    assert ids.shape == (schedule.steps, batch_size, parties + 1)
    assert schedule.steps == -(-present.sum(0).max() // batch_size)
    for party in range(parties):
        held, order = present[:, party].nonzero()[0].tolist(), ids[:, :, party].ravel().tolist()
        runs = [order[start : start + len(held)] for start in range(0, len(order), len(held))]
        assert all(sorted(run) == held for run in runs[:-1])
        assert len(set(runs[-1])) == len(runs[-1])
        assert set(runs[-1]) <= set(held)
        assert len(held) < present.sum(0).max() or set(order) == set(held)


@given(shares(), st.booleans())
@examples(40)
def test_hosts_learn_of_records_that_have_been_sent(case, drop_last):
    present, batch_size, _, _ = case
    schedule = phases(*case, drop_last=drop_last)
    untold, first, later, replay = (columns(schedule, epoch) for epoch in range(4))
    assert np.array_equal(untold[:, :, -1], untold[:, :, 0])
    for step, hosts in enumerate(first[:, :, -1].tolist()):
        assert len(set(hosts)) == batch_size
        assert set(hosts) <= set(first[: step + 1, :, :-1].ravel().tolist())
    sent = set(first[:, :, :-1].ravel().tolist())
    if not drop_last:
        assert sent == set(present.any(1).nonzero()[0].tolist())
    for ids, known in ((later, sent), (replay, sent | set(later[:, :, :-1].ravel().tolist()))):
        order = ids[:, :, -1].ravel().tolist()
        assert set(order) <= known
        assert len(set(order[: len(known)])) == min(len(order), len(known))


@given(shares())
@examples(40)
def test_the_owner_goes_through_what_everybody_holds(case):
    present, batch_size, _, _ = case
    schedule = phases(*case)
    common = present.all(1).nonzero()[0].tolist()
    batches = [ids.tolist() for ids, _ in schedule.epoch(4)]
    assert [len(ids) for ids in batches] == [min(batch_size, len(common))] * schedule.steps
    order = [i for ids in batches for i in ids]
    for start in range(0, len(order), len(common)):
        one = order[start : start + len(common)]
        assert sorted(one) == common or (len(one) < len(common) and len(set(one)) == len(one) and set(one) <= {*common})


def test_phases_in_plain_python():
    present = np.array([[1, 1], [1, 0], [0, 1], [1, 1], [1, 0], [1, 0], [0, 1]], dtype=bool)
    held, common, batch_size, seed = [[0, 1, 3, 4, 5], [0, 2, 3, 6]], [0, 3], 3, 9

    def shuffled(pool, *names):
        return [pool[i] for i in permutation(len(pool), seed, "order", "fit", *names)]

    def guest(epoch, party):
        return [*shuffled(held[party], epoch, party, 0), *shuffled(held[party], epoch, party, 1)][:6]

    def known(epoch, rows):
        return sorted({*guest(epoch, 0)[:rows], *guest(epoch, 1)[:rows]})

    hosts = {
        0: guest(0, 0),
        1: [*shuffled(known(1, 3), 1, "hosts", 0)[:3], *shuffled(known(1, 6), 1, "hosts", 1)[:3]],
        2: shuffled(list(range(7)), 2, "hosts", 0)[:6],
        3: shuffled(list(range(7)), 3, "hosts", 0)[:6],
    }
    schedule = phases(present, batch_size, seed)
    assert (schedule.steps, schedule.pass_batches) == (2, 5 / 3)  # 5 records in batches of 3
    for epoch, host in hosts.items():
        rows = [[*row] for row in zip(guest(epoch, 0), guest(epoch, 1), host, strict=True)]
        assert [ids.tolist() for ids, _ in schedule.epoch(epoch)] == [rows[:3], rows[3:]]
    assert known(1, 3) != list(range(7)) == known(1, 6)
    assert [ids.tolist() for ids, _ in schedule.epoch(4)] == [shuffled(common, 4, "owner", i) for i in range(2)]
    assert [event for epoch in range(6) for _, event in schedule.epoch(epoch)] == [None] * 12


@pytest.mark.parametrize(("first", "known"), [(1, 7), (2, 6)])  # two epochs that communicate, or one
def test_what_was_left_out_of_an_epoch_is_not_known_to_have_been_sent(first, known):
    present = np.ones((7, 2), dtype=bool)
    present[1:5, 1] = False  # guest 0 has six of its seven records a short epoch, guest 1 all its three
    schedule = phases(present, 3, drop_last=True, first=first)
    assert schedule.steps == 2
    told = [set(columns(schedule, epoch)[:, :, :2].ravel().tolist()) for epoch in range(first, 3)]
    assert [len(records) for records in told] == [6] * len(told)
    sent = sorted(set.union(*told))
    assert len(sent) == known
    order = permutation(known, 0, "order", "fit", 3, "hosts", 0)[:6]
    assert columns(schedule, 3)[:, :, 2].ravel().tolist() == [sent[i] for i in order]


@pytest.mark.parametrize("drop_last", [False, True])
def test_phases_where_everybody_holds_everything_are_shuffled(drop_last):
    usual = Shuffled(11, 4, 5, drop_last)
    schedule = Phases(11, None, 4, 5, 3, lambda e: KINDS[e], lambda e: e == 0, drop_last)
    assert (schedule.steps, schedule.pass_batches) == (usual.steps, usual.pass_batches)
    for epoch in range(6):
        assert [ids.tolist() for ids, _ in schedule.epoch(epoch)] == [ids.tolist() for ids, _ in usual.epoch(epoch)]


def test_phases_are_pure_in_seed_and_epoch():
    present = np.arange(60).reshape(20, 3) % 4 > 0

    def plans(seed=0, epochs=range(6)):
        schedule = phases(present, 4, seed, 3)
        return {epoch: [ids.tolist() for ids, _ in schedule.epoch(epoch)] for epoch in epochs}

    assert plans() == plans(epochs=reversed(range(6)))
    assert all(plans()[epoch] != plans(seed=1)[epoch] for epoch in range(6))
    assert plans()[0] != plans()[1]
    assert plans()[4] != plans()[5]
    assert phases(present, 4, 0, 3).state_dict() == {}


@pytest.mark.parametrize(
    ("present", "batch_size", "message"),
    [
        (
            [[1, 0], [0, 1]],
            1,
            "none of the 2 training records is held by all 2 parties, but the owner trains on such records; give the "
            "parties some records in common",
        ),
        ([[1, 0], [1, 0]], 1, "party 1 holds no training record; assign it records or leave the party out"),
        ([[1, 1], [1, 0]], 2, "batch_size must be a whole number from 1 to 1; got 2; party 1 holds 1 training records"),
    ],
)
def test_phases_that_cannot_be(present, batch_size, message):
    with pytest.raises(ConfigurationError) as error:
        phases(np.array(present, dtype=bool), batch_size)
    assert str(error.value) == message
    with pytest.raises(ConfigurationError, match="batch_size must be a whole number from 1 to 2; got 3"):
        Phases(2, None, 3, 0, 2, lambda e: "owner", lambda e: False)
