"""The optimiser and the learning-rate schedule as users of LightningCLI give them.

``--optimizer Adam --optimizer.lr 0.01``, ``--lr_scheduler StepLR`` and ``--model.lr 0.01``, also in recipes, are the
settings ``optimizer`` and ``lr_scheduler`` of the model: the module makes them, so that a checkpoint can rebuild them.
"""

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from lightning_vfl.commands.known_classes import settings_of

PARTS = ("optimizer", "lr_scheduler")
_OF_RECIPES = (*PARTS, "model", "data", "trainer", "predictions", "ckpt_path", "seed_everything", "print_config")
ALIASES = ("--optimizer", "--optimizer.lr", "--lr_scheduler", "--model.lr")
SHORT = {"ReduceLROnPlateau": "torch.optim.lr_scheduler.ReduceLROnPlateau"}  # Lightning has a class of the same name
_DEFAULT = {"class_path": "torch.optim.Adam", "init_args": {"lr": 1e-3, "fused": True}}  # that of VFLModule


def rename_option(option: str) -> str:
    """The option that the parser knows.

    Examples:
        >>> rename_option("--optimizer.lr"), rename_option("--model.lr"), rename_option("--model.width")
        ('--model.optimizer.lr', '--model.optimizer.lr', '--model.width')
        >>> rename_option("--lr-scheduler"), rename_option("--data.id-column"), rename_option("--data.tables.my-bank")
        ('--model.lr_scheduler', '--data.id_column', '--data.tables.my-bank')
    """
    option = _with_underscores(option)
    if option == "--model.lr":
        return "--model.optimizer.lr"
    return f"--model.{option[2:]}" if option[2:].partition(".")[0] in PARTS and option.startswith("--") else option


def _with_underscores(option: str) -> str:
    """The option with underscores, as settings of a recipe are named; keys that a user chooses stay as they are."""
    first, *settings = option.removeprefix("--").split(".")
    if first.replace("-", "_") not in _OF_RECIPES:
        return option
    count = 2 if settings[:1] == ["init_args"] else 1
    named = [name.replace("-", "_") for name in settings[:count]]
    return "--" + ".".join([first.replace("-", "_"), *named, *settings[count:]])


def rename_settings(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """The recipe with ``optimizer`` and ``lr_scheduler`` of the top level among the settings of the model."""
    renamed = dict(recipe)
    given = {part: renamed.pop(part) for part in PARTS if part in renamed}
    if given:
        model = renamed.get("model") or {}
        model = {"class_path": model} if isinstance(model, str) else dict(model)
        renamed["model"] = {**model, "init_args": {**model.get("init_args", {}), **given}}
    return renamed


def model_named(words: Sequence[str], recipe: Mapping[str, Any]) -> str:
    """The import path of the protocol that an option or its recipe names; empty if neither names one."""
    key, _, value = words[0].partition("=")
    model = recipe.get("model")
    path = model if isinstance(model, str) else (model or {}).get("class_path", "") if isinstance(model, dict) else ""
    return value or "".join(words[1:]) if key == "--model" else path


def optimizer_named(words: Sequence[str], recipe: Mapping[str, Any], part: str = "optimizer") -> bool:
    """Whether an option or its recipe names the optimiser (or another ``part``), or asks for none."""
    model = recipe.get("model")
    settings = {**model, **(model.get("init_args") or {})} if isinstance(model, dict) else {}
    given = settings.get(part, {})
    named = not isinstance(given, dict) or "class_path" in given
    return named or words[0].partition("=")[0] in (f"--model.{part}", f"--model.init_args.{part}")


def takes(model: str, setting: str = "optimizer") -> bool:
    """Whether the class with this import path has a setting; a class of a user's own may have no ``optimizer``."""
    module, _, name = model.rpartition(".")
    try:
        return setting in settings_of(getattr(import_module(module), name))
    except Exception:  # of a module of a user's own, too; the parser's error says what is wrong with the path
        return False


def optimizer_apart(words: Sequence[str], recipe: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The option of a recipe that gives an optimiser to no model in particular, in two.

    Returns:
        the option without optimiser and schedule (empty: nothing is left), and options that set these (empty: the
        recipe gives none).

    Examples:
        >>> recipe = {"data": {"class_path": "D"}, "model": {"init_args": {"optimizer": {"class_path": "SGD"}}}}
        >>> optimizer_apart(["--config", "recipe.yaml"], recipe)
        (['--config={"data": {"class_path": "D"}}'], ['--model.optimizer={"class_path": "SGD"}'])
    """
    match recipe.get("model"):
        case {"init_args": {"optimizer": _, **more} as given, **others} if more.keys() <= {*PARTS} and not others:
            rest = {key: value for key, value in recipe.items() if key != "model"}
            options = [f"--model.{part}={json.dumps(given[part])}" for part in PARTS if part in given]
            return [f"--config={json.dumps(rest)}"] if rest else [], options
    return list(words), []


def default_option() -> str:
    """The default optimiser as an option: ``--print_config`` shows it, and its settings can be changed alone."""
    return f"--model.optimizer={json.dumps(_DEFAULT)}"
