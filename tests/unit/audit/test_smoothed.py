"""The smoothed fit of columns behind a hidden layer, against a plain training loop."""

import math
import sys

import pytest
import torch

from lightning_vfl.audit.attacks.drift.served import StepRule
from lightning_vfl.audit.attacks.drift.smoothed import smoothed
from lightning_vfl.audit.attacks.drift.unrolled import Unrolled
from lightning_vfl.networks.depth import HiddenLayer
from tests.attacks.drift_hidden import correlation, explained, train


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    """A quarter of the Gauss-Newton steps: the fit shows more than the uploads, and than Adam alone, before its end."""
    monkeypatch.setattr(sys.modules["lightning_vfl.audit.attacks.drift.smoothed"], "STEPS", 8)


SMALL = HiddenLayer(3, "relu", bias=True)
RULES = [
    StepRule("sgd", weight_decay=0.1),
    StepRule("sgd", momentum=0.9, nesterov=True),
    StepRule("adam"),
    StepRule("adamw", weight_decay=0.1),
]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_with_the_true_columns_and_weights_the_unrolled_run_gives_the_uploads(rule):
    served, truth, weights = train(
        "tanh", records=40, columns=(2, 3), hidden=6, width=5, epochs=3, batch=20, rate=0.02, rule=rule
    )
    run = Unrolled(served, HiddenLayer(6, "tanh", bias=True))
    first, offsets, last, constants = zip(*weights, strict=True)
    parts = [truth, torch.block_diag(*first), torch.cat(offsets), torch.cat(last, 1), sum(constants) / 2]
    unknowns = torch.cat([part.reshape(-1) for part in (*parts, torch.zeros(run.redundant, dtype=torch.float64))])
    assert float(run.residual(unknowns, 1.0).abs().max()) < 1e-3 < float(run.residual(0 * unknowns, 1.0).abs().max())


def test_the_fit_shows_more_than_the_uploads():
    served, truth, _ = train("tanh", records=40, columns=(3,), hidden=8, width=8, batch=20, epochs=3, rate=0.5, seed=2)
    fit = smoothed(served, HiddenLayer(8, "tanh", bias=True), seconds=math.inf, iterations=20)
    assert fit.complete
    assert fit.misfit < fit.first_misfit / 100
    assert correlation(fit.columns, truth) > correlation(served.shown(), truth) + 0.1
    assert explained(fit.columns, truth) > explained(served.shown(), truth) + 0.1


def test_the_fit_depends_on_its_seed_alone_and_keeps_records_that_it_has_not_seen_apart(monkeypatch):
    monkeypatch.setattr(sys.modules["lightning_vfl.audit.attacks.drift.smoothed"], "STEPS", 1)
    served, _, _ = train("relu", records=20, columns=(2,), hidden=3, width=3, batch=8, epochs=2)
    served = type(served)(tuple(step for step in served.steps if len(step.ids) == 8), served.rule, 21, (2,))
    state = torch.random.get_rng_state()
    fit, again = (smoothed(served, SMALL, seconds=math.inf, iterations=10) for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(fit.columns.nan_to_num(9), again.columns.nan_to_num(9))
    assert fit.columns[20].isnan().all()
    assert fit.misfit <= fit.first_misfit


def test_single_visits_are_refused():
    served, _, _ = train("relu", records=8, columns=(2,), hidden=3, width=3, epochs=1)
    with pytest.raises(ValueError, match="no record was uploaded twice"):
        smoothed(served, SMALL)
