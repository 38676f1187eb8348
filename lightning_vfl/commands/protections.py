"""A protection that an early recipe gives must not vanish because a later recipe names a protocol without it."""

from collections.abc import Mapping, Sequence
from typing import Any

from lightning_vfl.commands.optimizers import model_named, takes
from lightning_vfl.errors import ConfigurationError

_PROTECTIONS = ("downlink",)  # settings of the model; the parser drops what the last protocol lacks
_NOT_SAID = object()


def refuse_dropped_protection(options: Sequence[tuple[Sequence[str], Mapping[str, Any]]]) -> None:
    """Accept options that keep each protection which they give.

    Args:
        options: the words of each option, and its recipe (empty: it is none).

    Raises:
        ConfigurationError: if an option gives a protection, and a later one names a protocol that has none.
    """
    named = [position for position, pair in enumerate(options) if model_named(*pair)]
    if not named:
        return
    model = model_named(*options[named[-1]])
    for setting in _PROTECTIONS:
        given = [_given(*pair, setting) for pair in options[: named[-1]]]
        last = next((value for value in reversed(given) if value is not _NOT_SAID), None)
        if last not in (None, "null") and not takes(model, setting):
            name = model.rpartition(".")[2]
            raise ConfigurationError(
                f"model.{setting} is given before a recipe that names {name}, which has no {setting}: {name} would "
                f"train without this protection; leave the {setting} out, or name SplitVFL"
            )


def _given(words: Sequence[str], recipe: Mapping[str, Any], setting: str) -> Any:
    """What an option or its recipe gives as a setting of the model; None and ``null`` take it away."""
    option, _, value = words[0].partition("=")
    if option in (f"--model.{setting}", f"--model.init_args.{setting}"):
        return value or "".join(words[1:])
    model = recipe.get("model")
    settings = (model.get("init_args") or {}) if isinstance(model, dict) else {}
    return settings.get(setting, _NOT_SAID)
