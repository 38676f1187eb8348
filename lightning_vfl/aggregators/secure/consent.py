"""The consistency round of recovery: parties sign who is in the sum, and reveal shares only to t equal signatures."""

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING

import torch

from lightning_vfl.crypto import verified
from lightning_vfl.crypto.identities import SIGNATURE
from lightning_vfl.crypto.keys import encoded
from lightning_vfl.types import Parties
from lightning_vfl.wire import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lightning_vfl.crypto import Signer

SIGNED = "survivor signatures"
LISTS = "signature lists"  # what parties send, and what the server hands on
DOMAIN = "lightning_vfl survivors"  # what is signed here, and nothing else


@dataclass(frozen=True)
class Survivors:
    """The statement of the server about a round whose uploads are closed; the parties sign it.

    Args:
        session: a hash of everybody's public keys of the period.
        stage: of the round.
        round: its number.
        called: the parties that were called, in order.
        included: those whose uploads are in the sum, in order.
    """

    session: bytes
    stage: str
    round: int
    called: Parties
    included: Parties

    @cached_property
    def digest(self) -> bytes:
        """A hash of an injective encoding of everything above."""
        lists = (len(self.called), *self.called, len(self.included), *self.included)
        return sha256(encoded((self.session, self.stage, self.round, *lists))).digest()

    def signed_by(self, signer: "Signer") -> bytes:
        """A party's signature, 64 bytes."""
        return signer.sign(DOMAIN, self.digest)

    def refuse(self, party: int, masked: Parties | None, needed: int) -> None:
        """Refuse a statement that would let the server read the party's upload.

        Args:
            party: who is asked to sign.
            masked: the called parties with whom it has masked its upload; None: it has sent none.
            needed: t, shares that give a secret back.

        Raises:
            RuntimeError: for a set without the party itself, of fewer than t parties, or with parties that were not
                called; for other called parties than those with whom it has masked.
        """
        said = f"{self.included} are said to be in the sum"
        reasons = {
            "it has sent no upload in this round": masked is None,
            f"it masked with parties {masked} and is told that {self.called} were called": masked != self.called,
            "it has sent its upload and is told that the upload is lost": party not in self.included,
            f"{said}, and only {self.called} were called": not set(self.included) <= set(self.called),
            f"{said}, and at least {needed} parties have to be": len(self.included) < needed,
        }
        for reason, holds in reasons.items():
            if holds:
                raise RuntimeError(f"party {party} signs no set of survivors of round {self.round}: {reason}")

    def refuse_unsigned(self, party: int, signed: Message | None, verify: "Mapping[int, bytes]", needed: int) -> None:
        """A party reveals nothing unless t parties of the set have signed exactly this set.

        Raises:
            RuntimeError: for fewer signatures, one by somebody outside the set or twice by one, and one that is not on
                this set; names the signer.
        """
        senders = () if signed is None else signed.senders
        pieces = () if signed is None else signed.pieces
        for sender, piece in zip(senders, pieces, strict=True):
            if sender not in self.included or senders.count(sender) > 1:
                raise RuntimeError(
                    f"party {party} reveals nothing in round {self.round}: it was handed a signature of party "
                    f"{sender}, which is not among {self.included} or is there twice"
                )
            right = piece.dtype == torch.uint8 and tuple(piece.shape) == (SIGNATURE,)
            if not (right and verified(verify[sender], piece.numpy().tobytes(), DOMAIN, self.digest)):
                raise RuntimeError(
                    f"party {party} reveals nothing in round {self.round}: the signature of party {sender} is not on "
                    f"the set {self.included} that party {party} was told; the server tells parties different sets"
                )
        if len(senders) < needed:
            raise RuntimeError(
                f"party {party} reveals nothing in round {self.round}: {len(senders)} parties have signed the set "
                f"{self.included}, and {needed} signatures are needed"
            )
