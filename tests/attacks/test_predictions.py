"""Sequences of fits, evaluations, predictions and kills: released ≤ charged, and never past the budget of a seat."""

import math
import os
from collections import Counter
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.aggregators import LocalGaussian, PoissonBinomial
from lightning_vfl.callbacks import PrivacyBudget
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy import PrivacyLedger, rounded_up
from lightning_vfl.protocols.accounts.books import SeatLedger
from tests.attacks.ledger import Killed, private
from tests.attacks.predictions import FIRST, charged_by_id, gaussian_epsilon, noise, observed, predict_again
from tests.examples import examples
from tests.subjects import Blobs, trainer

IDS = np.arange(1000, 1090)
BATCH = 18
STEPS = st.tuples(
    st.sampled_from(["fit", "validate", "test", "predict"]),
    st.sampled_from([None, None, "torn", "charged", "decoding"]),
)


def run(folder, seat, step, kill, seen, aggregator=None, target=None):
    """One process's work under the ledger of a seat; a kill comes at the second release."""
    module = private(aggregator or noise(1.0)[0], evaluate="protocol")
    module.privacy.seat = SeatLedger(seat)
    callbacks = [] if target is None else [PrivacyBudget(target)]
    t = trainer(folder, callbacks=callbacks, max_epochs=2, num_sanity_val_steps=1)
    charge, write, left = PrivacyLedger.charge, os.write, [2]

    def charged(self, *arguments):
        def torn(file, text):
            write(file, text[: len(text) // 2])
            raise Killed

        left[0] -= 1
        with patch("os.write", torn if kill == "torn" and not left[0] else write):
            charge(self, *arguments)
        if kill == "charged" and not left[0]:
            raise Killed

    def decoded(_):
        if kill == "decoding" and not left[0]:
            raise Killed

    with patch.object(PrivacyLedger, "charge", charged), observed(seen, FIRST, decoded):
        try:
            getattr(t, step)(module, datamodule=Blobs(batch_size=BATCH))
        except (Killed, ConfigurationError) as error:
            return module, error
    return module, None


@pytest.mark.filterwarnings("ignore")
@examples(6)
@given(steps=st.lists(STEPS, min_size=2, max_size=6), target=st.sampled_from([1.5, 3.0]))
def test_what_is_released_is_charged_and_never_past_the_budget(tmp_path_factory, steps, target):
    folder = tmp_path_factory.mktemp("sequence")
    seat, seen, kills = folder / "seat.privacy.jsonl", Counter(), 0
    for step, kill in steps:
        _, error = run(folder, seat, step, kill, seen, target=target)
        kills += isinstance(error, Killed)
    module, _ = run(folder, seat, "predict", None, seen, target=target)
    released, charged = np.array([seen[i] for i in IDS]), charged_by_id(module, IDS)
    assert (released <= charged).all()
    assert charged.sum() <= released.sum() + kills * BATCH  # a kill may charge one batch that is never sent
    most = int(charged.max())
    assert most == 0 or gaussian_epsilon(noise(1.0)[1] * math.sqrt(most)) <= target * (1 + 1e-9)
    assert [path.name for path in folder.glob("*.jsonl")] == [seat.name]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("aggregator", "target"), [(lambda: noise(1.0)[0], 2.0), (lambda: PoissonBinomial(levels=4, beta=0.1), 7.0)]
)
def test_a_seat_that_its_budget_has_stopped_stays_stopped(tmp_path, aggregator, target):
    seat, seen = tmp_path / "bank.privacy.jsonl", Counter()
    for _ in range(3):
        module, _ = run(tmp_path, seat, "fit", None, seen, aggregator(), target=target)
        run(tmp_path, seat, "predict", None, seen, aggregator(), target=target)
    stopped = Counter(seen)
    assert 0 < module.privacy.epsilon() <= target
    for _ in range(2):
        run(tmp_path, seat, "fit", None, seen, aggregator(), target=target)
        _, error = run(tmp_path, seat, "predict", None, seen, aggregator(), target=target)
        assert "has no room for the predict of 18 records" in str(error)
    assert seen == stopped


class Moved(Blobs):
    """Other records: their ids are others."""

    def load(self, names):
        splits = super().load(names)
        for split in splits.values():
            split.ids = split.ids + 5000
        return splits


@pytest.mark.filterwarnings("ignore")
def test_another_table_under_a_seat_is_refused_and_a_new_ledger_begins_once(tmp_path):
    seat, seen = tmp_path / "seat.privacy.jsonl", Counter()
    module, _ = run(tmp_path, seat, "fit", None, seen)
    spent, first = module.privacy.epsilon(), module.privacy.ledger.run
    other = private(LocalGaussian())
    other.privacy.seat = SeatLedger(seat)
    with pytest.raises(ConfigurationError, match="knows none of the 54 training records, but 72 others"):
        trainer(tmp_path).fit(other, datamodule=Moved(batch_size=BATCH))
    for again in (False, True):  # the word acts once: a script that always gives it does not spend the budget anew
        new = private(noise(1.0)[0])
        new.privacy.seat = SeatLedger(seat, first)
        trainer(tmp_path, max_epochs=2, num_sanity_val_steps=1).fit(new, datamodule=Blobs(batch_size=BATCH))
        assert (new.privacy.epsilon() > spent) == again
    assert len(list(tmp_path.glob("*.jsonl"))) == 2
    wrong = private(noise(1.0)[0])
    wrong.privacy.seat = SeatLedger(seat, "0" * 16)
    with pytest.raises(ConfigurationError, match=f"has the run {new.privacy.ledger.run}, not 0000"):
        trainer(tmp_path).fit(wrong, datamodule=Blobs(batch_size=BATCH))


@pytest.mark.filterwarnings("ignore")
def test_training_records_in_the_clear_are_counted_and_refused_under_a_budget(tmp_path):
    module, t = private(), trainer(tmp_path, max_epochs=1)
    t.fit(module, datamodule=Blobs(batch_size=BATCH))
    t.validate(module, dataloaders=t.train_dataloader, verbose=False)
    assert "the embeddings of 72 records were sent as they are, 54 of them" in module.privacy.in_the_clear()
    t.save_checkpoint(tmp_path / "end.ckpt")
    again, budget = private(), [PrivacyBudget(100.0)]
    with pytest.raises(ConfigurationError, match="54 training records were sent in the clear before"):
        trainer(tmp_path, callbacks=budget, max_epochs=2).fit(
            again, datamodule=Blobs(batch_size=BATCH), ckpt_path=tmp_path / "end.ckpt"
        )


@pytest.mark.filterwarnings("ignore")
def test_repeated_predictions_of_training_records_are_charged_or_refused(tmp_path):
    (tmp_path / "free").mkdir(), (tmp_path / "held").mkdir()
    module, seen, _ = predict_again(tmp_path / "free", 5)
    assert set(seen.values()) == {5}
    assert module.privacy.epsilon() == rounded_up(gaussian_epsilon(noise(1.0)[1] * math.sqrt(6)))
    module, seen, _ = predict_again(tmp_path / "held", 5, target=1.0)
    assert not seen
    assert module.privacy.epsilon() <= 1.0
