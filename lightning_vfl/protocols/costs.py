"""The costs of rounds: seconds and traffic, from shapes, networks and the speeds of the clock."""

from functools import cached_property
from typing import Any

import torch
from torch import nn

from lightning_vfl.aggregators.base import FLOAT_BITS
from lightning_vfl.aggregators.clear import shared_bottoms_of
from lightning_vfl.aggregators.messages import UPDATES
from lightning_vfl.networks.flops import Work, work_of, works_of
from lightning_vfl.networks.halved_top import ACTIVATIONS, GRADIENTS, HalvedTop
from lightning_vfl.rounds.plan import RoundCosts
from lightning_vfl.types import Stage, Widths, mask_of
from lightning_vfl.wire import Gate, Leg, LinearForms


class Costs:
    """The costs of faultless rounds of a protocol; each is computed once.

    Args:
        module: the protocol, with its networks, its wire and its clock.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self._active_work: Work | None = None
        self._learning: list[bool] = []  # which parameters learnt when ``work`` was computed
        self._cut: int | None = module.top.cut if isinstance(module.top, HalvedTop) else None
        self._rounds: dict[tuple[int, int], RoundCosts] = {}
        self._evaluations: dict[tuple[int, int, Stage], tuple[tuple[Leg, ...], tuple[Leg, ...]]] = {}
        self._legs: dict[int, tuple[Leg, ...]] = {}

    def of_round(self, rows: int, coded: int | None = None) -> RoundCosts:
        """Traffic and seconds of a faultless round.

        Args:
            rows: records of the joint batch.
            coded: coded rows of these records, if the aggregator computes on coded rows; None: ``rows``.
        """
        key = rows, rows if coded is None else coded
        if key not in self._rounds:
            self._rounds[key] = self._of_round(*key)
        return self._rounds[key]

    def _of_round(self, rows: int, coded: int) -> RoundCosts:
        module = self.module
        legs = (*self.legs(coded), *self.labels(rows))
        downlink = module.wire.downlink(rows, module.embedding_widths, module.roster)
        bottoms, top = self.work
        update = module.local_update
        if update is not None:
            bottoms = [
                work._replace(backward=work.backward + update.flops(party, work)) for party, work in enumerate(bottoms)
            ]
        return RoundCosts.of(legs, downlink, rows, bottoms, top, module.clock, self.updates(), self.cut(rows))

    def start_over(self) -> None:
        """Compute rounds again, for a clock with other speeds."""
        self._rounds.clear()

    def count_thawed(self) -> bool:
        """Whether networks were frozen or thawed, so that rounds have other operations; they are computed again."""
        changed = "work" in vars(self) and self._learning != self._learn()
        if changed:
            del self.work
            self._active_work = None
            self._rounds.clear()
        return changed

    def _learn(self) -> list[bool]:
        return [parameter.requires_grad for parameter in self.module.parameters()]

    def of_evaluation(self, rows: int, coded: int, stage: Stage) -> tuple[tuple[Leg, ...], tuple[Leg, ...]]:
        """The legs of a round of evaluation, and those that cross the cut of a top in it; arguments of ``of_round``."""
        key = rows, coded, stage
        if key not in self._evaluations:
            there = self.cut(rows)[:1]  # no gradient comes back
            legs = tuple(leg.of_stage(stage) for leg in self.legs(coded))
            self._evaluations[key] = legs, tuple(leg.of_stage(stage) for leg in there)
        return self._evaluations[key]

    def cut(self, rows: int) -> tuple[Leg, ...]:
        """What crosses the cut of a top in halves in a training round, and comes back; empty for any other top."""
        width = self._cut
        roster = self.module.roster
        if width is None or roster.active is None:
            return ()
        if self._active_work is None:
            self._active_work = work_of(self.module.top.active, (width,), input_gradient=True)
        here = torch.arange(roster.parties) == roster.active
        elements = here * (rows * width)
        flops = here.double() * (sum(self._active_work) * rows)
        there = Leg(ACTIVATIONS, "parties", elements, FLOAT_BITS)
        back = Leg(GRADIENTS, "server", elements, FLOAT_BITS, flops)
        return there, back

    def labels(self, rows: int) -> tuple[Leg, ...]:
        """The labels of a batch, sent with the parties' last leg; no leg if the server holds or needs none."""
        module = self.module
        active = module.roster.active
        if active is None or module.halved or not module.sends_labels:
            return ()
        elements = (torch.arange(module.roster.parties) == active) * rows
        return (Leg("labels", "server", elements, FLOAT_BITS, gate=Gate.PREVIOUS),)

    def legs(self, rows: int) -> tuple[Leg, ...]:
        """The aggregator's legs in a round of ``rows`` (coded) rows."""
        if rows not in self._legs:
            module = self.module
            self._legs[rows] = module.wire.legs(rows, module.embedding_widths, self.basis_widths, module.roster)
        return self._legs[rows]

    @cached_property
    def work(self) -> tuple[list[Work], Work]:
        """FLOPs for one record: of each party's bottom, and of the top."""
        module = self.module
        self._learning = self._learn()
        server = module.top.server if isinstance(module.top, HalvedTop) else module.top
        if isinstance(server, nn.ModuleList):  # a head at every party, which all have the same operations
            server = server[0]
        top = work_of(server, (module.top_width(),), input_gradient=True)
        bottoms = works_of(module.bottoms.parties, [tuple(shape) for shape in module.hparams["party_shapes"]])
        if module.aggregator.form is LinearForms:  # no party runs its bottom: a leg counts the products
            bottoms = [Work(0.0, work.backward) for work in bottoms]
        return bottoms, top

    def updates(self) -> tuple[Leg, ...]:
        """The model updates of groups that share a bottom, and the bottoms that the server returns."""
        module = self.module
        groups = module.roster.shared
        if not groups:
            return ()
        sizes = [sum(parameter.numel() for parameter in bottom.parameters()) for bottom in module.bottoms.parties]
        members = [party for group in groups for party in group]
        elements = torch.tensor(sizes) * mask_of(members, len(sizes))
        up = Leg(UPDATES, "server", elements, shared_bottoms_of(module.aggregator).bits)
        down = Leg("shared bottoms", "parties", elements, FLOAT_BITS)
        return up, down

    @cached_property
    def basis_widths(self) -> Widths:
        """(M,) widths of the expanded features, for aggregators of ``LinearForms``; empty for others."""
        linear = self.module.aggregator.form is LinearForms
        return tuple(len(network.weight) for network in self.module.bottoms.parties) if linear else ()

    def know(self) -> None:
        """Compute what depends on the networks, so that they are not needed any more."""
        _ = self.work, self.cut(1), self.basis_widths
