"""One party's part of decoupled training: it learns by itself, and sends embeddings without an answer about them."""

from typing import TYPE_CHECKING, final

from lightning_vfl.aggregators.clear import EMBEDDINGS
from lightning_vfl.federation.at_party import nothing_learnt
from lightning_vfl.federation.hub import At, Key
from lightning_vfl.federation.last_upload import SendsLastUpload
from lightning_vfl.federation.letters import Seals
from lightning_vfl.federation.link import Link
from lightning_vfl.federation.told_plans import plan_of
from lightning_vfl.federation.turns import at_of
from lightning_vfl.protocols.decoupled.collection import in_parts
from lightning_vfl.protocols.step import Step
from lightning_vfl.types import RoundNames, VerticalBatch
from lightning_vfl.wire import Message

if TYPE_CHECKING:
    from lightning_vfl.protocols.decoupled import DecoupledVFL


@final
class DecoupledAtParty(SendsLastUpload):
    """One guest's part of ``DecoupledVFL``, and that of the owner if this party has the labels.

    Args:
        link: the line to the server.
        party: the number of the party.
        seals: channels to the other parties.
        injected: faults are played from the recipe; else the server says who is called.
    """

    def __init__(self, link: Link, party: int, seals: Seals, injected: bool) -> None:
        super().__init__(link, party, seals, injected)
        self._given = False  # whether this process has sent its embeddings of the owner's records

    def step(self, module: "DecoupledVFL", batch: VerticalBatch, names: RoundNames) -> Step:
        """Learn from the party's own columns, and send the embeddings in an epoch that communicates."""
        at = at_of(module, names, 0)
        if module.phase == "owner":
            if not self._given and self.takes_part(module, at):
                self._send_final(module, at, names)
            if self.injected:
                module.enter_owner_step(len(batch.record_ids))
            if not module.scores_here:
                return nothing_learnt(module)
            return module.owner_step(batch, names) if self._given else Step(None)
        iteration = module.begin_iteration()
        is_there = bool(iteration.alive[self.party])
        if module.phase == "replay" or not is_there or not self.takes_part(module, at):
            return nothing_learnt(module)
        loss, embedding = module.guest_step(self.party, batch, names)
        sent = embedding if module.communicates(module.current_epoch) else embedding[:0]  # no row: it has learnt
        message = Message(EMBEDDINGS, "server", (self.party,), (sent,), round=names)
        if self.tell_server(module, message, len(sent), Key(at, 0)) is None:
            return nothing_learnt(module)
        if self.link.told is not None:
            plan = plan_of(self.link.told, module.roster.parties)
            module.clock.advance(plan.seconds)
            module.books.mini_batches += int(plan.roll.included.sum())
            if len(sent):
                module.enter_communication(len(sent), plan.roll.included)
        return Step(loss, (self.party,), notes={"train/guest_loss": loss.detach()})

    def _send_final(self, module: "DecoupledVFL", at: At, names: RoundNames) -> None:
        """Send the embeddings of all of the owner's records; again in a later round, if that one is given up."""
        answers = self.send_all(module, at, names)
        if answers is None:
            return
        self._given = True
        sizes = [len(ids) for ids in in_parts(module.datamodule.records("train"))]
        if module.scores_here:
            crossings = [self.crossed(module, one, rows) for one, rows in zip(answers, sizes, strict=True)]
            module.take_encodings([one.to(module.device) for one in crossings], self.seconds(module))
        else:
            module.enter_collected(sum(sizes), self.seconds(module))
