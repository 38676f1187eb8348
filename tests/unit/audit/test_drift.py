"""The columns of linear bottoms from drifting uploads, against a plain PyTorch loop."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor, nn

from lightning_vfl.audit.attack import Target
from lightning_vfl.audit.attacks.drift.heard import without
from lightning_vfl.audit.attacks.drift.levels import MOST_VECTORS, few_valued
from lightning_vfl.audit.attacks.drift.linear import linear
from lightning_vfl.audit.attacks.drift.measure import affine_guesses, exact_columns, nearest_right
from lightning_vfl.audit.attacks.drift.served import ServedStep, ServedSteps, StepRule
from lightning_vfl.audit.success import MOST_ASKED, RULES
from tests.attacks.told import told


def steps_of(truth: Tensor, split: tuple[int, ...], width: int, epochs: int) -> ServedSteps:
    """A split training by plain SGD; the upload is the sum over the parties."""
    draw = torch.Generator().manual_seed(1)
    labels = (truth @ torch.randn(truth.shape[1], generator=draw, dtype=torch.float64) > 0).double()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        bottoms = [nn.Linear(d, width).double() for d in split]
        top = nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 1)).double()
    optimizer = torch.optim.SGD([p for network in (*bottoms, top) for p in network.parameters()], 0.1)
    steps = []
    for _ in range(epochs):
        for ids in torch.randperm(len(truth), generator=draw).split(20):
            parts = zip(bottoms, truth[ids].split(split, 1), strict=True)
            upload = torch.stack([bottom(x) for bottom, x in parts]).sum(0)
            loss = nn.functional.binary_cross_entropy_with_logits(top(upload)[:, 0], labels[ids])
            (sent,) = torch.autograd.grad(loss, upload, retain_graph=True)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps.append(ServedStep(ids, upload.detach(), sent, 0.1))
    return ServedSteps(tuple(steps), StepRule("sgd"), len(truth), split)


def test_sums_tell_the_columns_up_to_rotation_and_known_records_turn_them():
    draw = torch.Generator().manual_seed(0)
    truth = torch.randn(200, 6, generator=draw, dtype=torch.float64)
    truth = truth @ (torch.eye(6, dtype=torch.float64) + 0.5 * torch.randn(6, 6, generator=draw, dtype=torch.float64))
    result = told(linear(steps_of(truth, (3, 3), 16, 12)), truth, (7,))
    assert result.correlation > 0.999
    assert result.neighbours > 0.95
    assert result.with_known[7] > 0.99


def test_rounds_that_diverge_leave_what_the_uploads_show():
    truth = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    served = steps_of(truth, (2, 2), 16, 3)
    huge = tuple(ServedStep(step.ids, step.upload, step.gradient, 1e160) for step in served.steps)
    columns = linear(ServedSteps(huge, served.rule, served.records, served.columns))
    assert columns.isfinite().all()
    assert told(columns, truth, (6,)).correlation > 0.8


def test_the_columns_give_the_weights_of_the_bottoms_too():
    draw = torch.Generator().manual_seed(0)
    truth = torch.randn(200, 6, generator=draw, dtype=torch.float64)
    served = steps_of(truth, (3, 3), 16, 12)
    columns = affine_guesses(linear(served), truth[:7], torch.arange(7))  # turned by seven known records
    for step in (served.steps[0], served.steps[-1]):
        one = torch.ones(len(step.ids), 1, dtype=torch.float64)
        weights, guessed = (
            torch.linalg.lstsq(torch.cat([of[step.ids], one], 1), step.upload).solution for of in (truth, columns)
        )
        assert (guessed - weights).norm() < 0.05 * weights.norm()


def test_columns_with_three_values_are_read_exactly():
    truth = torch.cartesian_prod(*[torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)] * 5)
    guesses = linear(steps_of(truth, (3, 2), 16, 12))
    assert exact_columns(few_valued(guesses), truth) == (5, 5)


def test_columns_are_read_exactly_where_no_two_records_differ_in_one_column_alone():
    draw = torch.Generator().manual_seed(0)
    values = torch.randint(-1, 2, (200, 20), generator=draw).double()
    differing = torch.cdist(values, values, p=0.0).fill_diagonal_(20)  # the number of columns that differ
    assert differing.min() > 2
    turn, _ = torch.linalg.qr(torch.randn(20, 20, generator=draw, dtype=torch.float64))
    for columns in (values, values / values.std(0)):
        guesses = few_valued((columns - columns.mean(0)) @ turn + 1e-5 * torch.randn(200, 20, generator=draw))
        assert exact_columns(guesses, columns) == (20, 20)
        assert guesses.shape == (200, 20)  # no guess beside the columns


def test_columns_of_more_records_than_are_looked_at_first_are_read_exactly():
    draw = torch.Generator().manual_seed(0)
    values = torch.randint(0, 3, (3 * MOST_VECTORS, 4), generator=draw).double()
    values[:, 3] = 0.0
    values[-1, 3] = 1.0  # a value that none of the first records has
    turn, _ = torch.linalg.qr(torch.randn(4, 4, generator=draw, dtype=torch.float64))
    guesses = few_valued((values - values.mean(0)) @ turn)
    assert exact_columns(guesses, values[:, :3]) == (3, 3)
    assert few_valued(torch.randn(3 * MOST_VECTORS, 4, generator=draw, dtype=torch.float64)).shape[1] == 0


def test_columns_of_many_values_are_not_called_few():
    draw = torch.Generator().manual_seed(0)
    assert few_valued(torch.randn(300, 10, generator=draw, dtype=torch.float64)).shape == (300, 0)
    for records in (0, 1, 2, 5):
        assert len(few_valued(torch.zeros(records, 3, dtype=torch.float64))) == records


def test_a_sample_of_records_is_asked_for_the_nearest_of_all_records():
    draw = torch.Generator().manual_seed(0)
    truth = torch.randn(3 * MOST_ASKED, 3, generator=draw, dtype=torch.float64)
    guesses = truth + 0.03 * torch.randn(truth.shape, generator=draw, dtype=torch.float64)
    nearest = [NearestNeighbors(n_neighbors=2).fit(x).kneighbors(x)[1][:, 1] for x in (guesses.numpy(), truth.numpy())]
    right = nearest[0] == nearest[1]
    some = torch.tensor([7, 2999, 0])
    assert nearest_right(guesses, truth).tolist() == right.tolist()
    assert nearest_right(guesses, truth, some).tolist() == right[some].tolist()

    rule = RULES[Target.NEIGHBOURS]
    score = rule.score(guesses, truth)
    assert score.measure == "share of nearest records (of 1,000 records)"
    assert score.low < right.mean() < score.high
    assert score.chance == 1 / (3 * MOST_ASKED - 1)
    assert rule.score(guesses, truth) == score  # the sample is the same
    few = rule.score(guesses[:MOST_ASKED], truth[:MOST_ASKED])
    assert few.measure == "share of nearest records"


def test_the_distances_of_many_records_are_never_in_memory_at_once(monkeypatch):
    sizes = []
    real = torch.cdist
    monkeypatch.setattr(torch, "cdist", lambda one, other: sizes.append(len(one) * len(other)) or real(one, other))
    monkeypatch.setattr("lightning_vfl.audit.attacks.drift.measure.MOST_DISTANCES", 5000)
    truth = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    assert nearest_right(truth, truth).all()
    assert max(sizes) <= 5000


def test_columns_of_many_records_are_taken_out_without_a_square_of_their_number():
    draw = torch.Generator().manual_seed(0)
    columns = torch.randn(200_000, 3, generator=draw, dtype=torch.float64)  # a square would take 300 GB
    turn = torch.linalg.qr(torch.randn(3, 3, generator=draw, dtype=torch.float64))[0]
    left = without(columns @ turn, columns[:, :1])
    assert torch.linalg.matrix_rank(left) == 2
    correlations = np.corrcoef(torch.cat([left, columns[:, :1]], 1).T)[3, :3]
    assert correlations == pytest.approx(np.zeros(3), abs=0.01)
