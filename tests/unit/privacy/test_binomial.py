"""Against the pmf by chi-square, the definition trial by trial, and published vectors of Philox."""

from fractions import Fraction
from math import inf, nan

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, chi2

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy.binomial import BITS, BLOCK, Line, beyond, binomial_of, philox
from lightning_vfl.streams import stream
from tests.further import further


def binomial(p, trials, words, start=0, ties=None):
    drawn = torch.empty(p.shape, dtype=torch.int64)
    binomial_of(p, Line(1.0, 0.0, -inf, inf), trials, words, drawn, start, ties)
    return drawn


def draws(p, trials, *names, start=0):
    return binomial(p, trials, stream(0, *names).random_raw, start)


def unlikely(counts, expected):
    """The chance of a chi-square as large as this; neighbouring cells are joined until 10 are expected."""
    cells, gathered = [], np.zeros(2)
    for pair in zip(counts, expected, strict=True):
        gathered += pair
        if gathered[1] >= 10:
            cells.append(gathered)
            gathered = np.zeros(2)
    cells[-1] += gathered
    observed, wanted = np.array(cells).T
    return chi2.sf(((observed - wanted) ** 2 / wanted).sum(), len(cells) - 1) if len(cells) > 1 else 1.0


@pytest.mark.parametrize("trials", [1, 2, 8, 33, 255, 256, *(further(n) for n in (3, 7, 16, 64, 600))])
@pytest.mark.parametrize("p", [2.0**-20, 0.25, 0.6789, *(further(p) for p in (0.01, 0.3, 0.5, 0.75, 1 - 2.0**-20))])
def test_distribution(trials, p):
    n = 20_000
    found = draws(torch.full((n,), p, dtype=torch.float64), trials, "distribution", trials, str(p)).numpy()
    counts = np.bincount(found, minlength=trials + 1)
    assert len(counts) == trials + 1
    assert unlikely(counts, n * binom.pmf(np.arange(trials + 1), trials, p)) > 1e-6


@pytest.mark.parametrize("byte", [0, 1, 128, 254, 255])
def test_ties_are_settled_by_the_other_bits(byte):
    """P with a top byte of its own, and below it nothing, almost everything, or a third: 1 of 256 trials is a tie."""
    n, trials = 200_000, 16
    for rest in (0.0, 1 / 3, 1 - 2.0**-32):
        p = (byte + rest) / 256
        found = draws(torch.full((n,), p, dtype=torch.float64), trials, "ties", byte, str(rest)).numpy()
        counts = np.bincount(found, minlength=trials + 1)
        assert unlikely(counts, n * binom.pmf(np.arange(trials + 1), trials, p)) > 1e-6


def test_extremes_have_no_chance_in_them():
    p = torch.tensor([0.0, 1.0], dtype=torch.float64).repeat(500)
    for trials in (1, 16, 300):
        assert torch.equal(draws(p, trials, "extremes"), (p * trials).long())


def test_joint_distribution_of_neighbours():
    """Pairs next to each other and a block apart are independent: 3 x 3 cells each."""
    found = draws(torch.full((BLOCK * 500,), 0.4), 2, "pairs").numpy()
    for apart in (1, BLOCK):
        first = found[: len(found) // (2 * apart) * 2 * apart].reshape(-1, 2, apart)
        counts = np.bincount((3 * first[:, 0] + first[:, 1]).ravel(), minlength=9)
        alone = binom.pmf(np.arange(3), 2, float(torch.tensor(0.4)))
        assert unlikely(counts, counts.sum() * np.outer(alone, alone).ravel()) > 1e-6


@given(
    st.lists(st.one_of(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.floats(0, 1)), min_size=1, max_size=200),
    st.integers(1, 20),
    st.integers(0, 300),
)
def test_trial_by_trial(values, trials, start):
    """The definition: how many of b integers of 40 bits, a byte and 32 bits of the tie's own, are below k."""
    source = stream(0, "definition").random_raw
    key = source(1)[0]
    blocks = (start + len(values) + BLOCK - 1) // BLOCK
    raw = source(blocks * trials * BLOCK // 8).astype("<u8").view(np.uint8).reshape(blocks, trials, BLOCK)
    expected = []
    for number, p in enumerate(values, start):
        scaled = Fraction(p) * 2**BITS
        k = -(-scaled // 1) if p < 0.5 else scaled // 1
        count = ties = 0
        for byte in raw[number // BLOCK, :, number % BLOCK].tolist():
            rest = 0
            if byte == k >> 32:
                rest = int(philox(np.uint64(number), np.uint64(ties), key))
                ties += 1
            count += (byte << 32) + rest < k
        expected.append(count)
    assert draws(torch.tensor(values, dtype=torch.float64), trials, "definition", start=start).tolist() == expected


@pytest.mark.parametrize(
    ("byte", "beyond", "success"),
    [(200, 0.0, False), (200, 0.5, False), (200, 1.0, True), (50, 0.0, False), (50, 0.5, True), (50, 1.0, True)],
)
def test_p_is_rounded_towards_a_half(byte, beyond, success):
    """One trial whose 40 bits are known: the byte, and Philox's answer to zeros. It succeeds if they are below k."""
    bits = (byte << 32) + 0x6627E8D5
    words = iter([np.zeros(1, np.uint64), np.full(8, byte * 0x0101010101010101, np.uint64)])
    p = torch.tensor([(bits + beyond) * 2.0**-BITS], dtype=torch.float64)
    assert bool(binomial(p, 1, lambda _: next(words))) is success


@pytest.mark.parametrize("trials", [1, 16, 300])
def test_rows_of_a_process_are_those_of_the_joint_batch(trials):
    """Whatever the other rows' p: 4 processes, odd row counts, one of them starting inside a block."""
    p = torch.rand(431, 7, generator=torch.Generator().manual_seed(1))
    whole = draws(p, trials, "rows")
    for first, last in ((0, 100), (100, 101), (101, 400), (400, 431)):
        others = torch.full_like(p, 0.5)
        others[first:last] = p[first:last]
        assert torch.equal(draws(p[first:last], trials, "rows", start=first * 7), whole[first:last])
        assert torch.equal(draws(others, trials, "rows")[first:last], whole[first:last])


def test_same_names_same_draws_and_other_names_others():
    p = torch.full((1000,), 0.4)
    assert torch.equal(draws(p, 16, "a", 1), draws(p, 16, "a", 1))
    assert not torch.equal(draws(p, 16, "a", 1), draws(p, 16, "a", 2))


def test_draws_of_today_are_those_of_tomorrow():
    """A change of these numbers breaks the resumption of runs."""
    p = torch.arange(12) / 16 + 0.125
    assert draws(p, 16, "golden").tolist() == [2, 2, 5, 5, 5, 6, 12, 9, 12, 9, 12, 9]
    assert int(draws(torch.arange(8193) / 8192, 16, "golden").sum()) == 65319


def test_words_used_up_are_those_that_are_said():
    asked = []

    def source(n):
        asked.append(n)
        return stream(0, "asked").random_raw(n)

    binomial(torch.full((1001,), 0.5), 16, source)
    assert sum(asked) == 1 + 16 * 16 * BLOCK // 8  # 1001 elements are 16 blocks
    asked.clear()
    binomial(torch.full((10,), 0.5), 10**5, source, start=3 * BLOCK + 60)
    assert sum(asked) == 1 + 5 * 10**5 * BLOCK // 8
    assert max(asked) <= 10**5 * BLOCK // 8


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 4), (2, 3, 65), (4, 0, 2)])
def test_shapes_and_kinds(shape, dtype):
    p = torch.full(shape, 0.3, dtype=dtype)
    found = draws(p, 16, "shape")
    assert found.dtype == torch.int64
    assert found.shape == p.shape
    assert torch.equal(found, draws(p.double(), 16, "shape"))
    assert not draws(p.requires_grad_(), 16, "shape").requires_grad
    p = p.detach()
    if len(shape) == 3:
        assert torch.equal(draws(p.permute(2, 0, 1), 16, "shape").flatten(), draws(p.flatten(), 16, "shape"))


def test_known_answers_of_philox():
    """Random123, kat_vectors: philox4x32 10, the first word."""
    full = 2**64 - 1
    for low, high, key, answer in (
        (0, 0, 0, 0x6627E8D5),
        (full, full, full, 0x408F276D),
        (0x85A308D3243F6A88, 0x0370734413198A2E, 0x299F31D0A4093822, 0xD16CFE09),
    ):
        assert philox(np.uint64(low), np.uint64(high), np.uint64(key)) == answer


@pytest.mark.parametrize("p", [-1e-9, 1 + 1e-7, nan, inf, -inf])
def test_what_is_no_probability_is_refused(p):
    for place in (0, 63, 64, 99):
        values = torch.full((100,), 0.5, dtype=torch.float64)
        values[place] = p
        with pytest.raises(ConfigurationError, match="outside"):
            draws(values, 16, "refused")


# ---- draws whose ties take their bits from a source of their own


def known_ties(count):
    """Words of ties, and the 32-bit numbers that they are read as."""
    words = stream(0, "ties of their own").random_raw(count)
    return words, words.astype("<u8").view("<u4").tolist()


@pytest.mark.parametrize("trials", [1, 5, 300])
def test_ties_take_their_bits_in_turn(trials):
    """The definition, trial by trial, in the order of blocks, of 255 trials each, and of elements."""
    values = np.linspace(0.2, 0.9, 150)
    raw = stream(0, "own ties").random_raw(3 * trials * BLOCK // 8)
    table = raw.astype("<u8").view(np.uint8).reshape(3, trials, BLOCK)
    words, numbers = known_ties(4000)
    expected, used = np.zeros(len(values), int), 0
    for block in range(3):
        for begin in range(0, trials, 255):
            for place in range(min(BLOCK, len(values) - block * BLOCK)):
                scaled = Fraction(values[block * BLOCK + place]) * 2**BITS
                k = -(-scaled // 1) if scaled < 2 ** (BITS - 1) else scaled // 1
                for byte in table[block, begin : begin + 255, place].tolist():
                    rest = 0
                    if byte == k >> 32:
                        rest, used = numbers[used], used + 1
                    expected[block * BLOCK + place] += (byte << 32) + rest < k
    left = [raw, words]

    def hand_over(which, n):
        taken, left[which] = left[which][:n], left[which][n:]
        return taken

    got = binomial(torch.from_numpy(values), trials, lambda n: hand_over(0, n), ties=lambda n: hand_over(1, n))
    assert got.tolist() == expected.tolist()


def test_more_ties_than_were_expected_are_drawn_again_with_more_bits():
    """All bytes tie: 256 times as many as usual. The bits that were there are kept, so nothing is chosen."""
    n, asked = 640, []

    def ties(count):
        asked.append(count)
        return stream(0, "many ties", len(asked)).random_raw(count)

    p = torch.full((n,), (128 + 1 / 3) / 256, dtype=torch.float64)
    found = binomial(p, 8, lambda count: np.full(count, 0x8080808080808080, np.uint64), ties=ties).numpy()
    assert len(asked) == 2
    assert 2 * sum(asked) >= 8 * n
    first = np.concatenate([stream(0, "many ties", i + 1).random_raw(c) for i, c in enumerate(asked)])
    rest = first.astype("<u8").view("<u4")[: 8 * n].reshape(n // BLOCK, BLOCK, 8)
    assert np.array_equal(found.reshape(n // BLOCK, BLOCK), (rest < int(Fraction(1, 3) * 2**32)).sum(2))


def test_distribution_with_ties_of_their_own():
    n, trials, p = 200_000, 16, (200 + 1 / 3) / 256
    words = stream(0, "one source for both").random_raw
    found = binomial(torch.full((n,), p, dtype=torch.float64), trials, words, ties=words).numpy()
    counts = np.bincount(found, minlength=trials + 1)
    assert unlikely(counts, n * binom.pmf(np.arange(trials + 1), trials, p)) > 1e-6


# ---- draws for a line of clipped values


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("out", [torch.int32, torch.int64])
def test_draws_for_a_line_are_those_for_its_p(dtype, out):
    """In float64 and in the order clip, times, plus."""
    x = (3 * torch.randn(5, 333, generator=torch.Generator().manual_seed(0))).to(dtype)
    slope, clip = 0.1 / 0.7, 0.7
    p = x.double().clamp(-clip, clip).mul_(slope).add_(0.5)
    found = torch.empty(x.shape, dtype=out)
    binomial_of(x, Line(slope, 0.5, -clip, clip), 16, stream(0, "line").random_raw, found)
    assert torch.equal(found.long(), draws(p, 16, "line"))


def test_what_is_beyond_a_bound_is_counted_in_float64():
    values = torch.tensor([0.1, -0.1, 0.05, inf, -inf, nan, 3.0])
    assert beyond(values, 0.1) == (6, 3)  # float32's 0.1 is above 0.1
    assert beyond(values.double(), float(torch.tensor(0.1))) == (4, 3)
    assert beyond(torch.zeros(0), 1.0) == (0, 0)


@pytest.mark.parametrize("x", [nan, inf])
def test_a_line_without_a_p_is_refused(x):
    out = torch.empty(3, dtype=torch.int32)
    with pytest.raises(ConfigurationError, match="outside"):
        binomial_of(torch.full((3,), x), Line(0.25, 0.5, -inf, inf), 4, stream(0, "no p").random_raw, out)
