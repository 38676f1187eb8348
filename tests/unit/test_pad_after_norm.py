"""Zeros behind the norm, in exactly the absent columns."""

from itertools import product

import pytest
import torch

from lightning_vfl.aggregators import Concat
from lightning_vfl.missing import Exclude, MissingPolicy, PadAfterNorm, Skip, Stale, Zeros
from lightning_vfl.rounds.exchange import Exchange
from lightning_vfl.types import Roll, Roster, RoundNames, Rows, Stage
from lightning_vfl.wire import Embeddings, PartyView, ServerView

B, D = 3, 4
EVERY_SET = [torch.tensor(flags) for flags in product([False, True], repeat=D)]
ODD = [-0.0, float("nan"), float("inf"), 5e-324, 1.0]


def embedding(dtype=torch.float32):
    return torch.tensor(ODD, dtype=dtype).repeat(3)[: B * D].view(B, D).clone()


def as_bits(x):
    return x.contiguous().view(torch.int64 if x.dtype == torch.float64 else torch.int32)


@pytest.mark.parametrize("columns", EVERY_SET, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_absent_columns_are_zeros_and_present_ones_keep_their_bits(columns, dtype):
    z = embedding(dtype)
    kept = z.clone()
    out = PadAfterNorm().padding(z, columns)
    for d in range(D):
        expected = kept[:, d] if columns[d] else torch.zeros(B, dtype=dtype)
        assert torch.equal(as_bits(out[:, d]), as_bits(expected))
    assert torch.equal(as_bits(z), as_bits(kept))
    assert out.dtype == dtype
    assert (out is z) == all(columns.tolist())


@pytest.mark.parametrize("columns", EVERY_SET, ids=str)
def test_no_gradient_comes_back_from_absent_columns(columns):
    """Not even when what comes back there is no number."""
    z, grad = embedding().requires_grad_(), embedding() * 7
    (PadAfterNorm().padding(z, columns) + 0.0).backward(grad)
    for d in range(D):
        expected = grad[:, d] if columns[d] else torch.zeros(B)
        assert torch.equal(as_bits(z.grad[:, d]), as_bits(expected))


@pytest.mark.parametrize("policy", [Exclude(), Zeros(), Skip(), Stale()], ids=repr)
def test_other_policies_hand_on_what_the_norm_gave(policy):
    assert policy.padding is None


def test_what_it_says_of_itself():
    policy = PadAfterNorm()
    assert MissingPolicy.padding is None
    assert policy.stand_in is None
    assert policy.memory is None
    assert repr(policy) == "PadAfterNorm()"


@pytest.mark.parametrize("included", [[1, 1, 1], [0, 1, 1], [0, 0, 1]])
def test_before_the_norm_it_excludes(included):
    """The aggregate is that of Exclude."""
    included = torch.tensor(included, dtype=torch.bool)
    called, nobody = torch.ones(3, dtype=torch.bool), torch.zeros(3, dtype=torch.bool)
    names, roster, rows = RoundNames(0, Stage.FIT, 0), Roster.singles(3), Rows(torch.arange(B), 0, B)
    roll = Roll(called, included, included, nobody)
    view = ServerView(names, roster, rows, roll, (2, 2, 2))
    h = tuple(torch.randn(B, 2, generator=torch.Generator().manual_seed(m)) for m in range(3))
    parties = PartyView(names, roster, (0, 1, 2), called, rows, {})
    one, other = (
        Exchange(Concat(), Embeddings(h), parties, view, policy).run() for policy in (PadAfterNorm(), Exclude())
    )
    assert torch.equal(one, other)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_columns_may_lie_elsewhere():
    z, columns = embedding(), EVERY_SET[5]
    for there in (columns, columns.cuda()):
        out = PadAfterNorm().padding(z.cuda(), there)
        assert torch.equal(as_bits(out.cpu()), as_bits(PadAfterNorm().padding(z, columns)))
