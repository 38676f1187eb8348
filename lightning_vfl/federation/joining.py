"""How a process takes its place: a party says hello and learns the keys of the others; the server waits for all."""

from collections.abc import Callable, Mapping
from typing import Any

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.at_party import AtParty
from lightning_vfl.federation.letters import Seals
from lightning_vfl.federation.link import Link


def join(
    kind: type[AtParty],
    link: Link,
    party: int,
    session: bytes,
    hello: Mapping[str, Any],
    injected: bool,
    sign: Callable[[bytes], bytes],
    check: Callable[[int, bytes, bytes], None],
) -> AtParty:
    """The place of a party, after the server has welcomed it.

    Args:
        kind: of the place, which follows from the protocol.
        link: to the server.
        party: the number of the party.
        session: bytes that belong to this federation.
        hello: what the server compares.
        injected: faults are played from the recipe.
        sign: signs this party's public key.
        check: raises an error for a public key that its party has not signed.

    Raises:
        ConfigurationError: if the server refuses this party, and for keys that somebody has replaced.
    """
    seals = Seals(party, session)
    seals.agreed = link.agreed

    def publics(header: Mapping[str, Any]) -> dict[int, bytes]:
        found = {}
        for number, (public, signature) in header.get("publics", {}).items():
            found[int(number)] = bytes.fromhex(public)
            check(int(number), found[int(number)], bytes.fromhex(signature))
        if found.get(party, seals.pair.public) != seals.pair.public:
            raise ConfigurationError("the server has told another key for sealed messages than this party's own")
        return found

    def fetch() -> dict[int, bytes]:
        return publics(link.knock("publics").header)

    public = seals.pair.public
    frame = link.knock("hello", {**hello, "public": [public.hex(), sign(public).hex()]})
    seals.learn(publics(frame.header))
    seals.fetch = fetch
    return kind(link, party, seals, injected)
