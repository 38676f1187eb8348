"""Mistakes in a user's own module: its file and line, where the parser tells only that a class does not fit."""

import inspect
import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import MetaPathFinder
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any

from jsonargparse import Namespace

from lightning_vfl.commands.known_classes import own_classes
from lightning_vfl.commands.printed_paths import short
from lightning_vfl.errors import on_one_line


class _Watch(MetaPathFinder):
    """Finds nothing; notes the names of modules that are searched for."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> None:
        self.names[fullname] = None


@contextmanager
def watched_imports() -> Iterator[dict[str, None]]:
    """The names of modules that are imported for the first time inside, in the order of the imports."""
    watch = _Watch()
    sys.meta_path.insert(0, watch)
    try:
        yield watch.names
    finally:
        sys.meta_path.remove(watch)


def note_own_modules(imported: dict[str, None]) -> None:
    """Print the modules of the current folder that a recipe has imported: a recipe runs code.

    Args:
        imported: names of modules that have been searched for.
    """
    own = []
    for name in imported:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None or "site-packages" in Path(file).parts or name.partition(".")[0] == "lightning_vfl":
            continue
        if Path(file).resolve().is_relative_to(Path.cwd()):
            own.append(str(short(Path(file))))
    if own:
        print(f"the settings have imported code of this folder, which has run: {', '.join(own)}", file=sys.stderr)


def failed_import(message: str, tried: dict[str, None]) -> str | None:
    """The line for a module of a class that the parser could not import, and whose error it does not tell.

    The module is imported once more, because the parser keeps neither the exception nor its place.

    Args:
        message: of the parser; it has the path of the class.
        tried: names of modules that the parser has searched for.
    """
    for name in tried:
        if name in sys.modules or not re.search(rf"\b{re.escape(name)}\.\w", message):
            continue
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or f"{name}.".startswith(f"{error.name}."):  # the module itself is missing
                continue
            return f"{name} cannot be imported: it needs {error.name}, which is not installed ({place_of(error)})"
        except Exception as error:
            return f"{name} cannot be imported: {said(error)} ({type(error).__name__} in {place_of(error)})"
    return None


def said(error: BaseException) -> str:
    """The text of an exception on one line, without the place, which ``place_of`` tells."""
    text = str(error.msg) if isinstance(error, SyntaxError) else on_one_line(error)
    return text or "no reason is given"


def place_of(error: BaseException) -> str:
    """File and line of a mistake: the last line of a user's own code that ran, else the last line of all."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{short(Path(error.filename))}, line {error.lineno}"
    frames = list(walk_tb(error.__traceback__))
    frame, line = next((pair for pair in reversed(frames) if _is_own(pair[0])), frames[-1])
    return f"{short(Path(frame.f_code.co_filename))}, line {line}"


def own_mistake(error: BaseException | None) -> BaseException | None:
    """The exception at the end of a chain, if a user's own code has raised it; the parser wraps it into its own."""
    while error is not None and (error.__cause__ or error.__context__) is not None:
        error = error.__cause__ or error.__context__
    return error if error is not None and any(_is_own(frame) for frame, _ in walk_tb(error.__traceback__)) else None


def _is_own(frame: FrameType) -> bool:
    """Whether code is neither of this package nor installed."""
    file = frame.f_code.co_filename
    module = str(frame.f_globals.get("__name__"))
    installed = {sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return module.partition(".")[0] != "lightning_vfl" and not file.startswith(("<", *installed))


def abstract_class(path: str) -> str:
    """The line for a class that cannot be made because methods are missing."""
    module, _, name = path.rpartition(".")
    if not module:  # the base of a setting by its short name
        return f"{path} is abstract; name a class that is derived from it"
    missing = " and ".join(sorted(getattr(import_module(module), name).__abstractmethods__))
    return f"{path} has no {missing}; write what is missing, or name another class"


def untyped_setting(settings: Any) -> str | None:
    """The line for a class that needs a value which the parser has silently set to None; None: there is no such class.

    The parser takes an argument without a default and without an annotation for one that may be left out.

    Args:
        settings: as parsed, with the settings of all classes in them.
    """
    values = list(vars(settings).values()) if isinstance(settings, Namespace) else settings
    if isinstance(settings, Namespace) and "class_path" in settings:
        kind = settings["class_path"]
        for name in _untyped(kind):
            given = settings.get(f"init_args.{name}", 0)
            if given is None:
                return (
                    f"{kind} needs a value for {name}, whose type the command line does not know; give it, or "
                    f"annotate it in __init__ ({name}: int, for example)"
                )
            if isinstance(given, str) and given.rpartition(".")[2] in own_classes():
                return (
                    f"{kind} would get the text '{given}' for {name}, because __init__ has no annotation for it; "
                    f"annotate it with the class that it takes ({name}: Aggregator, for example), or as a text "
                    f"({name}: str)"
                )
    if not isinstance(values, list):
        return None
    return next((told for value in values if (told := untyped_setting(value)) is not None), None)


def _untyped(path: str) -> list[str]:
    """The arguments of a class that have neither a default nor an annotation."""
    module, _, name = path.rpartition(".")
    try:
        parameters = inspect.signature(getattr(import_module(module), name)).parameters.values()
    except (ImportError, AttributeError, ValueError, TypeError):  # no class of Python code
        return []
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    none = inspect.Parameter.empty
    return [p.name for p in parameters if p.default is none and p.annotation is none and p.kind not in several]
