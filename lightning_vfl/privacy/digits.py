"""ε as users see it: rounded up to four significant digits.

An accountant adds thousands of floats, and the last digits of the sum depend on the processor. Logs, summaries, tables,
refusals and budgets therefore use a figure of fewer digits. It is never below the accountant's figure.
"""

from decimal import Decimal
from math import isfinite

DIGITS = 4


def rounded_up(epsilon: float) -> float:
    """The smallest number of four significant digits that is not below ε.

    Every logged ε is such a number, and a budget is compared with it. Against a budget of at most four digits, ε and
    the rounded ε are on the same side.

    Guarantee: never below ``epsilon``, and above it by less than a thousandth of it. A number of four digits does not
        change, and neither do 0 and ∞.
    Not guaranteed: equal results on two processors for an ε so close to a number of four digits that their last digits
        decide: within a relative 1e-12 for Rényi and Gaussian figures, which are logged and compared with budgets, and
        within 1e-7 for loss distributions, which are only printed.

    Examples:
        >>> rounded_up(7.5371), rounded_up(7.538), rounded_up(123456.0)
        (7.538, 7.538, 123500.0)
    """
    if not (isfinite(epsilon) and epsilon):
        return epsilon
    nearest = Decimal(f"{epsilon:.{DIGITS - 1}e}")
    unit = Decimal(1).scaleb(nearest.adjusted() - DIGITS + 1)
    return float(nearest if float(nearest) >= epsilon else nearest + unit)


def shown(epsilon: float) -> str:
    """The rounded ε as a text, for summaries, tables and refusals.

    Examples:
        >>> shown(7.5371), shown(0.0), shown(float("inf"))
        ('7.538', '0', 'inf')
    """
    return f"{rounded_up(epsilon):,.{DIGITS}g}"
