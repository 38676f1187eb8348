"""One-shot training between processes: one round of messages, local training without any, and the last upload."""

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from lightning.pytorch.trainer.states import TrainerFn

from lightning_vfl.federation.at_party import nothing_learnt
from lightning_vfl.federation.last_upload import SendsLastUpload, TakesLastUpload
from lightning_vfl.federation.link import RoundClosed
from lightning_vfl.federation.rounds_at_party import RoundsAtParty
from lightning_vfl.federation.rounds_at_server import RoundsAtServer
from lightning_vfl.federation.turns import at_of
from lightning_vfl.protocols.step import Step
from lightning_vfl.types import RoundNames, VerticalBatch

if TYPE_CHECKING:
    from lightning_vfl.protocols.one_shot import OneShotVFL


@final
class OneShotAtServer(TakesLastUpload):
    """The server's part of ``OneShotVFL``.

    Guarantee: in the phase ``local`` no message is sent, and nobody waits for a party: one that is started again goes
        on from its own checkpoint. The server waits for the last upload of all parties.
    """

    @cached_property
    def _rounds(self) -> RoundsAtServer:
        """The server's part of the exchange, which calls the same parties."""
        rounds = RoundsAtServer(self.hub, self.injected, record=self.record)
        rounds.calls = self.calls
        rounds.collector = self.collector
        return rounds

    def refuses(self, module: Any, rounds: int) -> str | None:
        fits = module.trainer.state.fn == TrainerFn.FITTING
        if not (fits and module.books.own.collected) or rounds >= module.trainer.num_training_batches:
            return None
        return (
            "its embeddings are collected, and a bottom that begins anew has others; start it again with --ckpt_path "
            "last, or start all processes again"
        )

    def step(self, module: Any, batch: VerticalBatch, names: RoundNames) -> Step:
        """Run the server's part of an iteration."""
        if module.phase == "exchange":
            module.begin_exchange(batch)
            step = self._rounds.step(module, batch, names)
            return step if step.loss is None else replace(step, withheld=(module,))
        at = at_of(module, names, 0)
        if module.phase == "local":
            self.pass_by(module, at, names)
            return nothing_learnt(module) if module.begin_local(batch, names, self.injected) else Step(None)
        if module.books.own.collected:
            self.pass_by(module, at, names)
        else:
            plan = self.collect(module, batch, names, at, module.keep_embeddings)
            if plan is None:
                return Step(None)
            module.enter_collected(self.seconds(plan.seconds))
        learnt: Step = module.train_top(batch, self.injected)
        return learnt


@final
class OneShotAtParty(SendsLastUpload):
    """One party's part of ``OneShotVFL``."""

    @cached_property
    def _rounds(self) -> RoundsAtParty:
        """This party's part of the exchange."""
        rounds = RoundsAtParty(self.link, self.party, self.seals, self.injected)
        rounds.least_members = self.least_members
        return rounds

    def step(self, module: Any, batch: VerticalBatch, names: RoundNames) -> Step:
        """Take part in the exchange, learn alone, or send the last upload."""
        if module.phase == "exchange":
            return self._exchange(module, batch, names)
        if module.phase == "local":
            learners = module.begin_local(batch, names, self.injected)
            if self.party not in learners:
                return nothing_learnt(module) if learners else Step(None)
            learnt: Step = module.learn_alone(batch, (self.party,))
            return learnt
        at = at_of(module, names, 0)
        if not module.books.own.collected and self.called(module, at) is not None:
            try:
                self.send_all(module, at, names)
            except RoundClosed:
                return Step(None)
            module.enter_collected(self.seconds(module))
        if self.injected:
            module.enter_owner_step(len(batch.record_ids))
        return nothing_learnt(module)

    def _exchange(self, module: "OneShotVFL", batch: VerticalBatch, names: RoundNames) -> Step:
        """Keep the gradients of a round; nobody learns from it."""
        module.begin_exchange(batch)
        found = self._rounds.take_part(module, batch, names)
        if found is None:
            return Step(None)
        if found.leaves[0].requires_grad:  # not of a frozen bottom
            module.keep_gradients(batch, {self.party: found.grads[0]})
        return nothing_learnt(module)
