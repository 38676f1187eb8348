"""The server's part of decoupled training: it has all hosts and the owner, and hears from the guests."""

from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from lightning_vfl.errors import ConfigurationError
from lightning_vfl.federation.at_party import nothing_learnt
from lightning_vfl.federation.at_server import AtServer, embeddings_of, to_label_holder
from lightning_vfl.federation.attendance import Attendance
from lightning_vfl.federation.calls import numbers
from lightning_vfl.federation.hub import At, Key
from lightning_vfl.federation.letters import read, written
from lightning_vfl.federation.told_plans import told_plan
from lightning_vfl.federation.turns import at_of
from lightning_vfl.missing import Exclude, MissingPolicy, Skip
from lightning_vfl.protocols.decoupled.collection import in_parts
from lightning_vfl.protocols.step import Step
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.types import Roll, RoundNames, Stage, VerticalBatch

if TYPE_CHECKING:
    from lightning_vfl.protocols.decoupled import DecoupledVFL


@final
class DecoupledAtServer(AtServer):
    """The server's part of ``DecoupledVFL``.

    Guarantee: hosts learn in every iteration, also if a guest is away. The owner begins when it has the final
        embeddings of all guests. If the owner is a party, everybody waits for it as long as guests learn.

    Raises:
        ConfigurationError: if a party that is the owner is lost after it has begun.
    """

    _collected = False  # whether the owner has the encodings of its records
    _owner: bytes = b""  # the process of the owner, if it is a party, which has the encodings

    def policy(self, module: Any) -> MissingPolicy:
        """The owner's records need all guests; everything else goes on without those that are away."""
        self._refuse_other_owner(module)
        return Skip() if module.stage == Stage.FIT and module.phase == "owner" else Exclude()

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
            self.calls.close(module, at)
            nobody = Roll.of(torch.zeros_like(self.calls.called))
            self._record(names, _happened(nobody, 0.0, skipped=False))
        if module.phase == "owner":
            self._refuse_other_owner(module)
            if self.injected:
                module.enter_owner_step(len(batch.record_ids))
            return module.owner_step(batch, names) if module.scores_here else nothing_learnt(module)
        return module.finish_iteration(batch, names, module.begin_iteration(), seconds=self._seconds(0.0))

    def _representation(self, module: "DecoupledVFL", batch: VerticalBatch, names: RoundNames, at: At) -> Step:
        """Wait for the guests' embeddings of an iteration, or for the news that they have learnt."""
        iteration = module.begin_iteration()
        rows = len(batch.record_ids) if module.communicates(module.current_epoch) else 0
        self.calls.begin(module, at, self.policy(module))
        alive = Roll.of(iteration.alive) if self.injected else None
        attendance = self.attendance(module, batch, names, alive, Exclude())
        began = monotonic()
        arrived = self._hear(module, Key(at, 0), rows, attendance, first=True)
        plan = _happened(attendance.roll, self._waited(began), skipped=False)
        self._record(names, plan)
        self._end(at, 0, plan)
        h = embeddings_of(module, rows, {party: arrived[party].to(module.device) for party in numbers(plan.learners)})
        iteration = iteration._replace(alive=plan.learners)
        step = module.finish_iteration(batch, names, iteration, None, h, self._seconds(plan.seconds))
        guests_alone = step.loss is None and bool(plan.learners.any())
        return nothing_learnt(module) if guests_alone else step

    def _collect(self, module: "DecoupledVFL", batch: VerticalBatch, names: RoundNames, at: At) -> bool:
        """Collect the owner's records from all guests; False: a guest was lost, and the round is given up."""
        self.calls.begin(module, at, self.policy(module))
        everyone = Roll.everyone(self.hub.parties)
        attendance = self.attendance(module, batch, names, everyone if self.injected else None, Skip())
        began = monotonic()
        parts: list[Tensor] = []
        turns = in_parts(module.datamodule.records("train"))
        for turn, ids in enumerate(turns):
            arrived = self._hear(module, Key(at, turn), len(ids), attendance, first=turn == 0)
            if len(arrived) < self.hub.parties:
                break
            h = embeddings_of(module, len(ids), {m: own.to(module.device) for m, own in arrived.items()})
            parts.append(module.encodings_of(h))
            if turn < len(turns) - 1:
                self._answer(module, names, Key(at, turn), tuple(arrived), self.calls.standing("go"), parts[-1])
        whole = len(parts) == len(turns)
        plan = _happened(attendance.roll, self._waited(began), skipped=not whole)
        self._record(names, plan)
        if not whole:
            self._end(at, 0, plan)
            return False
        if module.active is not None:
            self._owner = self.hub.process(module.active)
            module.enter_collected(sum(map(len, parts)), self._seconds(plan.seconds))
        else:
            module.take_encodings(parts, self._seconds(plan.seconds))
        self.calls.call_next(at, plan.roll.included)
        told = {**self.calls.standing("go"), "plan": told_plan(plan)}
        parties = tuple(range(self.hub.parties))
        self._answer(module, names, Key(at, len(turns) - 1), parties, told, parts[-1])
        self.calls.end(at, set(parties), told_plan(plan))
        return True

    def _answer(
        self,
        module: "DecoupledVFL",
        names: RoundNames,
        key: Key,
        parties: tuple[int, ...],
        header: Mapping[str, Any],
        encodings: Tensor,
    ) -> None:
        """Answer the guests at a turn of the collection; the owner, if it is one of them, gets the encodings."""
        if module.active is not None:
            letter, tensors, bits = written(to_label_holder(module, encodings, names))
            self.hub.post(module.active, key, {**header, "message": letter}, tensors, bits)
        self.hub.post_to_all((party for party in parties if party != module.active), key, header)

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

    def _hear(
        self, module: "DecoupledVFL", key: Key, rows: int, attendance: Attendance, first: bool
    ) -> dict[int, Tensor]:
        """By party, the embeddings of so many records that have come at a turn."""
        (leg,) = module.wire.legs(rows, module.embedding_widths, (), module.roster)
        asked = attendance.uploading if first else attendance.roll.included
        arrived = attendance.await_leg(key, leg, asked)
        if first:
            attendance.include(arrived)
        found = {}
        for party in numbers(arrived):
            frame = attendance.accepted[party].frame
            letter = dict(frame.header["message"])
            (found[party],) = read(letter, iter(frame.tensors), module.seed, self.hub.agreed).pieces
        return found

    def _end(self, at: At, turn: int, plan: RoundPlan) -> None:
        """Answer all guests, and call those of the next round."""
        included = numbers(plan.learners)
        self.calls.call_next(at, plan.roll.included)
        told = told_plan(plan)
        self.hub.post_to_all(included, Key(at, turn), {**self.calls.standing("go"), "plan": told})
        self.calls.end(at, set(included), told)

    def _record(self, names: RoundNames, plan: RoundPlan) -> None:
        if self.record is not None and not self.injected:
            self.record.add(names.round, plan)

    def _waited(self, began: float) -> float:
        """The seconds since then, by which the clocks of all processes advance; with injected faults none."""
        return 0.0 if self.injected else monotonic() - began

    def _seconds(self, waited: float) -> float | None:
        """The seconds of the clock: those that the server has waited; None: they are simulated."""
        return None if self.injected else waited


def _happened(roll: Roll, seconds: float, skipped: bool) -> RoundPlan:
    """What has happened, in the form of a plan."""
    learners = torch.zeros_like(roll.included) if skipped else roll.included
    return RoundPlan(roll, learners, (roll.included,), learners, seconds, skipped)
