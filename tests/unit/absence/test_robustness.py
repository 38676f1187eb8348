"""The grid of disturbances against tests with callbacks, against ``--absent``, and by hand."""

import numpy as np
import pytest
import torch

from lightning_vfl import absence, callbacks
from lightning_vfl.absence import robustness
from lightning_vfl.absence.robustness import Disturbance
from lightning_vfl.aggregators import Mean
from lightning_vfl.errors import ConfigurationError
from tests.subjects import Blobs, Values, split, trainer

FAULTS = [Disturbance("Noise", 1.5), Disturbance("ShiftedUnits", -3.0), Disturbance("Misaligned", 1.0)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    data = Blobs(batch_size=7)
    module = split(Mean())
    folder = tmp_path_factory.mktemp("runs")
    trainer(folder, max_epochs=3).fit(module, datamodule=data)
    trainer(folder).test(module, datamodule=data, verbose=False)
    data.setup("fit")
    return module, data, folder


def test_every_cell_is_a_test_with_the_callback_or_without_the_party(trained):
    module, data, folder = trained
    found = robustness.by_test(module, data, [0, 1, 2], FAULTS, absent=[0, 1, 2]).table
    table = found[found["metric"] == "test/accuracy"].set_index(["party", "fault"])["value"]
    assert len(table) == 1 + 3 * 4
    for party in range(3):
        for one in FAULTS:
            injector = getattr(callbacks, one.fault)(**one.settings(party))
            running = trainer(folder, callbacks=[injector])
            tested = running.test(module, datamodule=data, verbose=False)[0]["test/accuracy"]
            assert table[party, one.fault] == pytest.approx(tested, abs=1e-6)
        asked = absence.Asked(((party,),), ())
        alone = absence.measure(module, data.test_dataloader(), asked).table["value"].iloc[0]
        assert table[party, "absent"] == pytest.approx(alone, abs=1e-6)
    assert data.faults == ()


def test_harm_is_a_fall_of_accuracy_and_a_rise_of_an_error(tmp_path):
    for data, metric, sign in ((Blobs(batch_size=7), "test/accuracy", 1), (Values(batch_size=7), "test/mae", -1)):
        module = split(Mean())
        trainer(tmp_path, max_epochs=2).fit(module, datamodule=data)
        data.setup("test")
        table = robustness.by_test(module, data, [1], [Disturbance("Noise", 3.0)]).table
        rows = table[table["metric"] == metric].set_index("fault")
        assert rows["harm"]["Noise"] == pytest.approx(sign * (rows["value"]["nothing"] - rows["value"]["Noise"]))


def test_a_party_that_the_model_does_not_use_is_last(trained):
    module, data, _ = trained
    bottom = module.bottoms.parties[1]
    before = {name: value.clone() for name, value in bottom.state_dict().items()}
    with torch.no_grad():
        for parameter in bottom.parameters():
            parameter.zero_()
    try:
        found = robustness.by_test(module, data, [0, 1, 2], FAULTS)
    finally:
        bottom.load_state_dict(before)
    ranking = found.ranking()
    assert set(ranking["party"]) == {0, 1, 2}
    own = found.table[found.table["party"] == 1]
    np.testing.assert_array_equal(own["harm"], 0)
    assert ranking["mean_harm"].is_monotonic_decreasing


class Many(Blobs):
    records_in_all = 2000


def test_intervals_are_those_of_a_paired_bootstrap(tmp_path):
    data = Many(batch_size=50)
    module = split(Mean())
    trainer(tmp_path, max_epochs=2).fit(module, datamodule=data)
    data.setup("test")
    noise = Disturbance("Noise", 2.0)
    table = robustness.by_test(module, data, [1], [noise], resamples=1000).table
    row = table[(table["metric"] == "test/accuracy") & (table["fault"] == "Noise")].iloc[0]
    right = []
    for faults in ([], [noise.at(1)]):
        for fault in faults:
            data.add_fault(fault)
        with torch.no_grad():
            correct = [module(batch).argmax(1) == batch.labels for batch in data.test_dataloader()]
        right.append(torch.cat(correct).numpy())
    differences = right[0].astype(float) - right[1]
    error = differences.std() / np.sqrt(len(differences))
    assert row["harm"] == pytest.approx(differences.mean(), abs=1e-6)
    assert row["high"] - row["low"] == pytest.approx(2 * 1.96 * error, rel=0.15)
    assert row["low"] < row["harm"] < row["high"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["Noises:1"], "there is no fault 'Noises'; .*Noise"),
        (["Noise"], "--corrupt needs strengths, such as Noise:0.5,1; got Noise"),
        (["Misaligned:2"], "share must be a number from 0 to 1"),
    ],
)
def test_wrong_faults_are_refused(words, message):
    with pytest.raises(ConfigurationError, match=message):
        robustness.parse_faults(words)
