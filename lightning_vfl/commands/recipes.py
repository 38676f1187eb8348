"""Find recipes and complete short class names before the parser reads the arguments."""

import inspect
import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from lightning_vfl.commands.known_classes import own_classes
from lightning_vfl.commands.optimizers import (
    PARTS,
    SHORT,
    default_option,
    model_named,
    optimizer_apart,
    optimizer_named,
    rename_option,
    rename_settings,
    takes,
)
from lightning_vfl.commands.option_order import in_order, is_recipe
from lightning_vfl.commands.protections import refuse_dropped_protection
from lightning_vfl.commands.recipe_kinds import refuse_two_of_a_kind
from lightning_vfl.commands.usage import UsageError
from lightning_vfl.configs import find_recipe
from lightning_vfl.errors import ConfigurationError

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # in C: ten times as fast


def with_full_paths(config: Any) -> Any:
    """A loaded recipe with full paths for short names of the toolkit's classes; torch has a ``Linear`` too."""
    if isinstance(config, dict):
        return {key: _with_full_path(key, value) for key, value in config.items()}
    return [with_full_paths(value) for value in config] if isinstance(config, list) else config


def _with_full_path(key: str, value: Any) -> Any:
    if key == "class_path" and isinstance(value, str):
        return SHORT.get(value, own_classes().get(value, value))
    completed = with_full_paths(value)
    return with_open_outputs(completed) if key == "top" else completed


def with_open_outputs(top: Any) -> Any:
    """A top of a recipe; if its class requires ``outputs`` and none are given, 0: as many as the task needs."""
    spec = {"class_path": top} if isinstance(top, str) else top
    if (
        not isinstance(spec, dict)
        or "." not in str(spec.get("class_path"))
        or "outputs" in (spec.get("init_args") or ())
    ):
        return top
    module, _, name = spec["class_path"].rpartition(".")
    try:
        parameter = inspect.signature(getattr(import_module(module), name)).parameters["outputs"]
    except Exception:  # of a module of a user's own, too; the parser's error says what is wrong with the path
        return top
    if parameter.default is not parameter.empty:
        return top
    return {**spec, "init_args": {**(spec.get("init_args") or {}), "outputs": 0}}


def expand_arguments(arguments: Sequence[str]) -> list[str]:
    """The arguments with the paths of recipes, and with full paths of short class names (``--model.top=Linear``).

    Recipes come before the other options, see ``in_order``, and before them the recipe of a run whose checkpoint is
    given, see ``with_recipe_of_run``.

    Raises:
        ConfigurationError: if a recipe or a checkpoint is not found, or if two packaged recipes exclude each other.
    """
    given = _with_values(arguments)
    expanded = [_expand(words) for words in given]
    refuse_two_of_a_kind([find_recipe(value) for words in given if is_recipe(words) and (value := _value(words))])
    from lightning_vfl.commands.run_recipe import with_recipe_of_run  # torch, which messages of errors do not need

    options = with_recipe_of_run(in_order([(words, _recipe(words)) for words in expanded]))
    return [word for words, _ in options for word in words]


def data_alone(arguments: Sequence[str]) -> list[str]:
    """The options with that part of their recipes that is about the data, for a command that reads no other.

    Args:
        arguments: expanded.

    Raises:
        UsageError: for an option of another part, which a recipe may have but the command cannot use.
    """
    reduced = list[str]()
    for words in _with_values(arguments):
        part = words[0].lstrip("-").partition("=")[0].split(".")[0]
        if part in ("model", "trainer"):
            raise UsageError(f"{arguments[0]} reads the settings of the data alone; leave the options --{part} out")
        if recipe := _recipe(words):
            parts = {key: value for key, value in recipe.items() if str(key).split(".")[0] == "data"}
            words = ["--config", json.dumps(parts)]
        reduced += words
    return reduced


def model_first(arguments: Sequence[str]) -> list[str]:
    """The options with settings of the model are put behind the one that names it; the default optimiser is added.

    An optimiser in a recipe before it, such as that of a data set, takes the place of the default, with its schedule.
    Neither is added if another option names an optimiser: the parser would hand the settings on to the other class.

    Args:
        arguments: expanded.

    Raises:
        ConfigurationError: if the model that is named last has no place for a protection that was given before.
    """
    expanded = _with_values(arguments)
    recipes = [_recipe(words) for words in expanded]
    pairs = list(zip(expanded, recipes, strict=True))
    refuse_dropped_protection(pairs)
    named = next((position for position, pair in enumerate(pairs) if model_named(*pair)), None)
    if named is None or arguments[0].startswith("-"):  # a recipe before the command has a section for each command
        return list(arguments)
    early, before, of_recipes = list[list[str]](), list[list[str]](), list[str]()
    for words, recipe in pairs[:named]:
        rest, options = optimizer_apart(words, recipe)
        (early if words[0].startswith("--model.") else before).append(rest)
        of_recipes = options or of_recipes
    others = [pair for pair in pairs[:named] if not optimizer_apart(*pair)[1]] + pairs[named:]
    model = model_named(*pairs[named])
    if any(optimizer_named(*pair) for pair in others) or not takes(model):
        of_recipes = []
    elif not of_recipes and model.startswith("lightning_vfl."):
        of_recipes = [default_option()]
    elif any(optimizer_named(*pair, "lr_scheduler") for pair in others):
        of_recipes = of_recipes[:1]
    behind = expanded[named + 1 :]
    return [word for words in (*before, expanded[named], of_recipes, *early, *behind) for word in words]


def _with_values(arguments: Sequence[str]) -> list[list[str]]:
    """Every option with its value, which is an element of its own unless it stands behind ``=``."""
    options: list[list[str]] = []
    for argument in arguments:
        if not argument.startswith("-") and options and len(options[-1]) == 1 and options[-1][0].startswith("-"):
            options[-1].append(argument)
        else:
            options.append([argument])
    return options


def _value(words: Sequence[str]) -> str:
    """The value of an option; empty if it has none."""
    return words[1] if len(words) > 1 else words[0].partition("=")[2]


def _recipe(words: Sequence[str]) -> dict[str, Any]:
    """The recipe that an option names; empty if it names none, or if the file cannot be opened.

    Raises:
        ConfigurationError: if the file is no recipe.
    """
    value = _value(words)
    if not is_recipe(words) or not value:
        return {}
    try:
        text = value if value.lstrip().startswith("{") else Path(value).read_text(encoding="utf-8")
        recipe = yaml.load(text, LOADER)
    except yaml.MarkedYAMLError as error:
        raise ConfigurationError(f"--config {value}: {_no_yaml(error)}") from None
    except OSError:  # which the parser tells
        return {}
    except (ValueError, yaml.YAMLError):  # bytes that are not text
        recipe = ""
    if not isinstance(recipe, dict):
        raise ConfigurationError(
            f"--config {value}: the file is {'empty' if recipe is None else 'no recipe'}; give a YAML file in UTF-8 "
            "with settings such as 'trainer: {max_epochs: 3}' (lightning-vfl list names the packaged recipes)"
        )
    completed: dict[str, Any] = with_full_paths(recipe)
    return completed


def _no_yaml(error: yaml.MarkedYAMLError) -> str:
    place = "" if error.problem_mark is None else f" in line {error.problem_mark.line + 1}"
    return f"the recipe is not YAML{place}: {error.problem}; correct the indentation or the brackets"


def _expand(words: Sequence[str]) -> list[str]:
    option, equals, value = words[0].partition("=")
    if not option.startswith("-"):
        return list(words)
    if option == "--summary" and _value(words) in ("full", "short"):
        return [f"--summary.full={str(_value(words) == 'full').lower()}"]
    option = rename_option(option)
    option = "--model.top" if option in ("--model.top.class_path", "--model.init_args.top.class_path") else option
    return (
        [f"{option}={_expand_value(option, value)}"]
        if equals
        else [option, *(_expand_value(option, v) for v in words[1:])]
    )


def _expand_value(option: str, value: str) -> str:
    if option in ("-c", "--config"):
        try:
            found = find_recipe(value)
        except ConfigurationError as error:
            raise ConfigurationError(f"--config {error}") from None
        recipe = _recipe([option, found])
        return json.dumps(rename_settings(recipe)) if {*PARTS} & {*recipe} else found
    if option.endswith(".top"):
        top = with_open_outputs(own_classes().get(value, value))
        return top if isinstance(top, str) else json.dumps(top)
    if option.endswith((".bottom", ".class_path")) or option == "--model":
        return own_classes().get(value, value)
    return SHORT.get(value, value)
