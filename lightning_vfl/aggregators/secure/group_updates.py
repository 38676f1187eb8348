"""Model updates of a group under masks: the server learns their sum alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from lightning_vfl.aggregators.clear import group_of
from lightning_vfl.aggregators.messages import UPDATES, check_message, width_of
from lightning_vfl.aggregators.parts import SharedBottoms
from lightning_vfl.aggregators.secure.codec import Shift, note_clipped, shift_for, uniform_words
from lightning_vfl.aggregators.secure.layer import SecureLayer
from lightning_vfl.aggregators.secure.recovery import WORD
from lightning_vfl.types import Roster
from lightning_vfl.wire import Message, PartyView, ServerView


@dataclass(frozen=True)
class MaskedUpdates(SharedBottoms):
    """Updates that are quantised and masked as embeddings are (vFedSec, equation 4).

    Args:
        layer: how sums are hidden.
        clip: as in ``MaskedSum``.
        levels: as in ``MaskedSum``.
        equivalent: the same integers without masks.
    """

    layer: SecureLayer
    clip: float
    levels: int | Literal["auto"]
    equivalent: bool

    @property
    def bits(self) -> int:
        return self.layer.bits

    def tell(self, updates: Mapping[int, Tensor], view: PartyView) -> Message:
        members = tuple(sorted(updates))
        number = next(number for number, group in enumerate(view.roster.groups) if members[0] in group)
        group = tuple(sorted(view.roster.groups[number]))
        stacked = torch.stack([updates[m].detach() for m in members])
        seed, stage, round = view.names
        drawn = uniform_words((len(group), stacked.shape[1]), seed, "rounding", "updates", stage, round, number)
        rounded, share = self._codec(view.roster).to_int(stacked, drawn[[group.index(m) for m in members]])
        note_clipped(view, "clipped_update_share", share)
        words = rounded.numpy().view(WORD)
        if not self.equivalent:
            self.layer.mask(dict(zip(members, words, strict=True)), group, "updates", number, view)
        return Message(UPDATES, "server", members, tuple(torch.from_numpy(own) for own in words), round=view.names)

    def join(self, message: Message, view: ServerView) -> Tensor:
        """The sum (W,) of the updates, float64."""
        group = group_of(message, view.roster)
        shapes = dict.fromkeys(group, (width_of(message),))
        check_message(message, UPDATES, "server", shapes, torch.uint32, view.names, group)
        total = self.layer.sums.add([piece.numpy() for piece in message.pieces])
        return torch.from_numpy(self._codec(view.roster).to_real(total, len(group)))

    def _codec(self, roster: Roster) -> Shift:
        n = max(len(members) for members in self.layer.segments(roster).members)
        return shift_for(self.clip, self.levels, n, self.layer.bits)
