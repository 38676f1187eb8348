"""What all parties of an alignment agree upon before they begin, and the tag that keeps their points apart."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from typing import Any

from lightning_vfl.align.ids import Step, steps_of
from lightning_vfl.errors import ConfigurationError

COMPARER = "comparer"
PROTOCOL = "lightning-vfl-align-v1"
_SUITE = "ristretto255_XMD:SHA-512_R255MAP_RO_"
_NAMES = "1 to 63 letters, digits, dots, - and _, a letter or a digit first"


class Reveal(StrEnum):
    """What the parties are told."""

    INTERSECTION = "intersection"  # every party: which of its records all parties have
    LABEL_PARTY = "label-party"  # every party: which of its records the party with the labels has
    SIZE = "size"  # every party: how many records all parties have


@dataclass(frozen=True)
class Session:
    """The settings of an alignment, which are the same for all parties.

    Args:
        name: tells two alignments of the same parties apart.
        parties: the names, in the order of the ring.
        keys: for each key that is tried in turn, the number of its columns.
        normalise: how ids are made equal.
        reveal: what the parties are told.
        label_party: the party with the labels; needed for ``label-party`` alone.

    Raises:
        ConfigurationError: for names that are not allowed, one party alone, and settings that do not fit together.
    """

    name: str
    parties: tuple[str, ...]
    keys: tuple[int, ...] = (1,)
    normalise: tuple[Step, ...] = ()
    reveal: Reveal = Reveal.INTERSECTION
    label_party: str | None = field(default=None)

    def __post_init__(self) -> None:
        for name in self.parties:
            check_party(name)
        if len(self.parties) < 2:
            raise ConfigurationError(f"an alignment needs two parties or more; got {', '.join(self.parties) or 'none'}")
        if len({name.casefold() for name in self.parties}) < len(self.parties):
            raise ConfigurationError(f"a party is named twice in {', '.join(self.parties)}; give each party once")
        if len(self.parties) > 62:
            raise ConfigurationError(f"an alignment takes up to 62 parties; got {len(self.parties)}")
        if not 1 <= len(self.keys) <= 255 or not all(1 <= columns <= 255 for columns in self.keys):
            raise ConfigurationError("a session has 1 to 255 keys of 1 to 255 columns each; give fewer")
        if (self.reveal is Reveal.LABEL_PARTY) != (self.label_party is not None):
            raise ConfigurationError("--reveal label-party and --label-party belong together; give both")
        if self.label_party is not None and self.label_party not in self.parties:
            raise ConfigurationError(
                f"--label-party {self.label_party} is not one of the parties {', '.join(self.parties)}; "
                "give one of them"
            )

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all settings, 64 hexadecimal digits."""
        return sha256(f"{PROTOCOL}\n{json.dumps(self.told(), sort_keys=True)}".encode()).hexdigest()

    @cached_property
    def tag(self) -> bytes:
        """The domain separation tag: the same id has unrelated points in two sessions."""
        return f"{PROTOCOL}-{self.digest}-{_SUITE}".encode()

    def told(self) -> dict[str, Any]:
        """The settings, for a header."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def read(cls, said: Any) -> "Session":
        """The session that ``told`` has written.

        Raises:
            ValueError: for anything else.
        """
        if not isinstance(said, Mapping) or {*said} != {*cls.__dataclass_fields__}:
            raise ValueError("the settings of the session are not those of this version")
        label = said["label_party"]
        return cls(
            str(said["name"]),
            tuple(map(str, said["parties"])),
            tuple(map(int, said["keys"])),
            steps_of([str(word) for word in said["normalise"]]),
            Reveal(said["reveal"]),
            None if label is None else str(label),
        )

    def number(self, party: str) -> int:
        """The place of a party in the ring.

        Raises:
            ConfigurationError: if it is none of the parties.
        """
        if party not in self.parties:
            raise ConfigurationError(
                f"{party} is not one of the parties {', '.join(self.parties)} of this session; give one of them"
            )
        return self.parties.index(party)

    def ring_from(self, owner: str) -> tuple[str, ...]:
        """The parties in the order in which they raise the list of an owner, the owner first."""
        start = self.number(owner)
        return self.parties[start:] + self.parties[:start]

    def difference(self, other: "Session") -> str:
        """The first setting that differs, for an error; the other session's comes first."""
        for name, mine in self.told().items():
            theirs = other.told()[name]
            if mine != theirs:
                return f"its {name} is {_shown(theirs)}, not {_shown(mine)}"
        return "it is the same"


def check_party(name: str) -> None:
    """Accept the name of a party, which is part of the names of files.

    Raises:
        ConfigurationError: for other names, and for ``comparer``.
    """
    allowed = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name) and ".for-" not in name
    if not allowed or name.casefold() == COMPARER:
        raise ConfigurationError(f"'{name}' cannot be the name of a party; use {_NAMES}, not .for- and not {COMPARER}")


def _shown(value: object) -> str:
    words: Sequence[object] = value if isinstance(value, list) else [value]
    return ",".join("none" if word is None else str(word) for word in words) or "none"
