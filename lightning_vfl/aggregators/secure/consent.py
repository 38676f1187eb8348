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
    def _among(self) -> frozenset[int]:
        return frozenset(self.included)

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
            needed: parties that have to be in the sum.

        Raises:
            RuntimeError: for a set without the party itself, of fewer parties than needed, or with parties that were
                not called; for other called parties than those with whom it has masked.
        """
        if masked is None:
            reason = "it has sent no upload in this round"
        elif masked != self.called:
            reason = f"it masked with parties {masked} and is told that {self.called} were called"
        elif party not in self._among:
            reason = "it has sent its upload and is told that the upload is lost"
        elif not self._among <= {*self.called}:
            reason = f"{self.included} are said to be in the sum, and only {self.called} were called"
        elif len(self.included) < needed:
            reason = f"{self.included} are said to be in the sum, and at least {needed} parties have to be"
        else:
            return
        raise RuntimeError(f"party {party} signs no set of survivors of round {self.round}: {reason}")

    def refuse_unsigned(
        self, party: int, signed: Message | None, verify: "Mapping[int, bytes]", needed: int, circle: Parties
    ) -> None:
        """A party reveals nothing unless t parties of the set that are in its circle have signed exactly this set.

        Raises:
            RuntimeError: for fewer signatures, one by somebody outside the set or twice by one, and one that is not on
                this set; names the signer.
        """
        senders = () if signed is None else signed.senders
        pieces = () if signed is None else signed.pieces
        seen: set[int] = set()
        for sender, piece in zip(senders, pieces, strict=True):
            if sender not in self._among or sender in seen:
                raise RuntimeError(
                    f"party {party} reveals nothing in round {self.round}: it was handed a signature of party "
                    f"{sender}, which is not among {self.included} or is there twice"
                )
            seen.add(sender)
            if sender not in circle:  # this party has no share of theirs, and they have none of its own
                continue
            right = piece.dtype == torch.uint8 and tuple(piece.shape) == (SIGNATURE,)
            if not (right and verified(verify[sender], piece.numpy().tobytes(), DOMAIN, self.digest)):
                raise RuntimeError(
                    f"party {party} reveals nothing in round {self.round}: the signature of party {sender} is not on "
                    f"the set {self.included} that party {party} was told; the server tells parties different sets"
                )
        signing = len(seen.intersection(circle))
        if signing < needed:
            raise RuntimeError(
                f"party {party} reveals nothing in round {self.round}: {signing} parties have signed the set "
                f"{self.included}, and {needed} signatures are needed"
            )
