"""The attacks by drift on real trainings: which of them can be tried, and what is reported beside the success."""

from functools import partial
from math import isnan

import pytest
import torch
from torch import nn

from lightning_vfl import AsyncVFL, CascadeVFL, DecoupledVFL, SplitVFL
from lightning_vfl.aggregators import Concat, LagrangeCoded, MaskedSum, Mean
from lightning_vfl.audit import DriftColumns, DriftFeatures, DriftNeighbours
from lightning_vfl.audit.attacks.drift import heard
from lightning_vfl.audit.attacks.drift.smoothed import SmoothedFit
from lightning_vfl.callbacks import Audit
from lightning_vfl.commands.audit import _above
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks import MLP, Linear, PolynomialNetwork
from tests.subjects import YesNo, trainer

SHALLOW = partial(MLP, hidden=(6,), activation=nn.Tanh)
RATE = partial(torch.optim.SGD, lr=0.5)
ATTACKS = [DriftNeighbours(0.7), DriftColumns(0.7), DriftFeatures(1, 20, 0.7)]


class More(YesNo):
    """180 training records, 60 labels at each of three active parties."""

    records_in_all = 300


def audited(folder, module, epochs=3, attacks=ATTACKS, attacker="server", data=YesNo):
    audit = Audit(attacker, attacks)
    trainer(folder, max_epochs=epochs, limit_val_batches=0, callbacks=[audit]).fit(
        module, datamodule=data(batch_size=18)
    )
    return audit.findings


def split(bottom, aggregator=None, width=8, **settings):
    torch.manual_seed(0)
    return SplitVFL(aggregator or MaskedSum(clip=64.0), bottom, width=width, seed=0, optimizer=RATE, **settings)


@pytest.mark.parametrize(("aggregator", "fits"), [(MaskedSum(clip=64.0), 1), (Mean(), 3)], ids=["sum", "each"])
def test_one_hidden_layer_is_fitted_in_its_time_and_uploads_are_scored_beside(aggregator, fits, tmp_path, monkeypatch):
    calls, real = [], heard.smoothed
    monkeypatch.setattr(heard, "LEAST_ITERATIONS", 1)
    monkeypatch.setattr(heard, "smoothed", lambda *given, **named: calls.append(1) or real(*given, **named))
    found = audited(tmp_path, split(SHALLOW, aggregator))
    assert len(calls) == fits  # the three attacks share them
    assert [isnan(one.success) for one in found] == [False, True, False]  # no column has few values
    for one in (found[0], found[2]):
        assert "fitted to all steps" in one.saw
        assert one.plain is not None
    assert found[0].seconds < 0.7 + 20


def test_a_fit_that_has_no_time_for_enough_iterations_is_not_begun(tmp_path, monkeypatch):
    began = []
    monkeypatch.setattr(heard, "seconds_per_iteration", lambda *_: 40 / heard.LEAST_ITERATIONS * heard.ADAM_SHARE)
    monkeypatch.setattr(heard, "smoothed", lambda served, *_, seconds, **__: began.append(seconds) or AsTheyAre(served))
    (found,) = audited(tmp_path, split(SHALLOW, Mean()), attacks=[DriftNeighbours(60.0)])
    assert began == pytest.approx([40, 40, 60], abs=1)  # an equal share, but never less than a fit needs

    began.clear()
    (found,) = audited(tmp_path, split(SHALLOW, Mean()), attacks=[DriftNeighbours(39.0)])
    assert began == []
    assert found.saw.count("as they are: a fit takes 40 s or more") == 3
    assert found.plain is not None


class AsTheyAre(SmoothedFit):
    """A fit that takes no time."""

    def __init__(self, served):
        super().__init__(served.shown(), 1.0, 1.0, True)


def test_linear_bottoms_have_the_uploads_as_they_are_beside_them_too(tmp_path):
    neighbours, _, features = audited(tmp_path, split(Linear, width=16), epochs=12)
    assert neighbours.success > 0.9 > neighbours.plain
    assert features.plain is not None


SERVERS = {
    "vFedSec": lambda: split(Linear, MaskedSum(clip=64.0, layout="segments"), 24, active=0),
    "FedVS": lambda: split(PolynomialNetwork, LagrangeCoded(blocks=1, privacy=1), 24),
    "AsyncVFL": lambda: AsyncVFL(Mean(), bottom=Linear, width=24, seed=0, optimizer=partial(torch.optim.SGD, lr=0.2)),
}


@pytest.mark.parametrize("name", SERVERS)
def test_every_server_that_sends_gradients_finds_the_nearest_records(name, tmp_path):
    torch.manual_seed(0)
    (found,) = audited(tmp_path, SERVERS[name](), epochs=12, attacks=[DriftNeighbours()])
    assert found.success > 0.95 > found.plain


@pytest.mark.parametrize("aggregator", [Concat(), MaskedSum(clip=64.0)], ids=["clear", "masked"])
def test_the_active_party_of_a_cascade_finds_the_columns_of_others_alone(aggregator, tmp_path):
    torch.manual_seed(0)
    module = CascadeVFL(aggregator, bottom=Linear, width=24, seed=0, optimizer=RATE, variant="single")
    (found,) = audited(tmp_path, module, epochs=12, attacks=[DriftNeighbours()], attacker="party:0", data=More)
    assert found.success > 0.95 > found.plain


def test_the_collaborator_of_a_cascade_has_nothing_to_attack(tmp_path):
    module = CascadeVFL(Concat(), bottom=Linear, width=8, seed=0, optimizer=RATE)
    (found,) = audited(tmp_path, module, epochs=1, attacks=[DriftNeighbours()])
    assert found.verdict == "nothing to attack: no gradient is sent"


def test_one_epoch_of_a_hidden_layer_is_scored_as_the_uploads_are(tmp_path):
    (found,) = audited(tmp_path, split(SHALLOW), epochs=1, attacks=[DriftNeighbours(0.5)])
    assert "as they are in one epoch" in found.saw
    assert found.success == found.plain


NOT_SAFE = "this is not a safety result"


@pytest.mark.filterwarnings("ignore:the audit has not heard")  # of what is encrypted, which is computed in the clear
@pytest.mark.parametrize(
    ("module", "why"),
    [
        (lambda: split(partial(MLP, hidden=(6, 6))), "neither linear nor an MLP with one hidden layer"),
        (lambda: split(partial(MLP, hidden=(6,), activation=nn.GELU)), "neither linear nor an MLP"),
        (
            lambda: SplitVFL(MaskedSum(), SHALLOW, width=8, seed=0, bottom_of={1: partial(MLP, hidden=(5,))}),
            "the bottoms behind a sum have different layers",
        ),
        (
            lambda: SplitVFL(Mean(), Linear, width=8, seed=0, optimizer=partial(torch.optim.RMSprop, lr=0.1)),
            "the optimiser is none of SGD, Adam and AdamW",
        ),
        (lambda: DecoupledVFL(width=8, seed=0, guest_epochs=1), "no gradient is sent"),
    ],
)
def test_what_the_attack_cannot_use_is_not_called_safe(module, why, tmp_path, capsys):
    (found,) = audited(tmp_path, module(), attacks=[DriftNeighbours()])
    assert found.verdict.startswith("not attacked: ")
    assert why in found.verdict
    assert found.verdict.endswith(NOT_SAFE)
    assert isnan(found.success)
    assert _above([found], {"DriftNeighbours": 0.5})  # a limit that nobody has measured is not met
    assert NOT_SAFE in capsys.readouterr().out


def test_a_large_training_is_fitted_to_its_first_steps_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(heard, "LEAST_ITERATIONS", 1)
    monkeypatch.setattr(heard, "MOST_NUMBERS", 54 * 2 * 34)  # two epochs of 3 * 6 hidden units, 8 numbers, 8 columns
    assert "fitted to the first 6 steps" in audited(tmp_path, split(SHALLOW), attacks=[DriftNeighbours(0.5)])[0].saw
    monkeypatch.setattr(heard, "MOST_NUMBERS", 54 * 34)
    found = audited(tmp_path, split(SHALLOW), attacks=[DriftNeighbours(0.5)])[0]
    assert found.verdict == (
        f"not attacked: the fit of a hidden layer would need the uploads of two epochs, which are too many; {NOT_SAFE}"
    )


def test_the_time_must_be_above_0():
    with pytest.raises(ConfigurationError, match="seconds must be a number above 0; got 0"):
        DriftNeighbours(seconds=0)
