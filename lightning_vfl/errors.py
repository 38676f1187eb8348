"""The exceptions of the toolkit, and a part of their messages."""

import difflib
from collections.abc import Iterable


class ConfigurationError(ValueError):
    """What was asked for cannot be done; the message is one sentence that names the fix.

    The command line prints it on one line and exits with status 1; from Python it is an ordinary ``ValueError``.

    Examples:
        >>> raise ConfigurationError("batch_size must be at most 20; got 64; lower batch_size")
        Traceback (most recent call last):
        ...
        lightning_vfl.errors.ConfigurationError: batch_size must be at most 20; ...
    """


class MalformedMessage(ValueError):
    """A message that its receiver cannot use; the message of the exception names the party that sent it.

    The round ends with it, because a result that was computed from such a message would be wrong.
    """


def nearest(word: str, known: Iterable[str], otherwise: str | None = None, most: int = 2) -> str:
    """The end of an error message about an unknown word: the known words that are most like it.

    Args:
        word: what was given.
        known: what is allowed.
        otherwise: the end if no known word is like it; default: all known words.
        most: words that are named at most.

    Examples:
        >>> nearest("metrc", ["metric", "seeds"]), nearest("x", ["metric", "seeds"])
        ('did you mean metric?', 'use one of metric, seeds')
    """
    words = list(known)
    near = difflib.get_close_matches(word, words, n=most, cutoff=0.55)
    return f"did you mean {' or '.join(near)}?" if near else otherwise or f"use one of {', '.join(words)}"
