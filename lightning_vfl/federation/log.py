"""A log of JSON lines on standard error. It has counts and times, and no ids, records or predictions."""

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime


def log(event: str, **values: str | int | float | list[str] | Mapping[str, float] | None) -> None:
    """Write a line.

    Args:
        event: what happened, in a few words.
        values: counts, times and names of parties.
    """
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    print(json.dumps({"time": now, "event": event, **values}), file=sys.stderr, flush=True)
