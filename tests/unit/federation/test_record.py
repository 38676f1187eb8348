"""A record of rounds gives back the plans that were written."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.record import Record, Replayed, Served
from lightning_vfl.federation.replaying import Replay
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.types import Event, Roll
from tests.subjects import Blobs, split, trainer

NAMES = ("bank", "telco", "shop")


def mask(*flags):
    return torch.tensor(flags, dtype=torch.bool)


def planned(called, included, responders, filled, learners, seconds, skipped):
    return RoundPlan(Roll(called, included, responders, filled), learners, (included,), learners, seconds, skipped)


ALL, NONE = mask(1, 1, 1), mask(0, 0, 0)
PLANS = {
    0: planned(ALL, ALL, ALL, NONE, ALL, 0.1 + 0.2, False),
    1: planned(ALL, mask(1, 0, 1), mask(1, 0, 0), mask(0, 1, 0), mask(1, 0, 1), 1e-17, False),
    2: planned(mask(0, 1, 1), NONE, NONE, NONE, NONE, 5.0, True),
}


def written(path, plans):
    record = Record(path, NAMES)
    for number, plan in plans.items():
        record.add(number, plan)
    record.close()


def assert_same(one, two):
    for field in ("called", "included", "responders", "filled"):
        assert torch.equal(getattr(one.roll, field), getattr(two.roll, field)), field
    assert torch.equal(one.learners, two.learners)
    assert (one.seconds, one.skipped) == (two.seconds, two.skipped)


def test_what_was_written_is_read(tmp_path):
    written(tmp_path / "runs" / "events.csv", PLANS)
    read = Replayed(tmp_path / "runs" / "events.csv")
    assert read.parties == 3
    assert read.restored == {}
    for number, plan in PLANS.items():
        assert_same(read.plan(number, 1), plan)
    assert len(read.plan(1, 3).sent) == 3


def test_a_file_that_a_killed_server_has_left_empty_is_a_record_in_the_end(tmp_path):
    path = tmp_path / "events.csv"
    path.touch()
    written(path, PLANS)
    assert Replayed(path).plans.keys() == PLANS.keys()


def test_every_round_is_on_the_disk_before_the_next(tmp_path):
    record = Record(tmp_path / "events.csv", NAMES)
    for number, plan in PLANS.items():
        record.add(number, plan)
        assert max(Replayed(tmp_path / "events.csv").plans) == number
    record.close()


def test_parties_that_learnt_may_be_told(tmp_path):
    written(tmp_path / "events.csv", {0: replace(PLANS[0], learners=mask(0, 1, 1))})
    assert Replayed(tmp_path / "events.csv").plan(0, 1).learners.tolist() == [False, True, True]


def test_who_comes_back_is_written_in_the_next_round_or_after_the_last(tmp_path):
    record = Record(tmp_path / "events.csv", NAMES)
    record.add(0, PLANS[0])
    record.restored[0] = 0
    record.add(1, PLANS[2])  # which does not call party 0
    record.restored[2] = 1
    record.close()
    read = Replayed(tmp_path / "events.csv")
    assert read.restored == {1: {0: 0}, 2: {2: 1}}
    assert read.rounds == 2


def test_a_resumed_server_writes_on_and_a_repeated_round_counts_once(tmp_path):
    written(tmp_path / "events.csv", PLANS)
    written(tmp_path / "events.csv", {2: PLANS[0], 3: PLANS[1]})
    read = Replayed(tmp_path / "events.csv")
    assert_same(read.plan(2, 1), PLANS[0])
    assert_same(read.plan(3, 1), PLANS[1])
    assert (tmp_path / "events.csv").read_text().count("round") == 1


@pytest.mark.parametrize("content", ["", "a,b\n1,2\n", "round,party\n0,0\n", "\0\n"])
def test_what_is_no_record_is_refused(tmp_path, content):
    (tmp_path / "events.csv").write_text(content)
    with pytest.raises(ConfigurationError, match=r"events\.csv (is not the record of a federation|has no rounds)"):
        Replayed(tmp_path / "events.csv")


def test_rounds_that_are_not_there_are_refused(tmp_path):
    written(tmp_path / "events.csv", PLANS)
    with pytest.raises(
        ConfigurationError, match="has 3 rounds, and this recipe goes on: use the recipe of the federation"
    ):
        Replayed(tmp_path / "events.csv").plan(3, 1)
    with pytest.raises(ConfigurationError, match="is not the record of a federation"):
        Replayed(tmp_path / "other.csv")


@pytest.mark.parametrize("more", [0, 1])
def test_a_replay_that_ends_before_its_record_says_so(tmp_path, more):
    rounds = 4 + more
    written(tmp_path / "events.csv", dict.fromkeys(range(rounds), PLANS[0]))
    replay = Replay(Replayed(tmp_path / "events.csv"), {})
    run = trainer(tmp_path, callbacks=[replay], max_epochs=1, limit_train_batches=4, limit_val_batches=0)
    with pytest.warns(UserWarning, match="^4 of the 5 rounds in .*with its max_epochs$") if more else nullcontext():
        run.fit(split(), datamodule=Blobs(batch_size=8))


def test_events_are_read_as_they_were_written(tmp_path):
    record = Record(tmp_path / "events.csv", NAMES)
    record.add_event(Event(0, 2, 0, 0.0, 0.1 + 0.2, (2,)), 0.1 + 0.2)
    record.restored[0] = 7
    record.add_event(Event(1, 2, 1, 0.0, 1e-17, (2,)), 1e-17)  # party 0 has come back, and is not served yet
    record.close()
    read = Replayed(tmp_path / "events.csv")
    assert [read.event(number) for number in (0, 1)] == [Served(2, 0, 0.1 + 0.2), Served(2, 1, 1e-17)]
    assert read.restored == {1: {0: 7}}
    with pytest.raises(ConfigurationError, match="has no event 2 of AsyncVFL"):
        read.event(2)


def test_a_record_of_rounds_has_no_events(tmp_path):
    written(tmp_path / "events.csv", PLANS)
    with pytest.raises(ConfigurationError, match="has no event 0 of AsyncVFL; use the recipe of the federation"):
        Replayed(tmp_path / "events.csv").event(0)


def test_a_record_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"file/events.csv cannot be written \(.*\); make room or get permis"):
        Record(tmp_path / "file" / "events.csv", NAMES)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has this device")
def test_a_record_on_a_full_disk_is_named():
    record = Record(Path("/dev/full"), NAMES)
    for end in (lambda: record.add(0, PLANS[0]), record.close):
        with pytest.raises(ConfigurationError, match=r"/dev/full cannot be written \(No space left on device\)"):
            end()
