"""``lightning-vfl --print_completion SHELL``: a script that completes commands, options and names of recipes.

The options are read from the sources, not from the parsers, whose classes take seconds to import: a shell may ask for
the script whenever it starts.
"""

import ast
import re
from argparse import ArgumentParser
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning_vfl.commands.recipe_list import KINDS
from lightning_vfl.commands.table import COMMANDS
from lightning_vfl.configs import packaged
from lightning_vfl.errors import ConfigurationError

SHELLS = ("bash", "zsh", "tcsh")
_OF_RECIPES = (  # options of every command that reads a recipe, besides the settings of classes
    "--config",
    "--print_config",
    "--seed_everything",
    "--ckpt_path",
    "--weights_only",
    "--trainer",
    "--model",
    "--data",
    "--optimizer",
    "--lr_scheduler",
    "--summary",
    "--help.all",
    "--model.help",
    "--data.help",
)
_CLASS = re.compile(r"^class (\w+)(?:\[[^\]]*\])?(?:\(([^)]*)\))?:", re.MULTILINE)
_RECIPES = "_lightning_vfl_recipes"
_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}


def script(shell: str) -> str:
    """The completion script of a shell, which ``eval`` or ``source`` reads.

    Raises:
        ConfigurationError: if shtab is not installed.
    """
    try:
        import shtab  # an optional package
    except ImportError:
        raise ConfigurationError(
            "--print_completion needs the package shtab; pip install 'lightning-vfl[completion]'"
        ) from None
    parser = ArgumentParser("lightning-vfl")
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("--print_completion", choices=SHELLS, help="print the completion script of a shell")
    commands = parser.add_subparsers()
    for name, entry in COMMANDS.items():
        one = commands.add_parser(name, help=entry.about)
        for option in options(name):
            _complete(one.add_argument(option, help=""), option)
        _add_argument(one, name)
    written: str = shtab.complete(parser, shell, preamble=_preamble().get(shell, ""))
    return written


def options(command: str) -> list[str]:
    """The options of a command; settings of the model and the data are those of any protocol and data set."""
    entry = COMMANDS[command]
    source = Path(__file__).with_name(f"{entry.path.partition('.')[0]}.py")
    nodes = list(ast.walk(ast.parse(source.read_text(encoding="utf-8"))))
    firsts = [node.args[0] for node in nodes if isinstance(node, ast.Call) and node.args]
    words = [str(first.value) for first in firsts if isinstance(first, ast.Constant)]
    own = dict.fromkeys(word for word in words if re.fullmatch(r"--[\w.-]+", word))  # a file may have several commands
    return list(dict.fromkeys([*own, *(_recipe_options() if entry.method else ())]))


@cache
def _recipe_options() -> tuple[str, ...]:
    classes = (
        ("trainer", "Trainer", _folder("lightning") / "pytorch/trainer"),
        ("model", "BuiltModule", _folder("lightning_vfl") / "protocols"),
        ("data", "VerticalDataModule", _folder("lightning_vfl.datamodules")),
        *_of_every_run(),
    )
    return (*_OF_RECIPES, *(f"--{key}.{name}" for key, base, path in classes for name in _settings(base, path)))


def _of_every_run() -> Iterator[tuple[str, str, Path]]:
    """Key and class of the callbacks that ``VFLCLI.add_arguments_to_parser`` adds to every run."""
    folder = _folder("lightning_vfl.callbacks")
    tree = ast.parse(Path(__file__).with_name("vfl_cli.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="add_lightning_class_args"), args=[ast.Name(kind), ast.Constant(str(key))]
            ):
                yield key, kind, folder


def _folder(package: str) -> Path:
    """The folder of a package, which is not imported."""
    spec = find_spec(package)
    return Path(next(iter(spec.submodule_search_locations or ()))) if spec else Path()


@cache
def _sources(folder: Path) -> dict[str, tuple[tuple[str, ...], str]]:
    """Class -> its bases and the text of its file, for every class at the top level of a file in a folder."""
    texts = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))]
    heads = ((head, text) for text in texts for head in _CLASS.finditer(text))
    return {head[1]: (tuple(re.findall(r"[\w.]+", head[2] or "")), text) for head, text in heads}


def _settings(base: str, folder: Path) -> list[str]:
    """The arguments of the constructors of a class and of the classes that are derived from it."""
    sources = _sources(folder)

    def is_derived(name: str) -> bool:
        return name == base or any(map(is_derived, sources[name][0] if name in sources else ()))

    derived = [name for name in sources if is_derived(name)]
    texts = dict.fromkeys(sources[name][1] for name in derived)  # parsing takes time: only files with such a class
    classes = (node for text in texts for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    bodies = [member for node in classes if node.name in derived for member in node.body]
    makers = [member for member in bodies if isinstance(member, ast.FunctionDef) and member.name == "__init__"]
    names = {one.arg: None for m in makers for one in (*m.args.args, *m.args.kwonlyargs) if one.arg != "self"}
    return list(names)


def _complete(action: Any, option: str) -> None:
    """How the value of an option is completed, where more than its name is known."""
    if option == "--config":
        action.complete = {**_FILES, "bash": _RECIPES, "zsh": _RECIPES}
    elif option in ("--ckpt_path", "--predictions.path", "--out"):
        action.complete = _FILES
    elif option == "--print_config":
        action.nargs = 0


def _add_argument(parser: ArgumentParser, command: str) -> None:
    """The argument of a command that is no option."""
    if command == "list":
        parser.add_argument("kind", nargs="?", choices=KINDS)
    elif command == "study":
        _complete(parser.add_argument("study"), "--config")


def _preamble() -> dict[str, str]:
    recipes = " ".join(packaged())
    return {
        "bash": f'{_RECIPES}() {{ compgen -W "{recipes}" -- "$1"; compgen -f -- "$1"; }}',
        "zsh": f"{_RECIPES}() {{ _alternative 'recipes:recipe:({recipes})' 'files:file:_files' }}",
    }
