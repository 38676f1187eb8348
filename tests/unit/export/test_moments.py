"""Law: the moments of training are numpy's mean and standard deviation of all outputs, each half's of its own."""

import numpy as np
import pytest
import torch

import lightning_vfl.datamodules as d
from lightning_vfl.aggregators import Mean
from lightning_vfl.export.moments import RunningMoments, training_moments
from lightning_vfl.export.split_model import party_part, server_part
from lightning_vfl.export.trained import Trained
from tests.exported import built


@pytest.mark.parametrize("offset", [0.0, 1e6])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_the_moments_of_pieces_are_those_of_all_rows(shape, offset):
    random = np.random.default_rng(len(shape))
    rows = random.normal(offset, 2.0, size=(500, *shape))
    sums = RunningMoments()
    for piece in np.split(rows, [0, 1, 7, 300]):
        sums.add(torch.from_numpy(piece))
    found = sums.moments()
    assert found.records == len(rows)
    flat = rows.reshape(len(rows), -1)
    np.testing.assert_allclose(found.mean, flat.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.deviation, flat.std(0), rtol=1e-9)


def test_each_half_has_the_moments_of_its_own_outputs():
    module, data = built(Mean(), d.ContiguousColumns(3))
    parties = {m: party_part(module, m) for m in range(3)}
    server = server_part(Trained(module, ""))
    batches = list(data.train_dataloader())
    found = training_moments(parties, server, batches)
    with torch.no_grad():
        for m, half in parties.items():
            embeddings = np.concatenate([module.bottoms.parties[m](batch.features[m]).numpy() for batch in batches])
            np.testing.assert_allclose(found[half.name].mean, embeddings.mean(0, dtype=np.float64), rtol=1e-6)
            np.testing.assert_allclose(found[half.name].deviation, embeddings.std(0, dtype=np.float64), rtol=1e-6)
        predictions = np.concatenate([module(batch).numpy() for batch in batches]).reshape(len(embeddings), -1)
    np.testing.assert_allclose(found["server"].mean, predictions.mean(0), rtol=1e-5)
    np.testing.assert_allclose(found["server"].deviation, predictions.std(0), rtol=1e-4)
    assert training_moments({0: parties[0]}, None, batches) == {parties[0].name: found[parties[0].name]}


def test_records_that_a_party_lacks_do_not_count():
    module, data = built(Mean(), d.ContiguousColumns(2))
    batch = next(iter(data.train_dataloader()))
    held = torch.ones(len(batch.record_ids), 2, dtype=torch.bool)
    held[3:, 1] = False
    parties = {m: party_part(module, m) for m in range(2)}
    found = training_moments(parties, None, [batch._replace(present=held)])
    with torch.no_grad():
        own = module.bottoms.parties[1](batch.features[1][:3]).double()
    assert [half.records for half in found.values()] == [len(held), 3]
    np.testing.assert_allclose(found[parties[1].name].mean, own.mean(0), rtol=1e-5)
    held[:, 1] = False
    assert [*training_moments(parties, None, [batch._replace(present=held)])] == [parties[0].name]
