"""How a process takes its place: a party says hello and learns the keys of the others; the server waits for all."""

from collections.abc import Mapping
from typing import Any

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.at_party import AtParty
from lightning_vfl.federation.hub import At, Key
from lightning_vfl.federation.letters import Seals
from lightning_vfl.federation.link import Link, Transport

DOOR = Key(At(-1, 0, 0), 0)  # of requests that belong to no round


def join(transport: Transport, party: int, session: bytes, hello: Mapping[str, Any], injected: bool) -> AtParty:
    """The place of a party, after the server has welcomed it.

    Args:
        transport: to the server.
        party: the number of the party.
        session: bytes that belong to this federation.
        hello: what the server compares.
        injected: faults are played from the recipe.

    Raises:
        ConfigurationError: if the server refuses this party.
    """
    link, seals = Link(transport), Seals(party, session)

    def publics(header: Mapping[str, Any]) -> dict[int, bytes]:
        return {int(number): bytes.fromhex(public) for number, public in header["publics"].items()}

    def fetch() -> dict[int, bytes]:
        answer = link.ask(DOOR, "publics")
        return {} if answer is None else publics(answer.header)

    frame = link.ask(DOOR, "hello", {**hello, "public": seals.pair.public.hex()})
    if frame is None:
        raise ConfigurationError("the server has closed the federation; start it again")
    seals.learn(publics(frame.header))
    seals.fetch = fetch
    return AtParty(link, party, seals, injected)
