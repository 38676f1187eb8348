"""vFedSec's Secure Layer on integers, the parties' half: who may be summed, masks that cancel, and recovery."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from lightning_vfl.aggregators.messages import check_message, refuse_lacking
from lightning_vfl.aggregators.secure.consent import SIGNED, Survivors
from lightning_vfl.aggregators.secure.neighbours import Neighbours
from lightning_vfl.aggregators.secure.period_keys import KEYS, KeyExchange, bytes_of
from lightning_vfl.aggregators.secure.recovery import (
    LIMBS,
    MASKS,
    REVEALED,
    ROUND_KEYS,
    SELF,
    Recovery,
    Sharing,
    Vault,
    round_masks,
)
from lightning_vfl.aggregators.secure.ring_sums import RingSums, Segments, segments
from lightning_vfl.checks import one_of, positive
from lightning_vfl.crypto import Identities, MaskNames, add_together, ring
from lightning_vfl.crypto.identities import SIGNATURE
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.types import Parties, Roster, numbers_in
from lightning_vfl.wire import Message, PartyView

if TYPE_CHECKING:
    from numpy.typing import NDArray

    UInts = NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class SecureLayer:
    r"""Sums of integers in Z_{2^bits} over sets of parties, of which the server learns the sums alone.

    Args:
        layout: which sums there are.
        bits: of the ring, at most 32.
        rekey_every: K, rounds after which all keys are renewed; round r is in key period ⌊r/K⌋.
        allow_single: accept a sum of a single group's embeddings, which hides nothing, and groups of two parties.
        recovery: lets parties vanish between masking and upload; None: then the round is lost.
        neighbours: with how many others a party shares masks; None: with all.
        insecure_seeded_secrets: keys from a named stream instead of the operating system; for tests only.
        identities: long-lived signing keys of the parties, with which they sign their public keys; None: no signatures.

    References:
        Qiu et al., "Secure Vertical Federated Learning Under Unreliable Connectivity" (vFedSec), sections 3.2 to 3.4.
    """

    layout: Literal["sum", "segments"] = "sum"
    bits: int = 32
    rekey_every: int = 5
    allow_single: bool = False
    recovery: Recovery | None = None
    neighbours: Neighbours | None = None
    insecure_seeded_secrets: bool = False
    identities: Identities | None = None

    def __post_init__(self) -> None:
        one_of("layout", self.layout, ("sum", "segments"))
        positive("rekey_every", self.rekey_every, whole=True)
        if self.recovery is not None and self.layout == "segments":
            raise ConfigurationError(
                "recovery is for layout: sum; in layout: segments a lost party's group vanishes without the others"
            )

    def exchange(self, roster: Roster) -> KeyExchange:
        """How parties learn each other's public keys."""
        largest = max(self.segments(roster).largest, *map(len, roster.groups))
        rings = self.shared_with(largest) is not None or self.masked_with(roster.parties) is not None
        commits = self.identities is not None or rings
        return KeyExchange(self.recovery is not None, commits, self.identities, self.insecure_seeded_secrets)

    @cached_property
    def sums(self) -> RingSums:
        """The server's half, which has no keys."""
        return RingSums(self.layout, self.bits, self.sharing)

    @cached_property
    def sharing(self) -> Sharing | None:
        """With recovery: among whom secrets are shared."""
        return None if self.recovery is None else Sharing(self.recovery, self.neighbours)

    # ---- which sums there are, and of whom

    @cached_property
    def segments(self) -> Callable[[Roster], Segments]:
        """Gives the sums among some parties."""
        return partial(segments, self.layout)

    def check(self, roster: Roster) -> None:
        """Refuse sets whose sum is one party's embedding, and groups whose sum of updates is one party's update.

        Members of one group hold different records, so a row has one contributor a GROUP; only other groups hide it. In
        a group of two, each member can subtract its own model update from the sum and has the other's.

        Raises:
            ConfigurationError: before training.
        """
        if self.layout == "segments" and not roster.passive:
            raise ConfigurationError("layout: segments has a segment for each passive group, and there is none")
        if self.recovery is not None:
            self.recovery.needed(roster.parties)
        if self.identities is not None:
            self.identities.signers(range(roster.parties), roster.parties)
        alone = self.exposed(roster)
        if alone and not self.allow_single:
            who = f"group {roster.groups[alone[0]]}"
            remedy = (
                "let an active party with features take part (model.active: its number), use layout: sum, or accept it "
                "with allow_single: true"
                if self.layout == "segments"
                else "use more parties, or accept it with allow_single: true"
            )
            raise ConfigurationError(
                f"the masked sum of {who} has no other contributor to a record: the sum IS its embedding, nothing "
                f"would be hidden; {remedy}"
            )
        pairs = [group for group in roster.shared if len(group) == 2]
        if pairs and not self.allow_single:
            raise ConfigurationError(
                f"group {pairs[0]} has two parties, and each of them can subtract its own model update from their sum; "
                "use groups of three or more, or accept it with allow_single: true"
            )

    def exposed(self, roster: Roster) -> Parties:
        """The groups whose embeddings stand alone in a sum."""
        alone = []
        for members in self.segments(roster).members:
            inside = [number for number, group in enumerate(roster.groups) if set(group) & set(members)]
            alone += inside if len(inside) < 2 else []
        return tuple(alone)

    def refuse_alone(self, members: Parties, roster: Roster) -> None:
        """Refuse an upload into a sum of a single group, right before it is sent.

        Raises:
            ConfigurationError: naming the members.
        """
        if not self.allow_single and _groups_among(members, roster) < 2:
            raise ConfigurationError(
                f"parties {list(members)} alone would be summed, and the sum IS an embedding of theirs; let more take "
                "part, or accept it with allow_single: true"
            )

    def takes_part(self, called: Tensor, arrived: Tensor, roster: Roster) -> Tensor:
        """(M,) bool: of the parties whose uploads have arrived, those the server can use; nobody: the round is lost."""
        usable = roster.whole(arrived)
        nobody = torch.zeros_like(arrived)
        if self.layout == "sum":
            if self.recovery is None and not torch.equal(arrived, called):
                return nobody  # a mask is missing, and nothing cancels
        elif roster.active is not None and not usable[roster.active]:
            return nobody
        groups = sum(bool(usable[list(group)].all()) for group in roster.groups)
        return usable if groups >= (1 if self.allow_single else 2) else nobody

    # ---- masks

    def shared_with(self, members: int) -> int | None:
        """With how many others each of so many members shares a mask without recovery; None: with all of them."""
        return None if self.neighbours is None else self.neighbours.of(members)

    def masked_with(self, members: int) -> int | None:
        """With how many others each member of a sum of embeddings shares a mask; None: with all of them."""
        return self.shared_with(members) if self.sharing is None else self.sharing.neighbours(members)

    def colluders(self, roster: Roster) -> int:
        """How many parties of the largest sum may collude with the server, so that it reads the others' sum alone."""
        largest = self.segments(roster).largest
        if self.neighbours is None or self.masked_with(largest) is None:
            return largest - 2
        return min(self.neighbours.colluding(largest), largest - 2)

    def mask(
        self, values: Mapping[int, "UInts"], members: Sequence[int], purpose: str, segment: int, view: PartyView
    ) -> None:
        """Turn hosted parties' integers into uploads: uniform words, whose masks cancel over the members. In place."""
        names = view.names
        memory = view.memory
        refuse_lacking(memory.publics, members, KEYS)
        name = MaskNames(purpose, names.stage, segment, view.rows.start, memory.period)
        neighbours = self.shared_with(len(members))
        graph = None if neighbours is None else ring(tuple(members), neighbours, memory.session)
        add_together(memory.masks, values, members, name, names.round, graph)

    def mask_for_recovery(self, values: "UInts", party: int, members: Sequence[int], view: PartyView) -> bytes:
        """The same with masks that survivors can remove for this round; returns what the party tells the server."""
        round = view.names.round
        vault: Vault = view.memory.vault
        refuse_lacking(vault.publics, vault.partners(party, members), ROUND_KEYS)
        vault.mask(party, values, members, round_masks(view.names, view.rows), round, self.bits)
        return vault.public(party, round) + vault.session

    # ---- recovery

    def consent(self, included: Tensor, view: PartyView) -> Message:
        """Each hosted party's signature of who is in the sum; the server relays them to the parties that answer.

        Raises:
            RuntimeError: for a set that a party does not sign.
        """
        survivors = self._survivors(included, view)
        memory = view.memory
        signed = (memory.vault.sign(party, survivors, memory.signers[party]) for party in view.parties)
        signatures = tuple(bytes_of(signature) for signature in signed)
        return Message(SIGNED, "server", view.parties, signatures, round=view.names, relayed=True)

    def reveal(self, included: Tensor, view: PartyView, signed: Message | None) -> Message:
        """A share for each party that a holder has masked with: of its self-mask if included, else of its mask seed.

        The shares stand at the places of the holder's circle, zeros where there is none.

        Raises:
            RuntimeError: unless the party has signed this set of survivors, and t members of its circle have.
        """
        vault = view.memory.vault
        survivors = self._survivors(included, view)
        if signed is not None:
            shapes = dict.fromkeys(survivors.called, (SIGNATURE,))
            check_message(signed, SIGNED, "server", shapes, torch.uint8, view.names)
        included_parties = {*survivors.included}
        pieces = []
        for holder in view.parties:
            if vault.signed.get((holder, survivors.round)) != survivors:
                raise RuntimeError(
                    f"party {holder} reveals nothing in round {survivors.round}: it has not signed the set "
                    f"{survivors.included}"
                )
            circle = vault.circles[holder]
            survivors.refuse_unsigned(holder, signed, view.memory.verify, vault.needed, circle)
            piece = torch.zeros(len(circle), LIMBS, dtype=torch.int64)
            for owner in vault.partners(holder, survivors.called):
                kind = SELF if owner in included_parties else MASKS
                piece[circle.index(owner)] = vault.reveal(holder, owner, survivors.round, kind)
            pieces.append(piece)
        return Message(REVEALED, "server", view.parties, tuple(pieces), round=view.names)

    def _survivors(self, included: Tensor, view: PartyView) -> Survivors:
        """What the hosted parties are told of a round; refused if a single group would be in the sum."""
        called, left = (tuple(numbers_in(who)) for who in (view.called, included))
        self.refuse_alone(left, view.roster)
        return Survivors(view.memory.session, view.names.stage, view.names.round, called, left)


@lru_cache(maxsize=1024)
def _groups_among(members: Parties, roster: Roster) -> int:
    return sum(any(m in members for m in group) for group in roster.groups)
