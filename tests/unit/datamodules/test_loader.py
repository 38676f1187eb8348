"""Laws: ranks together see exactly the joint batch; a run that was killed continues with the very next batch."""

from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
import torch

from lightning_vfl.datamodules import VerticalRecords
from lightning_vfl.datamodules.loader import ScheduledLoader
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.schedules.batches import InOrder, Phases, Shuffled
from lightning_vfl.types import Joint, VerticalBatch

N, BATCH = 23, 7  # three whole batches and one of 2 records, fewer than the ranks
FEATURES = torch.arange(N * 4.0).reshape(N, 4)
PROCESSES = [pytest.mark.processes, pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker")]
workers = pytest.mark.parametrize("workers", [0, pytest.param(2, marks=PROCESSES)])


def loader(rank: int = 0, world: int = 1, workers: int = 0, seed: int = 3, drop: bool = False, **records: Any):
    data = VerticalRecords(FEATURES, ((3,), (1,)), torch.arange(N), np.arange(N), **records)
    return ScheduledLoader(data, Shuffled(N, BATCH, seed, drop), rank, world, workers)


def ids(batches) -> list[list[int]]:
    return [batch.record_ids.tolist() for batch in batches]


def flat(lists) -> list[int]:
    return list(chain.from_iterable(lists))


def epoch(number: int, seed: int = 3) -> list[list[int]]:
    return [positions.tolist() for positions, _ in Shuffled(N, BATCH, seed).epoch(number)]


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_ranks_together_see_exactly_the_joint_batch(world):
    ranks = [list(loader(rank, world)) for rank in range(world)]
    assert [len(batches) for batches in ranks] == [4] * world
    assert [flat(step) for step in zip(*map(ids, ranks), strict=True)] == epoch(0)
    for step, joint in zip(zip(*ranks, strict=True), epoch(0), strict=True):
        start = 0
        for batch in step:
            if world == 1:
                assert batch.joint is None
            else:
                assert batch.joint[:3] == Joint(start, len(joint))[:3]
                assert batch.joint.ids.tolist() == joint
            assert torch.equal(torch.cat(batch.features, 1), FEATURES[batch.record_ids])
            assert torch.equal(batch.labels, batch.record_ids)
            start += len(batch.record_ids)
        assert max(len(b.labels) for b in step) - min(len(b.labels) for b in step) <= 1


def test_the_joint_batch_says_who_holds_a_row_of_it():
    present = torch.zeros(N, 2, dtype=torch.bool)
    present[:, 0] = True
    present[epoch(0)[1][0], 1] = True  # party 1 holds one record, the first of the second batch
    for rank in range(2):
        batches = list(loader(rank, 2, present=present))
        assert [batch.joint.held for batch in batches] == [(0,), (0, 1), (0,), (0,)]
        assert torch.equal(batches[1].present, present[batches[1].record_ids])


def test_drop_last_leaves_out_the_smaller_batch():
    data = loader(drop=True)
    assert len(data) == 3
    assert ids(data) == epoch(0)[:3]


def test_epochs_differ_and_each_sees_every_record_once():
    data = loader()
    first, second = ids(data), ids(data)
    assert (first, second) == (epoch(0), epoch(1))
    assert first != second
    assert sorted(flat(second)) == list(range(N))


def test_the_seed_names_the_order():
    assert ids(loader(seed=3)) != ids(loader(seed=4))


@pytest.mark.parametrize(
    ("workers", "done"),
    [
        *((0, done) for done in (1, 3, 4)),
        pytest.param(2, 3, marks=PROCESSES),
        *(pytest.param(2, done, marks=[*PROCESSES, pytest.mark.slow]) for done in (1, 4)),
    ],
)
def test_a_restored_loader_continues_with_the_next_batch(workers, done):
    killed = loader(workers=workers)
    killed.sampler.set_epoch(2)
    seen = ids(islice(killed, done))
    state = killed.state_dict()
    assert state == {"epoch": 2, "offset": done, "steps": killed.schedule.steps, "schedule": {}}

    resumed = loader(workers=workers)
    resumed.load_state_dict(state)
    resumed.sampler.set_epoch(2)  # as the trainer does on resuming
    assert seen + ids(resumed) == epoch(2)
    assert ids(resumed) == epoch(3)


def test_a_run_killed_between_epochs_starts_the_next():
    killed = loader()
    list(killed)
    resumed = loader()
    resumed.load_state_dict(killed.state_dict())
    resumed.sampler.set_epoch(1)
    assert ids(resumed) == epoch(1)


@workers
def test_workers_change_neither_batches_nor_the_count(workers):
    data, counted = loader(workers=workers), []
    for batch, expected in zip(data, epoch(0), strict=True):
        assert isinstance(batch, VerticalBatch)
        assert isinstance(batch.features, tuple)
        assert batch.record_ids.tolist() == expected
        counted.append(data.state_dict()["offset"])  # what is handed out, although workers run ahead
    assert counted == [1, 2, 3, 4]


def test_independent_of_the_global_generator_and_leaves_it_alone():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        before = torch.get_rng_state()
        first = ids(loader())
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(2)
        assert ids(loader()) == first


def test_a_limited_pass_is_followed_by_one_that_begins_anew():
    data = loader()
    assert ids(islice(data, 2)) == epoch(0)[:2]
    assert ids(data) == epoch(1)


def test_a_sanity_check_does_not_shorten_the_validation_after_it():
    records = VerticalRecords(FEATURES, ((4,),), None, np.arange(N))
    data = ScheduledLoader(records, InOrder(N, BATCH))
    everything = [list(range(start, min(start + BATCH, N))) for start in range(0, N, BATCH)]
    assert ids(islice(data, 2)) == everything[:2]
    assert ids(data) == ids(data) == everything


def test_set_epoch_goes_there_and_stays():
    data = loader()
    data.sampler.set_epoch(3)
    data.sampler.set_epoch(3)
    assert ids(data) == epoch(3)


# ---- a column for every participant

PRESENT = (torch.arange(2 * N) % 3 > 0).view(N, 2)


def own_orders(rank: int = 0, world: int = 1, workers: int = 0) -> ScheduledLoader:
    data = VerticalRecords(FEATURES, ((3,), (1,)), torch.arange(N), np.arange(N), PRESENT)
    plan = Phases(N, PRESENT.numpy(), 4, 3, 2, lambda e: "owner" if e == 2 else "representation", lambda e: e == 1)
    return ScheduledLoader(data, plan, rank, world, workers)


@workers
def test_batches_have_a_column_for_every_participant(workers):
    data = own_orders(workers=workers)
    for number in range(2):
        batches = list(data)
        assert ids(batches) == [positions.tolist() for positions, _ in data.schedule.epoch(number)]
        for batch in batches:
            first, second, _ = batch.record_ids.T
            assert torch.equal(batch.features[0], FEATURES[first, :3])
            assert torch.equal(batch.features[1], FEATURES[second, 3:])
            assert (batch.labels, batch.present, batch.joint) == (None, None, None)
    for batch in data:  # the owner's
        assert torch.equal(batch.labels, batch.record_ids)
        assert batch.present.all()
        assert batch.joint == Joint(0, 4, (0, 1))


@pytest.mark.parametrize("done", [1, 3])
def test_a_restored_loader_continues_with_the_next_batch_of_everybody(done):
    killed = own_orders()
    killed.sampler.set_epoch(1)
    seen = ids(islice(killed, done))
    resumed = own_orders()
    resumed.load_state_dict(killed.state_dict())
    resumed.sampler.set_epoch(1)
    assert seen + ids(resumed) == [positions.tolist() for positions, _ in killed.schedule.epoch(1)]
    assert ids(resumed) == [positions.tolist() for positions, _ in killed.schedule.epoch(2)]


def test_several_processes_cannot_share_records_of_ones_own():
    with pytest.raises(ConfigurationError) as error:
        next(iter(own_orders(rank=1, world=2)))
    assert str(error.value) == (
        "if parties hold different records, every participant has an order of its own, which 2 processes "
        "cannot share; use one (--trainer.devices 1)"
    )
