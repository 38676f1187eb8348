"""How the parties learn each other's public keys at the beginning of a key period, and who vouches for them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.aggregators.messages import refuse_lacking
from lightning_vfl.aggregators.secure.recovery import Vault
from lightning_vfl.crypto import Identities, KeyPair, PairMasks, Sealed, Signer, verified
from lightning_vfl.crypto.identities import SIGNATURE, VERIFY
from lightning_vfl.crypto.keys import SIZE, encoded
from lightning_vfl.errors import MalformedMessage
from lightning_vfl.wire import Message, PartyView

KEYS = "public keys"  # kinds of messages
COMMITMENTS = "key commitments"
DOMAIN = "lightning_vfl period key"  # what an identity key signs here, and nothing else


@dataclass
class Keys:
    """The keys of the hosted parties in one key period. They are in no checkpoint, and a copy has none of them.

    Args:
        stage: whose rounds these keys are for.
        period: of them; -1: there are none yet.
        pairs: a hosted party's key pair.
        publics: everybody's public key, as far as it has arrived.
        masks: a hosted party's masks, and with them its keys with the others.
        seals: channels for sealed messages, by (holder of this end, the other end, sender, purpose, stage, rank).
        ids: the record ids that a hosted party was sent for the round that is going on.
        vault: what recovery needs.
        commitments: hashes of everybody's public keys, as far as they have arrived; if parties commit.
        signers: a hosted party's signing key: its identity, or a fresh one for this period.
        verify: everybody's key to verify signatures with.
        session: a hash of everybody's public keys, once all have arrived.
    """

    stage: str = ""
    period: int = -1
    pairs: dict[int, KeyPair] = field(default_factory=dict, repr=False)
    publics: dict[int, bytes] = field(default_factory=dict)
    masks: dict[int, PairMasks] = field(default_factory=dict, repr=False)
    seals: dict[tuple[int, int, int, str, str, int], Sealed] = field(default_factory=dict, repr=False)
    ids: dict[int, bytes] = field(default_factory=dict, repr=False)
    vault: Vault = field(default_factory=Vault, repr=False)
    commitments: dict[int, bytes] = field(default_factory=dict)
    signers: dict[int, Signer] = field(default_factory=dict, repr=False)
    verify: dict[int, bytes] = field(default_factory=dict)
    session: bytes = b""

    def __getstate__(self) -> dict[str, Any]:
        """A copy begins with nothing, and makes keys of its own."""
        return vars(Keys())


@dataclass(frozen=True)
class KeyExchange:
    """The messages with which the parties learn each other's public keys (X25519) of a period.

    With ``commits``, every party first sends all others a hash of its public key. So nobody can choose a key by those
    of the others, and a hash of all keys is as random as the one of any honest party. With identities the key then
    comes with a signature over the hash of all commitments, stage, period, its number and the key. The receiver's own
    commitment makes the signature fresh: one of another run, stage or period is refused. Without identities the key
    comes alone, and whoever carries the messages can replace it.

    Guarantee: with identities, a public key that the party did not sign for this session is refused, and the party is
        named. With ``commits``, a key that the party has not committed to is refused.
    Not guaranteed: without identities, anything about a server that replaces keys. That a set-up is not begun again by
        a party that does not like the keys of the others: everybody sees that.

    Args:
        signs: parties sign statements in the rounds, so that they need a key for that; without identities they send a
            fresh one along.
        commits: parties commit to their keys first; always with identities.
        identities: the parties' long-lived signing keys.
        insecure_seeded_secrets: keys from a named stream; for tests only.

    References:
        Bonawitz et al. 2017, Figure 4, round 0: what is signed in the active-adversary variant.
    """

    signs: bool
    commits: bool
    identities: Identities | None
    insecure_seeded_secrets: bool

    @property
    def size(self) -> int:
        """Bytes that a party sends each other party with its public key, the key included."""
        if self.identities is not None:
            return SIZE + SIGNATURE
        return SIZE + VERIFY if self.signs else SIZE

    def begin(self, memory: Keys, view: PartyView, period: int) -> None:
        """Fresh keys of the hosted parties for this period; those of the last one are forgotten."""
        memory.stage = view.names.stage
        memory.period = period
        memory.session = b""
        for held in (memory.publics, memory.masks, memory.seals, memory.commitments):
            held.clear()
        seed = view.names.seed
        names = (view.names.stage, period)
        seeded = self.insecure_seeded_secrets
        memory.pairs = {
            m: KeyPair.insecure_seeded(seed, "secure layer", *names, m) if seeded else KeyPair() for m in view.parties
        }
        if self.identities is not None:
            if not memory.signers:
                memory.signers = self.identities.signers(view.parties, view.roster.parties)
                memory.verify = self.identities.publics(view.roster.parties)
        elif self.signs:
            memory.verify.clear()
            memory.signers = {m: Signer.insecure_seeded(seed, *names, m) if seeded else Signer() for m in view.parties}

    def messages(self, memory: Keys, view: PartyView) -> Iterator[Message]:
        """The messages of the hosted parties, one after the other."""
        if self.commits:
            memory.commitments = {
                party: _commitment(memory, party, pair.public) for party, pair in memory.pairs.items()
            }
            yield to_everybody(COMMITMENTS, memory.commitments, view)
            refuse_lacking(memory.commitments, exchanging(view), COMMITMENTS)  # before any public key is sent
        contents = {party: pair.public for party, pair in memory.pairs.items()}
        if self.identities is not None:
            for party, public in contents.items():
                contents[party] = public + memory.signers[party].sign(*_statement(memory, party, public))
        elif self.signs:
            contents = {party: public + memory.signers[party].public for party, public in contents.items()}
        yield to_everybody(KEYS, contents, view)

    def file(self, memory: Keys, message: Message, view: PartyView) -> bool:
        """File commitments or public keys; whether all public keys are there now.

        Raises:
            ValueError: for a sender that has sent before, and a key that the sender did not commit to, or did not sign
                for this session; names the sender. The form of the message was checked before, see ``check_opening``.
        """
        filed = memory.commitments if message.kind == COMMITMENTS else memory.publics
        for sender, piece in zip(message.senders, message.pieces, strict=True):
            content = content_of(piece)
            if message.kind == COMMITMENTS:  # a party knows its own already
                file_once(filed, sender, content, COMMITMENTS)
            elif sender in filed:  # its masks would begin anew, with words that have been used
                raise ValueError(f"party {sender} has sent public keys twice in one key period")
            else:
                self._refuse_unsigned(memory, sender, content)
                if self.identities is None and self.signs:
                    memory.verify[sender] = content[SIZE:]
                filed[sender] = content[:SIZE]
        if message.kind == COMMITMENTS or len(filed) < len(exchanging(view)):
            return False
        memory.session = sha256(b"".join(filed[party] for party in sorted(filed))).digest()
        return True

    def _refuse_unsigned(self, memory: Keys, sender: int, content: bytes) -> None:
        public = content[:SIZE]
        signature = content[SIZE:]
        if self.commits and memory.commitments.get(sender) != _commitment(memory, sender, public):
            raise ValueError(
                f"the public key of party {sender} is refused: it is not the one that it has committed to; check who "
                "carries the messages"
            )
        if self.identities is None:
            return
        if not verified(memory.verify[sender], signature, *_statement(memory, sender, public)):
            raise ValueError(
                f"the public key of party {sender} is refused: its identity key has not signed it for this session "
                f"({memory.stage}, period {memory.period}), so it was swapped or replayed on the way; check who "
                "carries the messages, and that all parties have the same identities"
            )


def exchanging(view: PartyView) -> Sequence[int]:
    """The parties that exchange keys: all, or between processes those that are called."""
    everybody = range(view.roster.parties)
    return everybody if view.renew is None else [m for m in everybody if view.called[m]]


def _statement(memory: Keys, party: int, public: bytes) -> tuple[str | int | bytes, ...]:
    """What a party's identity key signs: that this is its key for this period of this session."""
    commitments = sha256(b"".join(memory.commitments[m] for m in sorted(memory.commitments))).digest()
    return DOMAIN, commitments, memory.stage, memory.period, party, public


def _commitment(memory: Keys, party: int, public: bytes) -> bytes:
    """A hash that hides a party's fresh public key until the party sends it, and binds the party to it."""
    return sha256(encoded(("lightning_vfl key commitment", memory.stage, memory.period, party, public))).digest()


def to_everybody(kind: str, contents: Mapping[int, bytes], view: PartyView) -> Message:
    """A message of each hosted party with the same bytes for all receivers."""
    pieces = tuple(bytes_of(contents[party]) for party in view.parties)
    expanded = tuple(piece.expand(view.roster.parties, len(piece)) for piece in pieces)
    return Message(kind, "peers", view.parties, expanded, round=view.names)


def file_once(filed: dict[int, bytes], sender: int, content: bytes, kind: str) -> None:
    """Keep the content that a party has sent; if it sends again, the content has to be the same.

    Raises:
        MalformedMessage: if it is another one.
    """
    if filed.setdefault(sender, content) != content:
        raise MalformedMessage(f"party {sender} sent '{kind}' a second time, and others than before; send them once")


def bytes_of(content: bytes) -> Tensor:
    """(n,) uint8."""
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())


def content_of(piece: Tensor) -> bytes:
    """The bytes of a message that is the same for all receivers."""
    return piece[0].numpy().tobytes()
