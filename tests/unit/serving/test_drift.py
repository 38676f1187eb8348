"""Law: the drift is the standardised distance of weighted means, computed here from all records at once."""

import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.manifest import SERVER, Manifest, Moments
from lightning_vfl.serving.drift import LEAST, Drift, moments_of, training_predictions
from lightning_vfl.serving.party_half import ServedParty
from tests.served import Subject, running

RANDOM = np.random.default_rng(0)
TRAINING = RANDOM.normal(3.0, 2.0, size=(5000, 4))


@pytest.mark.parametrize("moved", [0.0, 1.5])
def test_the_distance_is_that_of_the_weighted_means(moved):
    drift = Drift(moments_of(TRAINING), 500)
    numbers = RANDOM.normal(3.0 + 2.0 * moved, 2.0, size=(3000, 4))
    for part in np.split(numbers, [1, 7, 400, 2900]):
        drift.add(part)
    weights = (1 - 1 / 500) ** np.arange(3000)[::-1]
    mean = (weights[:, None] * numbers).sum(0) / weights.sum()
    expected = np.sqrt(np.mean(((mean - TRAINING.mean(0)) / TRAINING.std(0)) ** 2))
    assert drift.distance == pytest.approx(expected, rel=1e-9)
    assert drift.distance == pytest.approx(moved, abs=0.15)


def test_there_is_no_figure_for_few_records():
    drift = Drift(moments_of(TRAINING[:, 0]))
    drift.add(np.zeros(LEAST - 1))
    assert drift.distance is None
    drift.add(np.zeros(1))
    assert drift.distance > 1


def test_a_party_measures_its_embeddings_against_those_of_its_training_records(tmp_path):
    subject = Subject(tmp_path)
    half = ServedParty(subject.half("bank"), subject.records("bank"))
    drift = half.drift(subject.records("bank"))
    for _ in range(100):
        drift.add(half.embed(half.all_ids())[0])
    assert drift.distance < 0.2
    for _ in range(100):
        drift.add(half.embed(half.all_ids()[:1])[0])
    one = np.array([row @ subject.weights["bank"] for row in subject.tables["bank"].values()])
    assert drift.distance > 0.05 * np.sqrt(np.mean(((one[0] - one.mean(0)) / one.std(0)) ** 2))


def test_halves_with_moments_of_training_measure_drift_without_further_files(tmp_path):
    subject = Subject(tmp_path)
    ids = np.arange(50)
    embeddings = np.array([row @ subject.weights["bank"] for row in subject.tables["bank"].values()])
    for name, numbers in (("bank", embeddings), (SERVER, subject.expected(ids))):
        manifest = Manifest.read(subject.half(name))
        replace(manifest, training=moments_of(numbers)).write(subject.half(name))

    async def asked():
        async with running(subject) as (gateway, tasks):
            assert gateway.drift.distance is None
            for _ in range(40):
                await gateway.predict(ids)
            return gateway.drift.distance, tasks["bank"][0].state(), tasks["shop"][0].state()

    predictions, bank, shop = asyncio.run(asked())
    assert predictions < 0.05
    assert 0 <= bank.drift < 0.05
    assert "lightning_vfl_endpoint_embedding_drift 0.0" in bank.metrics()
    assert json.loads(bank.content())["records"] == 40 * len(ids)
    assert shop.drift is None
    assert "drift" not in shop.metrics()


def test_a_number_that_is_the_same_in_training_counts_in_its_own_unit():
    drift = Drift(Moments(9, (0.1,), (1e-17,)))
    drift.add(np.full(LEAST, 0.4))
    assert drift.distance == pytest.approx(0.3)


def test_predictions_of_training_are_read_from_what_predict_writes(tmp_path):
    file = tmp_path / "p.csv"
    file.write_text("record,probability_no,probability_yes,decision\n1,0.25,0.75,yes\n2,0.5,0.5,no\n3,,,\n")
    assert training_predictions(file) == Moments(2, (0.375, 0.625), (0.125, 0.125))
    with pytest.raises(ConfigurationError, match="has 2 columns of predictions, the model predicts 1"):
        Subject(tmp_path).gateway().measure_drift(training_predictions(file))
    file.write_text("record\n1\n")
    with pytest.raises(ConfigurationError, match="has no predictions"):
        training_predictions(file)
