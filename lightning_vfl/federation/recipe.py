"""What two hosts compare of their recipes before they train together."""

import json
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from lightning_vfl.errors import printable

HOST_OWN = (  # settings that may differ from host to host; * stands for one part of a key, and all below a key is meant
    "ckpt_path",
    "config",
    "data.data_dir",
    "data.extra",
    "data.num_workers",
    "data.pin_memory",
    "data.tables",
    "data.work_dir",
    "experiment",
    "predictions.path",
    "record",
    "summary",
    "trainer.accelerator",
    "trainer.callbacks.*.dirpath",
    "trainer.default_root_dir",
    "trainer.devices",
    "trainer.enable_model_summary",
    "trainer.enable_progress_bar",
    "trainer.log_every_n_steps",
    "trainer.logger",
    "trainer.profiler",
    "weights_only",
)
LENGTH = 200  # characters of a value


def recipe_digest(config: Mapping[str, Any], host_own: Sequence[str] = HOST_OWN) -> Mapping[str, str]:
    """The settings of a recipe that all hosts must share: dotted key -> value as JSON.

    The parts ``init_args`` and ``class_path`` of keys are left out. A value of more than 200 characters is cut, and a
    hash of the whole is added.

    Args:
        config: the settings of a command, as ``--print_config`` and ``config.yaml`` of a run have them.
        host_own: keys that are left out.

    Examples:
        >>> recipe_digest({"data": {"class_path": "Digits", "init_args": {"data_dir": "/a", "batch_size": 64}}})
        {'data': '"Digits"', 'data.batch_size': '64'}
    """
    patterns = [pattern.split(".") for pattern in host_own]
    found = {".".join(parts): _text(value) for parts, value in _leaves(config, ()) if not _matches(parts, patterns)}
    return dict(sorted(found.items()))


def first_difference(mine: Mapping[str, str], theirs: Mapping[str, str], who: str) -> str | None:
    """The line about the first setting in which a party's recipe differs from the server's; None: there is none.

    Args:
        mine: of the server.
        theirs: of the party, as it has arrived.
        who: the party.

    Examples:
        >>> first_difference({"data.batch_size": "32"}, {"data.batch_size": "64"}, "party bank")
        'party bank has data.batch_size 64, the server 32; use the same recipe'
    """
    for key in sorted(mine.keys() | theirs.keys()):
        one, other = mine.get(key), theirs.get(key)
        if one == other:
            continue
        has = (
            f"has no {printable(key, LENGTH)}"
            if other is None
            else f"has {printable(key, LENGTH)} {printable(other, LENGTH)}"
        )
        return f"{who} {has}, the server {'has none' if one is None else printable(one, LENGTH)}; use the same recipe"
    return None


def _leaves(value: Any, parts: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Key and value of every setting; a list is one value, unless it has classes."""
    items: Iterator[tuple[str, Any]] | None = None
    if isinstance(value, Mapping) and value:
        items = ((str(key), inner) for key, inner in value.items())
    elif isinstance(value, list | tuple) and any(isinstance(one, Mapping) for one in value):
        items = ((str(number), inner) for number, inner in enumerate(value))
    if items is None:
        if not isinstance(value, Mapping):  # {} has no settings: init_args of a class without any
            yield parts, value
        return
    for key, inner in items:
        yield from _leaves(inner, parts if key in ("init_args", "dict_kwargs", "class_path") else (*parts, key))


def _matches(parts: tuple[str, ...], patterns: Sequence[Sequence[str]]) -> bool:
    return any(
        len(parts) >= len(pattern) and all(one in ("*", part) for one, part in zip(pattern, parts, strict=False))
        for pattern in patterns
    )


def _text(value: Any) -> str:
    text = json.dumps(_plain(value), sort_keys=True, default=str)
    return text if len(text) <= LENGTH else f"{text[:120]}... (sha256 {sha256(text.encode()).hexdigest()[:32]})"


def _plain(value: Any) -> Any:
    """Lists in place of tuples, and 4 in place of 4.0: recipes write both."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value
