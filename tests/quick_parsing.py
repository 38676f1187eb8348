"""What the processes of the tests save in parsing: a suite parses hundreds of command lines. Nothing is read otherwise.

Jsonargparse looks up each setting of a recipe several times: among all options, and where its type is imported from.
"""

import functools
import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from jsonargparse import Namespace, _common, _namespace, _optionals, _subcommands, _typehints, _util


def parse_sooner(replace: Callable[[Callable[..., Any], Callable[..., Any]], None]) -> None:
    """Let jsonargparse find options, keys, types and docstrings with less searching; ``replace`` puts functions in."""
    _look_at_few_options(replace)
    _read_import_paths_once(replace)
    _read_docstrings_once(replace)
    _split_keys_once()
    _check_classes_once(replace)
    if "lightning_vfl.cli" in sys.modules:
        _build_options_once()


def _look_at_few_options(replace: Any) -> None:
    """Search for an option among those that have its name, and sub-commands."""
    find = _subcommands.find_action_and_subcommand

    def find_action_and_subcommand(parser: Any, dest: str, exclude: Any = None) -> Any:
        option, commands = f"--{dest}", _subcommands.ActionSubCommands
        few = [a for a in parser._actions if a.dest == dest or option in a.option_strings or isinstance(a, commands)]
        return find(SimpleNamespace(_actions=few), dest, exclude) if few else (None, None)  # type: ignore[arg-type]

    replace(find, find_action_and_subcommand)


def _read_import_paths_once(replace: Any) -> None:
    """Search once for the module from which a class is imported."""
    read = _util.get_import_path
    known: WeakKeyDictionary[type, str | None] = WeakKeyDictionary()

    def get_import_path(value: Any) -> str | None:
        if not isinstance(value, type) or _util.resolved_import_paths.get(value):
            return read(value)
        if value not in known:
            known[value] = read(value)
        return known[value]

    replace(read, get_import_path)


def _read_docstrings_once(replace: Any) -> None:
    """Parse the docstring of each class and function once."""
    read = _optionals.parse_docstring
    known: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def parse_docstring(component: Any, params: bool = False, logger: Any = None) -> Any:
        try:
            of = known.setdefault(component, {})
        except TypeError:
            return read(component, params, logger)
        key = (params, component.__doc__, *_optionals.get_docstring_parse_options().values())
        if key not in of:
            of[key] = read(component, params, logger)
        return of[key]

    replace(read, parse_docstring)


class _Key(NamedTuple):
    """A key of nested settings: ``a.b.c`` has the parents a and b."""

    leaf: str
    parents: tuple[str, ...]
    parent: str


def _split_keys_once() -> None:
    """Split each key once. Keys that are refused go to jsonargparse."""
    parse = Namespace._parse_key

    @functools.cache
    def split(key: str) -> _Key | None:
        if " " in key or "" in (parts := key.split(".")):
            return None
        *parents, leaf = map(_namespace.add_clash_mark, parts)
        return _Key(leaf, tuple(parents), ".".join(parents))

    def _parse_key(self: Namespace, key: str) -> Any:
        found = split(key) if type(key) is str else None
        if found is None:
            return parse(self, key)
        leaf, parents, parent = found
        inner: Any = self
        for name in parents:
            if hasattr(inner, name) or (isinstance(inner, dict) and name in inner):
                inner = inner[name]
                if inner is not None and not isinstance(inner, Namespace | dict):
                    return leaf, None, parent
            else:
                return leaf, None, parent
        return leaf, inner, parent

    Namespace._parse_key = _parse_key  # type: ignore[method-assign]


def _check_classes_once(replace: Any) -> None:
    """Check the settings of a class of the packages once for each of their values: jsonargparse does so several times.

    What is not plain data, refers to a class of a test, or is refused goes to jsonargparse every time.
    """
    check = _typehints.adapt_class_type
    contexts = (_typehints.sub_defaults, _typehints.allow_default_instance, _common.lenient_check, _common.nested_links)
    known: dict[str, Any] = {}

    def adapt_class_type(
        value: Any,
        serialize: bool,
        instantiate_classes: bool,
        sub_add_kwargs: Any,
        prev_val: Any = None,
        partial_skip_args: Any = None,
        typehint: Any = None,
    ) -> Any:
        further = (prev_val, partial_skip_args, typehint)

        def keyed() -> str:
            parser = _common.parent_parser.get()
            read = (type(parser), getattr(parser, "parser_mode", None), *(context.get() for context in contexts))
            return repr((value, sub_add_kwargs, *further, read, os.getcwd()))

        plain = not serialize and not instantiate_classes and _is_plain(value) and _is_plain(prev_val)
        key = keyed() if plain else None
        if key in known:
            return _copied(known[key])
        checked = check(value, serialize, instantiate_classes, sub_add_kwargs, *further)
        if key is not None and key == keyed() and _is_plain(checked):  # not what has changed its arguments as well
            known[key] = _copied(checked)
        return checked

    replace(check, adapt_class_type)


def _is_plain(value: Any) -> bool:
    """Whether a setting consists of plain data and of classes of the packages, which are the same in every test."""
    if type(value) is Namespace:
        settings = vars(value)
        path = settings.get("class_path", "torch.")
        return str(path).startswith(("lightning_vfl.", "lightning.", "torch.")) and all(
            map(_is_plain, settings.values())
        )
    if type(value) in (list, tuple, dict):
        return all(map(_is_plain, value.values() if type(value) is dict else value))
    return value is None or type(value) in (str, int, float, bool)


def _copied(value: Any) -> Any:
    if type(value) is Namespace:
        copied = Namespace()
        vars(copied).update({name: _copied(setting) for name, setting in vars(value).items()})
        return copied
    if type(value) is dict:
        return {name: _copied(setting) for name, setting in value.items()}
    return type(value)(map(_copied, value)) if type(value) in (list, tuple) else value


def _build_options_once() -> None:
    """Build the options of each command once: half of the time of a command line that ends in an error.

    A parser keeps nothing of the arguments that it has read. Options with further callbacks are built anew.
    """
    from lightning_vfl.commands.command import Command
    from lightning_vfl.commands.table import COMMANDS

    build = Command.parser
    known: dict[Any, tuple[Any, Any]] = {}

    @functools.wraps(build)
    def parser(self: Command, cli: Any) -> Any:
        method = COMMANDS[self.name].method
        defaults = cli.trainer_defaults
        if not method or defaults["callbacks"]:
            return build(self, cli)
        key = (type(self), self.name, type(cli), str(defaults))
        if key not in known:
            known[key] = build(self, cli), cli._subcommand_method_arguments[method]
        options, cli._subcommand_method_arguments[method] = known[key]
        return options

    Command.parser = parser  # type: ignore[method-assign]
