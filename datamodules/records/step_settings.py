"""Read the steps of a column from a recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from lightning_vfl.errors import ConfigurationError, nearest

from .category_steps import FillText
from .column_steps import Reader, Step
from .number_steps import Fill, ReadBooleans, ReadNumbers, Strategy
from .step_chain import STEPS

AUTO, DROP = "auto", "drop"
Steps = tuple[Step, ...] | None
"""The steps of a column; None: leave it out."""
_KINDS: dict[str, type[Step]] = {kind.word: kind for kind in STEPS if kind is not FillText}


def read_steps(given: object, where: str) -> Steps:
    """The steps of a column in their order.

    A step is a word, ``log``; or a word with its main setting, ``{impute: median}``; or a word with several settings,
    ``{one_hot: {unseen: own, most: 20}}`` or ``{impute: median, indicator: true}``. Several steps are a list. ``drop``
    leaves the column out.

    Args:
        given: the content of the recipe.
        where: the column, for errors.

    Raises:
        ConfigurationError: for unknown steps and settings, and steps in an impossible order.

    Examples:
        >>> [step.describe() for step in read_steps([{"impute": "median", "indicator": True}, "log"], "column 'age'")]
        ['numbers', 'impute median + indicator', 'log']
    """
    if given == DROP:
        return None
    items = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    words = [_word_of(item, where) for item in items]
    if not words:
        raise ConfigurationError(f"preprocess of {where} is an empty list; name steps, or use auto or drop")
    kinds = [_KINDS[word] for word, _ in words]
    readers = [i for i, kind in enumerate(kinds) if issubclass(kind, Reader)]
    if len(readers) > 1:
        named = " and ".join(words[i][0] for i in readers)
        raise ConfigurationError(f"preprocess of {where} has {named}, which both read its cells; keep one of them")
    first = readers[0] if readers else 0
    steps: list[Step] = [] if readers else [ReadNumbers()]
    for i, (kind, (word, settings)) in enumerate(zip(kinds, words, strict=True)):
        before = bool(readers) and i < first
        if before and (kind is not Fill or issubclass(kinds[first], ReadNumbers | ReadBooleans)):
            raise ConfigurationError(
                f"preprocess of {where} has {word} before {words[first][0]}, which reads its cells; put it behind"
            )
        steps.append(_built(FillText if before else kind, settings, f"preprocess of {where}"))
    if len([word for word, _ in words if word == Fill.word]) > 1:
        raise ConfigurationError(f"preprocess of {where} has impute twice; keep one of them")
    return tuple(steps)


def _word_of(item: object, where: str) -> tuple[str, dict[str, Any]]:
    """The word of a step and its settings."""
    if isinstance(item, str):
        item = {item: None}
    if not isinstance(item, Mapping) or not item:
        raise ConfigurationError(f"preprocess of {where} has {item!r} as a step; use one of {', '.join(_KINDS)}")
    found = [word for word in item if word in _KINDS]
    if len(found) != 1:
        first = str(next(iter(item)))
        unknown = f"the unknown step '{first}'; {nearest(first, [*_KINDS, AUTO, DROP])}"
        told = f"{' and '.join(found)} in one step; write - before each" if found else unknown
        raise ConfigurationError(f"preprocess of {where} has {told}")
    (word,) = found
    settings = {str(name): value for name, value in item.items() if name != word}
    value = item[word]
    main = _KINDS[word].main
    if isinstance(value, Mapping):
        settings |= {str(name): given for name, given in value.items()}
    elif value is not None:
        if not main:
            raise ConfigurationError(f"preprocess of {where}: {word} takes no setting; got {value!r}; write {word}")
        settings[main] = value
    return word, settings


def _built(kind: type[Step], settings: Mapping[str, Any], where: str) -> Step:
    """The step with these settings."""
    defaults = {one.name: one.default for one in fields(kind)}  # type: ignore[arg-type]
    for name, value in settings.items():
        if name not in kind.settings:
            known = nearest(name, kind.settings) if kind.settings else "it has none"
            raise ConfigurationError(f"{where}: {kind.word} has no setting '{name}'; {known}")
        expected = type(defaults[name])
        if expected in (bool, int) and type(value) is not expected:
            a = "true or false" if expected is bool else "a whole number"
            raise ConfigurationError(f"{where}: {kind.word} needs {a} for {name}; got {value!r}")
    if missing := [name for name in kind.settings if defaults[name] is MISSING and name not in settings]:
        raise ConfigurationError(f"{where}: {kind.word} needs a {missing[0]}, such as {{{kind.word}: most_frequent}}")
    if issubclass(kind, Fill | FillText):
        _check_fill(kind, settings, where)
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    try:
        return kind(**values)
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: {error}") from error


def _check_fill(kind: type[Step], settings: Mapping[str, Any], where: str) -> None:
    """Accept a value for the strategy constant and no other, a number for numbers, and no mean of texts."""
    strategy = settings["strategy"]
    value = settings.get("value")
    if (strategy == Strategy.CONSTANT) != (value is not None):
        told = "needs a value" if value is None else "takes no value"
        raise ConfigurationError(f"{where}: impute: {strategy} {told}; for example {{impute: constant, value: 0}}")
    if kind is Fill and isinstance(value, str):
        raise ConfigurationError(f"{where}: impute needs a number among numbers; got '{value}'")
    if kind is FillText and strategy in (Strategy.MEAN, Strategy.MEDIAN):
        raise ConfigurationError(
            f"{where}: impute: {strategy} takes numbers; use most_frequent or constant before the step that reads texts"
        )
