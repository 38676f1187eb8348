"""Arguments, and the error of those that cannot be read. It imports nothing, because every command needs it."""

import re
from collections.abc import Mapping, Sequence

from lightning_vfl.errors import ConfigurationError


class UsageError(ConfigurationError):
    """Arguments or a recipe that the parser cannot read; the command line exits with status 2."""


def value_of(words: Sequence[str]) -> str:
    """The value of an option; empty if it has none."""
    return words[1] if len(words) > 1 else words[0].partition("=")[2]


def unread_settings(environment: Mapping[str, str]) -> list[str]:
    """A line for each variable that a LightningCLI with ``default_env`` would read as a setting; this program does not.

    A variable that a shell still has would change a run of which neither the command nor the recipe tells.

    Examples:
        >>> unread_settings({"PL_FIT__TRAINER__MAX_EPOCHS": "3", "PL_GLOBAL_SEED": "1"})
        ['PL_FIT__TRAINER__MAX_EPOCHS has no effect: a run is what its recipes and options say; give \
--trainer.max_epochs']
    """
    found = (re.fullmatch(r"PL_(?:FIT|VALIDATE|TEST|PREDICT)__(\w+)", name) for name in sorted(environment))
    options = {one.string: one[1].lower().replace("__", ".") for one in found if one}
    return [
        f"{name} has no effect: a run is what its recipes and options say; give --{option}"
        for name, option in options.items()
    ]
