"""Which protocol supports which part of a training: the tables of the protocols, read in one place."""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from lightning_vfl.errors import ConfigurationError


class Part(Enum):
    """A part that a protocol may not support; the value names it in an error and on the page of docs."""

    FAULTS = "faults"
    WAITING = "a waiting rule"
    MISSING = "a policy for missing embeddings"
    HIDDEN = "aggregators that hide or charge uploads"
    PROTECTED_EVALUATION = "protected evaluation"
    DOWNLINK = "a downlink"
    SUBSETS = "subsets"
    GROUPS = "groups with a shared bottom"
    PROCESSES = "several processes (DDP)"
    FEDERATION = "parties on hosts (federate)"
    AUDIT = "audits"
    HALVES = "a top in two halves (U-shape)"
    LOCAL_UPDATE = "a local update"
    COMPRESSOR = "a compressor"


Unsupported = Mapping[Part, str | None]
"""The parts that a class does not support, each with what to use instead; None takes a part of its bases back in."""


def unsupported_by(protocol: type) -> dict[Part, str]:
    """The parts that a protocol does not support: the tables ``unsupported`` of its class and of all bases, merged."""
    merged: dict[Part, str | None] = {}
    for base in reversed(protocol.__mro__):
        own: Unsupported = vars(base).get("unsupported", {})
        merged |= own
    return {part: remedy for part, remedy in merged.items() if remedy is not None}


def refuse_other_table(protocol: type) -> None:
    """Refuse a table ``unsupported`` whose rows would be overlooked.

    Raises:
        TypeError: for anything but a mapping from ``Part`` to a text or None.
    """
    own = vars(protocol).get("unsupported", {})
    rows = own.items() if isinstance(own, Mapping) else [(None, own)]
    if not all(isinstance(part, Part) and isinstance(remedy, str | None) for part, remedy in rows):
        raise TypeError(
            f"unsupported of {protocol.__name__} must be a dictionary from a Part (lightning_vfl.support) to a text, "
            f"which says what to use instead, or None; got {own!r}"
        )


def refuse_unsupported(protocol: type, given: Iterable[Part]) -> None:
    """Refuse parts that a protocol does not support.

    Raises:
        ConfigurationError: in one line, with what to use instead.
    """
    given = list(given)
    refused = unsupported_by(protocol) if given else {}
    for part in given:
        if part in refused:
            raise ConfigurationError(f"{protocol.__name__} does not support {part.value}; {refused[part]}")


def page(protocols: Iterable[Any]) -> str:
    """The table of docs: a row for each part and a column for each protocol."""
    columns = list(protocols)
    names = " | ".join(protocol.__name__ for protocol in columns)
    rows = [f"| | {names} |", "|" + " --- |" * (len(columns) + 1)]
    tables = [unsupported_by(protocol) for protocol in columns]
    for part in Part:
        marks = " | ".join("no" if part in refused else "yes" for refused in tables)
        rows.append(f"| {part.value} | {marks} |")
    return "\n".join(rows)
