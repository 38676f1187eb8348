"""The exceptions of the toolkit, and helpers for their messages."""

import difflib
import os
from collections.abc import Iterable


class ConfigurationError(ValueError):
    """A setting or an input is not allowed; the message is one sentence that names the fix.

    The command line prints the message on one line and exits with status 1. In Python it is an ordinary ``ValueError``;
    a notebook shows the line without a traceback, unless the environment variable ``LIGHTNING_VFL_TRACEBACK`` is set.

    Examples:
        >>> raise ConfigurationError("batch_size must be at most 20; got 64; lower batch_size")
        Traceback (most recent call last):
        ...
        lightning_vfl.errors.ConfigurationError: batch_size must be at most 20; ...
    """

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the line alone; IPython shows the usual traceback if this fails."""
        if os.environ.get("LIGHTNING_VFL_TRACEBACK"):
            raise NotImplementedError
        return [f"{type(self).__name__}: {self}"]


class NoOwnTable(ConfigurationError):
    """A process of a federation reads no table, so it has no ids of records."""


class MalformedMessage(ValueError):
    """A receiver cannot use a message; the text of the exception names the sending party.

    The exception ends the round, because a result computed from such a message would be wrong.
    """


class MalformedFrame(MalformedMessage):
    """Bytes from another process are not a frame that this package writes; the message is one line.

    A frame does not know its sender; whoever has received it adds the name from the sender's certificate.
    """


def refuse_other_kind(setting: str, given: object, kind: type, example: str) -> None:
    """Accept an object of a kind.

    Raises:
        ConfigurationError: for any other object, also for the class itself.

    Examples:
        >>> refuse_other_kind("seed", 3, int, "0")
    """
    if not isinstance(given, kind):
        article = "an" if kind.__name__[0] in "AEIO" else "a"
        raise ConfigurationError(f"{setting} must be {article} {kind.__name__}, such as {example}; got {given!r}")


def on_one_line(text: object) -> str:
    r"""The text of an error, for example, without line breaks.

    Examples:
        >>> on_one_line(ValueError("too large\nsee the manual"))
        'too large see the manual'
    """
    return " ".join(str(text).split())


def reason(error: BaseException) -> str:
    r"""The first line of an error's text; the name of its class, if it has no text.

    Examples:
        >>> reason(ValueError("too large\nsee the manual")), reason(ValueError())
        ('too large', 'ValueError')
    """
    return next(iter(str(error).splitlines()), type(error).__name__)


def nearest(word: str, known: Iterable[str], otherwise: str | None = None, most: int = 2) -> str:
    """The end of an error message about an unknown word: the most similar known words.

    Args:
        word: the given word.
        known: the allowed words.
        otherwise: the end if no known word is similar; default: a list of all known words.
        most: the largest number of words in the message.

    Examples:
        >>> nearest("metrc", ["metric", "seeds"]), nearest("x", ["metric", "seeds"])
        ('did you mean metric?', 'use one of metric, seeds')
        >>> nearest("label", ["label_party", "label_column", "label_counts"])  # equally near: the first ones
        'did you mean label_party or label_column?'
    """
    words = list(known)
    likeness = {one: difflib.SequenceMatcher(None, one, word).ratio() for one in words}
    close = [one for one in words if likeness[one] >= 0.55]
    near = sorted(close, key=likeness.__getitem__, reverse=True)[:most]  # of equal ones those that come first
    return f"did you mean {' or '.join(near)}?" if near else otherwise or f"use one of {', '.join(words)}"


def printable(value: object, most: int = 500) -> str:
    r"""A text of another process for a line of this one: without control characters, and cut.

    Examples:
        >>> printable("bank\x1b[2J\nis fine"), printable(["a\n"], 4)
        ('bank?[2J is fine', "['a\\")
    """
    shown = on_one_line(value) if isinstance(value, str) else repr(value)
    return "".join(letter if letter.isprintable() else "?" for letter in shown[:most])
