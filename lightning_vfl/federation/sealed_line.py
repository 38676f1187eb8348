"""A party's line to the server through a relay that neither trusts: a signed greeting, then sealed, numbered frames.

A relay, such as a Flower app, knows other identities than this federation does. So the two ends greet each other with
keys that the pinned certificates have signed, and the relay sees what is sealed.
"""

from dataclasses import dataclass

from lightning_vfl.crypto import KeyPair, Sealed, derive, verified
from lightning_vfl.crypto.identities import SIGNATURE
from lightning_vfl.crypto.keys import SIZE
from lightning_vfl.crypto.sealed import NONCE
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.charter import Charter
from lightning_vfl.federation.identity import Identity

HELLO, WELCOME, FRAME, ANSWER, UNKNOWN, REFUSED = b"h", b"w", b"f", b"a", b"u", b"r"  # the first byte of each
PROCESS = 16  # random bytes that tell processes apart
_NUMBER = 2  # bytes of a party's number
_SAYS_HELLO, _SAYS_WELCOME = "lightning-vfl relayed hello", "lightning-vfl relayed welcome"


@dataclass(frozen=True, eq=False)
class SealedLine:
    """Both directions between a party and the server, under keys of one greeting.

    Guarantee: what is opened was sealed by the other end, with this number, and under this greeting.
    Not guaranteed: that anything arrives; secrecy of lengths.

    Args:
        party: the number of the party.
        process: of the party.
        sends: seals what this end sends.
        hears: opens what the other end has sealed.
    """

    party: int
    process: bytes
    sends: Sealed
    hears: Sealed


def number_of(sealed: bytes) -> int:
    """The number of a sealed frame, which anybody can read."""
    return int.from_bytes(sealed[:NONCE], "big")


class Greeting:
    """A party's hello, with a fresh key; once the server has welcomed it, there is a line.

    Args:
        party: the number of this party.
        process: random bytes of its process.
        identity: of this host.
        charter: of the federation.
    """

    def __init__(self, party: int, process: bytes, identity: Identity, charter: Charter) -> None:
        self.party = party
        self.process = process
        self.charter = charter
        self._pair = KeyPair()
        public = self._pair.public
        signature = identity.signer.sign(_SAYS_HELLO, charter.digest, party, process, public)
        self.content = HELLO + party.to_bytes(_NUMBER, "big") + process + public + signature

    def accept(self, content: bytes) -> SealedLine | None:
        """The line that the server's welcome opens; None for bytes that are no welcome to this hello."""
        public, signature = content[1 : 1 + SIZE], content[1 + SIZE :]
        server = self.charter.server.certificate.public
        statement = (_SAYS_WELCOME, self.charter.digest, self.party, self._pair.public, public)
        if content[:1] != WELCOME or not verified(server, signature, *statement):
            return None
        up, down = _keys(self._pair, public, self.charter.digest, self._pair.public + public)
        return SealedLine(self.party, self.process, sends=up, hears=down)


def welcome(content: bytes, identity: Identity, charter: Charter) -> tuple[bytes, SealedLine]:
    """The server's answer to a hello, and the line that it opens.

    Raises:
        ConfigurationError: for a hello that no party of the charter has signed.
    """
    if len(content) != 1 + _NUMBER + PROCESS + SIZE + SIGNATURE:
        raise ConfigurationError("a hello through the relay has another length; use the same version of lightning-vfl")
    rest = content[1:]
    party = int.from_bytes(rest[:_NUMBER], "big")
    process = rest[_NUMBER : _NUMBER + PROCESS]
    public = rest[_NUMBER + PROCESS : -SIGNATURE]
    statement = (_SAYS_HELLO, charter.digest, party, process, public)
    if party >= len(charter.parties):
        raise ConfigurationError(f"{charter.federation} has no party number {party}; use the same federation.yaml")
    if not verified(charter.parties[party].certificate.public, rest[-SIGNATURE:], *statement):
        raise ConfigurationError(
            f"the hello of party {charter.parties[party].name} is not signed by its certificate for this "
            "federation.yaml; use the same file, and the key of this certificate"
        )
    pair = KeyPair()
    signature = identity.signer.sign(_SAYS_WELCOME, charter.digest, party, public, pair.public)
    try:
        up, down = _keys(pair, public, charter.digest, public + pair.public)
    except ValueError as error:
        raise ConfigurationError(f"the hello of party {charter.parties[party].name} has a bad key: {error}") from None
    return WELCOME + pair.public + signature, SealedLine(party, process, sends=down, hears=up)


def _keys(pair: KeyPair, public: bytes, digest: bytes, publics: bytes) -> tuple[Sealed, Sealed]:
    """The ciphers from the party to the server, and back."""
    shared = pair.shared(public)
    return (
        Sealed(derive(shared, "relayed", "up", publics, session=digest)),
        Sealed(derive(shared, "relayed", "down", publics, session=digest)),
    )
