"""What a study file says, checked before anything runs."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import yaml

from lightning_vfl.configs import find_recipe
from lightning_vfl.errors import ConfigurationError

Settings = Mapping[str, Any]  # dotted option of the command line -> value
Axis = Literal["rounds", "passes", "virtual_seconds", "bytes"]
_FALLING = ("loss", "error", "mse")  # in names of metrics whose first value is above any target


@dataclass(frozen=True)
class Entry:
    """One of the compared recipes: the recipes that overlay, and settings of its own."""

    recipes: tuple[str, ...]
    settings: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class Look:
    """What the figures show: one metric against each of these; its axis' range; the width in inches; which recipes."""

    metric: str | None = None
    against: tuple[Axis, ...] = ("rounds", "passes", "virtual_seconds", "bytes")
    range: tuple[float, float] | None = None
    width: float = 3.5
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """The value that a metric is to reach: this or more, or, of one that falls, this or less."""

    value: float
    falls: bool = False

    def __str__(self) -> str:
        return f"{'≤' if self.falls else '≥'} {self.value:.10g}"


@dataclass(frozen=True)
class Study:
    """A grid of named recipes × overrides × seeds, and what is told of it.

    Args:
        recipes: name -> recipes that overlay; one line in the figures each.
        seeds: of ``seed_everything``: initialisation, the protocol's randomness, the faults.
        name: of the folder that the results go to.
        common: recipes of every run, after the entry's own.
        overrides: name -> settings; the second axis of the grid.
        settings: of every run.
        test: whether the last weights are evaluated on the test records.
        baseline: the recipe (or the override) that the others are compared with, seed by seed.
        metrics: those in the table and the summary; none: all.
        figure: what the figures show.
        targets: metric -> value; it is told when every run first got there, and what that had taken.
        outliers: the filter before mean and sd; None: every seed counts.
    """

    recipes: Mapping[str, Entry]
    seeds: tuple[int, ...]
    name: str = "study"
    common: tuple[str, ...] = ()
    overrides: Mapping[str, Settings] = field(default_factory=lambda: {"": {}})
    settings: Settings = field(default_factory=dict)
    test: bool = True
    baseline: str | None = None
    metrics: tuple[str, ...] = ()
    figure: Look = Look()
    targets: Mapping[str, Target] = field(default_factory=dict)
    outliers: Literal["iqr"] | None = None


def find_study(name: str) -> Path:
    """The file of a study, or the packaged one: ``studies/digits_stragglers``.

    Raises:
        ConfigurationError: if there is neither.
    """
    return Path(find_recipe(name))


def read_study(path: Path) -> Study:
    """A study from its file, called after it unless it has a ``name``.

    Raises:
        ConfigurationError: for anything that is not as ``docs/studies.md`` says, with the key that is wrong.
    """
    try:
        said = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{path}: {' '.join(str(error).split())}; correct the YAML") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read ({error}); give the YAML file of a study") from None
    try:
        return _study(said, path.stem)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _study(said: Any, name: str) -> Study:
    given = _keys(said, Study, "a study")
    for needed in ("recipes", "seeds"):
        if not given.get(needed):
            raise ConfigurationError(f"{needed} is missing; docs/studies.md shows a study")
    found: dict[str, Any] = {"name": _folder(given.get("name", name), "name")}
    found["recipes"] = {
        _folder(entry, "recipes"): _entry(value, f"recipes.{entry}")
        for entry, value in _mapping(given["recipes"], "recipes").items()
    }
    found["seeds"] = _seeds(given["seeds"])
    if "common" in given:
        found["common"] = _words(given["common"], "common")
    if given.get("overrides"):
        found["overrides"] = {
            _folder(entry, "overrides"): _settings(value, f"overrides.{entry}")
            for entry, value in _mapping(given["overrides"], "overrides").items()
        }
    found["settings"] = _settings(given.get("settings"), "settings")
    found["test"] = _choice(given.get("test", True), (True, False), "test")
    found["outliers"] = _choice(given.get("outliers"), ("iqr", None), "outliers")
    found["baseline"] = given.get("baseline")
    if found["baseline"] is not None:
        _choice(found["baseline"], (*found["recipes"], *found.get("overrides", ())), "baseline")
    if "metrics" in given:
        found["metrics"] = _words(given["metrics"], "metrics")
    found["figure"] = _figure(given.get("figure"), tuple(found["recipes"]))
    targets = _mapping(given.get("targets") or {}, "targets")
    found["targets"] = {str(metric): _target(str(metric), value) for metric, value in targets.items()}
    return Study(**found)


def _entry(said: Any, where: str) -> Entry:
    if isinstance(said, Mapping):
        given = _keys(said, Entry, where)
        said = given.get("recipes")
        settings = _settings(given.get("settings"), f"{where}.settings")
    else:
        settings = {}
    return Entry(_words(said, where), settings)


def _figure(said: Any, recipes: tuple[str, ...]) -> Look:
    given = _keys(said or {}, Look, "figure")
    style = Look()
    metric, width = given.get("metric"), given.get("width", style.width)
    if metric is not None and not isinstance(metric, str):
        raise ConfigurationError(f"figure.metric: {metric!r} is no name; write one like val/accuracy")
    if not isinstance(width, int | float) or not 1 <= width <= 30:
        raise ConfigurationError(f"figure.width: {width!r} is no width in inches; write one from 1 to 30, such as 3.5")
    against = _words(given.get("against", list(style.against)), "figure.against")
    axes: Any = tuple(_choice(axis, Look().against, "figure.against") for axis in against)
    ends = given.get("range")
    if ends is not None and not _is_range(ends):
        raise ConfigurationError(f"figure.range: {ends!r} is no range; write [lowest, highest], such as [90, 100]")
    only = tuple(_choice(name, recipes, "figure.only") for name in _words(given.get("only", []), "figure.only"))
    return Look(metric, axes, ends and (float(ends[0]), float(ends[1])), float(width), only)


def _target(metric: str, said: Any) -> Target:
    way = next(iter(said), None) if isinstance(said, Mapping) and len(said) == 1 else None
    value = said[way] if way in ("above", "below") else said
    if type(value) not in (int, float) or not isfinite(value):
        raise ConfigurationError(
            f"targets.{metric}: {said!r} is no target; write a number such as 0.9, or {{below: 0.3}} for what falls"
        )
    if way is None and any(word in metric for word in _FALLING):
        raise ConfigurationError(f"targets.{metric}: a metric of that name falls; write {{below: {said!r}}}")
    return Target(float(value), way == "below")


def _is_range(said: Any) -> bool:
    numbers = isinstance(said, list) and len(said) == 2 and all(isinstance(end, int | float) for end in said)
    return numbers and said[0] < said[1]


def _keys(said: Any, kind: type, where: str) -> Mapping[str, Any]:
    known = [f.name for f in fields(kind)]
    for key in _mapping(said, where):
        if key not in known:
            raise ConfigurationError(f"'{key}' is not a key of {where}; {_nearest(str(key), known)}")
    return dict(said)


def _mapping(said: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(said, Mapping):
        raise ConfigurationError(f"{where}: {said!r} is no mapping; write NAME: VALUE below it")
    return said


def _words(said: Any, where: str) -> tuple[str, ...]:
    if not isinstance(said, list) or not all(isinstance(word, str) for word in said):
        raise ConfigurationError(f"{where}: {said!r} is no list of names; write [first, second]")
    return tuple(said)


def _seeds(said: Any) -> tuple[int, ...]:
    seeds = said if isinstance(said, list) else []
    if not seeds or any(type(seed) is not int or not 0 <= seed < 2**32 for seed in seeds):
        raise ConfigurationError(f"seeds: {said!r} is no list of whole numbers from 0; write [0, 1, 2]")
    if len(set(seeds)) < len(seeds):
        raise ConfigurationError(f"seeds: {said} names one twice; a run is repeated by another seed only")
    return tuple(seeds)


def _settings(said: Any, where: str) -> Settings:
    for key, value in _mapping(said or {}, where).items():
        if str(key).split(".")[0] == "seed_everything":
            raise ConfigurationError(f"{where}: seed_everything is set by seeds; remove it")
        if "." not in str(key) and isinstance(value, Mapping):
            inner = next(iter(value), "setting")
            raise ConfigurationError(f"{where}.{key}: settings have dotted keys; write {key}.{inner}: VALUE")
    return dict(said or {})


def _folder(name: Any, where: str) -> str:
    """Names become folders: one that would lead elsewhere is refused."""
    text = str(name)
    if not text.strip() or text.startswith(".") or any(sign in text for sign in '/\\:*?"<>|\n'):
        raise ConfigurationError(f"{where}: '{text}' cannot name a folder; use letters, digits, spaces, - and _")
    return text


def _choice(value: Any, known: tuple[Any, ...], where: str) -> Any:
    if not any(value is one or (isinstance(one, str) and value == one) for one in known):
        words = [str(one) for one in known if one is not None]
        raise ConfigurationError(f"{where}: {value!r} is not known; {_nearest(str(value), words)}")
    return value


def _nearest(word: str, known: list[str]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return (
        f"did you mean {near[0]}?" if near else f"use {', '.join(known[:-1])} or {known[-1]}".replace("use  or", "use")
    )
