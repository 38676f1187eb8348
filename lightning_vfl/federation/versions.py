"""What the two ends of a connection compare before a party joins: versions, ``federation.yaml`` and clocks."""

import re
import time
from collections.abc import Mapping
from typing import Any

from lightning_vfl import __version__
from lightning_vfl.federation.charter import Charter
from lightning_vfl.federation.frames import VERSION


def versions() -> dict[str, Any]:
    """The versions of this process: of the frames that it sends, and of the package."""
    return {"frames": VERSION, "package": __version__}


def about(charter: Charter) -> dict[str, Any]:
    """What the server tells a party that asks before it joins."""
    return {"digest": charter.digest.hex(), "versions": versions(), "time": time.time()}


def upgrade(theirs: Mapping[str, Any], there: str, here: str) -> str | None:
    """Which side has to be upgraded; None: none has, both send the same frames and are of one minor version.

    Args:
        theirs: the versions of the other side.
        there: the other side, for the line.
        here: this side.

    Examples:
        >>> upgrade({"frames": 2, "package": "1.10.0"}, "party bank", "the server")
        'party bank has lightning-vfl 1.10.0, the server 1.0.0; upgrade the server'
    """
    own = versions()
    same_minor = _minor(theirs) == _minor(own)
    if same_minor and theirs.get("frames") == own["frames"]:
        return None
    newer = _order(theirs) > _order(own)
    has = f"{there} has lightning-vfl {theirs.get('package')}, {here} {own['package']}"
    if same_minor:
        has = f"{there} has frames of version {theirs.get('frames')}, {here} of version {own['frames']}"
    return f"{has}; upgrade {here if newer else there}"


def _minor(said: Mapping[str, Any]) -> list[str]:
    """The major and minor number of the package: releases that differ in the third number alone work together."""
    return str(said.get("package"))[:80].split(".")[:2]


def _order(said: Mapping[str, Any]) -> tuple[list[int], int]:
    """What is larger for newer versions."""
    frames = said.get("frames")
    numbers = [int(number) for number in re.findall(r"[0-9]{1,9}", str(said.get("package"))[:80])]
    return numbers, frames if isinstance(frames, int) else 0
