"""The classes that a recipe can name, and their settings."""

import inspect
from functools import cache
from importlib import import_module

NO_PLACE = {  # settings of a base class that users try, and why a class does not have them
    "DecoupledVFL": (("aggregator",), "its hosts join the latest embeddings; leave the aggregator out"),
}

_MODULES = (  # of the classes that a recipe may name; callbacks come last, since they share names with fault models
    "aggregators",
    "audit",
    "compressors",
    "datamodules",
    "downlinks",
    "field",
    "local_objectives",
    "local_updates",
    "missing",
    "networks",
    "objectives",
    "protocols",
    "simulation",
    "waiting",
    "callbacks",
)


@cache
def own_classes() -> dict[str, str]:
    """Short name -> import path of every public class of the toolkit that a recipe can name."""
    paths = {}
    for name in _MODULES:
        module = import_module(f"lightning_vfl.{name}")
        for public in module.__all__:
            kind = getattr(module, public)
            given = name == "audit" and not hasattr(kind, "run")  # what an attack is given, and what it gives
            if isinstance(kind, type) and not given:
                paths[public] = f"{module.__name__}.{public}"
    return paths


def settings_of(kind: type) -> list[str]:
    """The settings of a class, including those that it passes on to its base class."""
    names: dict[str, None] = {}
    for owner in kind.__mro__ if isinstance(kind, type) else (kind,):
        parameters = inspect.signature(owner).parameters.values()
        names |= {p.name: None for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
        if all(p.kind is not p.VAR_KEYWORD for p in parameters):
            break
    return [name for name in names if name not in NO_PLACE.get(kind.__name__, ((), ""))[0]]
