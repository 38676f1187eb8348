"""Against Python's integers, with the largest residues in every place."""

import numpy as np
import pytest
import torch

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import PrimeField
from lightning_vfl.field.floats import rows_times, suits

P31, P61 = 2**31 - 1, 2**61 - 1
FIELDS = [PrimeField(), PrimeField(101), PrimeField(65537), PrimeField(2147483629), PrimeField(P61)]


def hardest(shape, p, seed):
    """Residues of which half are the largest in absolute value, of either sign."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randint(p, shape, generator=draw)
    ends = torch.tensor([p // 2, p // 2 + 1])[torch.randint(2, shape, generator=draw)]
    return torch.where(torch.rand(shape, generator=draw) < 0.5, ends, x)


def expected(table, tables, rows, right, p):
    chosen = table.numpy().astype(object)[tables.numpy()][:, rows.numpy()]
    products = [a @ b % p for a, b in zip(chosen, right.numpy().astype(object), strict=True)]
    return np.array(products, dtype=np.int64)


@pytest.mark.parametrize("field", FIELDS, ids=repr)
@pytest.mark.parametrize(
    ("count", "terms", "width"), [(1, 1, 1), (3, 29, 5), (5, 256, 2), (2, 257, 9), (4, 811, 3), (9, 40, 1)]
)
def test_rows_times_matrices(field, count, terms, width):
    table = hardest((3, 12, terms), field.modulus, terms)
    right = hardest((4, terms, width), field.modulus, width)
    tables, rows = torch.tensor([2, 0, 0, 1]), torch.randperm(12, generator=torch.Generator().manual_seed(1))[:count]
    want = expected(table, tables, rows, right, field.modulus)
    assert np.array_equal(field.rows_times(table, tables, rows, right).numpy(), want)
    if field.modulus <= 2**31:
        assert np.array_equal(field.rows_times(table.to(torch.int32), tables, rows, right).numpy(), want)


def test_all_terms_at_their_bound():
    """No partial sum is rounded where every product has the largest absolute value and one sign."""
    half = P31 // 2
    table, right = torch.full((1, 2, 1024), half), torch.full((1, 1024, 3), half)
    right[0, :, 1] = half + 1
    found = PrimeField().rows_times(table, torch.tensor([0]), torch.tensor([1]), right)
    assert found.tolist() == [[[1024 * half * half % P31, 1024 * half * (half + 1) % P31, 1024 * half * half % P31]]]


def test_strided_operands():
    table, right = hardest((2, 6, 40), P31, 0)[:, ::2], hardest((2, 7, 20), P31, 1).transpose(1, 2)[:, :, :5]
    tables, rows = torch.tensor([1, 0]), torch.tensor([2, 0])
    table = table[:, :, 3:23]
    found = PrimeField().rows_times(table, tables, rows, right)
    assert np.array_equal(found.numpy(), expected(table, tables, rows, right, P31))


@pytest.mark.parametrize("where", ["table", "right"])
@pytest.mark.parametrize("element", [-1, P31])
def test_elements_outside_the_field_are_refused(where, element):
    table, right = torch.zeros(1, 3, 4, dtype=torch.int64), torch.zeros(1, 4, 2, dtype=torch.int64)
    (table if where == "table" else right).view(-1)[5] = element
    with pytest.raises(ConfigurationError, match=f"{element} is not an element"):
        PrimeField().rows_times(table, torch.tensor([0]), torch.tensor([0, 1, 2]), right)


def test_rows_that_the_table_has_not_are_refused():
    table, right = torch.zeros(1, 3, 4, dtype=torch.int64), torch.zeros(1, 4, 2, dtype=torch.int64)
    for row in (-1, 3):
        with pytest.raises(IndexError):
            rows_times(table, np.array([0]), np.array([row]), right, P31)


def test_which_products_suit():
    assert suits(1, P31)
    assert suits(812, P31)
    assert suits(10**4, 101)
    assert not suits(0, P31)
    assert not suits(812, P61)
