"""Model updates of a group under masks: the server learns their sum alone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lightning_vfl.aggregators.clear import checked_group
from lightning_vfl.aggregators.messages import UPDATES
from lightning_vfl.aggregators.parts import SharedBottoms
from lightning_vfl.aggregators.secure.codec import Shift, note_clipped, uniform_words
from lightning_vfl.aggregators.secure.layer import SecureLayer
from lightning_vfl.aggregators.secure.recovery import WORD
from lightning_vfl.types import Roster
from lightning_vfl.wire import Message, PartyView, ServerView


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
