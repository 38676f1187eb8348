from itertools import combinations

import galois
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import DecodingError, PrimeField, decode, interpolate
from tests.unit.field.oracle import elements

FIELDS = [PrimeField(97), PrimeField(), PrimeField(2**61 - 1)]


def codeword(field, size, n, *shape, seed=0):
    """Values at 0..size-1, which determine the polynomials, and uploads at 20, 21, ..."""
    known = elements(field, size, *shape, seed=seed)
    points = list(range(20, 20 + n))
    return known, points, interpolate(field, known, range(size), points)


def spoilt(field, uploads, positions, seed=1):
    """Every element of an upload wrong, the smallest error among them."""
    out = uploads.clone()
    for k, i in enumerate(positions):
        error = elements(field, *uploads.shape[1:], seed=seed + k).clamp(min=1)
        out[i] = field.add(out[i], error)
    return out


@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_every_choice_of_wrong_uploads_is_corrected(field):
    """R = 3 and A = 2: all subsets of at most 2 of 7."""
    known, points, uploads = codeword(field, 3, 7, 2, 3)
    for wrong in [(), *combinations(range(7), 1), *combinations(range(7), 2)]:
        decoded = decode(field, spoilt(field, uploads, wrong), points, range(3), 3)
        assert decoded.wrong == wrong
        assert torch.equal(decoded.values, known)


@given(
    st.sampled_from(FIELDS), st.integers(1, 6), st.integers(0, 4), st.integers(0, 1), st.integers(0, 2**20), st.data()
)
def test_any_size(field, size, correctable, spare, seed, data):
    n = size + 2 * correctable + spare
    known, points, uploads = codeword(field, size, n, 3, seed=seed)
    wrong = data.draw(st.lists(st.integers(0, n - 1), max_size=correctable, unique=True).map(sorted))
    decoded = decode(field, spoilt(field, uploads, wrong, seed), points, range(size), size)
    assert decoded.wrong == tuple(wrong)
    assert torch.equal(decoded.values, known)


@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_wrong_elements_in_different_places(field):
    """Each wrong upload differs in a column of its own: no single column shows them all."""
    known, points, uploads = codeword(field, 4, 10, 50)
    received = uploads.clone()
    for i, column in ((2, 0), (9, 17), (5, 49)):
        received[i, column] = (received[i, column] + 1) % field.modulus
    decoded = decode(field, received, points, range(4), 4)
    assert decoded.wrong == (2, 5, 9)
    assert torch.equal(decoded.values, known)


@pytest.mark.parametrize("field", FIELDS[1:], ids=str)
@pytest.mark.parametrize("extra", [1, 2, 3, 4])  # R uploads alone always are a codeword
def test_one_wrong_upload_too_many_raises(field, extra):
    """In a large field random errors are near no other codeword."""
    _, points, uploads = codeword(field, 3, 3 + extra, 5)
    allowed = extra // 2
    with pytest.raises(DecodingError, match=f"more than {allowed} are wrong"):
        decode(field, spoilt(field, uploads, range(allowed + 1)), points, [0], 3)


@pytest.mark.parametrize("field", FIELDS[1:], ids=str)
def test_too_many_wrong_uploads_spread_over_columns_raise(field):
    """Each column can be corrected by itself, all of them together cannot."""
    _, points, uploads = codeword(field, 3, 7, 5)
    received = uploads.clone()
    for i in range(3):
        received[i, i] = (received[i, i] + 1) % field.modulus
    with pytest.raises(DecodingError, match="agrees with 5 of the 7 uploads"):
        decode(field, received, points, [0], 3)


def test_enumeration_of_a_small_field():
    """Every word of length 4 over 5 elements, R = 2: corrected exactly if a codeword is within one, else raised."""
    field, points = PrimeField(5), [1, 2, 3, 4]
    codewords = {(c0, c1): [(c0 + c1 * x) % 5 for x in points] for c0 in range(5) for c1 in range(5)}
    words = torch.cartesian_prod(*[torch.arange(5)] * 4).tolist()
    for word in words:
        near = [
            (c, tuple(i for i in range(4) if code[i] != word[i]))
            for c, code in codewords.items()
            if sum(a != b for a, b in zip(code, word, strict=True)) <= 1
        ]
        assert len(near) <= 1
        received = torch.tensor(word)
        if near:
            decoded = decode(field, received, points, [0], 2)
            assert (decoded.values.item(), decoded.wrong) == (near[0][0][0], near[0][1])
        else:
            with pytest.raises(DecodingError):
                decode(field, received, points, [0], 2)


def test_galois_reed_solomon_agrees():
    """Its narrow-sense code over GF(31): coefficient i of a codeword is a polynomial's value at the i-th power of a."""
    other = galois.GF(31, compile="python-calculate")
    code = galois.ReedSolomon(30, 20, field=other)
    points = [int(v) for v in (other.primitive_element ** np.arange(30))[::-1]]  # the highest coefficient comes first
    rng = np.random.default_rng(0)
    for errors in range(6):
        word = code.encode(other(rng.integers(0, 31, 20)))
        where = np.sort(rng.choice(30, errors, replace=False))
        received = word.copy()
        received[where] += other(rng.integers(1, 31, errors))
        decoded = decode(PrimeField(31), torch.tensor(received.tolist()), points, points, 20)
        assert decoded.values.tolist() == code.decode(received, output="codeword").tolist() == word.tolist()
        assert decoded.wrong == tuple(where.tolist())


def test_shapes():
    field = PrimeField()
    known, points, uploads = codeword(field, 2, 4, 3, 5)
    assert decode(field, uploads, points, [0, 1], 2).values.shape == (2, 3, 5)
    assert decode(field, uploads[:, 0, 0], points, [0], 2).values.shape == (1,)
    assert decode(field, uploads[:, :0], points, [0], 2).values.shape == (1, 0, 5)
    assert torch.equal(decode(field, uploads[:2], points[:2], [0, 1], 2).values, known)


@pytest.mark.parametrize(
    ("values", "points", "size", "words"),
    [
        (torch.ones(3, 1, dtype=torch.int64), [1, 2], 1, "do not belong to 2 points"),
        (torch.tensor(1), [1], 1, "do not belong"),
        (torch.ones(2, 1, dtype=torch.int64), [1, 2], 3, "2 values do not determine a polynomial of 3 coefficients"),
        (torch.ones(2, 1, dtype=torch.int64), [1, 2], 0, "0 coefficients"),
        (torch.ones(3, 1, dtype=torch.int64), [1, 2, 1], 1, "the points 1 and 1"),
        (torch.full((2, 1), 97), [1, 2], 1, "97 is not an element"),
        (torch.ones(2, 1), [1, 2], 1, "int64 tensors"),
    ],
)
def test_bad_calls_are_refused(values, points, size, words):
    with pytest.raises(ConfigurationError, match=words):
        decode(PrimeField(97), values, points, [0], size)
