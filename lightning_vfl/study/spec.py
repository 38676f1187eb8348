"""The settings of a study. ``lightning_vfl.study.read`` makes them from a YAML file."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, Literal, get_args

from lightning_vfl.errors import ConfigurationError, nearest

FALLING = ("loss", "error", "mse")  # in names of metrics whose smaller values are better
Settings = Mapping[str, Any]  # dotted option of the command line -> value
Axis = Literal["rounds", "passes", "virtual_seconds", "bytes"]
AXES: tuple[Axis, ...] = get_args(Axis)


def allowed(what: str, **default: Any) -> Any:
    """A field of a dataclass, with what an error message says is allowed."""
    return field(metadata={"allowed": what}, **default)


def refusal(kind: type, key: str, value: Any) -> ConfigurationError:
    """The error for a value that a field of a dataclass cannot have."""
    what = next(one.metadata["allowed"] for one in fields(kind) if one.name == key)
    return ConfigurationError(f"{key}: {value!r} is not allowed; write {what}")


@dataclass(frozen=True)
class Entry:
    """One of the compared recipes.

    Args:
        recipes: recipes that overlay.
        settings: of these runs alone.
    """

    recipes: tuple[str, ...] = allowed("a list of recipes, such as [data/digits, protocol/mean]")
    settings: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class Look:
    """What the figures show.

    Args:
        metric: the vertical axis; None: a metric of the validation.
        against: the horizontal axes, one figure each.
        range: ends of the vertical axis; None: what the values need.
        width: of a figure, in inches.
        only: the recipes that are drawn; none: all.
    """

    metric: str | None = allowed("the name of a metric, such as val/accuracy", default=None)
    against: tuple[Axis, ...] = allowed(f"a list of some of {', '.join(AXES)}", default=AXES)
    range: tuple[float, float] | None = allowed("[lowest, highest], such as [90, 100]", default=None)
    width: float = allowed("a number of inches from 1 to 30, such as 3.5", default=3.5)
    only: tuple[str, ...] = allowed("a list of recipes of this study", default=())

    def __post_init__(self) -> None:
        if not 1 <= self.width <= 30:
            raise refusal(Look, "width", self.width)
        if self.range is not None and not self.range[0] < self.range[1]:
            raise refusal(Look, "range", list(self.range))


@dataclass(frozen=True)
class Target:
    """A value that a metric is to reach.

    Args:
        value: the target.
        falls: whether the metric falls, so that the target is reached at this value or below it.
    """

    value: float
    falls: bool = False

    def __str__(self) -> str:
        return f"{'≤' if self.falls else '≥'} {self.value:.10g}"


@dataclass(frozen=True)
class Range:
    """What a search may try for a setting: numbers from ``low`` to ``high``, or one of some choices.

    Args:
        low: smallest number.
        high: largest number; all numbers are whole numbers if both ends are.
        step: distance of the numbers; None: any number, of whole numbers each.
        log: draw the logarithm evenly.
        choices: the values, if there is no interval.
    """

    low: int | float = allowed("a number", default=0.0)
    high: int | float = allowed("a number", default=0.0)
    step: int | float | None = allowed("a number", default=None)
    log: bool = allowed("true or false", default=False)
    choices: tuple[Any, ...] = allowed("a list of values", default=())

    def __post_init__(self) -> None:
        if self.step is not None and not 0 < self.step < inf:
            raise refusal(Range, "step", self.step)
        interval = -inf < self.low < self.high < inf
        if interval == bool(self.choices) or (self.log and (self.low <= 0 or self.step is not None)):
            raise ConfigurationError("low must be below high, and above 0 without step if log is true")

    @property
    def whole(self) -> bool:
        """Whether the numbers are whole numbers."""
        return all(isinstance(end, int) for end in (self.low, self.high)) and isinstance(self.step, int | None)


@dataclass(frozen=True)
class Search:
    """A search over ranges, in place of overrides.

    Args:
        ranges: dotted option -> what may be tried.
        metric: the metric to optimise; its mean over the seeds of a trial.
        trials: of each recipe.
        seed: of the sampler.
        at_once: trials that are chosen before the results of any of them are known. The result depends on this number,
            not on how many runs go on at a time.
        falls: whether a smaller value is better; None: for names with loss, error or mse.
    """

    ranges: Mapping[str, Range]
    metric: str = allowed("the name of a metric, such as val/accuracy")
    trials: int = allowed("a whole number from 1", default=20)
    seed: int = allowed("a whole number from 0", default=0)
    at_once: int = allowed("a whole number from 1", default=4)
    falls: bool | None = allowed("true or false", default=None)

    def __post_init__(self) -> None:
        for key, least in (("trials", 1), ("seed", 0), ("at_once", 1)):
            value = getattr(self, key)
            if value is None or value < least:
                raise refusal(Search, key, value)

    @property
    def minimises(self) -> bool:
        """Whether a smaller value is better."""
        return any(word in self.metric for word in FALLING) if self.falls is None else self.falls


@dataclass(frozen=True)
class Study:
    """A grid of recipes × overrides × seeds, and what is reported of it.

    Args:
        recipes: name -> recipes that overlay; one line in the figures each.
        seeds: values of ``seed_everything``: initial weights, the protocol's randomness, the faults.
        name: of the folder of the results.
        common: recipes of every run, after the entry's own.
        overrides: name -> settings; the second axis of the grid.
        settings: of every run.
        test: whether the last weights are evaluated on the test records.
        baseline: the recipe or the override that the others are compared with, seed by seed.
        metrics: those in the table and the summary; none: all.
        figure: what the figures show.
        targets: metric -> value; the report says when every run first reached it, and at what cost.
        search: the ranges that are searched, in place of overrides; None: a grid.
        outliers: the filter before mean and standard deviation; None: every seed counts.
    """

    recipes: Mapping[str, Entry]
    seeds: tuple[int, ...] = allowed("a list of different whole numbers from 0 to 2^32 - 1, such as [0, 1, 2]")
    name: str = "study"
    common: tuple[str, ...] = allowed("a list of recipes, such as [trainer/cpu]", default=())
    overrides: Mapping[str, Settings] = field(default_factory=lambda: {"": {}})
    settings: Settings = field(default_factory=dict)
    test: bool = allowed("true or false", default=True)
    baseline: str | None = allowed("the name of a recipe or of an override", default=None)
    metrics: tuple[str, ...] = allowed("a list of metrics, such as [val/accuracy]", default=())
    figure: Look = field(default_factory=Look)
    targets: Mapping[str, Target] = field(default_factory=dict)
    search: Search | None = None
    outliers: Literal["iqr"] | None = allowed("iqr, or leave it out", default=None)

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or not all(0 <= s < 2**32 for s in self.seeds):
            raise refusal(Study, "seeds", list(self.seeds))
        compared = [*self.recipes, *filter(None, self.overrides)]
        for key, names, known in (
            ("baseline", [] if self.baseline is None else [self.baseline], compared),
            ("figure.only", self.figure.only, list(self.recipes)),
        ):
            for name in names:
                if name not in known:
                    raise ConfigurationError(f"{key}: {name!r} is not in this study; {nearest(name, known)}")
