"""``python -m tests.options`` writes ``lightning_vfl/commands/options.json`` from the parsers of all commands."""

import json
from argparse import SUPPRESS, Action, ArgumentParser

from jsonargparse import ArgumentParser as Parser

from lightning_vfl import datamodules, protocols
from lightning_vfl.commands.align import STEPS
from lightning_vfl.commands.command import loaded
from lightning_vfl.commands.known_classes import settings_of
from lightning_vfl.commands.short_help import GROUPS, OPTIONS
from lightning_vfl.commands.table import COMMANDS
from lightning_vfl.commands.vfl_cli import VFLCLI

TOLD = {told.option.split()[0]: told for group in GROUPS.values() for told in group}
LIGHTNINGS = {"--help", "--weights_only", "--verbose", "--return_predictions"}


def of_command(name: str) -> dict[str, object]:
    """The text and the options of a command itself."""
    parser = loaded(name).parser(VFLCLI(["list"]))
    told = set(TOLD) if COMMANDS[name].method else set()
    own = [action for action in parser._actions if _is_own(action, parser, told)]
    options = [action.option_strings[-1] for action in own if action.option_strings]
    needed = [f"{_shown(action)} " for action in own if not action.option_strings or _is_required(action)]
    return {
        "about": " ".join((parser.description or COMMANDS[name].about).split()),
        "usage": f"{''.join(needed)}[options]",
        "own": [_row(action) for action in own],
        "options": options or _of_steps() if name == "align" else options,
    }


def of_recipes() -> list[str]:
    """The options of every command that reads a recipe, with the settings of all protocols and data sets."""
    parser = loaded("fit").parser(VFLCLI(["list"]))
    accepted = [option for action in parser._actions for option in action.option_strings if option.startswith("--")]
    groups = {option.partition(".")[0] for option in accepted if "." in option} - {"--trainer", "--model", "--data"}
    passed = {"--help", "--print_shtab"} | groups
    of_classes = {"--model.help", "--data.help"}
    offered = [o for o in accepted if o in of_classes or (o not in passed and not o.endswith((".help", "+")))]
    protocol = [kind for kind in vars(protocols).values() if hasattr(kind, "training_step")]
    data = [getattr(datamodules, name) for name in datamodules.__all__]
    classes = {"model": protocol, "data": [kind for kind in data if hasattr(kind, "layout")]}
    settings = [f"--{key}.{name}" for key, kinds in classes.items() for kind in kinds for name in settings_of(kind)]
    return list(dict.fromkeys([*offered, "--optimizer", "--lr_scheduler", "--summary", *settings]))


def _of_steps() -> list[str]:
    """The options of all steps of ``align``."""
    options = []
    for _, add_options, _ in STEPS.values():
        add_options(parser := Parser())
        options += [action.option_strings[-1] for action in parser._actions if action.option_strings]
    return [option for option in dict.fromkeys(options) if option != "--help"]


def _is_own(action: Action, parser: ArgumentParser, told: set[str]) -> bool:
    """Whether an option is of the command itself: neither a setting of a class, which has a dot, nor told anyway."""
    if action.help is SUPPRESS:
        return False
    if not action.option_strings:
        return True
    groups = {option.partition(".")[0] for option in parser._option_string_actions if "." in option}
    groups -= {"--attacks"}  # its settings are classes, but the option is the command's
    return not any("." in option or option in LIGHTNINGS | groups | told for option in action.option_strings)


def _is_required(action: Action) -> bool:
    return bool(action.required or getattr(action, "_required", False))


def _row(action: Action) -> list[str]:
    told = TOLD.get(action.option_strings[-1]) if action.option_strings else None
    return [_shown(action), _about(action)] if told is None else [told.option, told.about]


def _shown(action: Action) -> str:
    """An option as it is written, with the name of its value."""
    values = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""
    value = action.metavar or values or (None if action.nargs == 0 else action.dest.rpartition(".")[2].upper())
    shown = " ".join(filter(None, (*action.option_strings[-1:], str(value or ""))))
    return f"[{shown}]" if action.nargs == "?" and not action.option_strings else shown


def _about(action: Action) -> str:
    about, default = action.help or "", action.default
    shown = isinstance(default, str | int | float | list) and default is not SUPPRESS and default not in ("", [])
    return f"{about} (default: {default})" if shown and "default:" not in about else about


def made() -> str:
    """The text of the file."""
    known = {"commands": {name: of_command(name) for name in COMMANDS}, "recipe": of_recipes()}
    return json.dumps(known, indent=1) + "\n"


if __name__ == "__main__":
    OPTIONS.write_text(made(), encoding="utf-8")
