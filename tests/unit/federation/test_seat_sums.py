"""The sums in the ledger of a seat: what all runs with one network have given away, whatever is killed and repeated."""

import os
import random
from functools import cache

import numpy as np
import pytest
import torch

from lightning_vfl.aggregators import MaskedSum
from lightning_vfl.aggregators.secure.recovery import Recovery
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.split_model import party_part
from lightning_vfl.federation.sum_guard import SumGuard
from lightning_vfl.privacy import PrivacyLedger
from lightning_vfl.protocols.accounts.books import SeatLedger
from lightning_vfl.protocols.accounts.charging import joint_ids, names_of
from lightning_vfl.serving.sums_before import SumsBefore
from lightning_vfl.types import Stage
from tests.further import further
from tests.subjects import Blobs, split, trainer
from tests.unit.protocols.test_subtraction import follows

SETS = ((0, 1, 2), (0, 1), (0, 2), (1, 2))
KILLS = ("before the line", "while the line is written", "between line and upload", "after the upload")


class Again(Blobs):
    """Predictions are for the training records."""

    def load(self, names):
        loaded = dict(super().load(tuple({*names, "train"})))
        return {name: loaded["train" if name == "predict" else name] for name in names}


class Party:
    """A process of party 0: its guard, its module and its batches, as after its start."""

    def __init__(self, folder, network=0, state=None, after="", limit=10**6):
        self.data = Again(batch_size=10)
        self.data.prepare_data()
        self.data.setup("fit")
        self.data.setup("predict")
        self.module = split(MaskedSum(clip=50, recovery=Recovery(2)))
        self.module.build_for(self.data)
        with torch.no_grad():  # ``split`` draws the same weights whatever the seed
            for weight in self.module.bottoms.parties[0].parameters():
                weight += network
        self.module.trainer = trainer(folder)
        self.module.trainer.datamodule = self.data
        self.module.privacy.seat = SeatLedger(folder / "seat.privacy.jsonl", after)
        self.module.books.rounds["fit"] = self.module.books.rounds["predict"] = 1
        if state is not None:
            self.module.summed.load(state)
        self.guard = SumGuard(0)
        self.guard.limit = limit
        self.batches = {Stage.FIT: [*self.data.train_dataloader()], Stage.PREDICT: [*self.data.predict_dataloader()]}

    def ids(self, stage, number):
        """The records of a batch, as their owner names them."""
        records = self.data.records("train" if stage == Stage.FIT else "predict")
        return [str(names_of(records)[place]) for place in joint_ids(self.batches[stage][number]).tolist()]

    def note(self, stage, number, members):
        """A round: with this party, or without it."""
        if 0 in members:
            self.guard.enter(self.module, stage, members, self.batches[stage][number])
        else:
            self.guard.pass_by(self.module, stage, self.batches[stage][number])

    def exposed(self):
        return self.module.summed.exposed(self.module.roster)


@cache
def given_away(sets):
    """The parties whose embedding of a record follows from its sums, by enumeration of small factors."""
    return [m for m in range(3) if follows(sets, m)]


def counted(sums):
    """By party, the records that follow from sums: record -> the sets of parties."""
    counts = {}
    for sets in sums.values():
        for party in given_away(tuple(sorted(sets))):
            counts[(party,)] = counts.get((party,), 0) + 1
    return dict(sorted(counts.items()))


@pytest.mark.filterwarnings("ignore:a party was left out")
@pytest.mark.parametrize("seed", [0, 1, further(2), further(3)])
def test_every_sequence_of_runs_and_kills_counts_what_was_summed_and_no_less(tmp_path, seed):
    """Fits, resumptions from any checkpoint and predictions of two networks, each process killed at any point."""
    draw, path = random.Random(seed), tmp_path / "seat.privacy.jsonl"
    noted, released = {0: {}, 1: {}}, {0: {}, 1: {}}
    states = {0: [None], 1: [None]}
    missed = {0: 0, 1: 0}
    for process in range(6):
        network = 0 if process in (0, 3) else draw.randrange(2)
        party = Party(tmp_path, network, draw.choice(states[network]))
        for _ in range(draw.randrange(1, 7)):
            stage, members = draw.choice([*party.batches]), draw.choice(SETS)
            number = draw.randrange(len(party.batches[stage]))
            kill = draw.choice([*KILLS, *[None] * 6])
            if kill == "before the line":
                break
            size = path.stat().st_size if path.exists() else 0
            party.note(stage, number, members)
            missed[network] += 0 not in members
            if kill == "while the line is written" and path.stat().st_size > size:
                last = len(path.read_bytes().rstrip(b"\n").split(b"\n")[-1]) + 1
                if 0 in members and last < path.stat().st_size - size + 1:
                    os.truncate(path, path.stat().st_size - 5)
                    break
            for record in party.ids(stage, number):
                noted[network].setdefault(record, set()).add(members)
                if kill != "between line and upload":
                    released[network].setdefault(record, set()).add(members)
            assert party.exposed() == counted(noted[network])
            assert all(party.exposed()[who] >= count for who, count in counted(released[network]).items())
            if draw.random() < 0.4:
                states[network].append(party.module.summed.state())
            if kill is not None:
                break
    for network in (0, 1):  # what a process finds that begins now
        party = Party(tmp_path, network)
        party.note(Stage.FIT, 0, SETS[0])
        for record in party.ids(Stage.FIT, 0):
            noted[network].setdefault(record, set()).add(SETS[0])
        assert party.exposed() == counted(noted[network])
        name = party.module.summed.network
        assert PrivacyLedger.read(path)[0].left_out[name] == missed[network]


def test_a_prediction_is_refused_when_the_fit_has_used_up_the_limit(tmp_path):
    first = Party(tmp_path, limit=10)
    for number in range(len(first.batches[Stage.FIT])):
        first.note(Stage.FIT, number, SETS[0])
    with pytest.warns(UserWarning, match="party 2's embeddings of 10 records"):
        first.note(Stage.FIT, 0, (0, 1))
    again = Party(tmp_path, limit=10)  # without a checkpoint
    with pytest.raises(ConfigurationError, match="its limit is 10 records"):
        again.note(Stage.PREDICT, 1, (0, 1))
    other = Party(tmp_path, network=1, limit=10)
    other.note(Stage.PREDICT, 1, (0, 1))  # another network begins anew
    assert other.exposed() == {}


def test_a_lost_ledger_is_refused_with_the_word_that_begins_a_new_one(tmp_path):
    party = Party(tmp_path)
    party.note(Stage.FIT, 0, SETS[0])
    state, run = party.module.summed.state(), party.module.summed.run
    (tmp_path / "seat.privacy.jsonl").unlink()
    with pytest.raises(ConfigurationError, match=f"--new_ledger_after {run}"):
        Party(tmp_path, state=state).note(Stage.FIT, 0, SETS[0])
    begun = Party(tmp_path, state=state, after=run)
    begun.note(Stage.FIT, 1, (0, 1))
    assert begun.exposed() == {}
    assert begun.module.summed.run != run


def test_a_training_with_everybody_there_writes_each_record_once(tmp_path):
    party = Party(tmp_path)
    for _ in range(3):
        for number in range(len(party.batches[Stage.FIT])):
            party.note(Stage.FIT, number, SETS[0])
    lines = (tmp_path / "seat.privacy.jsonl").read_bytes().count(b'"summed"')
    assert lines == len(party.batches[Stage.FIT])


@pytest.mark.filterwarnings("ignore:a party was left out")
@pytest.mark.parametrize("seed", [0, 1, further(2), further(3)])
def test_the_ledger_has_how_much_training_was_done_before_the_latest_sum_without_a_party(tmp_path, seed):
    """Fits go on, or go back to an earlier checkpoint, and evaluations come between."""
    draw = random.Random(seed)
    expected = {}
    for _ in range(5):
        party = Party(tmp_path)
        rounds = draw.randrange(1, 20)
        for _ in range(8):
            stage, members = draw.choice([*party.batches]), draw.choice(SETS)
            number = draw.randrange(len(party.batches[stage]))
            rounds += stage == Stage.FIT
            party.module.books.rounds["fit"] = rounds
            party.note(stage, number, members)
            for record in party.ids(stage, number) if members != SETS[0] else ():
                expected[members, record] = max(expected.get((members, record), 0), rounds)
    ledger, _ = PrivacyLedger.read(tmp_path / "seat.privacy.jsonl")
    (sums,) = ledger.sums.values()
    names = {int(ledger.known.hashed([record])[0]): record for _, record in expected}
    latest = {}
    for one in sums:
        for hashed in one.records.tolist() if one.parties != SETS[0] else ():
            place = one.parties, names[hashed]
            latest[place] = max(latest.get(place, 0), one.trained)
    assert latest == expected


def test_an_exported_half_counts_the_sums_since_its_last_epoch(tmp_path):
    module = Party(tmp_path).module
    module.books.rounds["fit"] = 40
    module.books.epoch_batches = 7
    assert party_part(module, 0).half.sums_since == 33
    for weight in module.bottoms.parties[0].parameters():
        weight.requires_grad = False  # its embeddings are the same in every round
    assert [party_part(module, party).half.sums_since for party in (0, 1)] == [0, 33]


@pytest.mark.filterwarnings("ignore:a party was left out")
def test_production_withholds_what_the_last_epoch_and_evaluations_have_summed_without_a_party(tmp_path):
    party = Party(tmp_path)
    module = party.module
    module.fitted = party.data.fitted
    batches = len(party.batches[Stage.FIT])
    module.books.epoch_batches = batches
    for number in range(3 * batches):
        module.books.rounds["fit"] = number + 1
        short = number in (0, 2 * batches + 1)  # one round of the first epoch, one of the last
        party.note(Stage.FIT, number % batches, (0, 1) if short else SETS[0])
    party.note(Stage.PREDICT, 2, (0, 2))
    half = party_part(module, 0).half
    sums = SumsBefore(tmp_path / "seat.privacy.jsonl", half.network, 3, half.sums_since)
    expected = {*party.ids(Stage.FIT, 1), *party.ids(Stage.PREDICT, 2)}
    everybody = [one for number in range(batches) for one in party.ids(Stage.FIT, number)]
    assert {*party.ids(Stage.FIT, 0)} - expected
    assert [one in expected for one in everybody] == sums.withheld(np.array(everybody)).tolist()


def test_an_exported_half_names_the_network_of_the_ledger(tmp_path):
    """Production finds the sums of training and evaluation by this name: before the first sum, and after training."""
    party = Party(tmp_path)
    module = party.module
    module.fitted = party.data.fitted
    names = {party_part(module, 0).half.network}
    party.note(Stage.PREDICT, 0, (0, 1))
    with torch.no_grad():
        for weight in module.bottoms.parties[0].parameters():
            weight += 1
    names.add(party_part(module, 0).half.network)
    ledger, _ = PrivacyLedger.read(tmp_path / "seat.privacy.jsonl")
    assert names == {*ledger.sums}
