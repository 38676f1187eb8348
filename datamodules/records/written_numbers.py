"""Numbers as people write them: decimal marks, thousands marks, signs, percent, currency, and marks for missing."""

import re
import unicodedata
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_vfl.errors import ConfigurationError

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

MARKS = frozenset(("", "-", "--", "---", "–", "—", ".", "..", "...", "?", "??", "*", "n/a", "na", "n.a.", "nan", "nil"))
"""What stands for a missing value among numbers and dates, in lower case."""
MARKS |= {"none", "null", "missing", "unknown", "#n/a", "#na", "#value!", "#div/0!", "#ref!", "#num!", "#name?"}
DECIMALS = (".", ",")
_SIGNS = dict.fromkeys("\u2212\u2013\ufe63\uff0d", "-")  # minus, dash, small and wide hyphen
_SIGNS |= {
    "\u066b": ".",
    "\u066c": ",",
    "\uff0e": ".",
    "\uff0c": ",",
}  # decimal and thousands marks of Arabic; wide ones
_CURRENCY = r"(?:[A-Z]{0,2}\$|EUR|USD|GBP|CHF|JPY|CNY|INR|CAD|AUD|SEK|NOK|DKK|PLN|CZK|kr\.?|zł|Kč|Fr\.|円|元)"
_THOUSANDS = (
    " \u00a0\u2009\u202f'\u2019"  # spaces of four widths, apostrophes; and the mark that is not the decimal one
)
_ONE_GROUP = re.compile(r"[1-9][0-9]{0,2}[.,][0-9]{3}")
_LETTERS = re.compile(r"^\W*([^\W\d_]*)")
_FORMS = 2  # of numbers: with a currency or unit before them, and without
_LOOKS = re.compile(r"\W{0,4}[^\W\d_]{0,3}\W{0,2}\d[\d.,\u066b\u066c．，:'’\s()+\-/T]*[^\d\s_]{0,4}")


def _pattern(decimal: str) -> re.Pattern[str]:
    mark = re.escape(decimal)
    others = _THOUSANDS + ("," if decimal == "." else ".")
    grouped = rf"[1-9][0-9]{{0,2}}(?P<mark>[{others}])[0-9]{{3}}(?:(?P=mark)[0-9]{{3}})*"
    # a dash behind the decimal mark is no sign: 45.- and 45,-- are 45
    part = rf"{mark}(?:(?<=[0-9].)(?:--?|—)|(?P<part>[0-9]*))"
    body = rf"(?P<whole>{grouped}|[0-9]+)?(?:{part})?(?P<power>[eE][-+]?[0-9]+)?"
    return re.compile(
        rf"(?P<open>\()?\s*(?P<first>[-+])?\s*{_CURRENCY}?\s*(?P<second>[-+])?\s*{body}\s*(?P<percent>%)?\s*"
        rf"{_CURRENCY}?\s*(?P<last>-)?(?P<close>\))?"
    )


_PATTERNS = {decimal: _pattern(decimal) for decimal in DECIMALS}


def read_number(text: str, decimal: str) -> float:
    """The number that a text stands for; NaN for other texts.

    A sign may stand before or behind the number or the currency, and ``(500)`` is -500. A thousands mark stands before
    each three digits: a space, an apostrophe, or the mark of ``.`` and ``,`` that is not the decimal one. 45 % is 0.45.
    A dash in the place of decimals is 0, as in ``45.-``. Digits may be of any script.

    Examples:
        >>> read_number("2.703,00", ","), read_number("-$68.3", "."), read_number("(1 234)", ".")
        (2703.0, -68.3, -1234.0)
    """
    plain = text if text.isascii() else "".join(map(_ascii, text))
    found = _PATTERNS[decimal].fullmatch(plain.strip())
    if found is None:
        return float("nan")
    part = found.groupdict()
    signs = [sign for name in ("first", "second", "last") if (sign := part[name])] + ["-"] * bool(part["open"])
    if len(signs) > 1 or bool(part["open"]) != bool(part["close"]) or not (part["whole"] or part["part"]):
        return float("nan")
    whole = (part["whole"] or "0").replace(part["mark"] or " ", "")
    percent = "e-2" if part["percent"] else ""
    if part["power"]:
        percent = f"e{int(part['power'][1:]) - 2 * bool(percent)}"
    return float(f"{'-' if '-' in signs else ''}{whole}.{part['part'] or '0'}{percent}")


def _ascii(character: str) -> str:
    """The character as the patterns know it: a digit of 0 to 9, a sign, and ``$`` for every sign of a currency."""
    if character in _SIGNS:
        return _SIGNS[character]
    if unicodedata.category(character) == "Sc":
        return "$"
    digit = unicodedata.decimal(character, None)
    return character if digit is None else str(digit)


def written_numbers(column: "pd.Series[Any]", decimal: str) -> "NDArray[np.float64]":
    """(N,) the numbers of the cells; NaN for missing cells and other texts."""
    import pandas as pd  # 0.5 s, where it is used

    if pd.api.types.is_numeric_dtype(column):
        return column.to_numpy(dtype=np.float64, na_value=np.nan)
    places, texts = pd.factorize(column)
    numbers = np.array([*(read_number(str(text), decimal) for text in texts), np.nan])  # -1, the last: missing
    return numbers[places]


def decimal_of(texts: Iterable[str], where: str) -> str:
    """The decimal mark by which most of the texts are numbers.

    A column of which every number is like ``12,345`` is read with thousands: with the other mark all numbers would be
    a thousandth, which standardising takes away.

    Args:
        texts: the different texts of a column.
        where: the column, for errors.

    Raises:
        ConfigurationError: if the same texts are different numbers with both marks, beside numbers without a mark.
    """
    every = list(texts)
    point, comma = (np.array([read_number(text, decimal) for text in every]) for decimal in DECIMALS)
    count = [int((~np.isnan(numbers)).sum()) for numbers in (point, comma)]
    if count[0] != count[1]:
        return DECIMALS[count[1] > count[0]]
    both = ~np.isnan(point) & ~np.isnan(comma)
    unlike = both & (point != comma)
    alike = np.abs(point[both & ~unlike])
    example = next((text for text, differs in zip(every, unlike, strict=True) if differs), "")
    # thousandths of numbers below 100 are written like 1.234; a comma is no decimal mark of pandas or Python
    plain_from = 1 if "," in example else 100
    if unlike.any() and (alike >= plain_from).any():
        plain = next(
            text for text, same, number in zip(every, both & ~unlike, point, strict=True)
            if same and abs(number) >= plain_from
        )  # fmt: skip
        low, high = sorted((read_number(example, "."), read_number(example, ",")))
        raise ConfigurationError(
            f"{where} has '{example}' beside '{plain}', so '{example}' may be {low:g} or {high:.15g}; give the decimal "
            'mark of the file, decimal: "." or ",", or that of the column, numbers: {decimal: ","}'
        )
    return "." if not unlike.any() or "," in example else _of_points(every, unlike)


def _of_points(texts: list[str], unlike: "NDArray[np.bool_]") -> str:
    """The decimal mark of numbers like 1.234: a point, unless other signs show that people wrote them."""
    dotted = [text.strip() for text, differs in zip(texts, unlike, strict=True) if differs]
    return "." if all(_ONE_GROUP.fullmatch(text.lstrip("+-")) for text in dotted) else ","


def of_one_form(texts: Collection[str]) -> bool:
    """Whether the letters before the digits are those of a unit or currency, and not of codes such as ``C85``, ``D18``.

    Examples:
        >>> of_one_form(["EUR 45", "17"]), of_one_form(["C85", "D18", "E46"])
        (True, False)
    """
    return len({_LETTERS.findall(text.strip())[0].lower() for text in texts}) <= _FORMS


def looks_numeric(text: str) -> bool:
    """Whether a text is digits with marks, and at most a few letters around: ``12 kg``, ``1.2.3``, ``5'11``."""
    return _LOOKS.fullmatch(text.strip()) is not None
