"""Recipes by name, and our own classes by their short names.

One rule for ``--config NAME``: a file of that name is used; if there is none, NAME is looked up below the packaged
``configs/`` folder, where a leading ``configs/`` and the ending ``.yaml`` may be left out: ``--config data/digits``.
"""

import difflib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from lightning_vfl.errors import ConfigurationError

_ROOMS = (  # a later one wins: callbacks have the names of the fault models that they add
    "aggregators",
    "datamodules",
    "field",
    "missing",
    "networks",
    "objectives",
    "protocols",
    "simulation",
    "waiting",
    "callbacks",
)


def packaged() -> dict[str, Traversable]:
    """The recipes that ship with the package, by name: ``data/digits`` -> its file."""

    def walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
        for entry in folder.iterdir():
            if entry.is_dir():
                yield from walk(entry, f"{prefix}{entry.name}/")
            elif entry.name.endswith(".yaml"):
                yield prefix + entry.name.removesuffix(".yaml"), entry

    return dict(sorted(walk(files("lightning_vfl.configs"), "")))


def find_recipe(name: str) -> str:
    """The path of a recipe: the file itself, or the packaged one of that name.

    Raises:
        ConfigurationError: if there is neither; the message names the nearest recipes.
    """
    if Path(name).is_file() or name.lstrip().startswith("{"):  # a file, or JSON on the command line
        return name
    recipes = packaged()
    short = name.replace("\\", "/").removeprefix("./").removeprefix("configs/").removesuffix(".yaml")
    if short in recipes:
        return str(recipes[short])
    near = difflib.get_close_matches(short, recipes, n=3, cutoff=0.5) or [r for r in recipes if short in r.split("/")]
    hint = f"did you mean {' or '.join(near)}?" if near else f"packaged recipes are {', '.join(recipes)}"
    raise ConfigurationError(f"--config {name}: no such file, and no packaged recipe of that name; {hint}")


@cache
def own_classes() -> dict[str, str]:
    """Short name -> import path of every public class of the toolkit."""
    paths = {}
    for room in _ROOMS:
        module = import_module(f"lightning_vfl.{room}")
        for name in getattr(module, "__all__", ()):
            if isinstance(getattr(module, name), type):
                paths[name] = f"{module.__name__}.{name}"
    return paths


def with_full_paths(config: Any) -> Any:
    """A loaded recipe whose short class paths are full, where the class is ours: ``Linear`` is also one of torch's."""
    if isinstance(config, dict):
        return {
            key: own_classes().get(value, value)
            if key == "class_path" and isinstance(value, str)
            else with_full_paths(value)
            for key, value in config.items()
        }
    return [with_full_paths(value) for value in config] if isinstance(config, list) else config


def expand_arguments(arguments: Sequence[str]) -> list[str]:
    """Command-line arguments with recipes found and short names of factories (``--model.top=Linear``) made full.

    The first recipe that names the data set, or ``--data NAME``, is put in front of recipes that set only a part of the
    data (``protocol/pbm`` sets the scaling), because the parser cannot read a part before it knows the class.
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
    """What an option and its value say about the data: their ``name``, a ``part`` of their settings, or nothing."""
    option, _, value = words[0].partition("=")
    value = words[1] if len(words) > 1 else value
    if option == "--data" and value:
        return "name"
    if option not in ("-c", "--config") or not value:
        return ""
    try:
        recipe = yaml.safe_load(value if value.lstrip().startswith("{") else Path(value).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):  # the parser says what is wrong with it
        return ""
    if not isinstance(recipe, dict) or not any(str(key).split(".")[0] == "data" for key in recipe):
        return ""
    data = recipe.get("data")
    return "name" if isinstance(data, str) or (isinstance(data, dict) and "class_path" in data) else "part"


def _expand(option: str, value: str) -> str:
    if option in ("-c", "--config"):
        return find_recipe(value)
    if option.endswith((".bottom", ".top", ".class_path")):
        return own_classes().get(value, value)
    return value
