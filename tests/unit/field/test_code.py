"""Lagrange coding against Lagrange's formula in Python's integers, galois, and enumeration on fields of 7 and 11."""

from collections import Counter
from itertools import combinations, permutations, product
from math import comb

import galois
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.field import DecodingError, LagrangeCode, PrimeField
from tests.unit.field.oracle import elements, times

FIELDS = [PrimeField(97), PrimeField(), PrimeField(2**61 - 1)]
CODE = LagrangeCode(PrimeField(11), 2, 1, 5)
every_field = pytest.mark.parametrize("field", FIELDS, ids=str)


def at(points, values, x, p):
    """The polynomial through these points at x: Lagrange's formula in integers."""
    total = 0
    for j, (xj, yj) in enumerate(zip(points, values, strict=True)):
        top, bottom = yj, 1
        for i, xi in enumerate(points):
            if i != j:
                top, bottom = top * (x - xi), bottom * (xj - xi)
        total += top * pow(bottom, -1, p)
    return total % p


def polynomial(coefficients, x, p):
    return sum(c * x**k for k, c in enumerate(coefficients)) % p


def expected(code, values):
    """Shares of the polynomials through the flattened columns of values (K + T, *S), share by share."""
    columns = values.flatten(1).T.tolist()
    return [[at(code.beta, column, a, code.field.modulus) for column in columns] for a in code.alpha]


def everything(p, n):
    """All p^n columns of n elements."""
    return torch.tensor(list(product(range(p), repeat=n))).T.reshape(n, -1)


@given(st.integers(1, 6), st.integers(0, 4), st.integers(1, 12))
def test_all_points_differ(blocks, privacy, parties):
    code = LagrangeCode(PrimeField(97), blocks, privacy, parties)
    assert len(code.beta) == blocks + privacy
    assert len(code.alpha) == parties
    assert len({*code.beta, *code.alpha}) == blocks + privacy + parties
    assert all(0 < point < 97 for point in (*code.beta, *code.alpha))


@given(st.sampled_from(FIELDS), st.integers(1, 4), st.integers(0, 3), st.integers(1, 8), st.integers(0, 2**20))
def test_shares_are_values_of_the_polynomial_through_secrets_and_masks(field, blocks, privacy, parties, seed):
    code = LagrangeCode(field, blocks, privacy, parties)
    values = elements(field, blocks + privacy, 2, 3, seed=seed)
    shares = code.share(values[:blocks], values[blocks:])
    assert shares.shape == (parties, 2, 3)
    assert shares.flatten(1).tolist() == expected(code, values)


@pytest.mark.parametrize("p", [97, 2**31 - 1])
def test_galois_gives_the_same_shares(p):
    code, other = LagrangeCode(PrimeField(p), 3, 2, 6), galois.GF(p, compile="python-calculate")
    values = elements(code.field, 5, 4, seed=3)
    shares = code.share(values[:3], values[3:])
    for column, got in zip(values.T.tolist(), shares.T.tolist(), strict=True):
        f = galois.lagrange_poly(other(list(code.beta)), other(column))
        assert f(other(list(code.alpha))).tolist() == got


@every_field
@pytest.mark.parametrize(("blocks", "privacy", "parties"), [(2, 1, 6), (1, 2, 7), (3, 0, 6), (1, 0, 2)])
def test_any_r_products_decode_to_the_product_of_the_secrets(field, blocks, privacy, parties):
    """Every R-subset of M uploads gives the same tensor, and so does every longer list; R - 1 raises."""
    code, p = LagrangeCode(field, blocks, privacy, parties), field.modulus
    x, w = (elements(field, blocks + privacy, 2, 2, seed=seed) for seed in (1, 2))
    shared = [code.share(values[:blocks], values[blocks:]).flatten(1).tolist() for values in (x, w)]
    uploads = torch.tensor([[a * b % p for a, b in zip(*pair, strict=True)] for pair in zip(*shared, strict=True)])
    uploads = uploads.view(parties, 2, 2)
    pairs = zip(x[:blocks].flatten().tolist(), w[:blocks].flatten().tolist(), strict=True)
    wanted = torch.tensor([a * b % p for a, b in pairs]).view(blocks, 2, 2)
    needed = 2 * (blocks + privacy - 1) + 1
    assert code.threshold(2) == needed
    subsets = list(combinations(range(parties), needed))
    assert len(subsets) == comb(parties, needed) >= 1
    for who in subsets:
        assert torch.equal(code.decode(uploads[list(who)], who, 2), wanted)
        assert torch.equal(code.decode(uploads[list(who[::-1])], who[::-1], 2), wanted)
        rest = [j for j in range(parties) if j not in who]
        assert torch.equal(code.decode(uploads[[*who, *rest]], [*who, *rest], 2), wanted)
    for who in combinations(range(parties), needed - 1):
        with pytest.raises(ConfigurationError, match=f"{needed - 1} results do not .* wait for {needed}"):
            code.decode(uploads[list(who)], who, 2)


@every_field
def test_any_k_plus_t_shares_decode_and_fewer_raise(field):
    code = LagrangeCode(field, 2, 1, 5)
    values = elements(field, 3, 4, seed=4)
    shares = code.share(values[:2], values[2:])
    for who in permutations(range(5), 3):
        assert torch.equal(code.decode(shares[list(who)], who, 1), values[:2])
    with pytest.raises(ConfigurationError, match="wait for 3"):
        code.decode(shares[:2], (0, 1), 1)


@pytest.mark.parametrize(
    ("p", "blocks", "privacy", "parties"), [(7, 1, 1, 4), (7, 2, 1, 3), (7, 1, 2, 4), (11, 2, 2, 5)]
)
def test_t_shares_are_uniform_whatever_the_secrets_and_more_are_not(p, blocks, privacy, parties):
    """All masks for all secrets: every T holders see each of p^T values equally often, T + 1 tell secrets apart."""
    code = LagrangeCode(PrimeField(p), blocks, privacy, parties)
    masks = everything(p, privacy)
    views = {}
    for secret in product(range(p), repeat=blocks):
        secrets = torch.tensor(secret)[:, None].expand(blocks, masks.shape[1])
        views[secret] = code.share(secrets, masks).tolist()
    for shares in views.values():
        for who in combinations(range(parties), privacy):
            seen = Counter(zip(*(shares[j] for j in who), strict=True))
            assert len(seen) == p**privacy
            assert set(seen.values()) == {1}
    for who in combinations(range(parties), privacy + 1):
        distributions = {frozenset(Counter(zip(*(v[j] for j in who), strict=True)).items()) for v in views.values()}
        assert len(distributions) > 1


@given(st.sampled_from(FIELDS), st.integers(1, 4), st.integers(0, 3), st.integers(1, 8), st.integers(0, 2**20))
def test_copies_are_shared_as_if_written_out(field, blocks, privacy, parties, seed):
    code = LagrangeCode(field, blocks, privacy, parties)
    values = elements(field, 1 + privacy, 3, 2, seed=seed)
    shares = code.share_copies(values[0], values[1:])
    written_out = torch.cat([values[:1].expand(blocks, 3, 2), values[1:]])
    assert shares.flatten(1).tolist() == expected(code, written_out)
    assert torch.equal(shares, code.share(written_out[:blocks], written_out[blocks:]))


@given(st.sampled_from(FIELDS), st.integers(1, 4), st.integers(0, 3), st.integers(1, 3), st.integers(0, 2**20))
def test_zero_polynomials_vanish_at_the_secrets_and_have_the_degree(field, blocks, privacy, degree, seed):
    """R shares determine them: the others lie on the same polynomial, and its values at the secrets are 0."""
    code = LagrangeCode(field, blocks, privacy, degree * (blocks + privacy - 1) + 3)
    needed, p = code.threshold(degree), field.modulus
    shares = code.share_zeros(elements(field, needed - blocks, 2, 2, seed=seed), degree)
    assert shares.shape == (code.parties, 2, 2)
    for column in shares.flatten(1).T.tolist():
        known = code.alpha[:needed], column[:needed]
        assert [at(*known, b, p) for b in code.beta[:blocks]] == [0] * blocks
        assert [at(*known, a, p) for a in code.alpha[needed:]] == column[needed:]


@pytest.mark.parametrize(
    ("p", "blocks", "privacy", "parties"), [(7, 1, 1, 4), (7, 2, 0, 4), (11, 2, 1, 6), (11, 1, 2, 6)]
)
def test_zero_polynomials_are_uniform_over_all_that_vanish(p, blocks, privacy, parties):
    """All free values against all polynomials of degree below R that are zero at the secrets."""
    code = LagrangeCode(PrimeField(p), blocks, privacy, parties)
    needed = code.threshold(2)
    got = Counter(zip(*code.share_zeros(everything(p, needed - blocks), 2).tolist(), strict=True))
    factor = [1]
    for b in code.beta[:blocks]:
        factor = [(low * -b + high) % p for low, high in zip([*factor, 0], [0, *factor], strict=True)]
    vanishing = [polynomial(factor, a, p) for a in code.alpha]
    wanted = {
        tuple(v * polynomial(rest, a, p) % p for v, a in zip(vanishing, code.alpha, strict=True))
        for rest in product(range(p), repeat=needed - blocks)
    }
    assert got.keys() == wanted
    assert len(wanted) == p ** (needed - blocks)
    assert set(got.values()) == {1}


@every_field
def test_a_zero_polynomial_changes_uploads_and_not_what_they_say(field):
    code = LagrangeCode(field, 2, 1, 7)
    x, w = (elements(field, 3, 6, seed=seed) for seed in (5, 6))
    uploads = times(field, code.share(x[:2], x[2:]), code.share(w[:2], w[2:]))
    hidden = field.add(uploads, code.share_zeros(elements(field, 3, 6, seed=7), 2))
    assert not (hidden == uploads).all(1).any()
    assert torch.equal(code.decode(hidden[2:], range(2, 7), 2), code.decode(uploads[:5], range(5), 2))


@every_field
def test_wrong_results_are_corrected_and_named_by_position(field):
    """K = 1, T = 1, R = 3 of 7: all pairs of wrong ones; three are beyond."""
    code = LagrangeCode(field, 1, 1, 8)
    values = elements(field, 2, 5, seed=8)
    shares = code.share(values[:1], values[1:])
    results = times(field, shares, shares)
    holders = (7, 0, 2, 3, 6, 5, 1)
    wanted = [[v * v % field.modulus for v in values[0].tolist()]]
    for wrong in [(), (3,), *combinations(range(7), 2)]:
        received = results[list(holders)]
        for i in wrong:
            received[i, 1] = (received[i, 1] + 1 + i) % field.modulus
        decoded = code.correct(received, holders, 2)
        assert decoded.values.tolist() == wanted
        assert decoded.wrong == wrong
    received = results[list(holders)]
    received[[0, 2, 5], 3] = torch.tensor([5, 8, 20])
    with pytest.raises(DecodingError, match="more than 2 are wrong"):
        code.correct(received, holders, 2)


def test_without_masks_and_blocks_to_spare():
    """T = 0, K = 1: everybody has the secret itself, and there is nothing to hide behind."""
    code = LagrangeCode(PrimeField(), 1, 0, 3)
    secret = torch.tensor([[4, 9]])
    assert code.share(secret, secret[:0]).tolist() == [[4, 9]] * 3
    assert code.share_copies(secret[0], secret[:0]).tolist() == [[4, 9]] * 3
    assert code.share_zeros(torch.empty(0, 2, 5, dtype=torch.int64), 2).tolist() == [[[0] * 5] * 2] * 3


@every_field
def test_nothing_shared_is_nothing_decoded(field):
    code = LagrangeCode(field, 2, 1, 5)
    none = torch.empty(3, 0, 4, dtype=torch.int64)
    assert code.share(none[:2], none[2:]).shape == (5, 0, 4)
    assert code.share_copies(none[0], none[1:2]).shape == (5, 0, 4)
    assert code.share_zeros(none, 2).shape == (5, 0, 4)
    assert code.decode(none.new_empty(5, 0, 4), range(5), 2).shape == (2, 0, 4)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: LagrangeCode(PrimeField(7), 2, 1, 5), "no room for 8 points"),
        (lambda: LagrangeCode(PrimeField(97), 40, 1, 57), "no room for 98 points"),
        (lambda: CODE.share(torch.ones(1, 2, dtype=torch.int64), torch.ones(1, 2, dtype=torch.int64)), "3 points"),
        (lambda: CODE.share(torch.ones(2, 2), torch.ones(1, 2)), "int64"),
        (
            lambda: CODE.share(torch.full((2, 2), 11), torch.ones(1, 2, dtype=torch.int64)),
            "11 is not an element",
        ),
        (lambda: CODE.share_copies(torch.ones(2, dtype=torch.int64), torch.ones(2, 2, dtype=torch.int64)), "2 columns"),
        (lambda: CODE.share_zeros(torch.ones(2, 2, dtype=torch.int64), 2), "has 3 free values; got 2"),
        (lambda: CODE.share_zeros(torch.ones(3, 2, dtype=torch.int64), 1), "has 1 free values; got 3"),
        (lambda: CODE.decode(torch.ones(5, 2, dtype=torch.int64), (0, 1, 2, 3, 3), 2), "cannot be told apart"),
        (lambda: CODE.decode(torch.ones(4, 2, dtype=torch.int64), range(5), 2), "do not belong to 5 points"),
        (lambda: CODE.correct(torch.ones(4, 2, dtype=torch.int64), range(4), 2), "wait for more uploads"),
    ],
)
def test_bad_calls_are_refused_with_the_reason(call, words):
    with pytest.raises(ConfigurationError, match=words):
        call()
