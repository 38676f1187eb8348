"""One line for the parser's errors, which have up to forty: which setting, what is wrong with it, what to write."""

import difflib
import re
import sys
from ast import literal_eval
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from lightning_vfl.commands.known_classes import NO_PLACE, own_classes, settings_of
from lightning_vfl.commands.own_code import abstract_class
from lightning_vfl.commands.recipes import ALIASES, class_at
from lightning_vfl.commands.table import COMMANDS, no_command, unknown_command
from lightning_vfl.errors import nearest, on_one_line

_PARTS = ("data", "model", "trainer", "optimizer", "lr_scheduler", "seed_everything", "ckpt_path")  # of a recipe
_RECIPES = {"data": "--config data/digits", "model": "--config protocol/mean"}

_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "dict": "a mapping", "list": "a list"}
_KNOWN = {  # setting -> modules with the classes that it can have; other settings have classes of the toolkit
    "optimizer": ("torch.optim",),
    "lr_scheduler": ("torch.optim.lr_scheduler",),
    "logger": ("lightning.pytorch.loggers",),
    "callbacks": ("lightning.pytorch.callbacks", "lightning_vfl.callbacks"),
    "profiler": ("lightning.pytorch.profilers",),
    "strategy": ("lightning.pytorch.strategies",),
    "plugins": ("lightning.pytorch.plugins",),
}


@dataclass(frozen=True)
class ParserError:
    """An error of the parser.

    Args:
        message: as the parser has it.
        options: of the command that was parsed, by option string.
    """

    message: str
    options: Mapping[str, Any]

    @property
    def keys(self) -> str:
        """The dotted key of the setting, or nothing."""
        return ".".join(dict.fromkeys(re.findall(r'Parser key "([^"]+)"', self.message)))

    @property
    def where(self) -> str:
        """The key as the beginning of an error message; an option of the command itself with its dashes."""
        dashed = f"--{self.keys.replace('_', '-')}"
        return f"{dashed if dashed in self.options else self.keys}: " if self.keys else ""

    @property
    def classes(self) -> list[str]:
        """Import paths of the classes whose settings were parsed, the outermost first."""
        return re.findall(r"Problem with given class_path '([^']+)'", self.message)

    @property
    def subtypes(self) -> list[str]:
        """What the types are that a value could have had, where it could have had several."""
        return re.findall(r"Subtypes: \[([^\n]+)\]", self.message)


def one_line(error: ParserError) -> str:
    """The cause of the error, on one line."""
    for pattern, tell in _REASONS:
        found = re.search(pattern, error.message)
        told = tell(found, error) if found else None
        if told is not None:
            return told
    if "Subtypes: [" in error.message:
        told = _none_of_several(error)
        if told is not None:
            return told
    lines = [line.strip(" -") for line in error.message.splitlines() if line.strip(" -")]
    if error.keys:
        return " ".join(lines[:2])
    return lines[0] if lines else "the arguments cannot be read"


def missing_package(error: Exception) -> str | None:
    """The line for a package that is needed to build what a recipe names, and that is not installed."""
    needed = re.search(r"Requirement '([^']+)' not met", str(error))
    if needed is None:
        return None
    package = re.split(r"[<>=!~ \[]", needed[1])[0]
    return f"the package {package} is needed and not installed; pip install '{needed[1]}'"


def logger_failed(error: Exception) -> str | None:
    """The line for a logger that needs an account or a server; None: the error is not of a logger."""
    text = on_one_line(error)
    if type(error).__module__.partition(".")[0] == "wandb" and "API key" in text:
        return "W&B has no API key; run wandb login, or add --trainer.logger.offline true"
    if "Comet.ml requires an API key" in text:
        return "Comet has no API key; set COMET_API_KEY, or COMET_START_ONLINE=0 to log into a folder"
    if "mlflow migrate-filestore" in text:
        return (
            "MLflow no longer takes a folder by itself; add --trainer.logger.tracking_uri sqlite:///runs.db, or set "
            "MLFLOW_ALLOW_FILE_STORE=true"
        )
    return None


def cause_of(error: Exception) -> str:
    """The cause of an error in building what a recipe names, on one line."""
    text = on_one_line(error)
    inner = re.search(r".*Problem with given class_path '[^']+': (.+?)(?: - Expected a | Given value type: |$)", text)
    return inner[1] if inner else text


def _unknown_setting(found: re.Match[str], error: ParserError) -> str | None:
    *_, setting = found.groups()
    *_, given, tried = (class_at(path) for path in ["", "", *error.classes])
    if given is not None and tried is not None and given is not tried and issubclass(given, tried):
        return None  # the base of a list's elements, which the parser tries after the class that was given
    if error.classes:
        return error.where + unknown_setting(setting, error.classes[-1])
    return _unknown_key(".".join(found.groups()), error)


def _unknown_with_numbers(found: re.Match[str], error: ParserError) -> str | None:
    """The error for an unknown setting whose keys are numbers, which the parser tells as a mistake in the keys."""
    value = re.search(r"Given value: (\{.+\})", error.message)
    if value is None or not error.classes:
        return None
    settings = literal_eval(value[1]).get("init_args", {})
    kind = class_at(error.classes[-1])
    unknown = [name for name in settings if kind is not None and name not in settings_of(kind)]
    return error.where + unknown_setting(unknown[0], error.classes[-1]) if unknown else None


def _unknown_key(key: str, error: ParserError) -> str:
    """The error for a key that is not of a class: a part of the recipe, or a setting of the trainer."""
    known = [option.lstrip("-") for option in error.options]
    parts = list(dict.fromkeys(name.partition(".")[0] for name in known))
    if key.partition(".")[0] in _PARTS and not {*_PARTS} & {*parts}:
        return "the recipe is given before the command; write the command first: lightning-vfl fit --config RECIPE"
    wrong, right = (key, known) if key.partition(".")[0] in parts else (key.partition(".")[0], parts)
    return f"{error.where}'{wrong}' is not a setting; {nearest(wrong, right, 'see --help')}"


def _unknown_setting_of_made(found: re.Match[str], error: ParserError) -> str:
    """The error for what the model makes itself, such as the optimiser: without a class, the parser names the base."""
    base, setting, path = found.groups()
    if path.rpartition(".")[2] == base:
        return _setting_without_class(setting, error)
    return error.where + unknown_setting(setting, path)


def _setting_without_class(setting: str, error: ParserError) -> str:
    return f"{error.where}'{setting}' is set, but no class is; name the class first (--{error.keys} CLASS)"


def _required(found: re.Match[str], error: ParserError) -> str:
    needed = found[1].strip().split(", ")
    command = needed[0].partition(".")[0]
    own = [name.removeprefix(f"{command}.") for name in needed]
    dashed = [f"--{name.replace('_', '-')}" for name in own]
    of_recipes = [name for name in own if name in _RECIPES]
    reads_none = command.partition(" ")[0] in COMMANDS and "--config" not in error.options
    if reads_none or (not of_recipes and {*dashed} <= {*error.options}):  # options of the command, and in no recipe
        words = [d if d in error.options else name.upper() for d, name in zip(dashed, own, strict=True)]
        return f"{command} needs {' and '.join(words)}; see {command} --help"
    made = re.search(r"(?:Given|Got) value: Namespace\(class_path='([^']+)'", error.message[found.end() :])
    by_call = "expects a function or a callable class: the following" in error.message and made is not None
    classes = [made[1]] if made and by_call else error.classes  # of what is called with arguments, such as a schedule
    owner = f"{classes[-1].rsplit('.', 1)[-1]} " if classes else ""
    hints = " ".join(_RECIPES[name] for name in of_recipes)
    hint = f" ({hints}; lightning-vfl list names all recipes)" if hints else ""
    if owner and error.keys:
        hint = f" ({' '.join(f'--{error.keys}.{name} VALUE' for name in needed)})"
    return f"{error.where}{owner}needs a value for {' and '.join(needed)}; set it in a recipe or as an option{hint}"


def _unknown_option(found: re.Match[str], error: ParserError) -> str:
    given = found[1].strip().split(" --")[0]  # the first one, with its value
    if not given.startswith("-"):
        first = given.split()[0]
        recipe = "--config" in error.options and ("/" in first or first.endswith(".yaml"))
        return f"unexpected argument {given}; {f'write --config {first}' if recipe else 'see --help'}"
    name = re.split(r"[= ]", given)[0]
    if "--config" not in error.options and name.split(".")[0] in ("--config", "--data", "--model", "--trainer"):
        return f"{name} belongs to a recipe, and this command reads none; leave it out, see --help"
    if name.split(".")[0].lstrip("-") in _PARTS and f"--{name.split('.')[0].lstrip('-')}" not in error.options:
        return f"{name} is given before the command; write the command first: lightning-vfl fit {name} ..."
    if name == "--out" and "--predictions.path" in error.options:
        return f"unknown option {given}; write --predictions.path FILE"
    part, _, setting = name.lstrip("-").partition(".")
    similar = difflib.get_close_matches(part, _PARTS, n=1)
    if setting and similar and part not in _PARTS:  # the parser lists no settings of classes
        return f"unknown option {given}; did you mean --{similar[0]}.{setting}?"
    return f"unknown option {given}; {nearest(name, [*error.options, *ALIASES], 'see --help')}"


def _none_of_words(found: re.Match[str], error: ParserError) -> str | None:
    if any("typing.Literal" in kinds for kinds in error.subtypes):
        return None  # the value could also have been something else, see _none_of_several
    return f"{error.where}'{found[2].strip()}' is none of {found[1].replace(chr(39), '')}"


def _no_collection(found: re.Match[str], error: ParserError) -> str:
    value = found[2].partition(". Got value: ")[0].strip()  # behind it is the whole class
    wanted = f"a list; write [{value}]" if found[1] == "Sequence" else f"a mapping; write {{NAME: {value}}}"
    return f"{error.where}{value} is given, but the setting is {wanted}"


def _no_attribute(found: re.Match[str], error: ParserError) -> str:
    module, name = found.groups()
    known = [key for key, value in vars(sys.modules[module]).items() if isinstance(value, type)]
    return f"{error.where}the module {module} has no class {name}; {nearest(name, known, 'correct the name')}"


def _abstract(found: re.Match[str], error: ParserError) -> str | None:
    name = re.escape(found[1])
    given = rf"(?:Given value: |Expected a path but |val='|class_path'?[=:] ?'){name}\b"
    return (
        error.where + abstract_class(found[1]) if re.search(given, error.message) else None
    )  # or the base of a setting


def _other_kind(found: re.Match[str], error: ParserError) -> str:
    return f"{error.where}'{found[2].strip()}' is not {_KINDS.get(found[1], found[1])}"


def _as_it_is(found: re.Match[str], error: ParserError) -> str:
    return error.where + found[1].strip().rstrip(".").replace("<class '", "").replace("'>", "")


_REASONS: tuple[tuple[str, Callable[[re.Match[str], ParserError], str | None]], ...] = (
    (r"invalid choice: '([^']+)'", lambda found, error: unknown_command(found[1])),
    (r'expected "subcommand" to be one of .+ not provided', lambda found, error: no_command()),
    (
        r"(\w+)\] expects a function or a callable class: Option '([^']+)' is not accepted\. Got value: "
        r"Namespace\(.*?class_path='([^']+)'",
        _unknown_setting_of_made,
    ),
    (r"Option '([^']+)' is not accepted", _unknown_setting),
    (r"Key must be a string, got: (\d+)", _unknown_with_numbers),
    (r"Group '([^']*)' does not accept (?:nested key|option) '([^']+)'", _unknown_setting),
    (
        r"Expected a <class 'float'>\s+- Expected a dot import path string: (\S+)",
        lambda found, error: f"{error.where}'{found[1]}' is not a number",
    ),
    (
        r"(?:Expected a dot import path string|[Uu]nexpected import path format): (\S+)",
        lambda found, error: error.where + unknown_class(found[1], error.keys.rpartition(".")[2]),
    ),
    (r"the following arguments are required: (.+?)(?=\. Got value: |\n|$)", _required),
    (r"[Uu]nrecognized arguments: (.+)", _unknown_option),
    (r"Expected a typing\.Literal\[([^\]]+)\]\. Got value: (.+)", _none_of_words),
    (
        r'Parser key "[^"]+":\s+Expected a <class \'collections\.abc\.(Sequence|Mapping)\'>\. Got value: (.+)',
        _no_collection,
    ),
    (r"Expected an instantiatable class, but (\S+) is abstract", _abstract),
    (
        r"No module named '([^']+)'",
        lambda found, error: (
            f"{error.where}the module {found[1]} is neither installed nor in the current folder; correct the name, or "
            "install its package"
        ),
    ),
    (r"Expected a <class '(?!NoneType|collections)([^'>]+)'>\.? ?Got value: (.+)", _other_kind),
    (r"(Multiple subclasses with name .+)", _as_it_is),
    (
        r"Import path (\S+) does not correspond to a subclass of (\w+)",
        lambda found, error: f"{error.where}{found[1]} is not derived from {found[2]}; name a class that is",
    ),
    (r"module '(\S+)' has no attribute '(\w+)'", _no_attribute),
    (r"((?:Unable to import|module '\S+' has no attribute|cannot import) ?.+)", _as_it_is),
)


def _beside_class(value: str) -> str | None:
    """The key beside ``class_path`` that a recipe cannot have there; None: there is none."""
    try:
        given = literal_eval(value)
    except (ValueError, SyntaxError):
        return None
    known = ("class_path", "init_args", "dict_kwargs")
    others = [key for key in given if key not in known] if isinstance(given, dict) and "class_path" in given else []
    return str(others[0]) if others else None


def _none_of_several(error: ParserError) -> str | None:
    """The error for a value that has none of the types that it could have."""
    innermost = error.message.rsplit("Subtypes: [", 1)[1]
    early = re.search(
        r"instantiatable class, but \S+ is abstract.*?Given value: NestedArg\(key='(.+?)', val=", innermost, re.S
    )
    if early is not None:
        return _setting_without_class(early[1], error)
    kinds = innermost.split("]\n")[0].replace("<class '", "").replace("'>", "").replace("NoneType", "null")
    kinds = kinds.replace("jsonargparse.typing.PositiveInt", "whole number above 0")
    value = re.search(r"Given value: (?:NestedArg\(key='.+?', val=)?([^\n)]+)", innermost)
    if value is None:
        return None
    if value[1].startswith("{'init_args'"):
        if error.keys == "data":
            return f"data: no recipe names the data set; add one ({_RECIPES['data']})"
        if error.keys == "model":
            return f"{error.where}settings without a protocol; add a recipe that names one ({_RECIPES['model']})"
        return f"{error.where}settings without a class; add a recipe that names the class"
    if (key := _beside_class(value[1])) is not None:
        return f"{error.where}{beside_class_path(key)}"
    several = re.match(r"(list|dict|collections\.abc\.Mapping)\[(?:str, )?([\w.]+)", kinds)
    if several and value[1][:1] not in "[{":
        one = value[1].strip()
        written = f'{{"class_path": "{one}"}}' if "." in several[2] else one
        written = written if one.isidentifier() else "..."
        what, form = ("list", f"[{written}]") if several[1] == "list" else ("mapping", f"{{name: {written}}}")
        return f"{error.where}{one} is not a {what}; write '{form}'"
    kinds = re.sub(r"collections\.abc\.Sequence\[(\w+)\]", r"a list of \1", kinds)
    kinds = re.sub(r"typing\.Literal\[([^\]]+)", r"\1", kinds).replace("]", "")
    return f"{error.where}{value[1].strip()} is none of {kinds}"


def unknown_class(name: str, setting: str = "") -> str:
    """The error for a class that is not found, as the value of a setting."""
    if name in own_classes():
        return f"{own_classes()[name]} is no class for this setting; name one of the right kind"
    known = [name for module in _KNOWN.get(setting, ()) for name in _classes_in(module)] or [*own_classes()]
    hint = nearest(name.rsplit(".", 1)[-1], known, "give one of the toolkit's classes or a full import path")
    return f"'{name}' is not a known class; {hint}"


def _classes_in(module: str) -> list[str]:
    """The names of the public classes in a module."""
    known = vars(import_module(module))
    return [name for name, value in known.items() if isinstance(value, type) and not name.startswith("_")]


def unknown_setting(setting: str, class_path: str | None) -> str:
    """The error for a setting that a class does not have."""
    if class_path is None:
        return f"'{setting}' is not a setting; see --help"
    module, _, name = class_path.rpartition(".")
    settings = settings_of(getattr(import_module(module), name))
    part, _, inner = setting.partition(".")
    if inner and part not in settings and nearest(part, ["init_args"], " ").strip():
        return beside_class_path(part)
    foreign, reason = NO_PLACE.get(name, ((), ""))
    if setting in ("lr", "learning_rate") and "optimizer" in settings:
        hint = "the optimiser has it; write --model.optimizer.lr"
    elif setting.split(".")[0] in foreign:
        hint = reason
    else:
        hint = nearest(setting, settings) if settings else "it has no settings"
    return f"'{setting}' is not a setting of {name}; {hint}"


def beside_class_path(key: str) -> str:
    """The error for a key beside ``class_path`` that is not ``init_args``."""
    known = ["init_args", "class_path"]
    return f"'{key}' beside class_path is not known; {nearest(key, known, 'use init_args')}"
