"""The last upload: the embeddings of all training records, for which the server waits."""

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from lightning_vfl.aggregators.clear import EMBEDDINGS
from lightning_vfl.federation.at_party import AtParty
from lightning_vfl.federation.at_server import AtServer, embeddings_of
from lightning_vfl.federation.attendance import Attendance
from lightning_vfl.federation.hub import At, Key
from lightning_vfl.federation.letters import enclosed, message_of
from lightning_vfl.federation.turns import happened, numbers
from lightning_vfl.missing import Exclude, MissingPolicy, Skip
from lightning_vfl.networks.modes import evaluating
from lightning_vfl.protocols.phases import in_parts
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.types import Roll, RoundNames, Stage, Tensors, VerticalBatch, mask_of
from lightning_vfl.wire import Message

Keep = Callable[[Tensor, Tensors], Message | None]


class TakesLastUpload(AtServer):
    """The server's part of protocols whose parties send the embeddings of all training records once."""

    def policy(self, module: Any) -> MissingPolicy:
        """The last upload needs all parties; everything else goes on without those that are away."""
        return Skip() if module.stage == Stage.FIT and module.phase == "owner" else Exclude()

    def collect(self, module: Any, batch: VerticalBatch, names: RoundNames, at: At, keep: Keep) -> RoundPlan | None:
        """Collect the embeddings of all training records; None: a party was lost, and the round is given up.

        ``keep`` is given the ids of some records at a time, and their embeddings; it gives the message that the party
        with the labels gets in answer to them, if there is one.
        """
        attendance = self.begin(module, batch, names, at, whole=True)
        began = monotonic()
        answer: Message | None = None
        parts = in_parts(module.datamodule.records("train"))
        for turn, ids in enumerate(parts):
            if turn > 0:
                self._answer(module, Key(at, turn - 1), self.calls.standing("go"), answer)
            arrived = self.hear(module, attendance, len(ids), turn)
            if len(arrived) < self.hub.parties:
                self.end(names, at, self.plan(attendance, began, skipped=True))
                return None
            answer = keep(ids, embeddings_of(module, len(ids), arrived))
        plan = self.plan(attendance, began)
        self.note(names, plan)
        with self.calls.ending(at, plan, range(self.hub.parties)) as header:
            self._answer(module, Key(at, len(parts) - 1), header, answer)
        return plan

    def _answer(self, module: Any, key: Key, header: Mapping[str, Any], answer: Message | None) -> None:
        """Answer all parties at a turn of the collection."""
        others = {*range(self.hub.parties)}
        if answer is not None:
            others.remove(module.active)
            self.hub.post(module.active, key, *enclosed(answer, header))
        self.hub.post_to_all(others, key, header)

    def hear(self, module: Any, attendance: Attendance, rows: int, turn: int = 0) -> dict[int, Tensor]:
        """By party, the embeddings of so many records that have come at a turn, on the device of the networks."""
        (leg,) = module.wire.legs(rows, module.embedding_widths, (), module.roster)
        asked = attendance.uploading if turn == 0 else attendance.roll.included
        arrived = attendance.await_leg(turn, leg, asked)
        if turn == 0:
            attendance.include(arrived)
        found = {}
        for party in numbers(arrived):
            (embedding,) = message_of(attendance.accepted[party].frame, module.seed, self.hub.agreed).pieces
            found[party] = embedding.to(module.device)
        return found

    def pass_by(self, module: Any, at: At, names: RoundNames) -> None:
        """Go through a round in which no message is sent."""
        self.calls.close(module, at)
        self.note(names, happened(Roll.of(mask_of([], self.hub.parties))))

    def end(self, names: RoundNames, at: At, plan: RoundPlan) -> None:
        """Answer all parties after the first turn of a round, and call those of the next round."""
        self.note(names, plan)
        included = numbers(plan.learners)
        with self.calls.ending(at, plan, included) as header:
            self.hub.post_to_all(included, Key(at, 0), header)

    def plan(self, attendance: Attendance, began: float, skipped: bool = False) -> RoundPlan:
        """What has become of a round that began then; with injected faults it takes no time."""
        return happened(attendance.roll, 0.0 if self.injected else monotonic() - began, skipped)

    def seconds(self, waited: float) -> float | None:
        """The seconds of the clock: those that the server has waited; None: they are simulated."""
        return None if self.injected else waited


class SendsLastUpload(AtParty):
    """A party's part of protocols whose parties send the embeddings of all training records once."""

    def send_all(self, module: Any, at: At, names: RoundNames) -> list[Message]:
        """Send the embeddings of all training records, some at a time; the answers.

        Raises:
            RoundClosed: if the round is given up.
        """
        records = module.datamodule.records("train")
        like = next(module.bottoms.parameters())
        answers = []
        for turn, ids in enumerate(in_parts(records)):
            x = records.features_of(self.party, ids)
            x = x.to(like) if x.is_floating_point() else x.to(like.device)
            with torch.no_grad(), evaluating(module):
                embedding = module.bottoms.one(self.party, x)
            message = self.message(EMBEDDINGS, "server", embedding, names)
            answers.append(self.answer(module, self.tell_server(module, message, len(ids), Key(at, turn))))
        return answers

    def seconds(self, module: Any) -> float | None:
        """The seconds of the round that the server has told; None: they are simulated."""
        if self.injected:
            return None
        told = self.told(module)
        return 0.0 if told is None else told.seconds
