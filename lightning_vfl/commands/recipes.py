"""Find recipes and complete short class names before the parser reads the arguments."""

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from lightning_vfl.configs import find_recipe
from lightning_vfl.errors import ConfigurationError

_MODULES = (  # of the classes that a recipe may name; callbacks come last, since they share names with fault models
    "aggregators",
    "datamodules",
    "field",
    "local_objectives",
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
    """Short name -> import path of every public class of the toolkit."""
    paths = {}
    for name in _MODULES:
        module = import_module(f"lightning_vfl.{name}")
        for public in module.__all__:
            if isinstance(getattr(module, public), type):
                paths[public] = f"{module.__name__}.{public}"
    return paths


def with_full_paths(config: Any) -> Any:
    """A loaded recipe with full paths for short names of the toolkit's classes; torch has a ``Linear`` too."""
    if isinstance(config, dict):
        return {
            key: own_classes().get(value, value)
            if key == "class_path" and isinstance(value, str)
            else with_full_paths(value)
            for key, value in config.items()
        }
    return [with_full_paths(value) for value in config] if isinstance(config, list) else config


def expand_arguments(arguments: Sequence[str]) -> list[str]:
    """The arguments with the paths of recipes, and with full paths of short class names (``--model.top=Linear``).

    The first recipe that names the data set, or ``--data NAME``, is moved before recipes that set only a part of the
    data (``protocol/pbm`` sets the scaling), because the parser cannot read settings of a class that it does not know.
    """
    expanded: list[list[str]] = []  # an option with its value
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if argument.startswith("-"):
            expanded.append([f"{option}={_expand(option, value)}" if equals else argument])
        elif expanded and len(expanded[-1]) == 1 and expanded[-1][0].startswith("-"):
            expanded[-1].append(_expand(expanded[-1][0], argument))
        else:
            expanded.append([argument])
    said = [_about_data(words) for words in expanded]
    if "part" in said and "name" in said and (part := said.index("part")) < (name := said.index("name")):
        expanded.insert(part, expanded.pop(name))
    return [word for words in expanded for word in words]


def _about_data(words: Sequence[str]) -> str:
    """Whether an option gives the ``name`` of the data set, a ``part`` of its settings, or neither (empty)."""
    option, _, value = words[0].partition("=")
    value = words[1] if len(words) > 1 else value
    if option == "--data" and value:
        return "name"
    if option not in ("-c", "--config") or not value:
        return ""
    try:
        recipe = yaml.safe_load(value if value.lstrip().startswith("{") else Path(value).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):  # the parser will report the error
        return ""
    if not isinstance(recipe, dict) or not any(str(key).split(".")[0] == "data" for key in recipe):
        return ""
    data = recipe.get("data")
    return "name" if isinstance(data, str) or (isinstance(data, dict) and "class_path" in data) else "part"


def _expand(option: str, value: str) -> str:
    if option in ("-c", "--config"):
        try:
            return find_recipe(value)
        except ConfigurationError as error:
            raise ConfigurationError(f"--config {error}") from None
    if option.endswith((".bottom", ".top", ".class_path")):
        return own_classes().get(value, value)
    return value
