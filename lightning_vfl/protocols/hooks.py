"""An author's hooks are free: what the toolkit does at the same moment runs before them, with and without ``super()``.

Lightning documents its hooks as empty, and nobody calls ``super()`` in one. So the toolkit's part of a hook must not
depend on that call.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

_Hook = TypeVar("_Hook", bound=Callable[..., Any])
_MARK = "_of_the_toolkit"
_RUNNING = "_author_hooks"  # the attribute of a module that has, by author's hook that runs, the toolkit's answer


def toolkit_hook(hook: _Hook) -> _Hook:
    """Mark a hook of the toolkit's own classes: it runs before an author's hook of the same name, and only once.

    The hooks of the toolkit call each other with ``super()``. An author's ``super()`` gets the first answer.
    """

    @wraps(hook)
    def once(self: Any, *args: Any, **settings: Any) -> Any:
        running = self.__dict__.get(_RUNNING)
        return running[hook.__name__] if running and hook.__name__ in running else hook(self, *args, **settings)

    setattr(once, _MARK, True)
    return once  # type: ignore[return-value]  # the same signature


class FreeHooks:
    """A base class whose subclasses may write any hook that the toolkit implements, without ``super()``.

    Guarantee: the toolkit's part of a hook runs once, before the author's, also for hooks of a mixin. If it has an
        answer that ends an epoch, the author's hook is not called. A state to save has the entries of both.
    Not guaranteed: hooks that are assigned to an instance or to a finished class; they replace the toolkit's part.
    """

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        for name in {name for base in cls.__mro__ for name, value in vars(base).items() if hasattr(value, _MARK)}:
            hook = getattr(cls, name)
            if not hasattr(hook, _MARK):
                setattr(cls, name, _beside(name, toolkit_part(cls, name), hook))


def _beside(name: str, first_part: Callable[..., Any], author_part: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that runs the toolkit's part, then the author's."""

    @wraps(author_part)
    def both(self: Any, *args: Any, **settings: Any) -> Any:
        running: dict[str, Any] = self.__dict__.setdefault(_RUNNING, {})
        if name in running:  # a subclass of this class has called super(): the toolkit's part has run
            return author_part(self, *args, **settings)
        answer = first_part(self, *args, **settings)
        state = answer if isinstance(answer, dict) else None
        if answer and state is None:
            return answer
        running[name] = answer
        try:
            author_answer = author_part(self, *args, **settings)
        finally:
            del running[name]
        return author_answer if state is None else {**(author_answer or {}), **state}

    return both


def toolkit_part(cls: type, name: str) -> Callable[..., Any]:
    """The toolkit's implementation of a hook that is nearest to a class."""
    parts = [vars(base)[name] for base in cls.__mro__ if name in vars(base)]
    nearest: Callable[..., Any] = next(part for part in parts if hasattr(part, _MARK))
    return nearest
