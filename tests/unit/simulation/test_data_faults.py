"""Faults in records against plain numpy, on the features of real records, and through training and test."""

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from scipy.stats import kstest

from lightning_vfl import callbacks, simulation
from lightning_vfl.aggregators import Sum
from lightning_vfl.datamodules import BreastCancer, Digits, RowStrips
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.simulation.data_faults import SPLITS, DataFault
from lightning_vfl.types import Seat
from tests.subjects import Blobs, split, trainer

EVERY = {
    "Noise": {"deviation": 0.5},
    "DroppedColumns": {"share": 0.5},
    "ShiftedUnits": {"factor": 2.0},
    "StaleTable": {"share": 0.5},
    "Misaligned": {"share": 0.5},
}


def ready(kind=Blobs, **settings):
    data = kind(**settings)
    data.setup("fit")
    data.setup("test")
    return data


def features(data, party=1, part="test"):
    records = data.records(part)
    return records.features_of(party, torch.arange(len(records))).numpy()


def before_and_after(fault, kind=Blobs, party=1, **settings):
    data = ready(kind, **settings)
    before = features(data, party)
    data.add_fault(fault)
    return before, features(data, party)


def test_noise_is_normal_with_the_deviation():
    before, after = before_and_after(simulation.Noise(1, 0.5), BreastCancer)
    drawn = (after - before).reshape(-1) / 0.5
    assert kstest(drawn, "norm").pvalue > 0.01
    _, stronger = before_and_after(simulation.Noise(1, 1.0), BreastCancer)
    np.testing.assert_allclose(stronger - before, 2 * (after - before), atol=1e-5)


def test_blur_is_the_filter_of_scipy():
    before, after = before_and_after(simulation.Blur(1, 0.8), Digits, partitioner=RowStrips(2))
    assert before.ndim in (3, 4)
    sigma = (0,) * (before.ndim - 2) + (0.8, 0.8)
    expected = gaussian_filter(before.astype(np.float64), sigma, mode="nearest", truncate=4)
    np.testing.assert_allclose(after, expected, atol=1e-6)


def test_dropped_columns_are_zero_in_every_split():
    data = ready()
    fault = simulation.DroppedColumns(1, 0.67)
    before = {part: features(data, part=part) for part in ("train", "test")}
    data.add_fault(fault)
    lost = [set(np.flatnonzero((features(data, part=part) == 0).all(0))) for part in before]
    assert lost[0] == lost[1]
    assert len(lost[0]) == 2
    kept = sorted(set(range(3)) - lost[0])
    for part, values in before.items():
        np.testing.assert_array_equal(features(data, part=part)[:, kept], values[:, kept])


def test_shifted_units_are_changed_before_the_scaling():
    data = ready()
    raw = data.load(("train", "test"))
    columns = data.parts[1].positions
    mean = raw["train"].features[:, columns].double().mean(0).numpy()
    deviation = raw["train"].features[:, columns].double().std(0, correction=0).numpy()
    expected = (1000 * raw["test"].features[:, columns].double().numpy() + 3 - mean) / deviation
    data.add_fault(simulation.ShiftedUnits(1, factor=1000, constant=3))
    np.testing.assert_allclose(features(data), expected, rtol=1e-4)


def test_stale_values_are_those_of_the_record_before():
    before, after = before_and_after(simulation.StaleTable(1, lag=2))
    np.testing.assert_array_equal(after, np.concatenate([before[:2], before[:-2]]))
    before, half = before_and_after(simulation.StaleTable(1, share=0.5))
    late = (half != before).any(1)
    assert late.sum() in (8, 9)  # of 18 records nine are drawn, the first of which may keep its values
    np.testing.assert_array_equal(half[late], before[np.flatnonzero(late) - 1])


def test_misaligned_records_are_a_permutation_without_a_fixed_place():
    before, after = before_and_after(simulation.Misaligned(1, 0.5))
    moved = (after != before).any(1)
    assert moved.sum() == 9
    assert sorted(map(tuple, after)) == sorted(map(tuple, before))


@pytest.mark.parametrize("name", EVERY)
def test_the_seed_the_split_and_the_party_decide(name):
    make = getattr(simulation, name)
    data = ready()
    data.add_fault(make(1, splits=("test",), **EVERY[name]))
    clean = ready()
    for party in (0, 2):
        np.testing.assert_array_equal(features(data, party), features(clean, party))
    np.testing.assert_array_equal(features(data, part="train"), features(clean, part="train"))
    once = features(data)
    assert (once != features(clean)).any()
    again = ready()
    again.add_fault(make(1, splits=("test",), **EVERY[name]))
    np.testing.assert_array_equal(features(again), once)
    data.remove_fault(data.faults[0])
    np.testing.assert_array_equal(features(data), features(clean))


def test_another_seed_draws_other_records():
    drawn = [before_and_after(simulation.Misaligned(1, 0.5), seed=seed)[1] for seed in (0, 1)]
    assert (drawn[0] != drawn[1]).any()


def test_a_record_that_the_party_does_not_hold_stays_zero():
    class Partly(Blobs):
        partly_held = True

    data = ready(Partly)
    data.add_fault(simulation.Noise(2, 1.0))
    records = data.records("train")
    held = records.present[:, 2].numpy()
    values = features(data, 2, "train")
    assert 0 < held.sum() < len(held)
    assert (values[~held] == 0).all()
    assert (values[held] != features(ready(Partly), 2, "train")[held]).all()


def linear(shape, width):
    torch.manual_seed(3)
    return torch.nn.Linear(shape[0], width, bias=False)


def test_a_tested_model_sees_the_faults_and_later_ones_do_not(tmp_path):
    """The metric of linear bottoms and a linear top, computed by hand from changed features."""
    data = Blobs(batch_size=7)
    module = split(Sum(), bottom=linear)
    trainer(tmp_path, max_epochs=3).fit(module, datamodule=data)
    plain = trainer(tmp_path).test(module, datamodule=data, verbose=False)[0]["test/accuracy"]
    fault = callbacks.Misaligned(1, share=1.0)
    disturbed = trainer(tmp_path, callbacks=[fault]).test(module, datamodule=data, verbose=False)[0]["test/accuracy"]
    assert data.faults == ()
    assert trainer(tmp_path).test(module, datamodule=data, verbose=False)[0]["test/accuracy"] == plain

    data.add_fault(fault.model)
    x = [features(data, party) for party in range(3)]
    weights = [bottom.weight.detach().numpy() for bottom in module.bottoms.parties]
    top = next(layer for layer in module.top.modules() if isinstance(layer, torch.nn.Linear))
    joined = sum(own @ weight.T for own, weight in zip(x, weights, strict=True))
    outputs = joined @ top.weight.detach().numpy().T + top.bias.detach().numpy()
    expected = (outputs.argmax(1) == data.records("test").labels.numpy()).mean()
    assert disturbed == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("rows", [5, 18])
def test_the_size_of_batches_does_not_matter(rows, tmp_path):
    data = ready(batch_size=rows)
    data.add_fault(simulation.Noise(1, 1.0))
    joined = torch.cat([batch.features[1] for batch in data.test_dataloader()])
    whole = ready(batch_size=7)
    whole.add_fault(simulation.Noise(1, 1.0))
    np.testing.assert_array_equal(joined.numpy(), features(whole))


def test_training_with_a_fault_is_training_on_the_changed_records(tmp_path):
    class Changed(Blobs):
        """Party 1 has the values of the record before."""

        def records(self, name):
            records = super().records(name)
            columns = slice(3, 6)
            order = np.arange(len(records)) - 1
            order[0] = 0
            changed = records.features.clone()
            changed[:, columns] = records.features[order, columns]
            about = (records.labels, records.ids)
            return type(records)(changed, records.shapes, *about)

    weights = []
    for data, faults in ((Blobs(batch_size=9), [callbacks.StaleTable(1)]), (Changed(batch_size=9), [])):
        module = split()
        trainer(tmp_path, callbacks=faults).fit(module, datamodule=data)
        weights.append(torch.cat([p.detach().flatten() for p in module.parameters()]))
    plain = split()
    trainer(tmp_path).fit(plain, datamodule=Blobs(batch_size=9))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], torch.cat([p.detach().flatten() for p in plain.parameters()]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: simulation.Noise(1, -1.0), "deviation must be a finite number of at least 0"),
        (lambda: simulation.Misaligned(1, 1.5), "share must be a number from 0 to 1"),
        (lambda: simulation.StaleTable(1, lag=0), "lag must be a whole number, 1 or more"),
        (lambda: simulation.ShiftedUnits(1, float("nan")), "factor must be"),
        (lambda: simulation.Noise(-1, 1.0), "party must be"),
        (lambda: simulation.Noise(1, 1.0, splits=["trains"]), "splits must be 'train', 'val', 'test' or 'predict'"),
    ],
)
def test_settings_out_of_range_are_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_data_that_a_fault_cannot_change_are_refused():
    data = ready()
    with pytest.raises(ConfigurationError, match="Noise names party 3, but the last is 2"):
        data.add_fault(simulation.Noise(3, 1.0))
    with pytest.raises(ConfigurationError, match=r"Blur needs pictures, .* use Noise"):
        data.add_fault(simulation.Blur(1, 1.0))
    seated = Blobs()
    seated.seat = Seat(1)
    with pytest.raises(ConfigurationError, match="simulations only; leave it out of a federation"):
        seated.add_fault(simulation.Noise(1, 1.0))


def test_every_fault_has_a_callback_with_its_settings():
    for name in simulation.__all__:
        kind = getattr(simulation, name)
        if isinstance(kind, type) and issubclass(kind, DataFault) and kind is not DataFault:
            assert getattr(callbacks, name).__doc__.startswith(kind.__doc__.partition("\n")[0])
    assert callbacks.Noise(1, 0.5).model.splits == SPLITS
