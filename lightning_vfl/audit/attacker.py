"""Who attacks: the server, parties, or both together."""

import re
from dataclasses import dataclass, field
from typing import Self

from lightning_vfl.errors import ConfigurationError

_MEMBER = re.compile(r"party:(\d+)")


@dataclass(frozen=True)
class Attacker:
    """A coalition that follows the protocol and looks at all that its members receive and hold.

    Args:
        server: whether the server is in the coalition.
        parties: the parties in the coalition, in ascending order.
        name: how the coalition is called in tables and errors; empty: by the numbers of its parties.

    Examples:
        >>> Attacker.of("server+party:1"), str(Attacker.of("party:3+party:2"))
        (Attacker(server=True, parties=(1,)), 'party:2+party:3')
    """

    server: bool
    parties: tuple[int, ...] = ()
    name: str = field(default="", compare=False, repr=False)

    @classmethod
    def of(cls, text: str) -> Self:
        """The coalition of a text such as ``party:2``, ``server`` or ``server+party:1``.

        Raises:
            ConfigurationError: for any other text.
        """
        words = text.split("+")
        members = [_MEMBER.fullmatch(word) for word in words if word != "server"]
        numbers = [int(match[1]) for match in members if match]
        if not all(members) or len(set(numbers)) < len(numbers) or words.count("server") > 1:
            raise ConfigurationError(
                f"attacker '{text}' is unknown; use server, party:NUMBER, or party:NAME if the parties have "
                "names, or several of them joined by +, such as server+party:1"
            )
        return cls("server" in words, tuple(sorted(numbers)))

    def __str__(self) -> str:
        members = ["server"] * self.server + [f"party:{party}" for party in self.parties]
        return self.name or "+".join(members)

    def reads(self, at: int | None) -> bool:
        """Whether the coalition reads what is sent to the server; ``at``: the party that plays it, None: the server."""
        return self.server if at is None else at in self.parties

    def refuse_strangers(self, parties: int) -> None:
        """Refuse members that the training does not have.

        Raises:
            ConfigurationError: naming the parties that there are.
        """
        for party in self.parties:
            if party >= parties:
                raise ConfigurationError(
                    f"attacker '{self}': there is no party {party}; the parties are 0 to {parties - 1}"
                )
