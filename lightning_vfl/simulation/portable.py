"""ln, exp and the normal quantile with the same bits on every processor.

Numpy, torch and the C library choose kernels by the vector units of the processor, and the last bit of a logarithm
depends on the kernel. The functions here use only operations that IEEE 754 rounds correctly: sums, products, quotients,
square roots and the exponent of a float, each in an array operation of its own, which no compiler can join with the
next one.
"""

from math import factorial
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_ROOT_OF_HALF = 0.5**0.5
_LN_2 = 0.6931471805599453
# ln 2 in two parts: products of the first one with the exponent of a float are exact
_LN_2_HIGH, _LN_2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_ATANH = tuple(1 / (2 * k + 1) for k in range(11, -1, -1))  # series of atanh(s) / s in s²
_EXP = tuple(1 / factorial(k) for k in range(13, -1, -1))  # series of e^x
# Numerators and denominators of algorithm AS 241, PPND16: |p - 1/2| up to 0.425, then tails down to e^-25 and below
_MIDDLE = (
    (
        2509.0809287301227,
        33430.57558358813,
        67265.7709270087,
        45921.95393154987,
        13731.69376550946,
        1971.5909503065513,
        133.14166789178438,
        3.3871328727963665,
    ),
    (
        5226.495278852854,
        28729.085735721943,
        39307.89580009271,
        21213.794301586597,
        5394.196021424751,
        687.1870074920579,
        42.31333070160091,
        1.0,
    ),
)
_NEAR = (
    (
        0.0007745450142783414,
        0.022723844989269184,
        0.2417807251774506,
        1.2704582524523684,
        3.6478483247632045,
        5.769497221460691,
        4.630337846156546,
        1.4234371107496835,
    ),
    (
        1.0507500716444169e-09,
        0.0005475938084995345,
        0.015198666563616457,
        0.14810397642748008,
        0.6897673349851,
        1.6763848301838038,
        2.053191626637759,
        1.0,
    ),
)
_FAR = (
    (
        2.0103343992922881e-07,
        2.7115555687434876e-05,
        0.0012426609473880784,
        0.026532189526576124,
        0.29656057182850487,
        1.7848265399172913,
        5.463784911164114,
        6.657904643501103,
    ),
    (
        2.0442631033899397e-15,
        1.421511758316446e-07,
        1.8463183175100548e-05,
        0.0007868691311456133,
        0.014875361290850615,
        0.1369298809227358,
        0.599832206555888,
        1.0,
    ),
)


def log(x: "Floats") -> "Floats":
    """The natural logarithm, element by element.

    Guarantee: equal bits on every processor; a relative error of at most 1e-15 for normal floats above 0.

    Examples:
        >>> log(np.array([0.5, 1.0, 10.0])).round(6).tolist()
        [-0.693147, 0.0, 2.302585]

    References:
        Muller, "Elementary Functions: Algorithms and Implementation", 2016 (reduction to [√½, √2), then the series of
        ln x = 2 atanh((x - 1) / (x + 1))).
    """
    part, exponent = np.frexp(x)
    below = part < _ROOT_OF_HALF
    part, exponent = np.where(below, 2 * part, part), np.where(below, exponent - 1, exponent)
    s = (part - 1) / (part + 1)
    series = _polynomial(_ATANH, s * s)
    logs: Floats = exponent * _LN_2_HIGH + (2 * s * series + exponent * _LN_2_LOW)
    return logs


def exp(x: "Floats") -> "Floats":
    """The exponential function, element by element.

    Guarantee: equal bits on every processor; a relative error of at most 1e-15 for x from -700 to 700.

    Examples:
        >>> exp(np.array([-1.0, 0.0, 2.0])).round(6).tolist()
        [0.367879, 1.0, 7.389056]
    """
    power = np.rint(x / _LN_2)
    rest = x - power * _LN_2_HIGH - power * _LN_2_LOW
    return np.ldexp(_polynomial(_EXP, rest), power.astype(np.int32))


def normal_quantile(p: "Floats") -> "Floats":
    """The quantile of the standard normal distribution, element by element.

    Guarantee: equal bits on every processor; a relative error of at most 1e-14 for p from 1e-300 to 1 - 2⁻⁵³.

    Examples:
        >>> normal_quantile(np.array([0.025, 0.5, 0.975])).round(6).tolist()
        [-1.959964, 0.0, 1.959964]

    References:
        Wichura, "Algorithm AS 241: The Percentage Points of the Normal Distribution", Applied Statistics 37(3), 1988,
        PPND16.
    """
    q = p - 0.5
    middle = q * _quotient(_MIDDLE, np.maximum(0.180625 - q * q, 0.0))
    r = np.sqrt(-log(np.where(q < 0, p, 1 - p)))
    tail = np.where(r <= 5, _quotient(_NEAR, r - 1.6), _quotient(_FAR, r - 5))
    return np.where(np.abs(q) <= 0.425, middle, np.copysign(tail, q))


def _quotient(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: "Floats") -> "Floats":
    above, below = coefficients
    quotient: Floats = _polynomial(above, x) / _polynomial(below, x)
    return quotient


def _polynomial(coefficients: tuple[float, ...], x: "Floats") -> "Floats":
    """Horner's scheme; the coefficient of the highest power comes first."""
    value = np.full(x.shape, coefficients[0])
    for coefficient in coefficients[1:]:
        value *= x
        value += coefficient
    return value
