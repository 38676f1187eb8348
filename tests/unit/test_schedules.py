import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.schedules import InOrder, Shuffled

sizes = st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


@given(sizes, st.integers(0, 3), st.integers(0, 4))
def test_every_record_once_an_epoch(size, seed, epoch):
    records, batch_size = size
    schedule = Shuffled(records, batch_size, seed)
    plan = schedule.epoch(epoch)
    assert sorted(i for ids, _ in plan for i in ids.tolist()) == list(range(records))
    assert len(plan) == schedule.steps
    assert all(len(ids) == batch_size for ids, _ in plan[:-1])


@given(sizes, st.integers(0, 3))
def test_drop_last_leaves_whole_batches_only(size, seed):
    records, batch_size = size
    schedule = Shuffled(records, batch_size, seed, drop_last=True)
    plan = schedule.epoch(0)
    assert len(plan) == schedule.steps == records // batch_size
    assert all(len(ids) == batch_size for ids, _ in plan)


def test_an_epoch_depends_on_its_number_and_the_seed_alone():
    one, other = Shuffled(50, 7, seed=1), Shuffled(50, 7, seed=1)
    one.epoch(0), one.epoch(1)
    assert [ids.tolist() for ids, _ in one.epoch(4)] == [ids.tolist() for ids, _ in other.epoch(4)]
    assert [ids.tolist() for ids, _ in one.epoch(4)] != [ids.tolist() for ids, _ in one.epoch(5)]
    assert [ids.tolist() for ids, _ in one.epoch(4)] != [ids.tolist() for ids, _ in Shuffled(50, 7, seed=2).epoch(4)]


def test_a_batch_larger_than_the_data_names_the_fix():
    with pytest.raises(ConfigurationError, match="lower it to at most 10"):
        Shuffled(10, 11, seed=0)


def test_in_order_keeps_the_order():
    assert [i for ids, _ in InOrder(10, 4).epoch(3) for i in ids.tolist()] == list(range(10))
