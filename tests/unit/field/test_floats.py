"""All ways to compute a product, held to Python's integers: fused kernels, their Python source, torch operations."""

from itertools import chain

import pytest
import torch

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import PrimeField, floats, kernels, plan
from lightning_vfl.field.limbs import balanced
from tests.unit.field.oracle import elements, matmul

P31, P61 = 2**31 - 1, 2**61 - 1
FIELDS = [PrimeField(p) for p in (3, 11, 97, 65537, 2097143, 67108859, P31, P61)]
WAYS = ("fused", "threads", "source", "torch")


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    if request.param == "torch":
        for step in ("split", "fold"):
            monkeypatch.setattr(floats, f"_{step}_fused", getattr(floats, f"_{step}_torch"))
    if request.param == "threads":
        monkeypatch.setattr(floats, "PARALLEL", 1)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    if request.param == "source":  # numpy's integers warn when they overflow, and a warning is an error here
        names = [name for name, value in vars(kernels).items() if hasattr(value, "py_func")]
        for name in names:
            monkeypatch.setattr(kernels, name, getattr(kernels, name).py_func)
    return request.param


def agree(field: PrimeField, a: torch.Tensor, b: torch.Tensor) -> None:
    expected = matmul(a, b, field.modulus)
    assert torch.equal(field.matmul(a, b), expected)


@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_random_elements_and_extremes(field, way):
    for m, k, n in ((2, 7, 9), (9, 8, 8), (3, 9, 5), (1, 1, 1), (5, 40, 2)):
        agree(field, elements(field, m, k, seed=1), elements(field, k, n, seed=2))


@pytest.mark.parametrize("field", FIELDS, ids=str)
@pytest.mark.parametrize("value", [pytest.param("p - 1", marks=pytest.mark.slow), "p // 2", "p // 2 + 1"])
@pytest.mark.parametrize("way", ["fused", "source", "torch"], indirect=True)
def test_the_plan_at_its_limits(field, value, way):
    """Every element the same extreme, contractions of one chunk, one less and one more, and two and one more."""
    p = field.modulus
    x = {"p - 1": p - 1, "p // 2": p // 2, "p // 2 + 1": p // 2 + 1}[value]
    chunk = plan(10**6, p).chunk
    lengths = {1, 300} | ({chunk - 1, chunk, chunk + 1, 2 * chunk + 1} if chunk < 10**4 else set())
    if way == "source":
        lengths = {k for k in lengths if k < 1000}
    for k in lengths:
        a, b = torch.full((2, k), x), torch.full((k, 3), x)
        for left, right in ((a, b), (a, torch.full((k, 3), 1)), (a, torch.full((k, 3), p // 2))):
            expected = x * int(right[0, 0]) * k % p
            assert (field.matmul(left, right) == expected).all()
            assert (field.matmul(right.mT, left.mT) == expected).all()


def worst(p: int, count: int) -> list[int]:
    """Elements with the largest odd limbs: sums of their products have no trailing zeros that would hide a rounding."""
    limbs = balanced(p, count)
    low = sum((2 ** (limbs.bits - 1) - 1) << (limbs.bits * i) for i in range(count - 1))
    top = limbs.bits * (count - 1)
    high = ((p - 1) // 2 - low) >> top
    return [
        c % p for c in (low + (high << top), -low - (high << top), low + ((high - 1 | 1) << top), low, (p - 1) // 2)
    ]


@pytest.mark.parametrize("field", FIELDS, ids=str)
@pytest.mark.parametrize("way", ["fused", "source", "torch"], indirect=True)
def test_the_largest_limbs_at_the_limits_of_a_chunk(field, way):
    """p - 1 is the centred residue -1: what is largest here are the limbs."""
    p = field.modulus
    how = plan(10**6, p)
    lengths = [k for k in (how.chunk - 1, how.chunk, how.chunk + 1, 2 * how.chunk + 1) if k < 20_000]
    if way == "source":
        lengths = [k for k in lengths if k < 1000]
    few, many = (torch.tensor(worst(p, limbs.count)) for limbs in (how.few, how.many))
    for k in lengths:  # every pair of both, and either one as the left factor
        for left, right in ((few, many), (many, few)):
            got = field.matmul(left[:, None].expand(-1, k), right.expand(k, -1))
            assert got.tolist() == [[x * y * k % p for y in right.tolist()] for x in left.tolist()]


SHAPES = (
    ((4, 2, 3), (4, 3, 9)),
    ((4, 2, 3), (3, 9)),
    ((2, 3), (4, 3, 9)),
    ((5, 1, 2, 3), (4, 3, 2)),
    ((1, 4, 2, 20), (3, 1, 20, 2)),
    ((0, 3), (3, 9)),
    ((2, 0), (0, 9)),
    ((2, 3), (3, 0)),
    ((0, 2, 3), (3, 9)),
    ((0, 2, 3), (0, 3, 2)),
)


@pytest.mark.parametrize("field", [PrimeField(), PrimeField(65537), PrimeField(P61)], ids=str)
def test_batches_broadcast_and_may_be_empty(field, way):
    for a, b in SHAPES:
        agree(field, elements(field, *a, seed=3), elements(field, *b, seed=4))


@pytest.mark.parametrize("field", [PrimeField(), PrimeField(65537), PrimeField(P61)], ids=str)
@pytest.mark.parametrize("k", [5, 300])
def test_strides_do_not_matter(field, k, way):
    a, b = elements(field, 9, 2 * k, seed=5)[:, ::2], elements(field, 9, k, seed=6).mT
    agree(field, a, b)
    agree(field, elements(field, k, 3, 2, seed=7).permute(2, 1, 0), elements(field, k, seed=8)[:, None].expand(k, 8))


@pytest.mark.parametrize("field", [PrimeField(), PrimeField(65537), PrimeField(P61)], ids=str)
@pytest.mark.parametrize("shape", [((7, 300), (300, 5)), ((2, 7, 300), (2, 300, 5)), ((2, 7, 300), (300, 5))], ids=str)
def test_large_results_are_made_in_tiles(field, shape, way, monkeypatch):
    monkeypatch.setattr(floats, "BUFFER", 60)
    agree(field, elements(field, *shape[0], seed=9), elements(field, *shape[1], seed=10))


def test_a_thread_each_and_every_element_once(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    for size in (1, 6, 7, 8, 1000):
        pieces = floats._spread(size, floats.PARALLEL, lambda i, j: list(range(i, j)))
        assert list(chain(*pieces)) == list(range(size))
        assert len(pieces) == min(7, size)
    assert len(floats._spread(1000, floats.PARALLEL - 1, lambda i, j: (i, j))) == 1


def test_a_child_of_a_fork_gets_threads_of_its_own(monkeypatch):
    mine = floats._pool(2, 1)
    assert floats._pool(2, 1) is mine
    assert floats._pool(2, 2) is not mine


@pytest.mark.parametrize("field", [PrimeField(), PrimeField(65537), PrimeField(P61)], ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 9), (2, 300, 9), (1, 1, 2100)], ids=str)
def test_elements_outside_the_field_are_seen_wherever_they_are(field, shape, way):
    m, k, n = shape
    wrongs = (-1, field.modulus) if way == "source" else (-1, field.modulus, -(2**63), 2**63 - 1)  # numpy would warn
    for wrong in wrongs:
        for place in (0, -1):
            a, b = elements(field, m, k), elements(field, k, n)
            for x in (a, b):
                kept = int(x.view(-1)[place])
                x.view(-1)[place] = wrong
                with pytest.raises(ConfigurationError, match=f"{wrong} is not an element modulo {field.modulus}"):
                    field.matmul(a, b)
                x.view(-1)[place] = kept


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_a_gpu_gives_the_same(field):
    a, b = elements(field, 33, 2100, seed=11), elements(field, 2100, 65, seed=12)
    assert torch.equal(field.matmul(a.cuda(), b.cuda()).cpu(), field.matmul(a, b))
    p = field.modulus
    full = torch.full((4, 2100), p - 1)
    assert (field.matmul(full.cuda(), full.mT.cuda()) == 2100 % p).all()
