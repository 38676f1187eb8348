"""All recipes of a command are merged into one before the parser reads it; the options of the command win over it.

Recipes that do not contradict each other give the same settings in every order. Where two contradict, the later one
wins. ``--model NAME``, ``--data NAME``, ``--optimizer NAME`` and ``--lr_scheduler NAME`` count as a last recipe.
"""

import inspect
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import get_loader

from lightning_vfl.commands.known_classes import own_classes, settings_of
from lightning_vfl.commands.usage import UsageError, value_of
from lightning_vfl.configs import RepeatedKey, find_recipe, packaged_name, refuse_repeated_keys
from lightning_vfl.errors import ConfigurationError

OPTIMIZER = ("optimizer", "lr_scheduler")
ALIASES = ("--optimizer", "--optimizer.lr", "--lr_scheduler", "--model.lr")
_RECIPE = ("-c", "--config")
_PARTS = (*OPTIMIZER, "model", "data", "trainer", "predictions", "ckpt_path", "seed_everything", "print_config")
_CLASSES = ("model", "data", *(f"model.{part}" for part in OPTIMIZER))  # options that count as a last recipe
_ONE_OF = ("data", "protocol", "policy")  # recipes of faults add up, and recipes of the trainer overlay
_PROTECTIONS = ("downlink",)
_CLASS_KEYS = {"class_path", "init_args", "dict_kwargs"}
_SHORT = {"ReduceLROnPlateau": "torch.optim.lr_scheduler.ReduceLROnPlateau"}  # Lightning has a class of the same name
_DEFAULT = {"class_path": "torch.optim.Adam", "init_args": {"lr": 1e-3, "fused": True}}  # that of VFLModule

Recipe = Mapping[str, Any]


class _Quoted(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # chosen when it runs
    """Writes every text in quotes: the parser reads 1e3 without quotes as a number."""


_Quoted.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


def merge_arguments(arguments: Sequence[str]) -> list[str]:
    """The arguments with one recipe in place of all, directly behind the command, and with full paths of classes.

    Args:
        arguments: of ``lightning-vfl``. A recipe before the command is left to the parser.

    Raises:
        ConfigurationError: if a recipe or a checkpoint is not found, if two packaged recipes exclude each other, or if
            a protection that one recipe gives has no place in the protocol that a later recipe names.
        UsageError: for an option that the command cannot use.
    """
    options = [_complete(words) for words in _with_values(arguments)]
    if not options or options[0][0].startswith("-"):
        return [word for words in options for word in words]
    command, *rest = options
    files = [value_of(words) for words in rest if _key(words) == "config"]
    _refuse_two_of_a_kind(files)
    classes = [words for words in rest if _key(words) in _CLASSES and value_of(words)]
    others = [words for words in rest if _key(words) != "config" and words not in classes]
    layers = [*map(_read, files), *map(_as_recipe, classes)]
    if command == ["cut"]:
        layers = _data_alone(layers, rest)
    else:
        from lightning_vfl.commands.run_recipe import recipe_of_run  # torch, which messages of errors do not need

        of_run, others = recipe_of_run(command[0], others, merge(layers, tell=False))
        layers = [of_run, *layers]
    recipe = _with_default_optimizer(merge(layers)) if command != ["cut"] else merge(layers)
    merged = [["--config", _written(recipe)]] if recipe else []
    return [word for words in (command, *merged, *_classes_first(others)) for word in words]


def merge(recipes: Sequence[Recipe], *, tell: bool = True) -> dict[str, Any]:
    """One recipe in place of several.

    A section and a class are merged setting by setting; any other value of a later recipe takes the place of the
    earlier one. ``callbacks+`` of every recipe are added to the callbacks, wherever the recipe stands.

    Args:
        recipes: with full paths of classes.
        tell: print a line for each class in whose place a later recipe names another one.

    Raises:
        ConfigurationError: if the later class has no place for a protection.

    Examples:
        >>> merge([{"trainer": {"callbacks+": ["B"]}}, {"trainer": {"callbacks": ["A"]}}])
        {'trainer': {'callbacks': ['A', 'B']}}
        >>> merge([{"data": {"init_args": {"seed": 1}}}, {"data": "Digits"}])
        {'data': {'class_path': 'Digits', 'init_args': {'seed': 1}}}
    """
    return _merged_section("", [_nested(recipe) for recipe in recipes], tell)


def _merged_section(path: str, sections: Sequence[Recipe], tell: bool) -> dict[str, Any]:
    keys = dict.fromkeys(key for section in sections for key in section)
    merged = {}
    for key in keys:
        values = [section[key] for section in sections if key in section]
        where = f"{path}.{key}".lstrip(".")
        if key.endswith("+"):
            merged[key] = [one for value in values for one in as_list(value)]
        else:
            merged[key] = _merged_value(where, values, tell)
    for key in [key for key in merged if key.endswith("+") and key[:-1] in merged]:
        base = merged[key[:-1]]
        merged[key[:-1]] = [*as_list(base or []), *merged.pop(key)]
    return merged


def as_list(value: Any) -> list[Any]:
    """The elements of a setting that may be given without a list if there is one alone."""
    return value if isinstance(value, list) else [value]


def _merged_value(path: str, values: list[Any], tell: bool) -> Any:
    """The value of a setting that several recipes give, the last one the latest."""
    last = values[-1]
    if "." not in path and path not in ("model", "data") and isinstance(last, dict):
        return _merged_section(path, [value for value in values if isinstance(value, dict)], tell)
    if path not in ("model", "data") and not any(_is_class(value) for value in values):
        return last
    specs: list[dict[str, Any]] = []
    for value in values:
        spec = None if _is_halves(value) else _as_class(value)
        specs = [] if spec is None else [*specs, spec]  # a number, null or halves take the place of all before
    if not specs:
        return last
    name = next((spec["class_path"] for spec in reversed(specs) if "class_path" in spec), None)
    if path == "model":
        specs = _one_optimizer(specs)
    settings = [_settings_for(name, spec, path, tell) for spec in specs]
    merged = {key: value for spec in specs for key, value in spec.items() if key != "init_args"}
    if name is not None:
        merged["class_path"] = name
    init_args = _merged_section(path, settings, tell)
    return {**merged, "init_args": init_args} if init_args or name is None else merged


def _is_halves(value: Any) -> bool:
    """Whether a setting is a top in two halves, whose keys are no settings of a class."""
    return isinstance(value, dict) and bool(value) and value.keys() <= {"server", "active"}


def _settings_for(name: str | None, spec: Recipe, path: str, tell: bool) -> dict[str, Any]:
    """The settings of a class that stay if a class with this name takes its place."""
    settings: dict[str, Any] = spec.get("init_args") or {}
    former = spec.get("class_path", name)
    if name is None or former is None or _same(former, name) or not settings:
        return settings
    known = class_at(name)
    anew = path.rpartition(".")[2] in OPTIMIZER  # the rate of one optimiser says nothing about that of another
    if known is None and not anew:  # the parser's error says what is wrong with the path
        return settings
    taken = [] if anew or known is None else settings_of(known)
    stay = [setting for setting in settings if setting in taken]
    left = [setting for setting, value in settings.items() if setting not in stay and value is not None]
    new, old = _short(name), _short(former)
    for setting in left:
        if setting in _PROTECTIONS:
            raise ConfigurationError(
                f"{path}.{setting} is given for {old}, and a later recipe names {new}, which has no {setting} and "
                f"would train without this protection; leave the {setting} out, or name {old}"
            )
    if tell and (stay or left):
        kept = f"; of {old} stay: {', '.join(stay)}" if stay else ""
        gone = f"; left out: {', '.join(left)}" if left else ""
        print(f"{path}: {new} takes the place of {old}{kept}{gone}", file=sys.stderr)
    return {setting: settings[setting] for setting in stay}


def _short(path: str) -> str:
    return path.rpartition(".")[2]


def _same(one: str, other: str) -> bool:
    """Whether two names mean one class; a class that is not of the toolkit may be named without its module."""
    return one == other or (_short(one) == _short(other) and "." not in min(one, other, key=len))


def _one_optimizer(models: Sequence[Recipe]) -> list[dict[str, Any]]:
    """The model's recipes, where an optimiser goes with its schedule if a later recipe names another optimiser.

    A class of a user's own that makes its optimiser itself is given none.
    """
    named = [(model.get("init_args") or {}).get("optimizer", {}) for model in models]
    paths = [_path_of(one) for one in named]
    last = next((path for path in reversed(paths) if path != ""), "")
    kind = class_at(next((model["class_path"] for model in reversed(models) if "class_path" in model), ""))
    takes = kind is None or "optimizer" in settings_of(kind)
    chosen = []
    for model, path in zip(models, paths, strict=True):
        settings = dict(model.get("init_args") or {})
        replaced = path != "" and (path is None or last is None or not _same(path, last)) and path is not last
        if replaced or (not takes and "class_path" not in model):
            settings = {key: value for key, value in settings.items() if key not in OPTIMIZER}
        chosen.append({**model, "init_args": settings})
    return chosen


def _path_of(spec: Any) -> str | None:
    """The class that a value names; empty: the value only has settings; None: it asks for none."""
    return str(spec.get("class_path", "")) if isinstance(spec, dict) else spec


def _with_default_optimizer(recipe: dict[str, Any]) -> dict[str, Any]:
    """The recipe with the default optimiser: ``--print_config`` shows it, and its settings can be changed alone."""
    model = recipe.get("model")
    name = _path_of(model) if isinstance(model, dict) else ""
    kind = class_at(name or "")
    if not isinstance(model, dict) or not str(name).startswith("lightning_vfl.") or kind is None:
        return recipe
    settings = model.get("init_args") or {}
    if _path_of(settings.get("optimizer", {})) != "" or "optimizer" not in settings_of(kind):
        return recipe
    given = settings.get("optimizer", {}).get("init_args") or {}
    default = {**_DEFAULT, "init_args": {**_DEFAULT["init_args"], **given}}  # type: ignore[dict-item]
    return {**recipe, "model": {**model, "init_args": {**settings, "optimizer": default}}}


def class_at(path: str) -> type | None:
    """The class with this import path; None: there is none, which the parser tells."""
    module, _, name = path.rpartition(".")
    try:
        kind = getattr(import_module(module), name)
        return kind if isinstance(kind, type) else None
    except Exception:  # of a module of a user's own, too
        return None


def _is_class(value: Any) -> bool:
    return isinstance(value, dict) and bool(_CLASS_KEYS & {*value})


def _as_class(value: Any) -> dict[str, Any] | None:
    """A value as class and settings; None: it is neither."""
    if isinstance(value, str):
        return {"class_path": value}
    if not isinstance(value, dict):
        return None
    return value if _is_class(value) else {"init_args": value}


def _nested(recipe: Recipe) -> dict[str, Any]:
    """The recipe with nested settings in place of dotted keys, and with the optimiser among those of the model."""
    nested: dict[str, Any] = {}
    for key, value in recipe.items():
        first, *inner = str(key).split(".")
        first, inner = ("model", [first, *inner]) if first in OPTIMIZER else (first, inner)
        for part in reversed(inner):
            value = {part: value}
        nested[first] = merge([{first: nested[first]}, {first: value}])[first] if first in nested else value
    return nested


def with_full_paths(config: Any) -> Any:
    """A loaded recipe with full paths for short names of the toolkit's classes; torch has a ``Linear`` too."""
    if isinstance(config, dict):
        return {key: _with_full_path(key, value) for key, value in config.items()}
    return [with_full_paths(value) for value in config] if isinstance(config, list) else config


def _with_full_path(key: str, value: Any) -> Any:
    if key in ("class_path", "bottom") and isinstance(value, str):
        return _SHORT.get(value, own_classes().get(value, value))
    if key == "bottom_of" and isinstance(value, dict):
        return {party: _with_full_path("bottom", network) for party, network in value.items()}
    completed = with_full_paths(value)
    return with_open_outputs(completed) if key == "top" else completed


def with_open_outputs(top: Any) -> Any:
    """A top of a recipe; if its class requires ``outputs`` and none are given, 0: as many as the task needs."""
    spec = {"class_path": top} if isinstance(top, str) else top
    if not isinstance(spec, dict) or "outputs" in (spec.get("init_args") or ()):
        return top
    kind = class_at(str(spec.get("class_path")))
    parameter = None if kind is None else inspect.signature(kind).parameters.get("outputs")
    if parameter is None or parameter.default is not parameter.empty:
        return top
    return {**spec, "init_args": {**(spec.get("init_args") or {}), "outputs": 0}}


def load(text: str) -> Any:
    """YAML as the parser reads it: 1e-3 is a number, and a date is text.

    Raises:
        RepeatedKey: for a key that is given twice.
    """
    refuse_repeated_keys(text)
    return get_loader("yaml")(text)


def _written(recipe: Recipe) -> str:
    """A recipe on one line, which ``load`` reads back."""
    text: str = yaml.dump(dict(recipe), Dumper=_Quoted, default_flow_style=True, sort_keys=False, width=2**31 - 1)
    return text.strip()


def _read(value: str) -> dict[str, Any]:
    """The recipe that ``--config`` names.

    Raises:
        ConfigurationError: if the file is no recipe.
    """
    try:
        recipe = load(value if value.lstrip().startswith("{") else Path(value).read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = "" if mark is None else f" in line {mark.line + 1}"
        fix = "give it once" if isinstance(error, RepeatedKey) else "correct the indentation or the brackets"
        raise ConfigurationError(f"--config {value}: the recipe is not YAML{place}: {error.problem}; {fix}") from None
    except OSError as error:
        raise ConfigurationError(f"--config {value}: {error.strerror}; give a file that can be read") from None
    except (ValueError, yaml.YAMLError):  # bytes that are not text
        recipe = ""
    if not isinstance(recipe, dict):
        raise ConfigurationError(
            f"--config {value}: the file is {'empty' if recipe is None else 'no recipe'}; give a YAML file in UTF-8 "
            "with settings such as 'trainer: {max_epochs: 3}' (lightning-vfl list names the packaged recipes)"
        )
    completed: dict[str, Any] = with_full_paths(recipe)
    return completed


def _as_recipe(words: Sequence[str]) -> dict[str, Any]:
    """The recipe that an option with a class stands for."""
    value = value_of(words)
    spec = load(value) if value.startswith("{") or value == "null" else {"class_path": value}
    part, _, setting = _key(words).partition(".")
    completed: dict[str, Any] = with_full_paths({part: {"init_args": {setting: spec}} if setting else spec})
    return completed


def _refuse_two_of_a_kind(files: Sequence[str]) -> None:
    """Accept at most one packaged recipe of each kind that is complete, and any files of a user.

    Two of a kind would mix (``protocol/mean`` after ``protocol/fedvs`` would wait for a threshold).
    """
    names = dict.fromkeys(name for name in map(packaged_name, files) if name is not None)
    for kind in _ONE_OF:
        first, *others = [name for name in names if name.partition("/")[0] == kind] or [""]
        if others:
            raise ConfigurationError(
                f"--config {first} and --config {others[0]}: a run takes one recipe of {kind}/, and the settings of "
                "these two would mix; leave one of them out"
            )


def _data_alone(recipes: Sequence[Recipe], options: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """That part of the recipes that is about the data, for a command that reads no other.

    Raises:
        UsageError: for an option of another part, which a recipe may have but the command cannot use.
    """
    for words in options:
        part = _key(words).partition(".")[0]
        if part in ("model", "trainer"):
            raise UsageError(f"cut reads the settings of the data alone; leave the options --{part} out")
    return [{key: value for key, value in one.items() if str(key).split(".")[0] == "data"} for one in recipes]


def _with_values(arguments: Sequence[str]) -> list[list[str]]:
    """Every option with its value, which is an element of its own unless it stands behind ``=``."""
    options: list[list[str]] = []
    for argument in arguments:
        if not argument.startswith("-") and options and len(options[-1]) == 1 and options[-1][0].startswith("-"):
            options[-1].append(argument)
        else:
            options.append([argument])
    return options


def _key(words: Sequence[str]) -> str:
    """The setting that an option gives, without the parts that recipes alone need; empty: it is no option."""
    option = words[0].partition("=")[0]
    if not option.startswith("-"):
        return ""
    return "config" if option in _RECIPE else option.lstrip("-").replace(".init_args", "").removesuffix(".class_path")


def _classes_first(options: Sequence[list[str]]) -> list[list[str]]:
    """The options with each that gives a class moved before the first that sets a part of it.

    Lists keep their order, because ``--trainer.callbacks+`` adds an element, and the settings behind it are its own.
    """
    ordered = list(options)
    for option in options:
        key = _key(option)
        before = ordered[: ordered.index(option)]
        keys = [_key(one) for one in before]
        first = next((place for place, one in enumerate(keys) if one.startswith(f"{key}.")), None)
        if first is not None and "." in key and key not in keys and f"{key}+" not in keys:
            ordered.remove(option)
            ordered.insert(first, option)
    return ordered


def _complete(words: Sequence[str]) -> list[str]:
    """An option as the parser knows it, with the path of a recipe, and with the full path of a short class name."""
    option, equals, value = words[0].partition("=")
    if not option.startswith("-"):
        return list(words)
    if option == "--summary" and value_of(words) in ("full", "short"):
        return [f"--summary.full={str(value_of(words) == 'full').lower()}"]
    option = rename_option(option)
    option = "--model.top" if option in ("--model.top.class_path", "--model.init_args.top.class_path") else option
    if equals:
        return [f"{option}={_complete_value(option, value)}"]
    return [option, *(_complete_value(option, value) for value in words[1:])]


def _complete_value(option: str, value: str) -> str:
    if option in _RECIPE:
        try:
            return find_recipe(value)
        except ConfigurationError as error:
            raise ConfigurationError(f"--config {error}") from None
    if option.endswith(".top"):
        top = with_open_outputs(own_classes().get(value, value))
        return top if isinstance(top, str) else _written(top)
    if option.endswith(".bottom_of") and value.lstrip().startswith("{"):
        with suppress(yaml.YAMLError):  # which the parser tells, with the setting
            return _written(with_full_paths({"bottom_of": load(value)})["bottom_of"])
    if option.endswith((".bottom", ".class_path")) or ".bottom_of." in option or option == "--model":
        return own_classes().get(value, value)
    return _SHORT.get(value, value)


def rename_option(option: str) -> str:
    """The option that the parser knows.

    ``--optimizer`` and ``--lr_scheduler`` are settings of the model: it makes its optimiser, so that a checkpoint can
    rebuild it.

    Examples:
        >>> rename_option("--optimizer.lr"), rename_option("--model.lr"), rename_option("--model.width")
        ('--model.optimizer.lr', '--model.optimizer.lr', '--model.width')
        >>> rename_option("--lr-scheduler"), rename_option("--data.id-column"), rename_option("--data.tables.my-bank")
        ('--model.lr_scheduler', '--data.id_column', '--data.tables.my-bank')
    """
    option = _with_underscores(option)
    if option == "--model.lr":
        return "--model.optimizer.lr"
    part = option.removeprefix("--").partition(".")[0]
    return f"--model.{option[2:]}" if part in OPTIMIZER and option.startswith("--") else option


def _with_underscores(option: str) -> str:
    """The option with underscores, as settings of a recipe are named; keys that a user chooses stay as they are."""
    first, *settings = option.removeprefix("--").split(".")
    if first.replace("-", "_") not in _PARTS:
        return option
    count = 2 if settings[:1] == ["init_args"] else 1
    named = [name.replace("-", "_") for name in settings[:count]]
    return "--" + ".".join([first.replace("-", "_"), *named, *settings[count:]])
