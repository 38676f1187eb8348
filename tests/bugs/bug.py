"""A bug to plant."""

from typing import NamedTuple


class Bug(NamedTuple):
    """One planted bug.

    Args:
        file: from the root of the checkout.
        text: code that occurs once in the file.
        instead: what stands there when the bug is planted.
        wrong: what the bug does.
        tests: files or tests below ``tests`` of which one has to fail, separated by spaces.
    """

    file: str
    text: str
    instead: str
    wrong: str
    tests: str
