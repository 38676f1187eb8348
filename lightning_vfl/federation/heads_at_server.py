"""The server's part of protocols with a head at every party: it has no network, relays what is sealed, and scores."""

from collections.abc import Sequence
from dataclasses import replace
from math import nan
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from lightning_vfl.aggregators.base import FLOAT_BITS
from lightning_vfl.federation.at_party import nothing_learnt
from lightning_vfl.federation.at_server import AtServer, seen
from lightning_vfl.federation.attendance import OUTPUTS, Attendance, Planned
from lightning_vfl.federation.collecting import Uploads
from lightning_vfl.federation.hub import Key
from lightning_vfl.federation.told_plans import told_plan
from lightning_vfl.federation.turns import at_of
from lightning_vfl.missing import Exclude, MissingPolicy, Skip
from lightning_vfl.protocols.heads import mean_of_holders
from lightning_vfl.protocols.step import Step
from lightning_vfl.types import Roll, RoundNames, Stage, VerticalBatch
from lightning_vfl.wire import Leg

if TYPE_CHECKING:
    from lightning_vfl.protocols.heads import HeadsVFL


@final
class HeadsAtServer(AtServer):
    """The server's part of ``EnsembleVFL`` and ``LaserVFL``.

    Guarantee: where parties exchange embeddings, a round is made by all of them or given up. Else everybody learns
        alone, also if others are away.
    """

    def policy(self, module: "HeadsVFL") -> MissingPolicy:
        return Skip() if module.exchanges and module.stage == Stage.FIT else Exclude()

    def attendance(self, module: "HeadsVFL", *about: Any) -> Attendance:
        found = super().attendance(module, *about)
        if isinstance(found, Planned):
            found.needed = self.hub.parties  # everybody answers every leg
        return found

    def step(self, module: Any, batch: VerticalBatch, names: RoundNames) -> Step:
        """Relay what the parties send each other, and note who has learnt."""
        at = at_of(module, names, 0)
        rows = len(batch.record_ids)
        policy = self.policy(module)
        self.calls.begin(module, at, policy)
        everyone = Roll.everyone(self.hub.parties) if self.injected else None
        attendance = self.attendance(module, batch, names, everyone, policy)
        uploads = self.collector.collect(module, batch, at, attendance, module.training_legs(rows))
        included = uploads.roll.included
        whole = bool(uploads.messages) and torch.equal(uploads.sent[-1] & included, included)
        plan = seen(uploads, not whole, 1)
        module.enter(rows, None if self.injected else plan)
        if self.record is not None and not self.injected:
            self.record.add(names.round, plan)
        self.calls.call_next(at, included)
        told = told_plan(plan)
        requests = {party: attendance.accepted[party] for party in plan.learning}
        self.collector.relay(Key(at, uploads.turn), requests, {"plan": told})
        self.calls.end(at, {*requests}, told)
        if not whole:
            return Step(None)
        losses = torch.tensor([request.frame.header.get("loss", nan) for request in requests.values()])
        return replace(nothing_learnt(module), logged=losses.sum())

    def evaluation_legs(self, module: "HeadsVFL", batch: VerticalBatch) -> Sequence[Leg]:
        outputs = module.objective.outputs(module.hparams["num_classes"])
        rows = len(batch.record_ids)
        told = Leg(OUTPUTS, "server", torch.full((self.hub.parties,), rows * outputs), FLOAT_BITS)
        return (*module.training_legs(rows)[:-1], told)

    def joined_output(self, module: "HeadsVFL", batch: VerticalBatch, names: RoundNames, uploads: Uploads) -> Tensor:
        message = uploads.messages[-1]
        came = dict(zip(message.senders, message.pieces, strict=True))
        absent = torch.zeros_like(message.pieces[0])
        outputs = torch.stack([came.get(party, absent) for party in range(self.hub.parties)])
        here = torch.tensor([party in came for party in range(self.hub.parties)])
        return mean_of_holders(outputs, Roll.of(here).holders(outputs[0], batch.present))
