"""A study from its YAML file, checked before anything runs."""

import re
from argparse import ArgumentError
from collections.abc import ItemsView, Mapping
from dataclasses import fields
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from jsonargparse import ArgumentParser

from lightning_vfl.configs import find_recipe, read_yaml
from lightning_vfl.errors import ConfigurationError, nearest
from lightning_vfl.study.spec import FALLING, Entry, Look, Range, Search, Settings, Study, Target, refusal

T = TypeVar("T")


def find_study(name: str) -> Path:
    """The file of a study, or the packaged one: ``studies/digits_stragglers``.

    Raises:
        ConfigurationError: if there is neither.
    """
    return Path(find_recipe(name))


def read_study(path: Path) -> Study:
    """A study from its file; its name is that of the file unless it has a ``name``.

    Raises:
        ConfigurationError: for a file that is not as ``docs/studies.md`` describes it; the message has the wrong key.
    """
    said = read_yaml(path, "the YAML file of a study")
    try:
        return _study(said, path.stem)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


def _study(said: Any, name: str) -> Study:
    given = _known(Study, said, "a study")
    for needed in ("recipes", "seeds"):
        if not given.get(needed):
            raise ConfigurationError(f"{needed} is missing; docs/studies.md shows a study")
    overrides = {
        _folder(key, "overrides"): _settings(value, f"overrides.{key}") for key, value in _items(given, "overrides")
    }
    search = read_search(given.get("search"))
    if search is not None and overrides:
        raise ConfigurationError("a study has either overrides or search; remove one of the two")
    return _read(
        Study,
        given,
        name=_folder(given.get("name", name), "name"),
        recipes={_folder(key, "recipes"): _entry(value, f"recipes.{key}") for key, value in _items(given, "recipes")},
        overrides=overrides or {"": {}},
        settings=_settings(given.get("settings"), "settings"),
        figure=_read(Look, _known(Look, given.get("figure") or {}, "figure"), "figure."),
        search=search,
        targets={str(key): _target(str(key), value) for key, value in _items(given, "targets")},
    )


def _entry(said: Any, where: str) -> Entry:
    given = _known(Entry, said, where) if isinstance(said, Mapping) else {"recipes": said}
    return _read(Entry, given, f"{where}.", settings=_settings(given.get("settings"), f"{where}.settings"))


def _read(kind: type[T], given: Mapping[str, Any], prefix: str = "", **built: Any) -> T:
    """A dataclass; jsonargparse checks the types of the values that are not built already."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(kind, skip=set(built))
    try:
        try:
            values = parser.parse_object({key: value for key, value in given.items() if key not in built})
        except ArgumentError as error:
            key = re.findall(r'(?:Parser key "|required: )(\w+)', str(error))[0]
            raise refusal(kind, key, given.get(key)) from None
        return kind(**vars(values), **built)
    except ConfigurationError as error:
        raise ConfigurationError(f"{prefix}{error}") from None


def read_search(said: Any) -> Search | None:
    """A search from ``search: {optuna: {...}}`` of a study.

    Raises:
        ConfigurationError: naming the key and what is allowed.
    """
    if said is None:
        return None
    if not isinstance(said, Mapping) or list(said) != ["optuna"]:
        raise ConfigurationError(f"search: {said!r} is not allowed; write optuna: {{metric: …, ranges: …}} below it")
    given = _known(Search, said["optuna"], "search.optuna")
    ranges = {str(key): _range(value, f"search.optuna.ranges.{key}") for key, value in _items(given, "ranges")}
    if not ranges:
        raise ConfigurationError("search.optuna.ranges is missing; write OPTION: {low: 1, high: 9} below it")
    return _read(Search, given, "search.optuna.", ranges=ranges)


def _range(said: Any, where: str) -> Range:
    if isinstance(said, list) and said:
        return Range(choices=tuple(said))
    if not isinstance(said, Mapping) or not {"low", "high"} <= said.keys():
        raise ConfigurationError(f"{where}: {said!r} is not a range; write {{low: 1, high: 9}} or a list of choices")
    return _read(Range, _known(Range, said, where), f"{where}.")


def _target(metric: str, said: Any) -> Target:
    way = next(iter(said), None) if isinstance(said, Mapping) and len(said) == 1 else None
    value = said[way] if way in ("above", "below") else said
    if type(value) not in (int, float) or not isfinite(value):
        raise ConfigurationError(
            f"targets.{metric}: {said!r} is not a target; write a number such as 0.9, or {{below: 0.3}} for a metric "
            "that falls"
        )
    if way is None and any(word in metric for word in FALLING):
        raise ConfigurationError(f"targets.{metric}: a metric of that name falls; write {{below: {said!r}}}")
    return Target(float(value), way == "below")


def _known(kind: type, said: Any, where: str) -> Mapping[str, Any]:
    names = [one.name for one in fields(kind)]
    for key in _mapping(said, where):
        if key not in names:
            raise ConfigurationError(f"{key!r} is not a key of {where}; {nearest(str(key), names)}")
    return dict(said)


def _items(given: Mapping[str, Any], key: str) -> ItemsView[Any, Any]:
    return _mapping(given.get(key) or {}, key).items()


def _mapping(said: Any, where: str) -> Mapping[Any, Any]:
    if not isinstance(said, Mapping):
        raise ConfigurationError(f"{where}: {said!r} is not a mapping; write NAME: VALUE below it")
    return said


def _settings(said: Any, where: str) -> Settings:
    for key, value in _mapping(said or {}, where).items():
        if str(key).split(".")[0] == "seed_everything":
            raise ConfigurationError(f"{where}: seed_everything is set by seeds; remove it")
        if "." not in str(key) and isinstance(value, Mapping):
            inner = next(iter(value), "setting")
            raise ConfigurationError(f"{where}.{key}: settings have dotted keys; write {key}.{inner}: VALUE")
    return dict(said or {})


def _folder(name: Any, where: str) -> str:
    """A name that becomes a folder; names that lead to another place are refused."""
    text = str(name)
    if not text.strip() or text.startswith(".") or any(sign in text for sign in '/\\:*?"<>|\n'):
        raise ConfigurationError(f"{where}: '{text}' cannot name a folder; use letters, digits, spaces, - and _")
    return text
