"""The ranges of a search: what a study may try for a setting, as its YAML file says it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from lightning_vfl.errors import ConfigurationError, nearest

FALLING = ("loss", "error", "mse")  # in names of metrics whose smaller values are better
_KEYS = ("low", "high", "step", "log")


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, whole numbers if both are; or one of some choices.

    Args:
        low: smallest number.
        high: largest number.
        step: distance of the numbers; None: any number, of whole numbers each.
        log: draw the logarithm evenly.
        choices: the values, if there is no interval.
    """

    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False
    choices: tuple[Any, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether the numbers are whole numbers."""
        return all(isinstance(end, int) for end in (self.low, self.high)) and isinstance(self.step, int | None)


@dataclass(frozen=True)
class Search:
    """A search over ranges, in place of overrides.

    Args:
        metric: the metric to optimise; its mean over the seeds of a trial.
        ranges: dotted option -> what may be tried.
        trials: of each recipe.
        seed: of the sampler.
        at_once: trials that are chosen before the results of any of them are known. The result depends on this number,
            not on how many runs go on at a time.
        falls: whether a smaller value is better; None: for names with loss, error or mse.
    """

    metric: str
    ranges: Mapping[str, Range]
    trials: int = 20
    seed: int = 0
    at_once: int = 4
    falls: bool | None = None

    @property
    def minimises(self) -> bool:
        """Whether a smaller value is better."""
        return any(word in self.metric for word in FALLING) if self.falls is None else self.falls


def read_search(said: Any) -> Search | None:
    """A search from ``search: {optuna: {...}}`` of a study.

    Raises:
        ConfigurationError: naming the key and what is allowed.
    """
    if said is None:
        return None
    if not isinstance(said, Mapping) or list(said) != ["optuna"] or not isinstance(said["optuna"], Mapping):
        raise ConfigurationError(f"search: {said!r} is not allowed; write optuna: {{metric: …, ranges: …}} below it")
    given = dict(said["optuna"])
    known = ("metric", "ranges", "trials", "seed", "at_once", "falls")
    for key in given:
        if key not in known:
            raise ConfigurationError(f"search.optuna: {key!r} is not a key; {nearest(str(key), known)}")
    if not isinstance(given.get("metric"), str):
        raise ConfigurationError("search.optuna.metric is missing; write the name of a metric, such as val/accuracy")
    ranges = given.get("ranges")
    if not isinstance(ranges, Mapping) or not ranges:
        raise ConfigurationError("search.optuna.ranges is missing; write OPTION: {low: 1, high: 9} below it")
    for key, least in (("trials", 1), ("seed", 0), ("at_once", 1)):
        value = given.get(key, least)
        if type(value) is not int or value < least:
            raise ConfigurationError(
                f"search.optuna.{key}: {value!r} is not allowed; write a whole number from {least}"
            )
    if type(given.get("falls")) not in (bool, type(None)):
        raise ConfigurationError(f"search.optuna.falls: {given['falls']!r} is not allowed; write true or false")
    return Search(**given | {"ranges": {str(key): _range(str(key), value) for key, value in ranges.items()}})


def _range(key: str, said: Any) -> Range:
    where = f"search.optuna.ranges.{key}"
    if isinstance(said, Sequence) and not isinstance(said, str) and said:
        return Range(choices=tuple(said))
    if not isinstance(said, Mapping) or not {"low", "high"} <= said.keys() <= {*_KEYS}:
        raise ConfigurationError(f"{where}: {said!r} is not a range; write {{low: 1, high: 9}} or a list of choices")
    ends = {name: _number(f"{where}.{name}", said[name]) for name in ("low", "high", "step") if name in said}
    log = said.get("log", False)
    if ends["low"] >= ends["high"] or type(log) is not bool or (log and (ends["low"] <= 0 or "step" in ends)):
        raise ConfigurationError(
            f"{where}: {dict(said)!r} is not a range; low must be below high, and above 0 without step if log is true"
        )
    return Range(**ends, log=log)


def _number(where: str, said: Any) -> Any:
    try:
        value = said if type(said) in (int, float) else float(said)  # YAML reads 1e-3 as a text
    except (TypeError, ValueError):
        value = float("nan")
    if not isfinite(value):
        raise ConfigurationError(f"{where}: {said!r} is not allowed; write a number")
    return value
