"""PrivacyBudget and the books behind it: figures against counts by hand, an end before the round that is too much."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader

from lightning_vfl import SplitVFL
from lightning_vfl.aggregators import LocalGaussian, MaskedSum, Mean, PoissonBinomial
from lightning_vfl.callbacks import PrivacyBudget, RunHistory
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.missing import Exclude
from lightning_vfl.privacy import Budget, rounded_up
from lightning_vfl.privacy.accountant import composed_epsilon
from lightning_vfl.privacy.events import UNITS, GaussianEvent, PoissonBinomialEvent
from lightning_vfl.schedules.batches import Shuffled
from lightning_vfl.simulation import FaultModel, PartyDropout, RoundOutcome
from lightning_vfl.waiting import Deadline, WaitForAll
from tests.further import further
from tests.subjects import Blobs, trainer

M, WIDTH, TRAIN = 3, 4, 54


def bounded(shape, width):
    return nn.Sequential(nn.Linear(shape[0], width), nn.Tanh())


def private(aggregator=None, **settings):
    aggregator = aggregator or PoissonBinomial(levels=4, beta=0.1)
    return SplitVFL(aggregator, bottom=bounded, width=WIDTH, seed=0, **settings)


def test_every_upload_of_a_record_is_charged_in_every_unit(tmp_path):
    module = private()
    trainer(tmp_path, max_epochs=3).fit(module, datamodule=Blobs(batch_size=10))
    event = PoissonBinomialEvent(4, 0.1, M, WIDTH)
    figures = module.privacy.figures()
    assert figures.keys() == set(UNITS)
    for unit in UNITS:
        uses = 3 * TRAIN if unit == "party" else 3
        one = "party-record" if unit.startswith("party") else unit
        assert figures[unit] == pytest.approx(composed_epsilon({event: uses}, 1e-5, one), rel=1e-9)
    assert figures["party-record"] < figures["record"]
    assert figures["party (paper)"] < figures["party"]


def test_rounds_with_fewer_parties_are_charged_as_what_they_are(tmp_path):
    module = private(missing=Exclude())
    module.faults.add(PartyDropout(0.5, 0.1))
    trainer(tmp_path, max_epochs=2).fit(module, datamodule=Blobs(batch_size=10))
    counts = module.privacy.accountant._counts
    assert {event.parties for event in counts} == {2, 3}
    assert sum(count.sum() for count in counts.values()) == 2 * TRAIN


def test_local_noise_is_charged_upload_by_upload(tmp_path):
    aggregator = LocalGaussian(Budget(epsilon=1.0))
    module = private(aggregator)
    trainer(tmp_path, max_epochs=2).fit(module, datamodule=Blobs(batch_size=10))
    event = GaussianEvent(aggregator.sigma(WIDTH, M), 2 * aggregator.clip, M)
    assert module.privacy.epsilon() == rounded_up(composed_epsilon({event: 2}, 1e-5))


def test_a_budget_of_the_calibrated_epsilon_allows_one_upload(tmp_path):
    module = private(LocalGaussian(Budget(epsilon=5.0)))
    trainer(tmp_path, max_epochs=3, callbacks=[PrivacyBudget(5.0)]).fit(module, datamodule=Blobs(batch_size=10))
    assert module.books.rounds["fit"] == -(-TRAIN // 10)
    assert module.privacy.epsilon() <= 5.0


def test_the_history_has_what_had_been_spent_by_then(tmp_path):
    history, module = RunHistory(), private(LocalGaussian())
    trainer(tmp_path, max_epochs=3, callbacks=[history]).fit(module, datamodule=Blobs(batch_size=10))
    told = [(row["step"], row["value"]) for row in history.rows() if row["metric"] == "privacy/epsilon"]
    event = GaussianEvent(module.aggregator.sigma(WIDTH, M), 2.0, M)
    assert told == [(6 * n, pytest.approx(rounded_up(composed_epsilon({event: n}, 1e-5)), rel=1e-6)) for n in (1, 2, 3)]


def test_an_evaluation_through_the_protocol_is_charged_to_its_records(tmp_path):
    """Those of training, and those of validation as records of their own; without ids it is refused."""
    data, module = Blobs(batch_size=10), private(LocalGaussian())
    fit = trainer(tmp_path, max_epochs=1)
    fit.fit(module, datamodule=data)
    fit.validate(module, datamodule=data, verbose=False)
    (counts,) = module.privacy.accountant._counts.values()
    assert counts.tolist() == [1] * TRAIN + [2] * 18
    trainer(tmp_path).validate(module, dataloaders=data.train_dataloader(), verbose=False)
    (counts,) = module.privacy.accountant._counts.values()
    assert counts.tolist() == [2] * (TRAIN + 18)
    nameless = torch.utils.data.DataLoader(list(data.train_dataloader()), batch_size=None)
    with pytest.raises(ConfigurationError, match="the records of this loader have no ids"):
        trainer(tmp_path).validate(module, dataloaders=nameless, verbose=False)


def test_aggregators_that_claim_nothing_have_no_books(tmp_path):
    module = private(Mean())
    trainer(tmp_path, max_epochs=1).fit(module, datamodule=Blobs(batch_size=10))
    assert module.privacy.figures() == {}


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_a_resumed_run_has_spent_what_was_released_before_and_after_the_checkpoint(tmp_path):
    saver = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1)
    whole, second = private(), private()
    trainer(tmp_path, max_epochs=2, callbacks=[saver], enable_checkpointing=True).fit(
        whole, datamodule=Blobs(batch_size=10)
    )
    trainer(tmp_path, max_epochs=2).fit(second, datamodule=Blobs(batch_size=10), ckpt_path=tmp_path / "step=7.ckpt")
    order = [ids for epoch in range(2) for ids, _ in Shuffled(TRAIN, 10, 0).epoch(epoch)]
    times = Counter(int(i) for ids in (*order, *order[7:]) for i in ids)
    counts = second.privacy.accountant._counts[PoissonBinomialEvent(4, 0.1, M, WIDTH)]
    assert counts.tolist() == [times[i] for i in range(TRAIN)]
    assert whole.privacy.accountant._counts[PoissonBinomialEvent(4, 0.1, M, WIDTH)].sum() == 2 * TRAIN


@pytest.mark.parametrize("unit", ["party-record", further("record"), "party"])
def test_it_stops_before_the_round_that_could_be_too_much(tmp_path, unit):
    free = private()
    trainer(tmp_path, max_epochs=4).fit(free, datamodule=Blobs(batch_size=10))
    target = 0.7 * free.privacy.figures()[unit]
    module = private()
    t = trainer(tmp_path, max_epochs=4, callbacks=[PrivacyBudget(target, unit=unit)])
    t.fit(module, datamodule=Blobs(batch_size=10))
    assert 0 < module.privacy.epsilon() <= target
    assert module.books.rounds["fit"] == t.global_step < free.books.rounds["fit"]
    assert t.callback_metrics["privacy/epsilon"] <= target
    event = PoissonBinomialEvent(4, 0.1, M, WIDTH)
    order = list(t.train_dataloader.schedule.epoch(module.books.rounds["fit"] // 6))
    ids = torch.from_numpy(order[module.books.rounds["fit"] % 6][0])
    assert module.privacy.accountant.reserve(event, ids, 1e-5, unit) > target


def test_where_parties_may_be_missing_the_fewest_are_reserved_for(tmp_path):
    everybody, fewest = (PoissonBinomialEvent(4, 0.1, n, WIDTH) for n in (3, 2))
    module = private(missing=Exclude())
    trainer(tmp_path, max_epochs=1).fit(module, datamodule=Blobs(batch_size=10))
    assert set(module.possible_events()) == {everybody}
    module.faults.add(PartyDropout(0.1, 0.1))
    module._possible = None
    assert set(module.possible_events()) == {everybody, fewest}
    alone = private(PoissonBinomial(MaskedSum(allow_single=True), levels=4, beta=0.1), missing=Exclude())
    alone.faults.add(PartyDropout(0.1, 0.1))
    trainer(tmp_path, max_epochs=1).fit(alone, datamodule=Blobs(batch_size=10))
    assert PoissonBinomialEvent(4, 0.1, 1, WIDTH) in alone.possible_events()
    late = private(LocalGaussian(), waiting=Deadline(1.0))
    trainer(tmp_path, max_epochs=1).fit(late, datamodule=Blobs(batch_size=10))
    assert {event.parties for event in late.possible_events()} == {1, 2, 3}


def test_the_budget_holds_where_the_fewest_parties_are_there(tmp_path):
    """With two of three parties in every round, two epochs cost a little more than the target, so one has to do."""

    def absent(**settings):
        module = private(missing=Exclude())
        module.faults.add(PartyDropout(1.0, 0.1))
        trainer(tmp_path, max_epochs=2, **settings).fit(module, datamodule=Blobs(batch_size=10))
        return module

    target = 0.999 * absent().privacy.epsilon()
    module = absent(callbacks=[PrivacyBudget(target)])
    assert module.privacy.epsilon() <= target
    assert module.books.rounds["fit"] == 6


def test_segments_cost_what_all_their_coordinates_do(tmp_path):
    module = private(PoissonBinomial(MaskedSum("segments"), levels=4, beta=0.1), active=0)
    trainer(tmp_path, max_epochs=1).fit(module, datamodule=Blobs(batch_size=10))
    assert set(module.privacy.accountant._counts) == {PoissonBinomialEvent(4, 0.1, 2, 2 * WIDTH)}


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_what_cannot_be_is_refused_before_training(tmp_path):
    for settings, words in (
        ({"target_epsilon": 0}, "target_epsilon must be a finite number above 0; got 0"),
        ({"target_epsilon": 1.0, "delta": 1.0}, "delta must be a number above 0 and below 1; got 1.0"),
        ({"target_epsilon": 1.0, "unit": "person"}, "unit 'person'"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            PrivacyBudget(**settings)
    with pytest.raises(ConfigurationError, match="needs an aggregator that accounts for privacy; got Mean"):
        trainer(tmp_path, callbacks=[PrivacyBudget(1.0)]).fit(private(Mean()), datamodule=Blobs(batch_size=10))
    module = private()
    with pytest.raises(ConfigurationError, match="one round would already cost"):
        trainer(tmp_path, callbacks=[PrivacyBudget(1e-3)]).fit(module, datamodule=Blobs(batch_size=10))
    assert "fit" not in module.books.rounds
    loader = DataLoader([next(iter(Blobs_loader()))], batch_size=None)
    with pytest.raises(ConfigurationError, match="must know the records"):
        trainer(tmp_path).fit(private(party_shapes=[(3,), (3,), (2,)], num_classes=3), loader)


def Blobs_loader():
    data = Blobs(batch_size=10)
    data.setup("fit")
    return data.train_dataloader()


class Late(FaultModel):
    """Party 2 is late for the rounds 1 and 3, by much more than anybody waits; in round 5 it sends nothing at all."""

    def sample(self, request, roster, seed):
        nothing = RoundOutcome.nothing(roster)
        delay, sends = nothing.delay.clone(), nothing.sends.clone()
        delay[2] = 100.0 if request // 2 in (1, 3) else 0.0
        sends[2] = request // 2 != 5
        return replace(nothing, delay=delay, sends=sends)

    @property
    def silent(self):
        return True


@pytest.mark.parametrize(
    ("aggregator", "released"),
    [
        # without recovery a round that waits in vain is lost, but once the late upload has come the masks cancel
        (lambda: PoissonBinomial(levels=4, beta=0.1), {3: 50}),
        # with it the late upload stays hidden, and the sum of the two others is what is seen
        (lambda: PoissonBinomial(MaskedSum(recovery="auto"), levels=4, beta=0.1), {3: 30, 2: 24}),
        # what everybody sends by itself is read whenever it comes
        (LocalGaussian, {3: 50, 2: 4}),
    ],
)
def test_what_comes_too_late_is_read_all_the_same(tmp_path, aggregator, released):
    module = private(aggregator(), waiting=WaitForAll(timeout=1.0))
    module.faults.add(Late())
    t = trainer(tmp_path, max_epochs=1, limit_val_batches=0)
    t.fit(module, datamodule=Blobs(batch_size=10))  # 5 rounds of 10, and one of 4
    counts = module.privacy.accountant._counts
    assert {event.parties: int(count.sum()) for event, count in counts.items()} == released


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`")
def test_what_was_spent_is_known_to_a_model_that_is_only_loaded(tmp_path):
    module = private()
    t = trainer(tmp_path, max_epochs=1)
    t.fit(module, datamodule=Blobs(batch_size=10))
    t.save_checkpoint(tmp_path / "end.ckpt")
    loaded = private()
    again = trainer(tmp_path)
    again.test(loaded, datamodule=Blobs(batch_size=10), ckpt_path=tmp_path / "end.ckpt", verbose=False)
    assert loaded.privacy.figures() == module.privacy.figures()
    again.save_checkpoint(tmp_path / "again.ckpt")
    books = torch.load(tmp_path / "again.ckpt", weights_only=True)["lightning_vfl"]
    assert int(books["privacy"]["counts"].sum()) == TRAIN
