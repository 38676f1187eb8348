import doctest
import importlib
import importlib.util
import linecache
import pkgutil
from pathlib import Path

import pytest

import lightning_vfl
import lightning_vfl.callbacks
import lightning_vfl.datamodules

# an editable install maps the wings in: walking the package alone does not meet them
ROOTS = (lightning_vfl, lightning_vfl.callbacks, lightning_vfl.datamodules)
MODULES = sorted(
    {
        info.name
        for root in ROOTS
        for info in pkgutil.walk_packages(root.__path__, f"{root.__name__}.")
        if not info.name.endswith("__main__")
    }
)


def has_examples(name: str) -> bool:
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None and ">>>" in Path(spec.origin).read_text(encoding="utf-8")


def test_the_wings_are_walked_too():
    assert {"lightning_vfl.datamodules.partitioners.partition", "lightning_vfl.callbacks.run_summary"} <= set(MODULES)


@pytest.mark.parametrize("name", [name for name in MODULES if has_examples(name)])
def test_examples_in_docstrings_are_true(name, monkeypatch):
    monkeypatch.setattr(linecache, "checkcache", lambda *given: None)  # doctest asks all files anew for each example
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(importlib.import_module(name), optionflags=flags).failed == 0
