"""Further cases of a law that a quick case covers: they are left to the slow tests."""

from collections.abc import Iterable
from typing import Any

import pytest


def further(*values: Any) -> Any:
    """A case of ``parametrize`` that is slow."""
    return pytest.param(*values, marks=pytest.mark.slow)


def few(cases: Iterable[str], *quick: str) -> list[Any]:
    """Cases for ``parametrize`` by name: these are quick, and all others are slow."""
    names = list(cases)
    if unknown := set(quick) - set(names):
        raise ValueError(f"there is no case {unknown}")
    return [name if name in quick else further(name) for name in names]
