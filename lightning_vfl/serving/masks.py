"""Masks of embeddings in production: the gateway learns the sum over all parties, and nothing about the addends."""

from collections.abc import Mapping
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from lightning_vfl.crypto.identities import verified
from lightning_vfl.crypto.keys import KeyPair, PairKeys, derive
from lightning_vfl.crypto.keystream import Keystream
from lightning_vfl.crypto.pair_masks import PairKeystream
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.export.manifest import Protection
from lightning_vfl.federation.charter import Charter
from lightning_vfl.federation.identity import Identity
from lightning_vfl.privacy.events import PoissonBinomialEvent, restored

if TYPE_CHECKING:
    from numpy.typing import NDArray

_KEY = "lightning_vfl prediction key"


class SumCodec:
    """Numbers in [-t, t] as integers of which any n can be summed modulo 2^32.

    It is ``Shift`` with rounding to the nearest integer: a record has the same integers in every request.

    Args:
        protection: of a model with masked sums.
    """

    def __init__(self, protection: Protection) -> None:
        self._clip = protection.clip
        self._levels = protection.levels

    def to_words(self, values: "NDArray[np.float32]") -> "NDArray[np.uint32]":
        """The integers of numbers; numbers outside of [-t, t] count as -t and t."""
        clipped = np.clip(values.astype(np.float64), -self._clip, self._clip)
        scaled = (clipped + self._clip) * (self._levels / (2 * self._clip))
        return np.minimum(np.floor(scaled + 0.5), self._levels - 1).astype(np.uint32)

    def to_real(self, total: "NDArray[np.uint32]", n: int) -> "NDArray[np.float32]":
        """The sum of n numbers, from the sum of their integers."""
        step = 2 * self._clip / self._levels
        return ((total.astype(np.float64) - n * (self._levels // 2)) * step).astype(np.float32)


class DrawCodec:
    """Numbers in [-C, C] as draws of Binomial(b, 1/2 + β x / C), as ``PoissonBinomial`` sends them.

    Guarantee: draws are exact, and from the operating system; every call has new ones.

    Args:
        clip: C; numbers outside count as -C and C.
        event: b and β.
    """

    def __init__(self, clip: float, event: PoissonBinomialEvent) -> None:
        self._clip = clip
        self._event = event
        self._random = Keystream()

    def to_words(self, values: "NDArray[np.float32]") -> "NDArray[np.uint32]":
        """The draws of numbers."""
        from lightning_vfl.privacy.binomial import Line, binomial_of  # numba takes 0.5 s to load

        line = Line(self._event.beta / self._clip, 0.5, -self._clip, self._clip)
        drawn = np.empty(values.shape, np.int32)
        binomial_of(values, line, self._event.levels, self._random.words, drawn, ties=self._random.words)
        return drawn.astype(np.uint32)

    def to_real(self, total: "NDArray[np.uint32]", n: int) -> "NDArray[np.float32]":
        """The estimate of the sum of n numbers, from the sum of their draws."""
        levels = self._event.levels
        twice = 2.0 * total.astype(np.float64) - n * levels
        return (twice * (self._clip / (2.0 * self._event.beta * levels))).astype(np.float32)


def codec_of(protection: Protection) -> SumCodec | DrawCodec:
    """How embeddings become integers that are summed."""
    event = None if protection.event is None else restored(protection.event)
    return DrawCodec(protection.clip, event) if isinstance(event, PoissonBinomialEvent) else SumCodec(protection)


class ConnectionKeys:
    """The keys of one connection of an endpoint; a new connection has new keys.

    Guarantee: no two requests are masked with the same keystream. Keys are made anew for a connection, and within a
        connection the number of a request, which is part of the keystream's key, has to increase. The masks of a
        request cancel only if all parties were asked for the same ids under the same number. A record that this party
        lacks gets random numbers, so that its sum shows nothing about the others.
    Not guaranteed: protection against a gateway that acts together with all other parties, and against one that knows a
        sum of the same records without a party, from an evaluation of the same weights.

    Args:
        party: the name of this party.
        identity: signs the public key.
        charter: has the certificates of the others.
        model: the hash of the model.
        protection: whose embeddings are summed, and how.
    """

    def __init__(self, party: str, identity: Identity, charter: Charter, model: str, protection: Protection) -> None:
        self._party = party
        self._charter = charter
        self._model = model
        self._parties = protection.parties
        self._pair = KeyPair()
        self._random = Keystream()
        self._keys: PairKeys | None = None
        self._last = -1
        self.public = self._pair.public.hex()
        self.signature = identity.signer.sign(*self._statement(party, self._pair.public)).hex()

    def agree(self, publics: Mapping[str, tuple[str, str]]) -> None:
        """Agree on keys with the parties that have these public keys.

        Raises:
            ConfigurationError: for other parties than those of the model, and a key that its party has not signed.
        """
        if {*publics} != {*self._parties}:
            raise ConfigurationError(f"masks need a key of each of {', '.join(self._parties)}; got {len(publics)} keys")
        decoded = {}
        for number, name in enumerate(self._parties):
            certificate = self._charter.parties[self._charter.number(name)].certificate
            try:
                public, signature = (bytes.fromhex(text) for text in publics[name])
            except ValueError:
                public, signature = b"", b""
            if not verified(certificate.public, signature, *self._statement(name, public)):
                raise ConfigurationError(
                    f"party {name} has not signed the key that the gateway gives; check the gateway"
                )
            decoded[number] = public
        own = self._parties.index(self._party)
        session = sha256(b"".join(decoded[number] for number in sorted(decoded))).digest()
        try:
            keys = PairKeys(own, self._pair, decoded, session)
            for other in decoded.keys() - {own}:
                keys.key(other, "predictions")  # refuses a point that gives no secret
        except ValueError as error:
            raise ConfigurationError(f"the keys that the gateway gives cannot be used: {error}") from None
        self._keys = keys

    def mask(
        self, number: int, ids: "NDArray[np.generic]", values: "NDArray[np.uint32]", known: "NDArray[np.bool_]"
    ) -> "NDArray[np.uint32]":
        """(B, D) the masked integers of embeddings.

        Args:
            number: of the request.
            ids: (B,) as they have travelled.
            values: (B, D) the integers of embeddings.
            known: (B,) bool, the records that this party has.

        Raises:
            ConfigurationError: without keys, and for a number that is not above that of the request before.
        """
        if self._keys is None:
            raise ConfigurationError("no keys have been agreed on this connection")
        if number <= self._last:
            raise ConfigurationError(f"request {number} comes after request {self._last}, and masks are used once")
        self._last = number
        words = values.copy()
        lacking = int((~known).sum())
        if lacking:
            random = self._random.words(lacking * words.shape[1])
            words[~known] = random.astype(np.uint32).reshape(lacking, words.shape[1])
        flat = words.reshape(-1)
        asked = sha256(ids.dtype.str.encode() + ids.tobytes()).digest()
        for other in range(len(self._parties)):
            own = self._keys.party
            if other != own:
                secret = self._keys.key(other, "predictions")
                key = derive(secret, number, asked, session=self._keys.session)
                PairKeystream(key).add_to(flat, 0, 1 if own < other else -1)
        return words

    def _statement(self, party: str, public: bytes) -> tuple[str | bytes, ...]:
        return _KEY, self._charter.digest, self._model, party, public


def unmasked(masked: "list[NDArray[np.uint32]]", protection: Protection) -> "NDArray[np.float32]":
    """(B, D) the sum of the embeddings of all parties."""
    total = masked[0].copy()
    for words in masked[1:]:
        total += words
    return codec_of(protection).to_real(total, len(masked))
