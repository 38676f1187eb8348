"""Decoupled training between processes: the server has all hosts and the owner, and guests hear nothing of a loss."""

from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, final

from torch import Tensor

from lightning_vfl.aggregators.clear import EMBEDDINGS
from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.at_party import nothing_learnt
from lightning_vfl.federation.at_server import embeddings_of, to_label_holder
from lightning_vfl.federation.hub import At, Key
from lightning_vfl.federation.last_upload import SendsLastUpload, TakesLastUpload
from lightning_vfl.federation.link import RoundClosed
from lightning_vfl.federation.turns import at_of, numbers
from lightning_vfl.missing import MissingPolicy
from lightning_vfl.protocols.phases import in_parts
from lightning_vfl.protocols.step import Step
from lightning_vfl.types import Roll, RoundNames, Tensors, VerticalBatch
from lightning_vfl.wire import Message

if TYPE_CHECKING:
    from lightning_vfl.protocols.decoupled import DecoupledVFL


@final
class DecoupledAtServer(TakesLastUpload):
    """The server's part of ``DecoupledVFL``.

    Guarantee: hosts learn in every iteration, also if a guest is away. The owner begins when it has the final
        embeddings of all guests. If the owner is a party, everybody waits for it as long as guests learn.

    Raises:
        ConfigurationError: if a party that is the owner is lost after it has begun.
    """

    _collected = False  # whether the owner has the encodings of its records
    _owner: bytes = b""  # the process of the owner, if it is a party, which has the encodings

    def policy(self, module: Any) -> MissingPolicy:
        """As for every last upload, unless the owner is lost."""
        self._refuse_other_owner(module)
        return super().policy(module)

    def step(self, module: "DecoupledVFL", batch: VerticalBatch, names: RoundNames) -> Step:
        """Run the hosts' part of an iteration, or the owner's step."""
        at = at_of(module, names, 0)
        if module.phase == "representation":
            return self._representation(module, batch, names, at)
        if module.phase == "owner" and not self._collected:
            self._collected = self._collect(module, batch, names, at)
            if not self._collected:
                return Step(None)
        else:
            self.pass_by(module, at, names)
        if module.phase == "owner":
            self._refuse_other_owner(module)
            if self.injected:
                module.enter_owner_step(len(batch.record_ids))
            return module.owner_step(batch, names) if module.scores_here else nothing_learnt(module)
        return module.finish_iteration(batch, names, module.begin_iteration(), seconds=self.seconds(0.0))

    def _representation(self, module: "DecoupledVFL", batch: VerticalBatch, names: RoundNames, at: At) -> Step:
        """Wait for the guests' embeddings of an iteration, or for the news that they have learnt."""
        iteration = module.begin_iteration()
        rows = len(batch.record_ids) if module.communicates(module.current_epoch) else 0
        attendance = self.begin(module, batch, names, at, Roll.of(iteration.alive))
        began = monotonic()
        arrived = self.hear(module, attendance, rows)
        plan = self.plan(attendance, began)
        self.end(names, at, plan)
        h = embeddings_of(module, rows, {party: arrived[party] for party in numbers(plan.learners)})
        iteration = iteration._replace(alive=plan.learners)
        step = module.finish_iteration(batch, names, iteration, None, h, self.seconds(plan.seconds))
        guests_alone = step.loss is None and bool(plan.learners.any())
        return nothing_learnt(module) if guests_alone else step

    def _collect(self, module: "DecoupledVFL", batch: VerticalBatch, names: RoundNames, at: At) -> bool:
        """Collect the owner's records from all guests; False: a guest was lost, and the round is given up."""
        encodings: list[Tensor] = []

        def encode(_: Tensor, h: Tensors) -> Message | None:
            encodings.append(module.encodings_of(h))
            return None if module.active is None else to_label_holder(module, encodings[-1], names)

        plan = self.collect(module, batch, names, at, encode)
        if plan is None:
            return False
        seconds = self.seconds(plan.seconds)
        if module.active is None:
            module.take_encodings(encodings, seconds)
        else:
            self._owner = self.hub.process(module.active)
            module.enter_collected(sum(map(len, encodings)), seconds)
        return True

    def _refuse_other_owner(self, module: Any) -> None:
        """Refuse to go on without the process of the owner, which has begun to learn.

        Raises:
            ConfigurationError: naming the party.
        """
        if self._owner and self.hub.process(module.active) != self._owner:
            raise ConfigurationError(
                f"{self.hub.agreed.party(module.active)}, which has the labels, is lost, and nobody else learns in the "
                "owner's phase; start all processes again with --ckpt_path"
            )


@final
class DecoupledAtParty(SendsLastUpload):
    """One guest's part of ``DecoupledVFL``, and that of the owner if this party has the labels.

    It learns by itself, and sends embeddings without an answer about them.
    """

    _given = False  # whether this process has sent its embeddings of the owner's records

    def step(self, module: "DecoupledVFL", batch: VerticalBatch, names: RoundNames) -> Step:
        """Learn from the party's own columns, and send the embeddings in an epoch that communicates."""
        at = at_of(module, names, 0)
        if module.phase == "owner":
            if not self._given and self.called(module, at) is not None:
                with suppress(RoundClosed):  # then they are sent again in a later round
                    self._send_final(module, at, names)
            if self.injected:
                module.enter_owner_step(len(batch.record_ids))
            if not module.scores_here:
                return nothing_learnt(module)
            return module.owner_step(batch, names) if self._given else Step(None)
        iteration = module.begin_iteration()
        is_there = bool(iteration.alive[self.party])
        if module.phase == "replay" or not is_there or self.called(module, at) is None:
            return nothing_learnt(module)
        loss, embedding = module.guest_step(self.party, batch, names)
        sent = embedding if module.communicates(module.current_epoch) else embedding[:0]  # no row: it has learnt
        try:
            self.tell_server(module, self.message(EMBEDDINGS, "server", sent, names), len(sent), Key(at, 0))
        except RoundClosed:
            return nothing_learnt(module)
        plan = self.told(module)
        if plan is not None:
            module.clock.advance(plan.seconds)
            module.books.mini_batches += int(plan.roll.included.sum())
            if len(sent):
                module.enter_communication(len(sent), plan.roll.included)
        return Step(loss, (self.party,), notes={"train/guest_loss": loss.detach()})

    def _send_final(self, module: "DecoupledVFL", at: At, names: RoundNames) -> None:
        """Send the embeddings of all of the owner's records."""
        answers = self.send_all(module, at, names)
        self._given = True
        sizes = [len(ids) for ids in in_parts(module.datamodule.records("train"))]
        if module.scores_here:
            crossings = [self.crossed(module, one, rows) for one, rows in zip(answers, sizes, strict=True)]
            module.take_encodings([one.to(module.device) for one in crossings], self.seconds(module))
        else:
            module.enter_collected(sum(sizes), self.seconds(module))
