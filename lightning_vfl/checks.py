"""The checks of settings that are a number or a word: a refusal names the setting, what it must be, and what was given.

Each returns the value, so that a setting is checked where it is kept: ``self.clip = positive("clip", clip)``.
"""

from collections.abc import Iterable
from math import inf
from numbers import Integral, Real
from typing import Any, TypeVar

from lightning_vfl.errors import ConfigurationError

Number = TypeVar("Number", bound=float)
Choice = TypeVar("Choice")


def positive(name: str, value: Number, *, whole: bool = False, advice: str = "") -> Number:
    """The value, if it is a finite number above 0, or a whole number of at least 1.

    Args:
        name: the setting.
        value: what it is.
        whole: only whole numbers.
        advice: what to use instead.

    Raises:
        ConfigurationError: if it is not.

    Examples:
        >>> positive("clip", 0.5)
        0.5
        >>> positive("parties", 0, whole=True)
        Traceback (most recent call last):
        ...
        lightning_vfl.errors.ConfigurationError: parties must be a whole number, 1 or more; got 0
    """
    if whole:
        return within(name, value, 1, whole=True, advice=advice)
    return within(name, value, above=0, advice=advice)


def within(
    name: str,
    value: Number,
    least: float | None = None,
    most: float | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
    whole: bool = False,
    advice: str = "",
) -> Number:
    """The value, if it is a number in a range. Without an upper end it must be finite; ``most=inf`` allows infinity.

    Args:
        name, value, whole, advice: as in ``positive``.
        least, above: the lower end, which belongs to the range or does not.
        most, below: the upper end, which belongs to the range or does not.

    Raises:
        ConfigurationError: if it is not.

    Examples:
        >>> within("beta", 0.5, above=0, most=0.25)
        Traceback (most recent call last):
        ...
        lightning_vfl.errors.ConfigurationError: beta must be a number above 0 and at most 0.25; got 0.5
    """
    if below is None and most is None:
        below = inf
    kind: Any = Integral if whole else Real
    inside = (
        isinstance(value, kind)
        and type(value) is not bool
        and (least is None or value >= least)
        and (above is None or value > above)
        and (most is None or value <= most)
        and (below is None or value < below)
    )
    if not inside:
        raise ConfigurationError(f"{name} must be {_range(least, most, above, below, whole)}; {_got(value, advice)}")
    return value


def one_of(name: str, value: Choice, choices: Iterable[object], *, advice: str = "") -> Choice:
    """The value, if it is one of the choices.

    Args:
        name, value, advice: as in ``positive``.
        choices: all possible values.

    Raises:
        ConfigurationError: if it is not.

    Examples:
        >>> one_of("layout", "ring", ("sum", "segments"))
        Traceback (most recent call last):
        ...
        lightning_vfl.errors.ConfigurationError: layout must be 'sum' or 'segments'; got 'ring'
    """
    known = tuple(choices)
    if value not in known:
        words = [repr(choice) for choice in known]
        listed = " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
        raise ConfigurationError(f"{name} must be {listed}; {_got(value, advice)}")
    return value


def _range(least: float | None, most: float | None, above: float | None, below: float | None, whole: bool) -> str:
    """A range in words."""
    kind = "a whole number" if whole else "a number"
    if below == inf:
        if whole:
            return f"{kind}, {least} or more"
        return f"a finite number above {above:g}" if above is not None else f"a finite number of at least {least:g}"
    if most == inf:
        return f"a number above {above:g}" if above is not None else f"{least:g} or more"
    if least is not None and most is not None:
        return f"{kind} from {_figure(least)} to {_figure(most)}"
    lower = f"above {_figure(above)}" if above is not None else f"of at least {_figure(least or 0)}"
    upper = f"at most {_figure(most)}" if most is not None else f"below {_figure(below or 0)}"
    return f"{kind} {lower} and {upper}"


def _figure(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def _got(value: object, advice: str) -> str:
    return f"got {value!r}" + (f"; {advice}" if advice else "")
