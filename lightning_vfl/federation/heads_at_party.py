"""One party's part of protocols with a head at every party: it learns from its own loss, and from those of others."""

from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from lightning_vfl.aggregators.clear import EMBEDDINGS
from lightning_vfl.aggregators.messages import GRADIENTS
from lightning_vfl.federation.answers import answered, differentiated
from lightning_vfl.federation.at_party import AtParty, Evaluation
from lightning_vfl.federation.attendance import OUTPUTS
from lightning_vfl.federation.hub import Key
from lightning_vfl.federation.told_plans import plan_of
from lightning_vfl.federation.turns import at_of
from lightning_vfl.protocols.step import Step
from lightning_vfl.types import Roll, RoundNames, VerticalBatch, mask_of
from lightning_vfl.wire import Message, PartyView

if TYPE_CHECKING:
    from lightning_vfl.protocols.heads import HeadsVFL
    from lightning_vfl.protocols.laser import LaserVFL


@final
class HeadsAtParty(AtParty):
    """One party's part of ``EnsembleVFL`` and ``LaserVFL``.

    Guarantee: the server reads no embedding and no gradient. It gets the loss of each training round, and outputs of
        the party's head in evaluations.
    """

    def step(self, module: "HeadsVFL", batch: VerticalBatch, names: RoundNames) -> Step:
        """Learn from the own loss, and from the gradients of the others where parties exchange embeddings."""
        at = at_of(module, names, 0)
        called = torch.ones(module.roster.parties, dtype=torch.bool)
        if not self.injected:
            if not self.is_called(module, Key(at, 0)):
                return Step(None)
            called = mask_of(self.link.standing.called, module.roster.parties)
            self.refuse_few(called)
        view = module.party_view(batch, names, called, (self.party,))
        learn: Any = self._exchange if module.exchanges else self._alone
        loss = learn(module, batch, view, Key(at, 0))
        if self.injected:
            module.enter(view.rows.total)
        elif self.link.told is not None:
            module.enter(view.rows.total, plan_of(self.link.told, module.roster.parties))
        return Step(loss, (self.party,))

    def _alone(self, module: "HeadsVFL", batch: VerticalBatch, view: PartyView, key: Key) -> Tensor | None:
        """The party's own loss; None: the others have gone on without this party."""
        (loss,) = module.losses(batch, view.names, (self.party,))
        nothing = loss.new_empty((0, module.embedding_widths[self.party]))
        message = Message(EMBEDDINGS, "server", (self.party,), (nothing,), round=view.names)
        frame = self.tell_server(module, message, 0, key, loss=loss.item())
        return None if frame is None else loss

    def _exchange(self, module: "LaserVFL", batch: VerticalBatch, view: PartyView, key: Key) -> Tensor | None:
        """A loss of zero with the gradients of all heads; None: the round is given up."""
        embedding = module.bottoms.one(self.party, batch.features[self.party])
        heard = self._hear(module, embedding, view, key)
        if heard is None:
            return None
        leaves = tuple(x.requires_grad_() for x in heard[0])
        loss = module.loss_of(self.party, leaves, batch, module.subsets(batch, view.names))
        sent, grads, parameters = differentiated(loss, leaves, module.parameters())
        message = Message(GRADIENTS, "peers", (self.party,), (torch.stack(sent),), round=view.names)
        told = self.tell_peers(module, message, view, Key(key.at, 1), {"part": "upload", "loss": loss.item()})
        if told is None:
            return None
        back = [self._checked(module, one, embedding) for one in told[0]]
        return answered((torch.stack(back).sum(0), *grads), (embedding, *parameters))

    def _hear(
        self, module: "HeadsVFL", embedding: Tensor, view: PartyView, key: Key
    ) -> tuple[tuple[Tensor, ...], Roll] | None:
        """Send the embedding to all others; the M embeddings (B, D), and whose have come: zeros are in their place."""
        parties = range(module.roster.parties)
        piece = embedding.detach().expand(len(parties), *embedding.shape)
        message = Message(EMBEDDINGS, "peers", (self.party,), (piece,), round=view.names)
        told = self.tell_peers(module, message, view, key, {"part": "upload"})
        if told is None:
            return None
        heard = {one.senders[0]: self._checked(module, one, embedding) for one in told[0]}
        roll = Roll.of(mask_of(heard, len(parties)))
        return tuple(heard[m] if m in heard else torch.zeros_like(embedding) for m in parties), roll

    def _checked(self, module: "HeadsVFL", message: Message, like: Tensor) -> Tensor:
        """What a party has sealed for this one: numbers of this shape."""
        who = self.link.agreed.party(message.senders[0])
        (piece,) = self.refuse_absurd(message.kind, message.pieces, [(1, *like.shape)], module, who)
        return piece[0].to(like.device)

    def evaluate(self, module: "HeadsVFL", batch: VerticalBatch, turn: Evaluation) -> Message | None:
        """Send the output of this party's head."""
        self.refuse_few(turn.called)
        view = module.party_view(batch, turn.names, turn.called, (self.party,))
        with torch.no_grad():
            embedding = module.bottoms.one(self.party, batch.features[self.party])
            key = turn.key
            roll = turn.roll
            h: tuple[Tensor, ...] = (embedding,) * module.roster.parties
            if module.exchanges:
                heard = self._hear(module, embedding, view, key)
                if heard is None:
                    return None
                h, roll = heard
                key = Key(key.at, key.turn + 1)
            output = module.head_of(self.party, module.inputs(h, roll, batch.present)[self.party])
        message = Message(OUTPUTS, "server", (self.party,), (output,), round=turn.names)
        return self.answer(module, self.tell_server(module, message, len(output), key))
