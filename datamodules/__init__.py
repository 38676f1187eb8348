"""Data sets of tables, images and views, and partitioners that divide their columns between parties."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .public import *
    from .public import __all__ as __all__


def __getattr__(name: str) -> Any:
    """Import the classes when one is used: reading an exported model's tables must not import Lightning (2.5 s)."""
    public = None if name.startswith("_") and name != "__all__" else import_module(".public", __name__)
    if hasattr(public, name):
        return getattr(public, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(import_module(".public", __name__).__all__)
