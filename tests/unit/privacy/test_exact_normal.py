"""Rounded normal numbers against mpmath with 150 digits, and against the normal distribution function.

Statistical thresholds are at 1e-6 and the seeds are fixed.
"""

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.privacy import exact_normal
from lightning_vfl.privacy.exact_normal import candidates, decide, rounded_normal, settled
from lightning_vfl.streams import stream
from tests.further import further

RARE = 1e-6
SCALE = 1.7837 * 2**20  # σ of Wait-DP in steps of its grid
FULL = 2**64 - 1
# U small, U near 1 (R near 0), V where cosine or sine is 0, ±1 or changes fast, and the limits of the fast path
CORNERS_U = [0, 1, 2**20, 2**44 - 1, 2**44, 2**44 + 1, 2**53 + 1, 2**63, FULL - 2**43, FULL - 2**44, FULL - 1, FULL]
CORNERS_V = [0, 1, 2**62 - 1, 2**62, 2**61, 2**63, 3 * 2**62, FULL]


def normals(u, v, scale):
    """The pair s Z for real U and V, in the precision that is set."""
    radius = mpmath.mpf(scale) * mpmath.sqrt(-2 * mpmath.log(u))
    return radius * mpmath.cos(2 * mpmath.pi * v), radius * mpmath.sin(2 * mpmath.pi * v)


def nearest(real):
    return int(mpmath.floor(real + mpmath.mpf(1) / 2))


def source(*words):
    """Hands over these words, and fails where more are asked for."""
    left = list(words)

    def take(n):
        if n > len(left):
            raise LookupError("more words than were expected")
        return np.array([left.pop(0) for _ in range(n)], np.uint64)

    return take


def prefixes():
    drawn = stream(0, "prefixes").random_raw(2 * 300).reshape(-1, 2)
    corners = np.array([(a, b) for a in CORNERS_U for b in CORNERS_V], np.uint64)
    return np.concatenate((drawn, corners))


@pytest.mark.parametrize("scale", [further(0.3), SCALE, further(2.0**40)])
def test_the_error_bound_holds_for_every_continuation(scale):
    """At both ends of the intervals that the prefixes leave, and with a reserve of 5."""
    words = prefixes()
    real, error = candidates(words, scale)
    known = np.isfinite(error)
    assert known.sum() > 300
    with mpmath.workdps(60):
        for (a, b), pair, bound in zip(words[known].tolist(), real[known].tolist(), error[known].tolist(), strict=True):
            for i, j in ((0, 0), (1, 1)):
                exact = normals(mpmath.mpf(a + i) / 2**64, mpmath.mpf(b + j) / 2**64, scale)
                assert all(abs(x - z) <= bound for x, z in zip(pair, exact, strict=True))


def test_the_error_bound_has_a_reserve_where_functions_are_accurate():
    """What 64 units in the last place allow for is not used up: a library could be 20 times less accurate."""
    words = prefixes()[:300]
    real, error = candidates(words, 1.0)
    with mpmath.workdps(60):
        half = mpmath.mpf(1) / 2
        off = [
            float(abs(x - z) / bound)
            for (a, b), pair, bound in zip(words.tolist(), real.tolist(), error.tolist(), strict=True)
            for x, z in zip(pair, normals((a + half) / 2**64, (b + half) / 2**64, 1.0), strict=True)
        ]
    assert max(off) < 0.05


@pytest.mark.parametrize("scale", [further(0.3), further(1.0), SCALE, further(2.0**40)])
def test_numbers_are_those_of_150_digits(scale):
    """Whatever path they take; the further bits of U and V, which both numbers of a pair share, come in turn."""
    words = prefixes()
    for number, (a, b) in enumerate(words.tolist()):
        further = stream(1, "further", number).random_raw(40).tolist()
        got = rounded_normal(2, scale, source(a, b, *further)).tolist()
        with mpmath.workdps(150):
            u = sum(mpmath.mpf(w) / mpmath.mpf(2) ** (64 * (i + 1)) for i, w in enumerate([a, *further[0::2]]))
            v = sum(mpmath.mpf(w) / mpmath.mpf(2) ** (64 * (i + 1)) for i, w in enumerate([b, *further[1::2]]))
            assert got == [nearest(real) for real in normals(u, v, scale)]


@given(
    st.integers(0, 3 * 10**6),
    st.integers(1, FULL),
    st.sampled_from(["U", "V"]),
    st.booleans(),
    st.sampled_from([0, 1]),
    st.integers(50, 300),
)
def test_bits_beyond_the_64th_decide_close_to_a_boundary(whole, word, free, above, which, distance):
    """U (or V) such that s Z is closer to k + 1/2 than 2^-distance, on a side that only bits far behind tell."""
    scale = mpmath.mpf(SCALE)
    with mpmath.workdps(200):
        aim = whole + mpmath.mpf(1) / 2 + (1 if above else -1) * mpmath.mpf(2) ** -distance
        given = mpmath.mpf(word) / 2**64
        if free == "U":
            part = mpmath.sin(2 * mpmath.pi * given) if which else mpmath.cos(2 * mpmath.pi * given)
            aim *= mpmath.sign(part)
            if abs(part) < 1e-3 or abs(aim / part) > 9 * scale:
                return
            solved = mpmath.exp(-((aim / part / scale) ** 2) / 2)
        else:
            radius = scale * mpmath.sqrt(-2 * mpmath.log(given))
            if radius < 2 * aim:
                return
            solved = (mpmath.asin if which else mpmath.acos)(aim / radius) / (2 * mpmath.pi)
        digits = int(mpmath.floor(solved * mpmath.mpf(2) ** (64 * 9)))
        words = [(digits >> 64 * (8 - i)) & FULL for i in range(9)]
        u, v = (solved, given) if free == "U" else (given, solved)
        expected = [nearest(real) for real in normals(u, v, SCALE)]
    asked = []

    def more():
        """Of U, then of V, in turn; those of the given one are 0."""
        asked.append("UV"[len(asked) % 2])
        return words[asked.count(free)] if asked[-1] == free else 0

    first, second = (words[0], word) if free == "U" else (word, words[0])
    assert list(decide(first, second, SCALE, more)) == expected
    assert not distance > 80 or asked
    assert len(asked) <= 2 * (distance // 64 + 2)


@pytest.mark.parametrize("scale", [0.7, further(3.0), further(20.0)])
def test_settled_pairs_are_those_of_every_continuation(scale):
    """All prefixes of 5 bits of U and V, and all continuations by 4 more, and by infinitely many ones."""
    bits, more = 5, 4
    u = np.arange(2 ** (bits + more) + 1)[:, None] / 2 ** (bits + more)
    v = np.arange(2 ** (bits + more) + 1)[None, :] / 2 ** (bits + more)
    radius = scale * np.sqrt(-2 * np.log(np.maximum(u, 1e-300)))
    pairs = np.stack((radius * np.cos(2 * np.pi * v), radius * np.sin(2 * np.pi * v)))
    numbers = 0
    for first in range(2**bits):
        for second in range(2**bits):
            said = settled(first, second, bits, scale)
            if said is None:
                continue
            numbers += 1
            rows, columns = (slice(x << more, ((x + 1) << more) + 1) for x in (first, second))
            assert (abs(pairs[:, rows, columns] - np.array(said)[:, None, None]) <= 0.5).all()
    assert numbers > 0 or scale > 3


def test_bits_that_leave_both_integers_possible_settle_nothing():
    assert settled(0, 5, 64, 1.0) is None
    assert settled(2**63, 0, 64, 2.0**70) is None  # the interval is wider than one
    assert settled(2**63, 0, 64, 1.0) == (1, 0)  # √(2 ln 2) = 1.18


@pytest.mark.parametrize("scale", [0.2, 1.0, 3.7, 40.0])
def test_integers_have_the_probabilities_of_the_rounded_normal_distribution(scale):
    count = 200_000
    drawn = rounded_normal(count, scale, stream(3, "chi-square", str(scale)).random_raw)
    cells = np.arange(-int(6 * scale) - 1, int(6 * scale) + 2)
    expected = count * np.diff(stats.norm.cdf((np.append(cells, cells[-1] + 1) - 0.5) / scale))
    observed = np.array([(drawn == k).sum() for k in cells])
    large = expected >= 10
    statistic = ((observed - expected)[large] ** 2 / expected[large]).sum()
    rest, wanted = count - observed[large].sum(), count - expected[large].sum()
    statistic += (rest - wanted) ** 2 / wanted
    assert stats.chi2.sf(statistic, large.sum()) > RARE


def test_every_integer_can_come_out():
    """The last ten bits are uniform, also of small numbers: floating point would leave gaps there."""
    drawn = rounded_normal(300_000, SCALE, stream(4, "support").random_raw)
    for some in (drawn, drawn[abs(drawn) < SCALE / 8]):
        counts = np.bincount(some & 1023, minlength=1024)
        assert stats.chisquare(counts).pvalue > RARE
    assert stats.kstest(drawn / SCALE, "norm").pvalue > RARE
    pairs = np.corrcoef(drawn[0::2].astype(float) ** 2, drawn[1::2].astype(float) ** 2)[0, 1]
    assert abs(pairs) * np.sqrt(len(drawn) / 2) < stats.norm.isf(RARE / 2)


def test_few_pairs_need_high_precision(monkeypatch):
    called = []

    def counting(*arguments):
        called.append(arguments)
        return decide(*arguments)

    monkeypatch.setattr(exact_normal, "decide", counting)
    rounded_normal(2_000_000, 2.0**21, stream(5, "share").random_raw)
    assert len(called) <= stats.binom(10**6, 1e-5).isf(RARE)


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_as_many_as_are_asked_for(count):
    asked = []

    def words(n):
        asked.append(n)
        return stream(0, "count").random_raw(n)

    drawn = rounded_normal(count, 100.0, words)
    assert drawn.shape == (count,)
    assert drawn.dtype == np.int64
    assert asked == [count + count % 2]


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 2.0**40 * 1.001])
def test_a_scale_that_no_grid_has_is_refused(scale):
    with pytest.raises(ConfigurationError, match="use a coarser grid"):
        rounded_normal(2, scale, stream(0, "refused").random_raw)
