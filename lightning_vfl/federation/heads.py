"""A head at every party, between processes: the server has no network, relays what is sealed, and scores."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from lightning_vfl.aggregators.base import FLOAT_BITS
from lightning_vfl.aggregators.clear import EMBEDDINGS
from lightning_vfl.aggregators.messages import GRADIENTS
from lightning_vfl.federation.answers import answered, differentiated
from lightning_vfl.federation.at_party import AtParty, Evaluation, nothing_learnt
from lightning_vfl.federation.at_server import AtServer
from lightning_vfl.federation.attendance import OUTPUTS
from lightning_vfl.federation.collecting import Uploads
from lightning_vfl.federation.hub import At, Key
from lightning_vfl.federation.link import RoundClosed
from lightning_vfl.federation.turns import at_of
from lightning_vfl.missing import Exclude, MissingPolicy, Skip
from lightning_vfl.protocols.heads import mean_of_holders
from lightning_vfl.protocols.step import Step
from lightning_vfl.types import Roll, RoundNames, Stage, Tensors, VerticalBatch, mask_of
from lightning_vfl.wire import Leg, Message, PartyView

if TYPE_CHECKING:
    from lightning_vfl.protocols.heads import HeadsVFL
    from lightning_vfl.protocols.laser import LaserVFL


@final
class HeadsAtServer(AtServer):
    """The server's part of ``EnsembleVFL`` and ``LaserVFL``.

    Guarantee: where parties exchange embeddings, a round is made by all of them or given up. Else everybody learns
        alone, also if others are away.
    """

    all_answer = True

    def policy(self, module: "HeadsVFL") -> MissingPolicy:
        return Skip() if module.exchanges and module.stage == Stage.FIT else Exclude()

    def step(self, module: Any, batch: VerticalBatch, names: RoundNames) -> Step:
        """Relay what the parties send each other, and note who has learnt."""
        at = at_of(module, names, 0)
        rows = len(batch.record_ids)
        attendance = self.begin(module, batch, names, at)
        uploads = self.collector.collect(attendance, module.training_legs(rows))
        included = uploads.roll.included
        whole = bool(uploads.messages) and torch.equal(uploads.sent[-1] & included, included)
        plan = uploads.plan(not whole, legs=1)
        module.enter(rows, None if self.injected else plan)
        self.note(names, plan)
        requests = {party: attendance.accepted[party] for party in plan.learning}
        with self.calls.ending(at, plan, requests) as header:
            self.collector.relay(Key(at, uploads.turn), requests, header)
        if not whole:
            return Step(None)
        losses = [request.frame.header.get("loss", nan) for request in requests.values()]
        return replace(nothing_learnt(module), logged=torch.tensor(losses).sum())

    def evaluation_legs(self, module: "HeadsVFL", batch: VerticalBatch) -> Sequence[Leg]:
        outputs = module.objective.outputs(module.hparams["num_classes"])
        rows = len(batch.record_ids)
        told = Leg(OUTPUTS, "server", torch.full((self.hub.parties,), rows * outputs), FLOAT_BITS)
        return (*module.training_legs(rows)[:-1], told)

    def joined_output(self, module: "HeadsVFL", batch: VerticalBatch, names: RoundNames, uploads: Uploads) -> Tensor:
        message = uploads.messages[-1]
        came = message.by_sender
        absent = torch.zeros_like(message.pieces[0])
        outputs = torch.stack([came.get(party, absent) for party in range(self.hub.parties)])
        here = mask_of(came, self.hub.parties)
        return mean_of_holders(outputs, Roll.of(here).holders(outputs[0], batch.present))


@final
class HeadsAtParty(AtParty):
    """One party's part of ``EnsembleVFL`` and ``LaserVFL``: it learns from its own loss, and from those of others.

    Guarantee: the server reads no embedding and no gradient. It gets the loss of each training round, and outputs of
        the party's head in evaluations.
    """

    def step(self, module: "HeadsVFL", batch: VerticalBatch, names: RoundNames) -> Step:
        """Learn from the own loss, and from the gradients of the others where parties exchange embeddings."""
        at = at_of(module, names, 0)
        called = self.called(module, at)
        if called is None:
            return Step(None)
        view = module.party_view(batch, names, called, (self.party,))
        learn: Any = self._exchange if module.exchanges else self._alone
        loss: Tensor | None = None
        with suppress(RoundClosed):
            loss = learn(module, batch, view, at)
        told = None if self.injected else self.told(module)
        if self.injected or told is not None:
            module.enter(view.rows.total, told)
        return Step(loss, (self.party,))

    def _alone(self, module: "HeadsVFL", batch: VerticalBatch, view: PartyView, at: At) -> Tensor:
        """The party's own loss."""
        (loss,) = module.losses(batch, view.names, (self.party,))
        nothing = loss.new_empty((0, module.embedding_widths[self.party]))
        message = self.message(EMBEDDINGS, "server", nothing, view.names)
        self.tell_server(module, message, 0, Key(at, 0), loss=loss.item())
        return loss

    def _exchange(self, module: "LaserVFL", batch: VerticalBatch, view: PartyView, at: At) -> Tensor:
        """A loss of zero with the gradients of all heads."""
        embedding = module.bottoms.one(self.party, batch.features[self.party])
        h, _ = self._hear(module, embedding, view, at)
        leaves = tuple(x.requires_grad_() for x in h)
        loss = module.loss_of(self.party, leaves, batch, module.subsets(batch, view.names))
        sent, grads, parameters = differentiated(loss, leaves, module.parameters())
        message = self.message(GRADIENTS, "peers", torch.stack(sent), view.names)
        told, _ = self.tell_peers(module, message, view, Key(at, 1), loss=loss.item())
        back = [self.opened_piece(module, one, embedding.shape) for one in told]
        return answered((torch.stack(back).sum(0), *grads), (embedding, *parameters))

    def _hear(self, module: "HeadsVFL", embedding: Tensor, view: PartyView, at: At) -> tuple[Tensors, Roll]:
        """Send the embedding to all others; the M embeddings (B, D), and whose have come: zeros are in their place."""
        parties = module.roster.parties
        piece = embedding.detach().expand(parties, *embedding.shape)
        message = self.message(EMBEDDINGS, "peers", piece, view.names)
        told, _ = self.tell_peers(module, message, view, Key(at, 0))
        heard = {one.senders[0]: self.opened_piece(module, one, embedding.shape) for one in told}
        # zeros of the same type on the same device, also if nobody was heard; each its own leaf of the graph
        h = tuple(heard[m] if m in heard else torch.zeros_like(embedding) for m in range(parties))
        return h, Roll.of(mask_of(heard, parties))

    def evaluate(self, module: "HeadsVFL", batch: VerticalBatch, turn: Evaluation) -> Message | None:
        """Send the output of this party's head."""
        view = module.party_view(batch, turn.names, turn.called, (self.party,))
        roll = turn.roll
        with torch.no_grad():
            embedding = module.bottoms.one(self.party, batch.features[self.party])
            h: Tensors = (embedding,) * module.roster.parties
            if module.exchanges:
                h, roll = self._hear(module, embedding, view, turn.at)
            output = module.head_of(self.party, module.inputs(h, roll, batch.present)[self.party])
        message = self.message(OUTPUTS, "server", output, turn.names)
        last = Key(turn.at, int(module.exchanges))
        return self.answer(module, self.tell_server(module, message, len(output), last))
