"""Passes over elements against Python's integers."""

import numpy as np
import pytest
import torch

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import FixedPoint, PrimeField
from lightning_vfl.streams import stream

P31, P61 = 2**31 - 1, 2**61 - 1
FIELDS = [PrimeField(), PrimeField(3), PrimeField(65537), PrimeField(2147483629), PrimeField(P61)]


@pytest.mark.parametrize("field", FIELDS, ids=repr)
def test_signed_integers_become_elements_and_come_back(field):
    half = field.half
    x = torch.tensor([0, 1, -1, half, -half, half - 1, 1 - half])
    elements = field.embed(x.flip(0))
    assert elements.tolist() == [v % field.modulus for v in x.flip(0).tolist()]
    codec = FixedPoint(field, 3, 4)
    assert codec.dequantise(elements).tolist() == [float(v) / 2**7 for v in x.flip(0).tolist()]
    for outside in (half + 1, -half - 1, 2**63 - 1, -(2**63)):
        with pytest.raises(ConfigurationError, match="signed range"):
            field.embed(torch.tensor([0, outside]))


@pytest.mark.parametrize("field", FIELDS, ids=repr)
@pytest.mark.parametrize("count", [0, 1, 5, 1000])
def test_uniform_elements_are_the_first_words_that_fit(field, count):
    """The definition: low bits of words, or of their halves, without those of p or above."""
    asked = []

    def words(n):
        asked.append(n)
        return stream(0, "elements", len(asked)).random_raw(n)

    found = field.random((count,), words)
    kept, mask = [], 2**field.wire_bits - 1
    for number, n in enumerate(asked, 1):
        raw = stream(0, "elements", number).random_raw(n)
        bits = raw.view(np.uint32) if field.wire_bits <= 32 else raw
        kept += [int(word) & mask for word in bits if int(word) & mask < field.modulus][: count - len(kept)]
    assert found.tolist() == kept
    assert found.dtype == torch.int64
