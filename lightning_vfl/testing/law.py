"""A law of a contract, and the comparisons that its failures are made of."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec

import torch
from torch import Tensor

from lightning_vfl.errors import on_one_line

P = ParamSpec("P")


class LawBroken(AssertionError):
    """A class does not keep a law of its contract; the message names the class, the law and the numbers."""


@dataclass(frozen=True)
class Law:
    """One law for one subject; a call checks it.

    Args:
        check: the function that checks the law; its name is the name of the law.
        subject: the class under test with everything that the check needs.
        owner: the name of the class under test, for messages.
    """

    check: Callable[[Any], None]
    subject: Any
    owner: str

    @property
    def name(self) -> str:
        """The name of the law, as words."""
        return self.check.__name__.replace("_", " ")

    def __str__(self) -> str:
        return self.name

    def __call__(self) -> None:
        """Check the law.

        Raises:
            LawBroken: with the name of the law and the numbers; an error of the class itself is its cause.
        """
        try:
            self.check(self.subject)
        except LawBroken as error:
            raise LawBroken(f"{self.owner} breaks the law '{self.name}': {error}") from None
        except Exception as error:
            raise LawBroken(f"{self.owner} breaks the law '{self.name}': {type(error).__name__}: {error}") from error


def laws_of(owner: object, subject: Any, checks: Iterable[Callable[[Any], None]]) -> tuple[Law, ...]:
    """A law for each check of a subject; ``owner`` is the object under test."""
    return tuple(Law(check, subject, type(owner).__name__) for check in checks)


def checked(laws: Callable[P, Iterable[Law]]) -> Callable[P, None]:
    """The function with the same arguments that checks all these laws.

    Raises:
        LawBroken: for the first law that is broken, with its name and the numbers.
    """

    @wraps(laws)
    def check(*arguments: P.args, **settings: P.kwargs) -> None:
        for law in laws(*arguments, **settings):
            law()

    return check


def require(kept: bool, words: str) -> None:
    """Raise ``LawBroken`` with these words unless the law is kept."""
    if not kept:
        raise LawBroken(words)


def require_same_bits(got: Tensor, expected: Tensor, what: str) -> None:
    """Both tensors have the same dtype, shape and numbers; ``what`` begins the words of the failure."""
    _compare(got, expected, 0.0, 0.0, what)


def require_close(got: Tensor, expected: Tensor, relative: float, absolute: float, what: str) -> None:
    """Every number is within ``absolute + relative * |expected|`` of what is expected; the dtype does not matter."""
    _compare(got.detach().double(), expected.detach().double(), relative, absolute, what)


def _compare(got: Tensor, expected: Tensor, relative: float, absolute: float, what: str) -> None:
    try:
        torch.testing.assert_close(got, expected, rtol=relative, atol=absolute)
    except AssertionError as error:
        raise LawBroken(f"{what}: {on_one_line(error)}") from None


def same(a: Any, b: Any) -> bool:
    """Whether two nests of tensors and plain values are equal, bit for bit."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)
