"""The plain form of the parts of a model: class path and arguments, from which they are built again."""

import inspect
import sys
from collections.abc import Collection, Iterable
from functools import partial, reduce
from typing import Any, Self

PLAIN = (bool, int, float, str)


class NotPlain(Exception):
    """A value has no plain form; the text of the exception says which value."""


class Rebuildable:
    """Keeps the arguments that an object was made with; a copy keeps them too.

    Examples:
        >>> from lightning_vfl.waiting import Deadline
        >>> plain_form(Deadline(0.5))
        {'class_path': 'lightning_vfl.waiting.Deadline', 'init_args': {'seconds': 0.5}}
    """

    _made_with: tuple[tuple[Any, ...], tuple[tuple[str, Any], ...]]

    def __new__(cls, *args: Any, **settings: Any) -> Self:
        made = super().__new__(cls)
        object.__setattr__(made, "_made_with", (args, tuple(settings.items())))
        return made

    @property
    def init_args(self) -> dict[str, Any]:
        """The given constructor arguments by name; arguments with their default value are left out.

        Raises:
            NotPlain: for a constructor that takes positional arguments without names.
        """
        args, settings = self._made_with
        signature = inspect.signature(type(self).__init__)
        given = signature.bind(self, *args, **dict(settings)).arguments
        named: dict[str, Any] = {}
        for name, parameter in [*signature.parameters.items()][1:]:
            if name not in given:
                continue
            if parameter.kind is parameter.VAR_POSITIONAL:
                raise NotPlain(f"a {type(self).__name__} with *{name}")
            named |= given[name] if parameter.kind is parameter.VAR_KEYWORD else {name: given[name]}
        return named


def printed(thing: object) -> str:
    """An object as a call of its class with its public attributes."""
    return printed_without(thing, ())


def printed_without(thing: object, hidden: Collection[str]) -> str:
    """An object as a call of its class with its public attributes but for the hidden ones."""
    settings = ", ".join(f"{k}={v!r}" for k, v in vars(thing).items() if k[0] != "_" and k not in hidden)
    return f"{type(thing).__name__}({settings})"


def names_given(made: Rebuildable, otherwise: Iterable[str]) -> set[str]:
    """The names of the arguments that an object was made with; ``otherwise``: if its constructor does not tell."""
    try:
        return {*made.init_args}
    except NotPlain:
        return {*otherwise}


def is_plain(value: Any) -> bool:
    """Whether a value consists of plain numbers, texts, lists, tuples and dictionaries."""
    if isinstance(value, dict):
        return all(is_plain(key) and is_plain(inner) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return all(is_plain(inner) for inner in value)
    return value is None or type(value) in PLAIN


def plain_form(value: Any) -> Any:
    """The plain form of a value, in the form of recipes.

    A class, or a ``functools.partial`` of a class with keyword arguments, is a factory: its form has the class and the
    arguments, as in a recipe. A function of a module is its dotted name.

    Raises:
        NotPlain: for lambdas, functions inside functions, and objects that do not keep their arguments.

    Examples:
        >>> from lightning_vfl.networks import MLP
        >>> plain_form(partial(MLP, hidden=(7,)))
        {'class_path': 'lightning_vfl.networks.mlp.MLP', 'init_args': {'hidden': [7]}}
    """
    if is_plain(value) and not isinstance(value, list | tuple | dict):
        return value
    if isinstance(value, list | tuple):
        return [plain_form(inner) for inner in value]
    if isinstance(value, dict):
        return {plain_form(key): plain_form(inner) for key, inner in value.items()}
    if isinstance(value, Rebuildable):
        return _form(type(value), value.init_args)
    if isinstance(value, partial) and isinstance(value.func, type) and not value.args:
        return _form(value.func, value.keywords)
    if isinstance(value, type):
        return _form(value, {})
    if inspect.isfunction(value):
        return dotted_name(value)
    raise NotPlain(f"a {type(value).__name__}")


def dotted_name(thing: Any) -> str:
    """The dotted name of a class or a function, which leads to it.

    Raises:
        NotPlain: if the name does not lead to it.
    """
    module = thing.__module__
    name = thing.__qualname__
    if reduce(lambda found, part: getattr(found, part, None), name.split("."), sys.modules.get(module)) is not thing:
        raise NotPlain(f"{name} of {module}, which cannot be imported by its name")
    return f"{module}.{name}"


def _form(kind: type, arguments: dict[str, Any]) -> dict[str, Any]:
    inner = {name: plain_form(value) for name, value in arguments.items()}
    return {"class_path": dotted_name(kind), **({"init_args": inner} if inner else {})}
