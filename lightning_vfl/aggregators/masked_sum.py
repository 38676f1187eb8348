"""vFedSec: embeddings are quantised and masked; the masks cancel in the sum, which is all that the server learns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from lightning_vfl.aggregators.clear import checked_group
from lightning_vfl.aggregators.messages import UPDATES
from lightning_vfl.aggregators.parts import SharedBottoms
from lightning_vfl.aggregators.secure.codec import Shift, note_clipped, shift_for, uniform_words
from lightning_vfl.aggregators.secure.integer_sum import IntegerSum
from lightning_vfl.aggregators.secure.layer import SecureLayer
from lightning_vfl.aggregators.secure.neighbours import Neighbours
from lightning_vfl.aggregators.secure.recovery import WORD, Recovery
from lightning_vfl.checks import one_of
from lightning_vfl.crypto import Identities
from lightning_vfl.types import Roster
from lightning_vfl.wire import Message, PartyView, ServerView

RING_BITS = 32  # vFedSec section 3.5: uint32


@dataclass(frozen=True)
class MaskedUpdates(SharedBottoms):
    """Updates that are quantised and masked as embeddings are (vFedSec, equation 4).

    Args:
        layer: how sums are hidden.
        codec: how updates among these parties become integers: as embeddings do.
        equivalent: the same integers without masks.
    """

    layer: SecureLayer
    codec: Callable[[Roster], Shift]
    equivalent: bool

    @property
    def bits(self) -> int:
        return self.layer.bits

    def tell(self, updates: Mapping[int, Tensor], view: PartyView) -> Message:
        members = tuple(sorted(updates))
        number, group = next(
            (number, sorted(group)) for number, group in enumerate(view.roster.groups) if members[0] in group
        )
        stacked = torch.stack([updates[party].detach() for party in members])
        seed, stage, round = view.names
        # words for the whole group, so that a member rounds alike alone and among others
        shape = len(group), stacked.shape[1]
        of_group = uniform_words(shape, seed, "rounding", "updates", stage, round, number)
        drawn = of_group[[group.index(party) for party in members]]
        integers, share = self.codec(view.roster).to_int(stacked, drawn)
        note_clipped(view, "clipped_update_share", share)
        words = integers.numpy().view(WORD)
        if not self.equivalent:
            by_member = dict(zip(members, words, strict=True))
            self.layer.mask(by_member, tuple(group), "updates", number, view)
        return Message(UPDATES, "server", members, torch.from_numpy(words).unbind(0), round=view.names)

    def join(self, message: Message, view: ServerView) -> Tensor:
        """The sum (W,) of the updates, float64."""
        group = checked_group(message, torch.uint32, view)
        total = self.layer.sums.add([piece.numpy() for piece in message.pieces])
        return torch.from_numpy(self.codec(view.roster).to_real(total, len(group)))


class MaskedSum(IntegerSum):
    r"""The sum of embeddings of any networks, of which the server sees the sum alone: vFedSec's Secure Layer.

    Every pair of parties agrees on a key (X25519, HKDF-SHA256). In a round a party clips its embedding to [-t, t],
    rounds it stochastically to R levels, adds a mask for each party of higher number and subtracts one for each of
    lower number (AES-256-CTR), modulo 2^32. In the sum over all members of a set the masks cancel. In sets of 32 and
    more, a party shares masks with its neighbours in a random ring alone (``neighbours``).

    Layout ``sum``: the set is all called parties, and the embeddings add up to D columns. Layout ``segments``: passive
    group i owns columns [iD, (i + 1)D) of the joint embedding; the active party C_0 adds to all columns and gives an
    embedding of all of them. Here a set is a group and C_0, so that a group can vanish without the others.

    Shapes: h_m (B, D), of C_0 in ``segments`` (B, G D) for G passive groups; value (B, D) or (B, G D).
    Units: uploads in ring elements of 32 bits, gradients in float32.
    Guarantee: to the server and any members that collude with it, the others' uploads are computationally
        indistinguishable from uniform words with the same sum (Lemma 4.1). With ``neighbours`` this is so for the
        stated share of colluders, but with a stated probability for each set of members in a key period. The value is
        the sum of the clipped embeddings to n 2t/R, n the members; exactly zero where all members are zero. Keys are
        fresh in every period of ``rekey_every`` rounds and after every resume.
    Not guaranteed: protection of the information that is in the sums, and of gradients, which are sent in the clear;
        protection against parties that deviate from the protocol. A server that colludes with all members of a set but
        one knows that member's embedding: in ``segments`` that takes one colluder, a passive party for C_0's columns of
        its segment, C_0 for all others. With ``recovery``, a server that colludes with t of n parties reads everything,
        and a server that lies about who is called or lost needs 2t - n; with ``neighbours``, either needs more than the
        stated share. Without ``identities`` the server is trusted not to replace public keys. The sum of a group's
        model updates determines the group's records if it has more numbers than they have (``SplitVFL`` refuses that).
        All members of a group but one have that one's update.

    Args:
        layout: ``sum`` or ``segments``.
        clip: t; log ``aggregator/clipped_share`` says how much it cuts off.
        levels: R, or ``auto``: the largest power of two that fits the ring, at most 2^27.
        rekey_every: K, rounds after which all keys are renewed, in training and in evaluation.
        allow_single: accept sets in which a group's embedding stands alone, and groups of two parties, of which each
            can subtract its own model update; the summary names them.
        recovery: ``{threshold: t}`` or ``auto``, for layout ``sum``: parties may vanish between masking and upload.
            Every round's mask seeds are secret-shared t of n (Shamir) when keys are renewed. Any t survivors remove the
            masks that did not cancel, once they have signed who survives. ``auto``: ⌊2n/3⌋ + 1, or with ``neighbours``
            as many of a party and its neighbours as are left if ``dropouts`` of all parties are not there.
        neighbours: ``all``: every pair of a sum shares a mask. ``{colluders: 1/3, failure: 2^-40, smallest: 32}``: from
            ``smallest`` members on, a party shares masks with as few others as that share of colluders and that
            probability allow; with ``recovery: auto`` its secrets too, and ``dropouts: 0.05`` of all parties may be
            lost or absent in a round. ``auto``: these numbers. With an explicit threshold, always every pair.
        execution: ``masked`` does all of this; ``equivalent`` computes the same integers without masks, to the same
            bits, with the same bytes and virtual seconds in the books.
        insecure_seeded_secrets: keys from a named stream instead of the operating system; for tests only.
        identities: a folder of identity keys, made by ``lightning-vfl keys``, with which the parties sign their public
            keys; no result depends on it.

    Raises:
        ConfigurationError: before training, for sets that hide nothing and levels that overflow the ring; in a round,
            for embeddings that are not finite.

    Examples:
        >>> roster = Roster(((0,), (1,), (2,)), active=0)
        >>> MaskedSum(layout="segments").widths(64, roster), MaskedSum(layout="segments").out_width(64, roster)
        ((128, 64, 64), 128)

    References:
        Qiu et al., "Secure Vertical Federated Learning Under Unreliable Connectivity" (vFedSec), sections 3.2 to 3.5.
        Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017, Figure 4 with
        its consistency check.
        Bell et al., "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS 2020, section 3.
    """

    private_evaluation: ClassVar[bool] = True
    incidental: ClassVar[tuple[str, ...]] = (
        "rekey_every",
        "neighbours",
        "execution",
        "insecure_seeded_secrets",
        "identities",
    )

    def __init__(
        self,
        layout: Literal["sum", "segments"] = "sum",
        clip: float = 4.0,
        levels: int | Literal["auto"] = "auto",
        rekey_every: int = 5,
        allow_single: bool = False,
        recovery: Recovery | Literal["auto"] | None = None,
        neighbours: Neighbours | Literal["auto", "all"] = "auto",
        execution: Literal["masked", "equivalent"] = "masked",
        insecure_seeded_secrets: bool = False,
        identities: str | None = None,
    ) -> None:
        Shift(clip, 2 if levels == "auto" else levels)
        self.layout = layout
        self.clip = clip
        self.levels = levels
        self.rekey_every = rekey_every
        self.allow_single = allow_single
        self.recovery = Recovery.of(recovery)
        self.neighbours = neighbours
        self.execution = one_of("execution", execution, ("masked", "equivalent"))
        self.insecure_seeded_secrets = insecure_seeded_secrets
        self.identities = identities
        known = None if identities is None else Identities(identities)
        layer = SecureLayer(
            layout,
            RING_BITS,
            rekey_every,
            allow_single,
            self.recovery,
            Neighbours.read(neighbours),
            insecure_seeded_secrets,
            known,
        )
        super().__init__(layer, execution == "equivalent")

    def codec(self, roster: Roster) -> Shift:
        return shift_for(self.clip, self.levels, self._layer.segments(roster).largest, RING_BITS)

    @property
    def shared_bottoms(self) -> MaskedUpdates:
        return MaskedUpdates(self._layer, self.codec, self._equivalent)
