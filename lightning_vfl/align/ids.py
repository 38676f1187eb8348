"""Ids of records as texts, and as the messages that are hashed to points. Two ids match if they are equal texts."""

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence
from enum import StrEnum
from functools import partial
from itertools import combinations

from lightning_vfl.errors import ConfigurationError, nearest


class Step(StrEnum):
    """How ids are made equal that are written in different ways."""

    NFKC = "nfkc"  # one form of equal characters: full-width digits, ligatures, accents of two characters
    STRIP = "strip"  # no white space in front and behind, and one blank for white space inside
    CASEFOLD = "casefold"  # no difference between upper and lower case
    ZEROS = "zeros"  # no zeros in front of ids of digits: 007 is 7


USUAL = (Step.NFKC, Step.STRIP, Step.CASEFOLD)
"""The steps that keep ids of digits apart: 007 is not 7."""

_LONGEST = 8  # bytes of the length of a text


def steps_of(words: Sequence[str]) -> tuple[Step, ...]:
    """The steps of these names, in the order in which they are done.

    Raises:
        ConfigurationError: for another name.
    """
    for word in words:
        if word not in list(Step):
            raise ConfigurationError(f"--normalise: there is no step '{word}'; {nearest(word, Step)}")
    return tuple(step for step in Step if step in words)


def normalised(text: str, steps: Collection[Step]) -> str:
    """The text after these steps.

    Examples:
        >>> normalised(" ＪＯ  007 ", USUAL), normalised("007", USUAL), normalised("007", [Step.ZEROS])
        ('jo 007', '007', '7')
    """
    if Step.NFKC in steps:
        text = unicodedata.normalize("NFKC", text)
    if Step.STRIP in steps:
        text = " ".join(text.split())
    if Step.CASEFOLD in steps:
        text = text.casefold()
        if Step.NFKC in steps:  # folding can give characters that are written in another way again
            text = unicodedata.normalize("NFKC", text)
    if Step.ZEROS in steps:
        text = re.sub(r"\A0+(?=[0-9]+\Z)", "", text)
    return text


Columns = Sequence[Sequence[Sequence[str | None]]]
"""Key -> its columns -> (n,) texts; None: missing. A key of several columns is one id."""


def lacking_steps(tables: Sequence[Columns], steps: Collection[Step]) -> tuple[int, tuple[Step, ...]]:
    """How many more ids would be in common with further steps, and the fewest such; 0 and () if none would help.

    Steps that make ids of one table equal are left out.

    Examples:
        >>> lacking_steps([[[["050", "x"]]], [[["50", "X"]]]], [])
        (2, (<Step.CASEFOLD: 'casefold'>, <Step.ZEROS: 'zeros'>))
        >>> lacking_steps([[[["050", "x"]]], [[["50", "y"]]]], [])
        (1, (<Step.ZEROS: 'zeros'>,))
        >>> lacking_steps([[[["050", "50"]]], [[["50", "7"]]]], [])
        (0, ())
    """

    def ids_after(some: Collection[Step]) -> list[list[set[tuple[str | None, ...]]]]:
        return [
            [{tuple(_same(text, some) for text in row) for row in zip(*key, strict=True)} for key in table]
            for table in tables
        ]

    def in_common(ids: list[list[set[tuple[str | None, ...]]]]) -> int:
        return sum(all(row) for keys in zip(*ids, strict=True) for row in set.intersection(*keys))

    written = ids_after(steps)
    most = now = in_common(written)
    best: tuple[Step, ...] = ()
    missing = [step for step in Step if step not in steps]
    for size in range(1, len(missing) + 1):
        for tried in combinations(missing, size):
            ids = ids_after({*steps, *tried})
            if [list(map(len, table)) for table in ids] == [list(map(len, table)) for table in written]:
                found = in_common(ids)
                if found > most:
                    most = found
                    best = tried
    return most - now, best


def messages_of(columns: Columns, steps: Collection[Step], party: str) -> list[tuple[bytes | None, ...]]:
    """The messages of every record, one for each key; None: the record does not have this key.

    Args:
        columns: of the table.
        steps: see ``normalised``.
        party: for errors.

    Guarantee: two messages are equal if and only if they are of the same key and all texts are equal after the steps.

    Raises:
        ConfigurationError: for records without any key, and for keys that several records have; tells their number.
    """
    found = []
    for number, key in enumerate(columns):
        same = (map(partial(_same, steps=steps), column) for column in key) if steps else key
        begin = bytes([number, len(key)])
        found.append([_message(begin, texts) for texts in zip(*same, strict=True)])
    rows = list(zip(*found, strict=True))
    if not rows:
        raise ConfigurationError(f"the table of {party} has no record; give a table with records")
    if missing := sum(not any(row) for row in rows):
        raise ConfigurationError(f"records of {party} without an id: {missing}; add ids or remove the records")
    for number, key_messages in enumerate(found):
        there = [message for message in key_messages if message is not None]
        if len(set(there)) < len(there):
            twice = [count for count in Counter(there).values() if count > 1]
            what = "ids" if len(found) == 1 else f"values of key {number + 1}"
            after = f" after {', '.join(steps)}" if steps else ""
            raise ConfigurationError(
                f"duplicate {what} of {party}{after}: {len(twice)}, in {sum(twice)} records; keep one record of each id"
            )
    return rows


def _same(text: str | None, steps: Collection[Step]) -> str | None:
    return None if text is None else normalised(text, steps)


def _message(begin: bytes, texts: Sequence[str | None]) -> bytes | None:
    """The message of a key's texts after the steps; None if one is missing or empty, which is no id."""
    parts = [begin]
    for text in texts:
        if not text:
            return None
        content = text.encode("utf-8", "surrogatepass")
        parts += (len(content).to_bytes(_LONGEST, "big"), content)
    return b"".join(parts)
