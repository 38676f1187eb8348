"""From the names of packaged recipes to a module, fault callbacks and a trainer's settings, without the command line.

The parser of the command line needs half a second a case. Here the YAML files are merged and their classes built.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.resources.abc import Traversable
from typing import Any

import torch
import yaml

from lightning_vfl.commands.known_classes import own_classes
from lightning_vfl.configs import packaged

YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is ten times as fast
FACTORIES = {"bottom", "top", "norm", "host", "decoder", "optimizer", "lr_scheduler", "activation", "output_activation"}
ALSO = {  # short names that only the command line's parser knows, by the type of the argument
    "Budget": "lightning_vfl.privacy.calibration.Budget",
    "PublishedPBM": "lightning_vfl.privacy.calibration.PublishedPBM",
    "Reconstruction": "lightning_vfl.local_objectives.Reconstruction",
}


def merged(recipes: Sequence[str], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The recipes one over the other, then the settings of ``overrides``: dotted names below ``model``."""
    files: Mapping[str, Traversable] = packaged()
    config: dict[str, Any] = {}
    for name in recipes:
        config = _over(config, yaml.load(files[name].read_text(encoding="utf-8"), YAML))
    settings = config["model"].setdefault("init_args", {})
    for dotted, value in overrides.items():
        place = settings
        *path, last = dotted.split(".")
        for step in path:
            place = place[step].setdefault("init_args", {})
        place[last] = value
    return config


def instance(spec: Any) -> Any:
    """What a part of a recipe describes: objects of classes, everything else as it is."""
    if isinstance(spec, list):
        return [instance(part) for part in spec]
    if not isinstance(spec, dict):
        return spec
    if "class_path" not in spec:
        return {key: instance(part) for key, part in spec.items()}
    return found(spec["class_path"])(**arguments(spec.get("init_args") or {}))


def arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a constructor; networks and optimisers are given as factories."""
    return {name: factory(value) if name in FACTORIES else instance(value) for name, value in given.items()}


def factory(spec: Any) -> Any:
    """A class with its settings, to be called with what only the module knows."""
    if spec is None or callable(spec):
        return spec
    if isinstance(spec, str):
        return found(spec)
    return partial(found(spec["class_path"]), **arguments(spec.get("init_args") or {}))


def found(path: str) -> Any:
    """The class of this short name or import path."""
    module, _, name = own_classes().get(path, ALSO.get(path, path)).rpartition(".")
    return getattr(import_module(module), name)


def module_of(config: Mapping[str, Any], seed: int) -> Any:
    """The protocol of a merged recipe; its initial weights depend on the seed alone."""
    torch.manual_seed(seed)
    spec = config["model"]
    return found(spec["class_path"])(**arguments(spec["init_args"]), seed=seed)


def faults_of(config: Mapping[str, Any]) -> list[Any]:
    """The callbacks of a merged recipe."""
    trainer = config.get("trainer") or {}
    return [instance(spec) for spec in (*trainer.get("callbacks", ()), *trainer.get("callbacks+", ()))]


def _over(below: Any, above: Any) -> Any:
    """The settings of ``above`` in ``below``; another class begins with no settings, callbacks are added."""
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    if above.get("class_path", below.get("class_path")) != below.get("class_path"):
        return above
    joined = dict(below)
    for key, value in above.items():
        known = joined.get(key)
        joined[key] = [*known, *value] if key == "callbacks+" and known else _over(known, value)
    return joined
