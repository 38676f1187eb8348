"""The base classes of the steps by which a column of a table becomes numbers."""

from abc import ABC, abstractmethod
from dataclasses import fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from lightning_vfl.errors import ConfigurationError, nearest

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray


Choice = TypeVar("Choice", bound=StrEnum)


class Step(ABC):
    """One step. A subclass is a frozen dataclass of plain values: its settings, and what it has fitted."""

    word: ClassVar[str]
    """How users name the step."""
    main: ClassVar[str] = ""
    """The setting that users give as the value of the word; empty: the step has none."""
    settings: ClassVar[tuple[str, ...]] = ()
    """The fields that users set; the other fields are fitted."""

    def __post_init__(self) -> None:
        """Make choices of the words that users give.

        Raises:
            ConfigurationError: for another word.
        """
        for field in fields(self):  # type: ignore[arg-type]
            if isinstance(field.type, type) and issubclass(field.type, StrEnum):
                choice = chosen(field.type, getattr(self, field.name), f"{self.word}: {field.name}")
                object.__setattr__(self, field.name, choice)

    def describe(self) -> str:
        """What the fitted step does, for the table that is printed before training; default: its word."""
        return self.word

    def taken(self) -> str:
        """What the fitted step has taken from the values of the training rows; default: nothing, an empty text."""
        return ""

    def state(self) -> dict[str, Any]:
        """The fields as plain values, and the name of the class."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        plain = {name: _plain(value) for name, value in values.items()}
        return {"step": type(self).__name__, **plain}


class Reader(Step, ABC):
    """A step that reads the cells of a column as numbers."""

    def fit(self, column: "pd.Series[Any]", party: str) -> Self:
        """This step, fitted to the training rows of the column; default: it takes nothing from them."""
        return self

    def names(self, column: str) -> tuple[str, ...]:
        """The names of the K columns of numbers; default: one with the name of the column."""
        return (column,)

    @abstractmethod
    def read(self, column: "pd.Series[Any]", party: str) -> "NDArray[np.float64]":
        """(N, K) numbers; NaN for missing cells.

        Raises:
            ConfigurationError: for cells of another kind than those of the training rows.
        """


class NumberStep(Step, ABC):
    """A step that changes the numbers of a column."""

    def fit(self, numbers: "NDArray[np.float64]", column: str, party: str) -> Self:
        """This step, fitted to the (N, K) numbers of the training rows; default: it takes nothing from them."""
        return self

    @abstractmethod
    def apply(self, numbers: "NDArray[np.float64]") -> "NDArray[np.float64]":
        """(N, K) changed numbers; NaN stays NaN, unless the step fills it in."""

    def marks(self, numbers: "NDArray[np.float64]") -> "list[NDArray[np.float64]]":
        """Further columns (N,) of 0 and 1 that no later step changes; default: none."""
        return []


def chosen(choices: type[Choice], given: object, setting: str) -> Choice:
    """The choice that a setting names.

    Raises:
        ConfigurationError: for another word.
    """
    if given not in list(choices):
        raise ConfigurationError(f"{setting} '{given}' is unknown; {nearest(str(given), list(choices))}")
    return choices(str(given))


def _plain(value: Any) -> Any:
    """Tuples as lists, enumerations as text, others as they are."""
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, str) else value


def fields_of(state: dict[str, Any]) -> dict[str, Any]:
    """The fields in the state of a step, with lists as tuples."""
    return {name: _tuples(value) for name, value in state.items() if name != "step"}


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value
