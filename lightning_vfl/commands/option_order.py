"""The order in which the parser applies options: recipes first, so that an option wins over every recipe."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lightning_vfl.commands.optimizers import model_named, optimizer_apart

Option = tuple[list[str], Mapping[str, Any]]  # its words, and its recipe (empty: it is none)


def is_recipe(words: Sequence[str]) -> bool:
    """Whether the words of an option give a recipe."""
    return words[0].partition("=")[0] in ("-c", "--config")


def in_order(options: Sequence[Option]) -> list[Option]:
    """The recipes, then the other options; among both, the order is kept. The words up to the command stay in front.

    The parser cannot read settings of a class that it does not know. So the first recipe that names the data set, or
    ``--data NAME``, is moved before recipes that set only a part of the data (``protocol/pbm`` sets the scaling).
    A class (``--model.aggregator=Own``) is moved before its settings (``--model.aggregator.k=4``).
    ``--model NAME`` is moved before recipes that set a part of the model (policies) if no recipe names the model.

    Examples:
        >>> in_order([(["fit"], {}), (["--trainer.max_epochs=3"], {}), (["--config=a.yaml"], {})])
        [(['fit'], {}), (['--config=a.yaml'], {}), (['--trainer.max_epochs=3'], {})]
    """
    start = next((place + 1 for place, (words, _) in enumerate(options) if not words[0].startswith("-")), len(options))
    front, behind = list(options[:start]), options[start:]
    recipes = [option for option in behind if is_recipe(option[0])]
    rest = [option for option in behind if not is_recipe(option[0])]
    ordered = _name_first([*front, *recipes, *_classes_first(rest)], _about_data)
    return ordered if any(model_named(*option) for option in recipes) else _name_first(ordered, _about_model)


def _classes_first(options: list[Option]) -> list[Option]:
    """The options with each that gives a class moved before the first that sets a part of it.

    Lists keep their order, because ``--trainer.callbacks+`` adds an element, and the settings behind it are its own.
    """
    ordered = list(options)
    for option in options:
        key, before = _key(option), ordered[: ordered.index(option)]
        keys = [_key(one) for one in before]
        first = next((place for place, one in enumerate(keys) if one.startswith(f"{key}.")), None)
        if first is not None and "." in key and key not in keys and f"{key}+" not in keys:
            ordered.remove(option)
            ordered.insert(first, option)
    return ordered


def _key(option: Option) -> str:
    """The setting that an option gives, without the parts that recipes alone need."""
    return option[0][0].partition("=")[0].removeprefix("--").replace(".init_args", "").removesuffix(".class_path")


def _name_first(options: list[Option], about: Callable[..., str]) -> list[Option]:
    """The options with the first that gives the ``name`` of a class moved before the first that sets a ``part``."""
    said = [about(*option) for option in options]
    if "part" in said and "name" in said and (part := said.index("part")) < (name := said.index("name")):
        options.insert(part, options.pop(name))
    return options


def data_named(words: Sequence[str], recipe: Mapping[str, Any]) -> bool:
    """Whether an option or its recipe names the data set."""
    return _about_data(words, recipe) == "name"


def _about_data(words: Sequence[str], recipe: Mapping[str, Any]) -> str:
    """Whether an option gives the ``name`` of the data set, a ``part`` of its settings, or neither (empty)."""
    option, _, value = words[0].partition("=")
    if option == "--data" and (value or words[1:]):
        return "name"
    if not any(str(key).split(".")[0] == "data" for key in recipe):
        return ""
    data = recipe.get("data")
    return "name" if isinstance(data, str) or (isinstance(data, dict) and "class_path" in data) else "part"


def _about_model(words: Sequence[str], recipe: Mapping[str, Any]) -> str:
    """As ``_about_data``, for the model. An optimiser alone is no part: it is for whatever model is named."""
    if model_named(words, recipe):
        return "name"
    return "part" if "model" in recipe and not optimizer_apart(words, recipe)[1] else ""
