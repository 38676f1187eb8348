"""The columns of linear bottoms from drifting uploads, against a plain PyTorch loop."""

import torch
from torch import Tensor, nn

from lightning_vfl.audit.attacks.drift.levels import few_valued
from lightning_vfl.audit.attacks.drift.linear import linear
from lightning_vfl.audit.attacks.drift.measure import affine_guesses, exact_columns, told
from lightning_vfl.audit.attacks.drift.served import ServedStep, ServedSteps, StepRule


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
    values = torch.randint(-1, 2, (400, 20), generator=draw).double()
    differing = torch.cdist(values, values, p=0.0).fill_diagonal_(20)  # the number of columns that differ
    assert differing.min() > 2
    turn, _ = torch.linalg.qr(torch.randn(20, 20, generator=draw, dtype=torch.float64))
    for columns in (values, values / values.std(0)):
        guesses = few_valued((columns - columns.mean(0)) @ turn + 1e-5 * torch.randn(400, 20, generator=draw))
        assert exact_columns(guesses, columns) == (20, 20)
        assert guesses.shape == (400, 20)  # no guess beside the columns


def test_columns_of_many_values_are_not_called_few():
    draw = torch.Generator().manual_seed(0)
    assert few_valued(torch.randn(300, 10, generator=draw, dtype=torch.float64)).shape == (300, 0)
    for records in (0, 1, 2, 5):
        assert len(few_valued(torch.zeros(records, 3, dtype=torch.float64))) == records
