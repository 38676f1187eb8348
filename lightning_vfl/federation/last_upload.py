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
from lightning_vfl.federation.calls import numbers
from lightning_vfl.federation.hub import At, Key
from lightning_vfl.federation.letters import read, written
from lightning_vfl.federation.told_plans import plan_of, told_plan
from lightning_vfl.missing import Skip
from lightning_vfl.networks.modes import evaluating
from lightning_vfl.protocols.decoupled.collection import in_parts
from lightning_vfl.rounds.plan import RoundPlan
from lightning_vfl.types import Roll, RoundNames, VerticalBatch, mask_of
from lightning_vfl.wire import Message

Keep = Callable[[Tensor, tuple[Tensor, ...]], Message | None]


class TakesLastUpload(AtServer):
    """The server's part of protocols whose parties send the embeddings of all training records once."""

    def collect(self, module: Any, batch: VerticalBatch, names: RoundNames, at: At, keep: Keep) -> RoundPlan | None:
        """Collect the embeddings of all training records; None: a party was lost, and the round is given up.

        ``keep`` is given the ids of some records at a time, and their embeddings; it gives the message that the party
        with the labels gets in answer to them, if there is one.
        """
        self.calls.begin(module, at, self.policy(module))
        everyone = Roll.everyone(self.hub.parties) if self.injected else None
        attendance = self.attendance(module, batch, names, everyone, Skip(), evaluation=True)  # no waiting rule
        began = monotonic()
        answer: Message | None = None
        parts = in_parts(module.datamodule.records("train"))
        for turn, ids in enumerate(parts):
            if turn > 0:
                self._answer(module, Key(at, turn - 1), self.calls.standing("go"), answer)
            arrived = self.hear(module, Key(at, turn), len(ids), attendance, first=turn == 0)
            if len(arrived) < self.hub.parties:
                plan = happened(attendance.roll, self.waited(began), skipped=True)
                self.note(names, plan)
                self.end(at, plan)
                return None
            h = {party: own.to(module.device) for party, own in arrived.items()}
            answer = keep(ids, embeddings_of(module, len(ids), h))
        plan = happened(attendance.roll, self.waited(began), skipped=False)
        self.note(names, plan)
        self.calls.call_next(at, plan.roll.included)
        told = told_plan(plan)
        self._answer(module, Key(at, len(parts) - 1), {**self.calls.standing("go"), "plan": told}, answer)
        self.calls.end(at, {*range(self.hub.parties)}, told)
        return plan

    def _answer(self, module: Any, key: Key, header: Mapping[str, Any], answer: Message | None) -> None:
        """Answer all parties at a turn of the collection."""
        holder: int | None = None
        if answer is not None:
            holder = int(module.active)
            letter, tensors, bits = written(answer)
            self.hub.post(holder, key, {**header, "message": letter}, tensors, bits)
        self.hub.post_to_all((party for party in range(self.hub.parties) if party != holder), key, header)

    def hear(self, module: Any, key: Key, rows: int, attendance: Attendance, first: bool) -> dict[int, Tensor]:
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

    def pass_by(self, module: Any, at: At, names: RoundNames) -> None:
        """Go through a round in which no message is sent."""
        self.calls.close(module, at)
        self.note(names, happened(Roll.of(torch.zeros_like(self.calls.called)), 0.0, skipped=False))

    def end(self, at: At, plan: RoundPlan) -> None:
        """Answer all parties after the first turn of a round, and call those of the next round."""
        included = numbers(plan.learners)
        self.calls.call_next(at, plan.roll.included)
        told = told_plan(plan)
        self.hub.post_to_all(included, Key(at, 0), {**self.calls.standing("go"), "plan": told})
        self.calls.end(at, set(included), told)

    def note(self, names: RoundNames, plan: RoundPlan) -> None:
        """Write what has become of a round into the record."""
        if self.record is not None and not self.injected:
            self.record.add(names.round, plan)

    def waited(self, began: float) -> float:
        """The seconds since then, by which the clocks of all processes advance; with injected faults none."""
        return 0.0 if self.injected else monotonic() - began

    def seconds(self, waited: float) -> float | None:
        """The seconds of the clock: those that the server has waited; None: they are simulated."""
        return None if self.injected else waited


class SendsLastUpload(AtParty):
    """A party's part of protocols whose parties send the embeddings of all training records once."""

    def takes_part(self, module: Any, at: At) -> bool:
        """Whether the server awaits this party in the round."""
        if self.injected:
            return True
        if not self.is_called(module, Key(at, 0)):
            return False
        self.refuse_few(mask_of(self.link.standing.called, module.roster.parties))
        return True

    def send_all(self, module: Any, at: At, names: RoundNames) -> list[Message] | None:
        """Send the embeddings of all training records, some at a time; the answers. None: the round is given up."""
        records = module.datamodule.records("train")
        like = next(module.bottoms.parameters())
        answers = []
        for turn, ids in enumerate(in_parts(records)):
            x = records.features_of(self.party, ids)
            x = x.to(like) if x.is_floating_point() else x.to(like.device)
            with torch.no_grad(), evaluating(module):
                embedding = module.bottoms.one(self.party, x)
            message = Message(EMBEDDINGS, "server", (self.party,), (embedding,), round=names)
            answer = self.answer(module, self.tell_server(module, message, len(ids), Key(at, turn)))
            if answer is None:
                return None
            answers.append(answer)
        return answers

    def seconds(self, module: Any) -> float | None:
        """The seconds of the round that the server has told; None: they are simulated."""
        if self.injected:
            return None
        return 0.0 if self.link.told is None else plan_of(self.link.told, module.roster.parties).seconds


def happened(roll: Roll, seconds: float, skipped: bool) -> RoundPlan:
    """What has happened, in the form of a plan."""
    learners = torch.zeros_like(roll.included) if skipped else roll.included
    return RoundPlan(roll, learners, (roll.included,), learners, seconds, skipped)
