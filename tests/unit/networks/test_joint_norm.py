"""The norm over the joint embedding with columns absent, against batch norm by hand and torch's of the rest."""

import copy
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.networks.joint_norm import JointNorm
from tests.further import further

B, D, EPS = 5, 6, 1e-5
ALL, NONE = [True] * D, [False] * D
SOME = torch.tensor([True, False, False, True, True, False])
ROUNDS = 12

every_setting = pytest.mark.parametrize(
    ("affine", "track", "momentum"),
    [(a, t, m) for a in (True, False) for t, m in ((True, 0.1), (True, 0.7), (True, None), (False, 0.1))],
)


class ByHand:
    """Batch norm in numpy, column by column; columns that are not named are left alone."""

    def __init__(self, weight, bias, track, momentum):
        self.weight, self.bias, self.track, self.momentum = weight, bias, track, momentum
        self.mean, self.var, self.count = np.zeros(D), np.ones(D), 0

    def round(self, z, grad, present, training):
        """Output, gradients of z, weight and bias."""
        out, dz, dw, db = np.zeros((B, D)), np.zeros((B, D)), np.zeros(D), np.zeros(D)
        if training and self.track and any(present):
            self.count += 1
        for d in np.flatnonzero(present):
            x, g, w = z[:, d], grad[:, d], self.weight[d]
            of_batch = training or not self.track
            mean, var = (x.mean(), ((x - x.mean()) ** 2).sum() / B) if of_batch else (self.mean[d], self.var[d])
            hat = (x - mean) / np.sqrt(var + EPS)
            out[:, d] = hat * w + self.bias[d]
            dw[d], db[d] = (g * hat).sum(), g.sum()
            dz[:, d] = w / np.sqrt(var + EPS) * (g - (g.mean() + hat * (g * hat).mean() if of_batch else 0))
            if training and self.track:
                share = 1 / self.count if self.momentum is None else self.momentum
                self.mean[d] += share * (mean - self.mean[d])
                self.var[d] += share * (var * B / (B - 1) - self.var[d])
        return out, dz, dw, db


def made(affine=True, track=True, momentum=0.1, seed=0):
    norm = nn.BatchNorm1d(D, EPS, momentum, affine, track, dtype=torch.float64)
    if affine:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            norm.weight.copy_(torch.rand(D, generator=generator) + 0.5)
            norm.bias.copy_(torch.randn(D, generator=generator))
    return norm


def embedding(seed, rows=B):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(rows, D, generator=generator, dtype=torch.float64) * 3 + torch.arange(D)
    return z.requires_grad_()


def statistics(norm):
    return {name: value.clone() for name, value in norm.named_buffers()}


def bits(state):
    return {name: value.numpy().tobytes() for name, value in state.items()}


def close(one, other):
    np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-11)


@every_setting
@pytest.mark.parametrize("seed", [0, further(1), further(2)])
def test_rounds_with_random_absences_are_batch_norm_by_hand(affine, track, momentum, seed):
    """Training and evaluation mixed; in absent columns stands NaN, and the statistics there keep every bit."""
    norm = JointNorm(made(affine, track, momentum, seed))
    weight = norm.norm.weight.detach().numpy() if affine else np.ones(D)
    bias = norm.norm.bias.detach().numpy() if affine else np.zeros(D)
    oracle, random = ByHand(weight, bias, track, momentum), np.random.default_rng(seed)
    for number in range(ROUNDS):
        present = {3: ALL, 4: NONE}.get(number, (random.random(D) < 0.5).tolist())
        training, columns = number % 3 != 2, torch.tensor(present)
        z = embedding(100 * seed + number)
        with torch.no_grad():
            z[:, ~columns] = float("nan") if number % 2 else float("inf")
        grad = random.normal(size=(B, D))
        before = statistics(norm.norm)
        norm.zero_grad()
        out = norm.train(training)(z, columns)
        out.backward(torch.tensor(grad))
        expected, dz, dw, db = oracle.round(z.detach().numpy(), grad, present, training)
        close(out.detach(), expected)
        close(z.grad, dz)
        assert not out[:, ~columns].any()
        assert not z.grad[:, ~columns].any()
        if affine and any(present):
            close(norm.norm.weight.grad, dw)
            close(norm.norm.bias.grad, db)
            assert not norm.norm.weight.grad[~columns].any()
            assert not norm.norm.bias.grad[~columns].any()
        if track:
            close(norm.norm.running_mean, oracle.mean)
            close(norm.norm.running_var, oracle.var)
            assert norm.norm.num_batches_tracked == oracle.count
            for name in ("running_mean", "running_var"):
                assert torch.equal(getattr(norm.norm, name)[~columns], before[name][~columns])
            if not training or not any(present):
                assert bits(statistics(norm.norm)) == bits(before)
    assert (oracle.count == 7) is track
    assert {name for name, _ in norm.named_buffers()} == {f"norm.{name}" for name in before}


@every_setting
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_present_columns_are_those_of_a_smaller_norm(affine, track, momentum, training, dtype):
    """The same bits as BatchNorm1d made for the present columns alone, over four rounds."""
    norm, alone = JointNorm(made(affine, track, momentum)).to(dtype), nn.BatchNorm1d(3, EPS, momentum, affine, track)
    state = norm.norm.state_dict().items()
    alone.to(dtype).load_state_dict({name: value[SOME] if value.dim() else value for name, value in state})
    for number in range(4):
        z = embedding(number).detach().to(dtype).requires_grad_()
        part = z.detach()[:, SOME].requires_grad_()
        mode = training or number == 0
        out, other = norm.train(mode)(z, SOME), alone.train(mode)(part)
        assert torch.equal(out[:, SOME], other)
        assert out.dtype == dtype
        out.square().sum().backward()
        other.square().sum().backward()
        assert torch.equal(z.grad[:, SOME], part.grad)
    for (name, value), (_, expected) in zip(norm.norm.state_dict().items(), alone.state_dict().items(), strict=True):
        assert torch.equal(value[SOME] if value.dim() else value, expected), name
    for one, other in zip(norm.parameters(), alone.parameters(), strict=True):
        assert torch.equal(one.grad[SOME], other.grad)


@every_setting
@pytest.mark.parametrize("columns", [None, torch.ones(D, dtype=torch.bool)], ids=["None", "all"])
def test_all_columns_are_the_norm_itself(affine, track, momentum, columns):
    norm = JointNorm(made(affine, track, momentum))
    plain = copy.deepcopy(norm.norm)
    buffers = dict(norm.norm.named_buffers())
    for number in range(4):
        one, other = embedding(number), embedding(number)
        out, expected = norm.train(number != 2)(one, columns), plain.train(number != 2)(other)
        assert torch.equal(out, expected)
        out.square().sum().backward()
        expected.square().sum().backward()
        assert torch.equal(one.grad, other.grad)
    assert bits(norm.norm.state_dict()) == bits(plain.state_dict())
    assert all(dict(norm.norm.named_buffers())[name] is buffer for name, buffer in buffers.items())


@pytest.mark.parametrize("norm", [nn.LayerNorm(D), nn.GroupNorm(2, D), nn.Identity(), nn.Sequential(nn.BatchNorm1d(D))])
def test_any_norm_will_do_without_absences(norm):
    wrapped, z = JointNorm(norm).double(), embedding(0)
    assert not wrapped.by_columns
    assert torch.equal(wrapped(z), norm(z))
    assert torch.equal(wrapped(z, torch.tensor(ALL)), norm(z))


class OfMyOwn(nn.BatchNorm1d):
    pass


@pytest.mark.parametrize("columns", [SOME, torch.tensor(NONE)], ids=["some", "none"])
@pytest.mark.parametrize("make", [nn.LayerNorm, nn.SyncBatchNorm, nn.LazyBatchNorm1d, nn.InstanceNorm1d, OfMyOwn])
def test_other_norms_refuse_absences(make, columns):
    norm = JointNorm(nn.LazyBatchNorm1d() if make is nn.LazyBatchNorm1d else make(D))
    assert not norm.by_columns
    with pytest.raises(ConfigurationError, match=f"{make.__name__} .*use torch.nn.BatchNorm1d"):
        norm(embedding(0), columns)
    assert JointNorm(nn.BatchNorm1d(D)).by_columns


def test_a_norm_that_has_been_converted_refuses():
    """What the trainer's ``sync_batchnorm`` does behind the module's back."""
    norm = nn.SyncBatchNorm.convert_sync_batchnorm(JointNorm(nn.BatchNorm1d(D)))
    assert not norm.by_columns


@pytest.mark.parametrize("rows", [1, B])
@pytest.mark.parametrize("training", [True, False])
def test_nothing_moves_when_all_are_absent(training, rows):
    norm, z = JointNorm(made(momentum=None)).train(training), embedding(0, rows)
    with torch.no_grad():
        z[0] = float("nan")
    before = statistics(norm.norm)
    out = norm(z, torch.tensor(NONE))
    out.sum().backward()
    assert torch.equal(out, torch.zeros(rows, D, dtype=torch.float64))
    assert torch.equal(z.grad, torch.zeros_like(z))
    assert all(p.grad is None or not p.grad.any() for p in norm.parameters())
    assert bits(statistics(norm.norm)) == bits(before)


# trained, trained, absent, absent; BatchNorm1d by itself writes in training what its evaluation has saved
PAIRS = [pair for pair in product([True, False], repeat=4) if pair != (False, True, False, False)]


@pytest.mark.parametrize(("train_first", "train_second", "absent_first", "absent_second"), PAIRS)
def test_two_forwards_before_one_backward(train_first, train_second, absent_first, absent_second):
    """The gradients of the two rounds one by one: the second writes nothing that the first has saved."""
    norm = JointNorm(made())
    norm(embedding(9))
    columns = [SOME if absent_first else torch.tensor(ALL), ~SOME if absent_second else torch.tensor(ALL)]
    modes, grads = [train_first, train_second], []
    for together in (False, True):
        one = copy.deepcopy(norm)
        z = [embedding(0), embedding(1)]
        outs = []
        for number in range(2):
            outs.append(one.train(modes[number])(z[number], columns[number]).pow(3).sum())
            if not together:
                outs[-1].backward()
        if together:
            sum(outs).backward()
        grads.append([z[0].grad, z[1].grad, one.norm.weight.grad, one.norm.bias.grad])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-13)


def test_a_round_with_absences_writes_into_no_buffer():
    norm = JointNorm(made())
    held, before = dict(norm.norm.named_buffers()), statistics(norm.norm)
    versions = {name: buffer._version for name, buffer in held.items()}
    norm(embedding(0), SOME)
    for name in ("running_mean", "running_var"):
        assert torch.equal(held[name], before[name])
        assert held[name]._version == versions[name]
        assert not torch.equal(getattr(norm.norm, name), before[name])
        assert not getattr(norm.norm, name).requires_grad


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("track", [True, False])
def test_gradients_are_right_in_float64(training, affine, track):
    norm = JointNorm(made(affine, track)).train(training)
    parameters = tuple(norm.parameters())

    def run(z, *_):
        return norm(z, SOME)

    assert torch.autograd.gradcheck(run, (embedding(0), *parameters))


def test_training_goes_on_after_a_round_in_inference_mode():
    norm = JointNorm(made())
    with torch.inference_mode():
        norm(embedding(0), SOME)
    assert not any(buffer.is_inference() for buffer in norm.buffers())
    for columns in (None, SOME):
        norm.train()(embedding(1), columns).sum().backward()
        norm.eval()(embedding(1), columns).sum().backward()


def test_its_state_survives_a_checkpoint():
    norm, other = JointNorm(made()), JointNorm(made(seed=1))
    norm(embedding(0), SOME)
    other.load_state_dict(copy.deepcopy(norm.state_dict()))
    assert torch.equal(norm(embedding(1), ~SOME), other(embedding(1), ~SOME))
    assert bits(norm.state_dict()) == bits(other.state_dict())
    assert list(norm.state_dict()) == [f"norm.{name}" for name in nn.BatchNorm1d(D).state_dict()]


def test_one_row_is_refused_as_torch_refuses_it():
    norm = JointNorm(made())
    for columns in (None, SOME):
        with pytest.raises(ValueError, match="more than 1 value"):
            norm(embedding(0, rows=1), columns)
    assert torch.equal(norm.norm.running_mean, torch.zeros(D, dtype=torch.float64))


@pytest.mark.parametrize("columns", [SOME[:-1], SOME[None], SOME.long(), torch.ones(D - 1, dtype=torch.bool)])
def test_columns_that_do_not_fit_are_refused(columns):
    with pytest.raises(ValueError, match="one bool for each column"):
        JointNorm(made())(embedding(0), columns)


@pytest.mark.parametrize("width", [D - 1, D + 1])
def test_a_norm_of_another_width_is_refused(width):
    """A wider one would otherwise go on with the wrong columns."""
    with pytest.raises(ValueError, match=f"must have {width} columns, as the norm; got {D}"):
        JointNorm(nn.BatchNorm1d(width))(embedding(0), SOME)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("training", [True, False])
def test_columns_may_lie_elsewhere(training):
    norm, z = JointNorm(made()).train(training), embedding(0)
    there, far = copy.deepcopy(norm).cuda(), z.detach().cuda()
    expected = norm(z, SOME)
    for columns in (SOME, SOME.cuda()):
        one = copy.deepcopy(there)
        torch.testing.assert_close(one(far, columns).cpu(), expected)
        assert one.norm.running_mean.is_cuda
        torch.testing.assert_close(one.norm.running_var.cpu(), norm.norm.running_var)
    assert not there(far, torch.tensor(NONE)).any()
